#include "cluster.h"

#include <algorithm>

#include "block_cluster.h"
#include "fault.h"
#include "kernel_fault.h"

namespace sparsegen::emulator {

Cluster::Cluster(unsigned blocks, KernelCall kernel, dim3 grid_size, dim3 block_size,
                 std::size_t dynamic_shared_bytes) {
    for (unsigned rank = 0; rank < blocks; ++rank) {
        blocks_.push_back(std::make_unique<Block>(*this, rank, kernel, grid_size, block_size, dynamic_shared_bytes));
    }
}

void Cluster::run(uint3 first) {
    waiting_ = 0;
    for (unsigned rank = 0; rank < blocks_.size(); ++rank) {
        blocks_[rank]->start({first.x + rank, first.y, first.z});
    }
    const auto is_live = [](const std::unique_ptr<Block>& block) { return block->live() > 0; };
    while (std::ranges::any_of(blocks_, is_live)) {
        bool progress = false;
        for (const std::unique_ptr<Block>& block : blocks_) {
            progress |= block->advance();
        }
        if (!progress) {
            throw KernelFault((*std::ranges::find_if(blocks_, is_live))->describe_deadlock());
        }
    }
}

void Cluster::sync(Thread& thread, int line) {
    ++waiting_;
    thread.line = line;
    thread.state = ThreadState::at_cluster_barrier;
    open_barrier_if_complete();
    if (thread.state != ThreadState::ready) {
        thread.block->suspend(thread);
    }
}

void Cluster::open_barrier_if_complete() {
    unsigned live = 0;
    for (const std::unique_ptr<Block>& block : blocks_) {
        live += block->live();
    }
    if (waiting_ == 0 || waiting_ < live) {
        return;
    }
    waiting_ = 0;
    wake(ThreadState::at_cluster_barrier);
}

void Cluster::wake(ThreadState waiting) {
    for (const std::unique_ptr<Block>& block : blocks_) {
        block->wake(waiting);
    }
}

void* Cluster::map(Thread& thread, const void* shared, unsigned rank, std::size_t bytes, int line) const {
    const SharedMemory& own = thread.block->shared_memory();
    const auto offset = static_cast<const char*>(shared) - static_cast<const char*>(own.dynamic());
    if (rank >= blocks_.size() || offset < 0 || static_cast<std::size_t>(offset) + bytes > own.dynamic_bytes()) {
        fault("line %d: %zu bytes at %p of block %u of a cluster of %zu: that is not in its dynamic shared memory", line,
              bytes, shared, rank, blocks_.size());
    }
    if (blocks_[rank]->live() == 0) {
        fault("line %d: block %u of the cluster has ended, and its shared memory with it", line, rank);
    }
    return static_cast<char*>(blocks_[rank]->shared_memory().dynamic()) + offset;
}

// --- what kernels call ---

unsigned cluster_rank() { return running_thread().block->rank(); }

void cluster_sync(int line) { running_thread().block->cluster().sync(running_thread(), line); }

void grid_arrive(unsigned* counter) {
    ++*counter;
    running_thread().block->cluster().wake(ThreadState::at_barrier);
}

void grid_wait(unsigned* counter, unsigned arrivals, int line) {
    while (static_cast<int>(*counter - arrivals) < 0) {
        running_thread().block->wait_for_barrier(running_thread(), line);
    }
}

void* map_shared(const void* shared, unsigned rank, std::size_t bytes, int line) {
    return running_thread().block->cluster().map(running_thread(), shared, rank, bytes, line);
}

}  // namespace sparsegen::emulator
