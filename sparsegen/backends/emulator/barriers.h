// mbarrier: barriers in shared memory that count arrivals and bytes in phases, and copies that land with a phase.
#pragma once

namespace sparsegen::emulator {

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
