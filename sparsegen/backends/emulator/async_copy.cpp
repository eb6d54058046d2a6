#include "async_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "block.h"
#include "fault.h"

namespace sparsegen::emulator {

PendingCopy::PendingCopy(void* shared, const void* global, std::size_t bytes) : destination(shared), data(bytes) {
    if (global != nullptr) {
        std::memcpy(data.data(), global, bytes);
    }
    std::memset(shared, SharedMemory::kUninitialised, bytes);
}

PendingCopy::PendingCopy(void* shared, std::vector<std::byte> read) : destination(shared), data(std::move(read)) {
    std::memset(shared, SharedMemory::kUninitialised, data.size());
}

void PendingCopy::land() const { std::memcpy(destination, data.data(), data.size()); }

namespace {

/// Copies `present` bytes of `bytes`; zeros for the others. If there are any, all are read, as memcheck counts them.
void copy_present(void* shared, const void* global, int bytes, int present, int line) {
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
    if (present != 0 && misaligned(global)) {
        fault("line %d: the global address %p of an asynchronous copy is not aligned to its %d bytes", line, global,
              bytes);
    }
    if (present < 0 || present > bytes) {
        fault("line %d: an asynchronous copy reads %d of its %d bytes", line, present, bytes);
    }
    std::vector<std::byte> read(static_cast<std::size_t>(bytes));
    if (present != 0) {
        std::memcpy(read.data(), global, read.size());
        std::fill(read.begin() + present, read.end(), std::byte{0});
    }
    running_thread().copies.issue(PendingCopy(shared, std::move(read)));
}

}  // namespace

void copy_async(void* shared, const void* global, int bytes, bool valid, int line) {
    copy_present(shared, global, bytes, valid ? bytes : 0, line);
}

void copy_async_start(void* shared, const void* global, int present, int line) {
    copy_present(shared, global, 16, present, line);
}

void copy_async_commit() { running_thread().copies.commit(); }

void copy_async_wait(int pending_groups) { running_thread().copies.wait(pending_groups); }

}  // namespace sparsegen::emulator
