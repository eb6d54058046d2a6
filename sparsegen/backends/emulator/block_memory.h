// A block's shared memory. Every array is an allocation of its exact size, so that AddressSanitizer puts a redzone
// around it, and is full of NaN when a block starts.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace sparsegen::emulator {

class SharedMemory {
public:
    static constexpr std::size_t kDynamicAlignment = 1024;
    static constexpr std::size_t kStaticAlignment = 16;
    static constexpr std::size_t kStaticLimit = 48 * 1024;       // bytes a kernel may declare, in CUDA
    static constexpr std::size_t kBlockLimit = 227 * 1024;       // bytes of one block, static and dynamic
    static constexpr int kUninitialised = 0xFF;                  // NaN in float, half and bfloat16

    explicit SharedMemory(std::size_t dynamic_bytes);

    /// Back to uninitialised, for the next block.
    void reset();

    void* dynamic() const { return dynamic_.memory.get(); }
    std::size_t dynamic_bytes() const { return dynamic_.bytes; }

    /// The static array declared at `key`, made when the first thread of the first block comes by.
    void* array(const void* key, std::size_t bytes);

private:
    struct Release {
        void operator()(void* memory) const;
    };
    struct Array {
        const void* key;
        std::size_t bytes;
        std::unique_ptr<void, Release> memory;
    };
    static Array allocate(const void* key, std::size_t bytes, std::size_t alignment);
    static void fill(const Array& array);

    Array dynamic_;
    std::vector<Array> arrays_;
    std::size_t static_bytes_ = 0;
};

}  // namespace sparsegen::emulator
