// Faults: what CUDA leaves undefined and the emulator refuses to go on with.
#pragma once

#include <stdexcept>

namespace sparsegen::emulator {

/// A kernel did something undefined; the text names the block, the thread and the lines.
class KernelFault : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// The launch itself is impossible: too many threads, too much shared memory.
class LaunchRefused : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// Ends the launch with a `KernelFault`. Called on an emulated thread; takes printf's arguments.
[[noreturn, gnu::format(printf, 1, 2)]] void fault(const char* format, ...);

}  // namespace sparsegen::emulator
