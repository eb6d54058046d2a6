#include "stacks.h"

#include <new>

#include <sys/mman.h>
#include <unistd.h>

namespace sparsegen::emulator {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr std::size_t kStackBytes = 256 * 1024;  // redzones between local variables make frames larger
#else
constexpr std::size_t kStackBytes = 64 * 1024;
#endif

}  // namespace

Stacks::Stacks(std::size_t count)
    : guard_bytes_(static_cast<std::size_t>(sysconf(_SC_PAGESIZE))),
      total_bytes_(count * (guard_bytes_ + kStackBytes)) {
    void* mapped = mmap(nullptr, total_bytes_, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) {
        throw std::bad_alloc();
    }
    memory_ = static_cast<std::byte*>(mapped);
    for (std::size_t i = 0; i < count; ++i) {
        mprotect(memory_ + i * (guard_bytes_ + kStackBytes), guard_bytes_, PROT_NONE);
    }
}

Stacks::~Stacks() {
#if !defined(__SANITIZE_ADDRESS__)
    munmap(memory_, total_bytes_);
#endif
    // Frames that were left leave poison behind, which to take away costs as much as a small launch: nothing else may
    // get these addresses until the process ends, with its one launch.
}

std::span<std::byte> Stacks::operator[](std::size_t number) const {
    return {memory_ + number * (guard_bytes_ + kStackBytes) + guard_bytes_, kStackBytes};
}

}  // namespace sparsegen::emulator
