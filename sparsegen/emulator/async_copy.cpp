#include "async_copy.h"

#include <cstdint>
#include <cstring>

#include "block.h"
#include "fault.h"

namespace sparsegen::emulator {

void AsyncCopies::issue(void* shared, const void* global, std::size_t bytes, bool valid) {
    Copy copy{.destination = shared, .bytes = bytes, .group = open_group_, .data = {}};
    if (valid) {
        std::memcpy(copy.data, global, bytes);
    }
    // Whoever reads the destination before the copy has landed, or still reads what was there, must see it.
    std::memset(shared, SharedMemory::kUninitialised, bytes);
    copies_.push_back(copy);
}

void AsyncCopies::commit() { ++open_group_; }

void AsyncCopies::wait(int pending_groups) {
    const int first_pending = open_group_ - pending_groups;
    std::erase_if(copies_, [&](const Copy& copy) {
        const bool lands = copy.group < first_pending && copy.group < open_group_;
        if (lands) {
            std::memcpy(copy.destination, copy.data, copy.bytes);
        }
        return lands;
    });
}

void AsyncCopies::clear() {
    copies_.clear();
    open_group_ = 0;
}

void copy_async(void* shared, const void* global, int bytes, bool valid, int line) {
    if (bytes != 4 && bytes != 8 && bytes != 16) {
        fault("line %d: an asynchronous copy of %d bytes; 4, 8 and 16 are possible", line, bytes);
    }
    const auto misaligned = [bytes](const void* address) {
        return reinterpret_cast<std::uintptr_t>(address) % static_cast<unsigned>(bytes) != 0;
    };
    if (misaligned(shared)) {
        fault("line %d: the shared address %p of an asynchronous copy is not aligned to its %d bytes", line, shared,
              bytes);
    }
    if (valid && misaligned(global)) {
        fault("line %d: the global address %p of an asynchronous copy is not aligned to its %d bytes", line, global,
              bytes);
    }
    running_thread->copies.issue(shared, global, static_cast<std::size_t>(bytes), valid);
}

void copy_async_commit() { running_thread->copies.commit(); }

void copy_async_wait(int pending_groups) { running_thread->copies.wait(pending_groups); }

}  // namespace sparsegen::emulator
