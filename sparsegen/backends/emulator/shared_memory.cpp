#include "shared_memory.h"

#include <cstdlib>
#include <cstring>
#include <new>

#include "block_memory.h"
#include "fault.h"

namespace sparsegen::emulator {

void SharedMemory::Release::operator()(void* memory) const { std::free(memory); }

SharedMemory::SharedMemory(std::size_t dynamic_bytes) : dynamic_(allocate(nullptr, dynamic_bytes, kDynamicAlignment)) {}

SharedMemory::Array SharedMemory::allocate(const void* key, std::size_t bytes, std::size_t alignment) {
    void* memory = nullptr;
    // Not std::aligned_alloc: it wants a multiple of the alignment, and the redzone must start at the last byte.
    if (posix_memalign(&memory, alignment, bytes) != 0) {
        throw std::bad_alloc();
    }
    Array array{key, bytes, std::unique_ptr<void, Release>(memory)};
    fill(array);
    return array;
}

void SharedMemory::fill(const Array& array) { std::memset(array.memory.get(), kUninitialised, array.bytes); }

void SharedMemory::reset() {
    fill(dynamic_);
    for (const Array& array : arrays_) {
        fill(array);
    }
}

void* SharedMemory::array(const void* key, std::size_t bytes) {
    for (const Array& array : arrays_) {
        if (array.key == key) {
            return array.memory.get();
        }
    }
    static_bytes_ += bytes;
    if (static_bytes_ > kStaticLimit || static_bytes_ + dynamic_.bytes > kBlockLimit) {
        fault("%zu bytes of static and %zu bytes of dynamic shared memory: at most %zu and %zu in all are there",
              static_bytes_, dynamic_.bytes, kStaticLimit, kBlockLimit);
    }
    arrays_.push_back(allocate(key, bytes, kStaticAlignment));
    return arrays_.back().memory.get();
}

}  // namespace sparsegen::emulator
