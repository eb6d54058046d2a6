// cp.async: the source is read when the copy is issued; the destination is NaN until the thread waits for it.
#pragma once

namespace sparsegen::emulator {

/// Copies `bytes` (4, 8 or 16, both addresses aligned to it) from global to shared memory; zeros where not `valid`,
/// and then `global` is not read.
void copy_async(void* shared, const void* global, int bytes, bool valid, int line = __builtin_LINE());
/// Copies the first `present` of 16 bytes, and zeros in place of the others. All 16 are read, if any: compute-sanitizer
/// counts them so, though a device reads what is present.
void copy_async_start(void* shared, const void* global, int present, int line = __builtin_LINE());
void copy_async_commit();
void copy_async_wait(int pending_groups);

}  // namespace sparsegen::emulator
