// The kernel's memory as the emulator's own code reads and writes it: by chunks, which the sanitizers check.
#pragma once

#include <cstdint>

namespace sparsegen::emulator {

/// What tensor cores and ldmatrix take from shared memory at a time.
struct alignas(16) Chunk {
    std::uint16_t halves[8];
};

/// Address and alignment are checked at the kernel's line that asked for it.
Chunk read_chunk(const void* address);
void write_chunk(void* address, const Chunk& chunk);

}  // namespace sparsegen::emulator
