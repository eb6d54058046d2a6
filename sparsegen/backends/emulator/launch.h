// Kernel launches: the blocks of a grid, spread over OS threads.
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

#include <vector_types.h>

namespace sparsegen::emulator {

/// A kernel bound to its parameters: `call(arguments)` runs one thread's part.
struct KernelCall {
    void (*call)(void** arguments);
    void** arguments;
};

/// Which blocks may wait for one another.
enum class Together { cluster, grid };

/// Runs every block of the grid, in clusters of so many along x, or all of them side by side. Returns one of entry.h's
/// numbers; what went wrong is written to `error`.
int launch(KernelCall kernel, dim3 grid, dim3 block, unsigned cluster, Together together, std::size_t dynamic_shared_bytes,
           unsigned workers, char* error, std::size_t error_size);

/// Calls `kernel` with the parameters that `arguments` points to, one by one, as cuLaunchKernel does.
template <auto kernel>
void call_with(void** arguments) {
    [arguments]<class... Parameters, std::size_t... number>(void (*)(Parameters...),
                                                           std::index_sequence<number...>) {
        kernel(*static_cast<std::remove_const_t<Parameters>*>(arguments[number])...);
    }(kernel, [arguments]<class... Parameters>(void (*)(Parameters...)) {
        return std::index_sequence_for<Parameters...>{};
    }(kernel));
}

}  // namespace sparsegen::emulator
