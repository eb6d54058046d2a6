// The exceptions that end a launch.
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

}  // namespace sparsegen::emulator
