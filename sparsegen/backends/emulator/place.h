// The running thread's place, as kernels ask for it.
#pragma once

#include <vector_types.h>

namespace sparsegen::emulator {

struct Place {
    uint3 index{};        // in the block
    unsigned number = 0;  // the same, counted through
    const uint3* block_index = nullptr;
    const dim3* block_size = nullptr;
    const dim3* grid_size = nullptr;
};

extern constinit thread_local Place* running_place;

/// Waits for all threads of the block that have not exited.
void sync_threads(int line);

}  // namespace sparsegen::emulator
