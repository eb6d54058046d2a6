#include "block.h"

#include <algorithm>
#include <bit>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <map>
#include <utility>

#include "block_cluster.h"
#include "fault.h"
#include "kernel_fault.h"
#include "shared_memory.h"

namespace sparsegen::emulator {
namespace {

std::string format_list(const char* text, va_list arguments) {
    char line[512];
    std::vsnprintf(line, sizeof line, text, arguments);
    return line;
}

[[gnu::format(printf, 1, 2)]] std::string format(const char* text, ...) {
    va_list arguments;
    va_start(arguments, text);
    std::string line = format_list(text, arguments);
    va_end(arguments);
    return line;
}

const char* describe(ThreadState state) {
    switch (state) {
        case ThreadState::at_block_barrier: return "__syncthreads";
        case ThreadState::at_cluster_barrier: return "the cluster's barrier";
        case ThreadState::at_warp_meeting: return "a warp operation";
        case ThreadState::at_barrier: return "a phase of a barrier";
        default: return "nothing";
    }
}

}  // namespace

constinit thread_local Place* running_place = nullptr;

Block::Block(Cluster& cluster, unsigned rank, KernelCall kernel, dim3 grid_size, dim3 block_size,
             std::size_t dynamic_shared_bytes)
    : cluster_(cluster),
      rank_(rank),
      kernel_(kernel),
      grid_size_(grid_size),
      size_(block_size),
      count_(block_size.x * block_size.y * block_size.z),
      stacks_(count_),
      threads_(std::make_unique<Thread[]>(count_)),
      shared_memory_(dynamic_shared_bytes) {
    for (unsigned i = 0; i < count_; ++i) {
        Thread& thread = threads_[i];
        thread.block = this;
        thread.number = i;
        thread.index = {i % size_.x, i / size_.x % size_.y, i / (size_.x * size_.y)};
        thread.block_index = &index_;
        thread.block_size = &size_;
        thread.grid_size = &grid_size_;
        thread.fiber.prepare(stacks_[i], &Block::thread_main);
    }
}

void Block::thread_main() {
    Thread& self = running_thread();
    Fiber::arrive(self.block->scheduler_);
    for (;;) {  // once for each block
        self.block->kernel_.call(self.block->kernel_.arguments);
        if (!self.stores.empty()) {
            fault("a thread ended while its stores of boxes may still read shared memory");
        }
        self.state = ThreadState::exited;
        self.copies.clear();
        self.stores.clear();
        self.block->suspend(self);
    }
}

void Block::start(uint3 index) {
    index_ = index;
    live_ = count_;
    waiting_ = 0;
    at_meetings_.assign((count_ + kWarpSize - 1) / kWarpSize, 0);
    shared_memory_.reset();
    barriers_.clear();
    for (unsigned i = 0; i < count_; ++i) {
        threads_[i].state = ThreadState::ready;
    }
}

bool Block::advance() {
    // Every other block runs its threads from the last to the first: a missing barrier that one order hides shows
    // in the other.
    backward_ = (index_.x + index_.y + index_.z) % 2 != 0;
    const unsigned warps = (count_ + kWarpSize - 1) / kWarpSize;
    bool progress = false;
    for (unsigned i = 0; i < warps; ++i) {
        progress |= run_warp(backward_ ? warps - 1 - i : i);
    }
    return progress;
}

/// Threads that wait hand over to the next lane; this only begins each turn of the lanes, and ends threads.
bool Block::run_warp(unsigned warp) {
    const unsigned first = warp * kWarpSize;
    Thread& begin = threads_[backward_ ? first + std::min(kWarpSize, count_ - first) - 1 : first];
    bool progress = false;
    for (;;) {
        Thread* thread = begin.state == ThreadState::ready ? &begin : next_ready(begin);
        if (thread == nullptr) {
            return progress;
        }
        for (; thread != nullptr; thread = next_ready(*thread)) {
            thread = &resume(*thread);
        }
        progress = true;
    }
}

/// The next lane of the same turn that can go on.
Thread* Block::next_ready(const Thread& thread) {
    const unsigned first = thread.number - thread.lane(), lanes = std::min(kWarpSize, count_ - first);
    for (unsigned lane = thread.lane(); backward_ ? lane-- > 0 : ++lane < lanes;) {
        if (threads_[first + lane].state == ThreadState::ready) {
            return &threads_[first + lane];
        }
    }
    return nullptr;
}

/// Runs a thread, and those that it hands over to; returns the last of them.
Thread& Block::resume(Thread& thread) {
    running_place = &thread;
    scheduler_.switch_to(thread.fiber);
    Thread& last = running_thread();
    running_place = nullptr;
    if (!fault_.empty()) {
        throw KernelFault(fault_);
    }
    if (last.state == ThreadState::exited) {
        --live_;
        open_barrier_if_complete();
        cluster_.open_barrier_if_complete();
    }
    return last;
}

void Block::suspend(Thread& thread) {
    Thread* const next = thread.state == ThreadState::exited || !fault_.empty() ? nullptr : next_ready(thread);
    if (next == nullptr) {
        thread.fiber.switch_to(scheduler_);
    } else {
        running_place = next;
        thread.fiber.switch_to(next->fiber);
    }
}

void Block::fail(Thread& thread, const std::string& text) {
    const uint3 t = thread.index;
    fault_ = name() + format(", thread (%u, %u, %u): ", t.x, t.y, t.z) + text;
    suspend(thread);  // the scheduler throws and never comes back
    __builtin_unreachable();
}

void Block::sync(Thread& thread, int line) {
    if (waiting_ > 0 && line != barrier_line_) {
        fail(thread, format("divergent barrier: it waits at __syncthreads on line %d, %u other threads on line %d",
                            line, waiting_, barrier_line_));
    }
    barrier_line_ = line;
    ++waiting_;
    thread.line = line;
    thread.state = ThreadState::at_block_barrier;
    open_barrier_if_complete();
    if (thread.state != ThreadState::ready) {
        suspend(thread);
    }
}

void Block::open_barrier_if_complete() {
    if (waiting_ == 0 || waiting_ < live_) {
        return;
    }
    waiting_ = 0;
    wake(ThreadState::at_block_barrier);
}

void Block::wait_for_barrier(Thread& thread, int line) {
    thread.line = line;
    thread.state = ThreadState::at_barrier;
    suspend(thread);
}

void Block::wake(ThreadState waiting) {
    for (unsigned i = 0; i < count_; ++i) {
        if (threads_[i].state == waiting) {
            threads_[i].state = ThreadState::ready;
        }
    }
}

bool Block::meet(Thread& thread, WarpRequest& request) {
    const unsigned lane_bit = 1u << thread.lane();
    if ((request.mask & lane_bit) == 0) {
        fail(thread, format("line %d: lane %u is not in the mask 0x%08x that it passes", request.line, thread.lane(),
                            request.mask));
    }
    request.mask &= warp_members(thread.number / kWarpSize);
    if (request.operation == WarpOperation::shuffle && (request.mask >> request.source_lane & 1) == 0) {
        fail(thread, format("line %d: shuffle from lane %u, which takes no part (mask 0x%08x)", request.line,
                            request.source_lane, request.mask));
    }
    thread.request = &request;
    thread.line = request.line;
    thread.state = ThreadState::at_warp_meeting;
    ++at_meetings_[thread.number / kWarpSize];
    const bool is_last = meeting_is_complete(thread);
    if (is_last) {
        hold_meeting(thread);
    } else {
        suspend(thread);
    }
    thread.request = nullptr;
    return is_last;
}

bool Block::meeting_is_complete(const Thread& thread) const {
    const Thread* warp = &thread - thread.lane();
    const WarpRequest& mine = *thread.request;
    if (at_meetings_[thread.number / kWarpSize] < static_cast<unsigned>(std::popcount(mine.mask))) {
        return false;  // most often, while lanes arrive
    }
    for (unsigned rest = mine.mask; rest != 0; rest &= rest - 1) {
        const Thread& other = warp[std::countr_zero(rest)];
        if (other.state != ThreadState::at_warp_meeting) {
            return false;
        }
        const WarpRequest& theirs = *other.request;
        if (theirs.mask != mine.mask || theirs.line != mine.line || theirs.operation != mine.operation) {
            return false;
        }
    }
    return true;
}

void Block::hold_meeting(const Thread& thread) {
    Thread* warp = &threads_[thread.number - thread.lane()];
    const unsigned mask = thread.request->mask;
    at_meetings_[thread.number / kWarpSize] -= static_cast<unsigned>(std::popcount(mask));
    unsigned ballot = 0;
    for (unsigned rest = mask; rest != 0; rest &= rest - 1) {
        const int lane = std::countr_zero(rest);
        ballot |= static_cast<unsigned>(warp[lane].request->predicate) << lane;
    }
    for (unsigned rest = mask; rest != 0; rest &= rest - 1) {
        Thread& member = warp[std::countr_zero(rest)];
        WarpRequest& request = *member.request;
        request.ballot = ballot;
        if (request.operation == WarpOperation::shuffle) {
            std::memcpy(request.result, warp[request.source_lane].request->value, WarpRequest::kValueBytes);
        }
        member.state = ThreadState::ready;
    }
}

unsigned Block::warp_members(unsigned warp) const {
    const unsigned lanes = std::min(kWarpSize, count_ - warp * kWarpSize);
    return kFullMask >> (kWarpSize - lanes);
}

std::string Block::name() const { return format("block (%u, %u, %u)", index_.x, index_.y, index_.z); }

std::string Block::describe_deadlock() const {
    std::map<std::pair<ThreadState, int>, unsigned> places;
    std::string missing;
    for (unsigned i = 0; i < count_; ++i) {
        const Thread& thread = threads_[i];
        if (thread.state != ThreadState::exited) {
            ++places[{thread.state, thread.line}];
        }
        if (thread.state == ThreadState::at_warp_meeting && missing.empty()) {
            const Thread* warp = &thread - thread.lane();
            for (unsigned rest = thread.request->mask; rest != 0; rest &= rest - 1) {
                const Thread& other = warp[std::countr_zero(rest)];
                if (other.state == ThreadState::exited) {
                    missing = format("; lane %u of warp %u is in the mask 0x%08x and has exited", other.lane(),
                                     other.number / kWarpSize, thread.request->mask);
                }
            }
        }
    }
    std::string text = name() + ": divergent barrier or warp operation, no thread can go on:";
    for (const auto& [place, number] : places) {
        text += format(" %u threads wait at %s on line %d,", number, describe(place.first), place.second);
    }
    return text + format(" %u have exited", count_ - live_) + missing;
}

// --- what kernels call ---

void fault(const char* text, ...) {
    va_list arguments;
    va_start(arguments, text);
    const std::string line = format_list(text, arguments);
    va_end(arguments);
    running_thread().block->fail(running_thread(), line);
}

void sync_threads(int line) { running_thread().block->sync(running_thread(), line); }

unsigned lane() { return running_thread().lane(); }

bool meet(WarpRequest& request) { return running_thread().block->meet(running_thread(), request); }

void* dynamic_shared_memory() { return running_thread().block->shared_memory().dynamic(); }

void* static_shared_memory(const void* key, std::size_t bytes) {
    return running_thread().block->shared_memory().array(key, bytes);
}

}  // namespace sparsegen::emulator
