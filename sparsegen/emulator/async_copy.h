// cp.async: the source is read when the copy is issued; the destination is NaN until the thread waits for it.
#pragma once

#include <cstddef>
#include <vector>

namespace sparsegen::emulator {

/// One thread's copies on their way to shared memory, in commit groups.
class AsyncCopies {
public:
    static constexpr std::size_t kMaxBytes = 16;

    void issue(void* shared, const void* global, std::size_t bytes, bool valid);
    void commit();
    /// Lands all but the `pending_groups` youngest groups that were committed.
    void wait(int pending_groups);
    void clear();

private:
    struct Copy {
        void* destination;
        std::size_t bytes;
        int group;
        std::byte data[kMaxBytes];
    };
    std::vector<Copy> copies_;
    int open_group_ = 0;  // groups below it are committed
};

/// Copies `bytes` (4, 8 or 16, both addresses aligned to it) from global to shared memory; zeros where not `valid`,
/// and then `global` is not read.
void copy_async(void* shared, const void* global, int bytes, bool valid, int line = __builtin_LINE());
void copy_async_commit();
void copy_async_wait(int pending_groups);

}  // namespace sparsegen::emulator
