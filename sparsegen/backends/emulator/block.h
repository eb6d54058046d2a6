// A thread block: its threads as fibers, and the scheduler that runs them one at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "barrier.h"
#include "block_memory.h"
#include "box_stores.h"
#include "fiber.h"
#include "launch.h"
#include "pending_copies.h"
#include "place.h"
#include "stacks.h"
#include "warp.h"

namespace sparsegen::emulator {

enum class ThreadState : unsigned char {
    ready,
    at_block_barrier,
    at_cluster_barrier,
    at_warp_meeting,
    at_barrier,
    exited
};

class Block;
class Cluster;

struct Thread : Place {
    Fiber fiber;
    Block* block = nullptr;
    ThreadState state = ThreadState::ready;
    int line = 0;                    // where it waits
    WarpRequest* request = nullptr;  // at a warp meeting
    AsyncCopies copies;
    BoxStores stores;

    unsigned lane() const { return number % kWarpSize; }
};

/// One block at a time of a grid, in a cluster that runs it. Threads never change OS threads.
class Block {
public:
    Block(Cluster& cluster, unsigned rank, KernelCall kernel, dim3 grid_size, dim3 block_size,
          std::size_t dynamic_shared_bytes);

    /// Readies all threads to run the block of that index.
    void start(uint3 index);
    /// Runs every thread that can go on until it waits or exits; false if none could.
    ///
    /// Throws KernelFault. After that the object can only be destroyed.
    bool advance();
    /// Threads that have not exited.
    unsigned live() const { return live_; }
    void wake(ThreadState waiting);
    std::string describe_deadlock() const;

    // --- called on the block's threads ---
    void suspend(Thread& thread);
    void sync(Thread& thread, int line);
    bool meet(Thread& thread, WarpRequest& request);
    /// Lets other threads run until some barrier in shared memory has completed a phase.
    void wait_for_barrier(Thread& thread, int line);
    [[noreturn]] void fail(Thread& thread, const std::string& text);

    Cluster& cluster() { return cluster_; }
    unsigned rank() const { return rank_; }
    SharedMemory& shared_memory() { return shared_memory_; }
    const SharedMemory& shared_memory() const { return shared_memory_; }
    Barriers& barriers() { return barriers_; }

private:
    static void thread_main();
    bool run_warp(unsigned warp);
    Thread* next_ready(const Thread& thread);
    Thread& resume(Thread& thread);
    void open_barrier_if_complete();
    bool meeting_is_complete(const Thread& thread) const;
    void hold_meeting(const Thread& thread);
    unsigned warp_members(unsigned warp) const;
    std::string name() const;

    Cluster& cluster_;
    unsigned rank_;  // in the cluster
    KernelCall kernel_;
    dim3 grid_size_;
    dim3 size_;
    uint3 index_{};
    unsigned count_;
    Stacks stacks_;
    std::unique_ptr<Thread[]> threads_;
    Fiber scheduler_;
    bool backward_ = false;  // threads run from the last to the first
    SharedMemory shared_memory_;
    Barriers barriers_;
    unsigned live_ = 0;
    unsigned waiting_ = 0;  // of these, at the block's barrier
    std::vector<unsigned> at_meetings_;  // of each warp's lanes
    int barrier_line_ = 0;
    std::string fault_;
};

/// The thread whose place is the running one.
inline Thread& running_thread() { return static_cast<Thread&>(*running_place); }

}  // namespace sparsegen::emulator
