// The blocks of a cluster, which run side by side.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "block.h"

namespace sparsegen::emulator {

/// One cluster at a time of a grid, mostly of a single block; made once for each OS thread of a launch.
class Cluster {
public:
    Cluster(unsigned blocks, KernelCall kernel, dim3 grid_size, dim3 block_size, std::size_t dynamic_shared_bytes);

    /// Runs the blocks from that index on, along x, to their end.
    ///
    /// Throws KernelFault. After that the object can only be destroyed.
    void run(uint3 first);

    // --- called on the blocks' threads ---
    /// Waits until all threads of the cluster that have not exited have come.
    void sync(Thread& thread, int line);
    /// Where a block has what `shared` is to the thread's own, in dynamic shared memory.
    void* map(Thread& thread, const void* shared, unsigned rank, std::size_t bytes, int line) const;
    /// The block of that rank, which there must be.
    Block& block(unsigned rank) const { return *blocks_[rank]; }

    /// Lets threads look again at what other blocks may have changed.
    void wake(ThreadState waiting);

    void open_barrier_if_complete();

private:
    std::vector<std::unique_ptr<Block>> blocks_;
    unsigned waiting_ = 0;  // threads at the cluster's barrier
};

}  // namespace sparsegen::emulator
