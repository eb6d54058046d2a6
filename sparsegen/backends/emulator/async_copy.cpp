#include "async_copy.h"

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
    running_thread().copies.issue(PendingCopy(shared, valid ? global : nullptr, static_cast<std::size_t>(bytes)));
}

void copy_async_commit() { running_thread().copies.commit(); }

void copy_async_wait(int pending_groups) { running_thread().copies.wait(pending_groups); }

}  // namespace sparsegen::emulator
