// Copies to shared memory that are on their way.
#pragma once

#include <cstddef>
#include <vector>

namespace sparsegen::emulator {

/// A copy to shared memory on its way.
struct PendingCopy {
    void* destination;
    std::vector<std::byte> data;

    /// Reads the source (zeros without one) and fills the destination with NaN: whoever reads it before the copy has
    /// landed, or still reads what was there, must see it.
    PendingCopy(void* shared, const void* global, std::size_t bytes);
    /// The same of bytes that were read already.
    PendingCopy(void* shared, std::vector<std::byte> read);
    void land() const;
};

/// One thread's copies on their way to shared memory, in commit groups.
class AsyncCopies {
public:
    void issue(PendingCopy copy);
    void commit();
    /// Lands all but the `pending_groups` youngest groups that were committed.
    void wait(int pending_groups);
    void clear();
    /// All copies that have not landed, which leave this list; for a barrier that is to land them.
    std::vector<PendingCopy> take_all();

private:
    struct Grouped {
        PendingCopy copy;
        int group;
    };
    std::vector<Grouped> copies_;
    int open_group_ = 0;  // groups below it are committed
};

}  // namespace sparsegen::emulator
