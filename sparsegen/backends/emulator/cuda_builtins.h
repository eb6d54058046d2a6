// What every CUDA kernel may name: its coordinates, the block's barrier, and the qualifiers.
#pragma once

#include "block.h"

#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __cluster_dims__
#define __cluster_dims__(...)
#define __grid_constant__
#if defined(__SANITIZE_ADDRESS__)
// Calls: copies of a function, with the checks of each, would make large kernels take three times as long to compile.
#undef __forceinline__
#define __forceinline__ inline
#endif

#define threadIdx (::sparsegen::emulator::running_thread->index)
#define blockIdx (::sparsegen::emulator::running_thread->block->index())
#define blockDim (::sparsegen::emulator::running_thread->block->size())
#define gridDim (::sparsegen::emulator::running_thread->block->grid_size())

inline constexpr int warpSize = sparsegen::emulator::kWarpSize;

/// Threads that have exited do not count; all others must come to the same line.
inline void __syncthreads(int line = __builtin_LINE()) {
    sparsegen::emulator::Thread& thread = *sparsegen::emulator::running_thread;
    thread.block->sync(thread, line);
}
