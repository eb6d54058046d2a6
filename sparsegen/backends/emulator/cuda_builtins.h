// What every CUDA kernel may name: its coordinates, the block's barrier, and the qualifiers.
#pragma once

#include "place.h"
#include "warp.h"

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

#define threadIdx (static_cast<const ::sparsegen::emulator::Place*>(::sparsegen::emulator::running_place)->index)
#define blockIdx (*::sparsegen::emulator::running_place->block_index)
#define blockDim (*::sparsegen::emulator::running_place->block_size)
#define gridDim (*::sparsegen::emulator::running_place->grid_size)

inline constexpr int warpSize = sparsegen::emulator::kWarpSize;

/// Threads that have exited do not count; all others must come to the same line.
inline void __syncthreads(int line = __builtin_LINE()) {
    sparsegen::emulator::sync_threads(line);
}
