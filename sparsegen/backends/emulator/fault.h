// Faults: what CUDA leaves undefined and the emulator refuses to go on with.
#pragma once

namespace sparsegen::emulator {

/// Ends the launch with a `KernelFault`. Called on an emulated thread; takes printf's arguments.
[[noreturn, gnu::format(printf, 1, 2)]] void fault(const char* format, ...);

}  // namespace sparsegen::emulator
