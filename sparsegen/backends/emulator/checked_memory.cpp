#include "checked_memory.h"

namespace sparsegen::emulator {

Chunk read_chunk(const void* address) { return *static_cast<const Chunk*>(address); }

void write_chunk(void* address, const Chunk& chunk) { *static_cast<Chunk*>(address) = chunk; }

}  // namespace sparsegen::emulator
