// The one C function of a compiled variant; the numbers that it returns are known to executor.py.
#pragma once

#include <cstddef>

inline constexpr int kLaunchDone = 0;
inline constexpr int kLaunchRefused = 1;
inline constexpr int kLaunchFaulted = 2;

/// Launches the variant's kernel and waits for it. `arguments` points to the parameters, one pointer for each;
/// `workers` is the number of OS threads. What went wrong is written to `error`.
extern "C" [[gnu::visibility("default")]] int sparsegen_emulator_launch(
    const unsigned grid[3], const unsigned block[3], std::size_t shared_bytes, void** arguments, int workers,
    char* error, std::size_t error_size);
