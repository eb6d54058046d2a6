// mbarrier: barriers in shared memory that count arrivals and bytes in phases, and copies that land with a phase.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "async_copy.h"

namespace sparsegen::emulator {

/// One barrier. A phase is complete when all arrivals and all expected bytes have come; the next one begins at once.
class Barrier {
public:
    explicit Barrier(unsigned arrivals) : arrivals_(arrivals), awaited_(arrivals) {}

    /// One arrival, which first adds `expected_bytes` to those that the phase waits for. True: the phase is complete.
    bool arrive(std::int64_t expected_bytes);
    /// A copy whose bytes count. True: the phase is complete.
    bool receive(PendingCopy copy);
    /// A copy that some arrival of this phase stands for.
    void attach(PendingCopy copy) { pending_.push_back(std::move(copy)); }

    unsigned arrivals() const { return arrivals_; }
    unsigned phase() const { return phase_; }
    /// Whether the phase of that parity, the running one or the one before it, is complete.
    bool has_completed(unsigned parity) const { return (phase_ & 1) != parity; }
    /// Lands the copies of all complete phases: somebody has waited for them.
    void land();

private:
    bool complete_if_all_came();

    unsigned arrivals_;       // of one phase
    unsigned awaited_;        // of these, in the running phase
    std::int64_t bytes_ = 0;  // expected in the running phase and not yet received; negative if a copy was faster
    unsigned phase_ = 0;
    std::vector<PendingCopy> pending_;   // of the running phase
    std::vector<PendingCopy> complete_;  // of earlier ones
};

/// A block's barriers by their addresses.
using Barriers = std::map<const void*, Barrier>;

class Block;
/// A copy whose bytes count at a barrier of a block, which may be another one of the cluster than the thread's own.
void receive_copy(PendingCopy copy, const void* barrier, Block& block, int line);

void barrier_init(void* barrier, unsigned arrivals, int line = __builtin_LINE());
void barrier_arrive(void* barrier, unsigned expected_bytes = 0, int line = __builtin_LINE());
/// Waits until the phase of that parity is complete; a barrier that was just made counts as having completed parity 1.
void barrier_wait(void* barrier, unsigned parity, int line = __builtin_LINE());
/// Whether it is complete, without waiting; copies land then as they do for who waited.
bool barrier_is_complete(void* barrier, unsigned parity, int line = __builtin_LINE());
/// Arrives for this thread's `copy_async`s so far, which land with the phase and no longer with `copy_async_wait`.
void copy_async_arrive(void* barrier, int line = __builtin_LINE());
/// cp.async.bulk: `bytes` and both addresses are multiples of 16; the bytes count at the barrier.
void copy_bulk(void* shared, const void* global, unsigned bytes, void* barrier, int line = __builtin_LINE());
/// One arrival at the barrier that a block of the cluster has where `barrier` is the thread's own.
void barrier_arrive_at(void* barrier, unsigned rank, int line = __builtin_LINE());
/// `copy_bulk` to the same place of each of the cluster's `blocks`, counted by the barrier of each.
void copy_bulk_to_cluster(void* shared, const void* global, unsigned bytes, void* barrier, unsigned blocks,
                          int line = __builtin_LINE());

/// st.async: a word to the place that a block of the cluster has where `shared` is the thread's own, counted by its barrier.
void store_word_at(void* shared, unsigned word, void* barrier, unsigned rank, int line = __builtin_LINE());
/// The same with four words, to an address that is a multiple of 16.
void store_vector_at(void* shared, const unsigned (&words)[4], void* barrier, unsigned rank,
                     int line = __builtin_LINE());
/// bar.sync: waits for so many threads at the block's barrier of that number, 1 to 15.
void named_barrier(unsigned number, unsigned threads, int line = __builtin_LINE());

}  // namespace sparsegen::emulator
