// Copies to shared memory that are on their way.
#pragma once

#include <cstddef>
#include <vector>

#include "commit_groups.h"

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

/// One thread's copies on their way to shared memory.
using AsyncCopies = CommitGroups<PendingCopy>;

}  // namespace sparsegen::emulator
