// A cluster: neighbouring blocks that run side by side, wait for one another and read each other's shared memory.
#pragma once

#include <cstddef>

namespace sparsegen::emulator {

unsigned cluster_rank();
void cluster_sync(int line = __builtin_LINE());
/// Adds one to a counter in global memory, for which threads of the launch's one cluster, its grid, may be waiting.
void grid_arrive(unsigned* counter);
/// Waits until a counter has come that far.
void grid_wait(unsigned* counter, unsigned arrivals, int line = __builtin_LINE());
void* map_shared(const void* shared, unsigned rank, std::size_t bytes, int line = __builtin_LINE());

}  // namespace sparsegen::emulator
