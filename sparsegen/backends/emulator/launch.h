// Kernel launches: the blocks of a grid, spread over OS threads.
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

#include "cluster.h"

namespace sparsegen::emulator {

/// Which blocks may wait for one another.
enum class Together { cluster, grid };

/// Runs every block of the grid, in clusters of so many along x, or all of them side by side.
///
/// Throws LaunchRefused (the device could not launch it) and KernelFault (what some block did).
void launch(KernelCall kernel, dim3 grid, dim3 block, unsigned cluster, Together together,
            std::size_t dynamic_shared_bytes, unsigned workers);

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
