#include "barriers.h"

#include <cstdint>
#include <cstring>
#include <utility>

#include "block.h"
#include "block_cluster.h"
#include "cluster.h"
#include "fault.h"

namespace sparsegen::emulator {

bool Barrier::complete_if_all_came() {
    if (awaited_ != 0 || bytes_ != 0) {
        return false;
    }
    awaited_ = arrivals_;
    ++phase_;
    for (PendingCopy& copy : pending_) {
        complete_.push_back(std::move(copy));
    }
    pending_.clear();
    return true;
}

bool Barrier::arrive(std::int64_t expected_bytes) {
    bytes_ += expected_bytes;
    --awaited_;
    return complete_if_all_came();
}

bool Barrier::receive(PendingCopy copy) {
    bytes_ -= static_cast<std::int64_t>(copy.data.size());
    attach(std::move(copy));
    return complete_if_all_came();
}

void Barrier::land() {
    for (const PendingCopy& copy : complete_) {
        copy.land();
    }
    complete_.clear();
}

namespace {

constexpr std::size_t kBarrierBytes = 8;

Block& own_block() { return *running_thread().block; }

Barrier& find(Block& block, const void* address, int line) {
    const auto found = block.barriers().find(address);
    if (found == block.barriers().end()) {
        fault("line %d: the barrier at %p was not initialised", line, address);
    }
    return found->second;
}

Barrier& find(const void* address, int line) { return find(own_block(), address, line); }

void wake_if(bool complete, Block& block = own_block()) {
    if (complete) {
        block.wake(ThreadState::at_barrier);
    }
}

void refuse_misaligned(const void* shared, const void* global, unsigned bytes, int line) {
    const auto misaligned = [](const void* address) { return reinterpret_cast<std::uintptr_t>(address) % 16 != 0; };
    if (bytes == 0 || bytes % 16 != 0 || misaligned(shared) || misaligned(global)) {
        fault("line %d: a bulk copy of %u bytes from %p to %p; all three must be multiples of 16", line, bytes, global,
              shared);
    }
}

}  // namespace

void receive_copy(PendingCopy copy, const void* barrier, Block& block, int line) {
    wake_if(find(block, barrier, line).receive(std::move(copy)), block);
}

void barrier_init(void* barrier, unsigned arrivals, int line) {
    if (arrivals == 0 || reinterpret_cast<std::uintptr_t>(barrier) % kBarrierBytes != 0) {
        fault("line %d: a barrier at %p for %u arrivals; it needs an address of 8 bytes and one arrival at least", line,
              barrier, arrivals);
    }
    std::memset(barrier, 0, kBarrierBytes);  // that memory must be there
    running_thread().block->barriers().insert_or_assign(barrier, Barrier(arrivals));
}

void barrier_arrive(void* barrier, unsigned expected_bytes, int line) {
    wake_if(find(barrier, line).arrive(expected_bytes));
}

void barrier_wait(void* barrier, unsigned parity, int line) {
    Barrier& found = find(barrier, line);
    while (!found.has_completed(parity)) {
        running_thread().block->wait_for_barrier(running_thread(), line);
    }
    found.land();
}

bool barrier_is_complete(void* barrier, unsigned parity, int line) {
    Barrier& found = find(barrier, line);
    if (!found.has_completed(parity)) {
        return false;
    }
    found.land();
    return true;
}

void copy_async_arrive(void* barrier, int line) {
    Barrier& found = find(barrier, line);
    for (PendingCopy& copy : running_thread().copies.take_all()) {
        found.attach(std::move(copy));
    }
    wake_if(found.arrive(0));
}

void copy_bulk(void* shared, const void* global, unsigned bytes, void* barrier, int line) {
    refuse_misaligned(shared, global, bytes, line);
    receive_copy(PendingCopy(shared, global, bytes), barrier, own_block(), line);
}

void barrier_arrive_at(void* barrier, unsigned rank, int line) {
    void* const theirs = map_shared(barrier, rank, kBarrierBytes, line);
    Block& block = own_block().cluster().block(rank);
    wake_if(find(block, theirs, line).arrive(0), block);
}

void copy_bulk_to_cluster(void* shared, const void* global, unsigned bytes, void* barrier, unsigned blocks, int line) {
    refuse_misaligned(shared, global, bytes, line);
    for (unsigned rank = 0; rank < blocks; ++rank) {
        void* const destination = map_shared(shared, rank, bytes, line);
        void* const theirs = map_shared(barrier, rank, kBarrierBytes, line);
        receive_copy(PendingCopy(destination, global, bytes), theirs, own_block().cluster().block(rank), line);
    }
}

namespace {

void store_at(void* shared, const void* from, std::size_t bytes, void* barrier, unsigned rank, int line) {
    void* const destination = map_shared(shared, rank, bytes, line);
    void* const theirs = map_shared(barrier, rank, kBarrierBytes, line);
    std::vector<std::byte> data(bytes);
    std::memcpy(data.data(), from, bytes);
    receive_copy(PendingCopy(destination, std::move(data)), theirs, own_block().cluster().block(rank), line);
}

}  // namespace

void store_word_at(void* shared, unsigned word, void* barrier, unsigned rank, int line) {
    store_at(shared, &word, sizeof word, barrier, rank, line);
}

void store_vector_at(void* shared, const unsigned (&words)[4], void* barrier, unsigned rank, int line) {
    if (reinterpret_cast<std::uintptr_t>(shared) % sizeof words != 0) {
        fault("line %d: 16 bytes to %p of another block, which is no multiple of 16", line, shared);
    }
    store_at(shared, words, sizeof words, barrier, rank, line);
}

void named_barrier(unsigned number, unsigned threads, int line) {
    constexpr unsigned kNumbers = 16;  // of which __syncthreads has the first
    if (number == 0 || number >= kNumbers || threads == 0 || threads % kWarpSize != 0) {
        fault("line %d: barrier %u for %u threads; there are 1 to 15, for whole warps", line, number, threads);
    }
    const void* const key = reinterpret_cast<const void*>(static_cast<std::uintptr_t>(number));  // no address
    Barrier& barrier = own_block().barriers().try_emplace(key, Barrier(threads)).first->second;
    if (barrier.arrivals() != threads) {
        fault("line %d: barrier %u for %u threads was one for %u", line, number, threads, barrier.arrivals());
    }
    const unsigned parity = barrier.phase() & 1;
    wake_if(barrier.arrive(0));
    while (!barrier.has_completed(parity)) {
        running_thread().block->wait_for_barrier(running_thread(), line);
    }
}

}  // namespace sparsegen::emulator
