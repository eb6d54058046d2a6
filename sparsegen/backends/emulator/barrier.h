// A barrier in shared memory as the emulator keeps it: arrivals, bytes, phases, and the copies that land with them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "pending_copies.h"

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

}  // namespace sparsegen::emulator
