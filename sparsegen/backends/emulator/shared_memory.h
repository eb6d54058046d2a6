// Shared arrays as kernels declare them.
#pragma once

#include <cstddef>

namespace sparsegen::emulator {

/// Of the running block; what the macros below expand to.
void* dynamic_shared_memory();
void* static_shared_memory(const void* key, std::size_t bytes);

}  // namespace sparsegen::emulator

/// `__shared__ type name[count];`, aligned to 16 bytes.
#define SPARSEGEN_SHARED(type, name, count)                                                              \
    static const char name##_declaration = 0;                                                            \
    type(&name)[count] = *static_cast<type(*)[count]>(                                                   \
        ::sparsegen::emulator::static_shared_memory(&name##_declaration, sizeof(type[count])))

/// `extern __shared__ type name[];`, aligned to 1024 bytes and exactly as long as the launch says.
#define SPARSEGEN_DYNAMIC_SHARED(type, name)                                                             \
    type* const name = static_cast<type*>(::sparsegen::emulator::dynamic_shared_memory())
