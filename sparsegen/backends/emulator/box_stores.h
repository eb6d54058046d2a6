// Boxes on their way from shared memory to arrays.
#pragma once

#include "commit_groups.h"
#include "tensor_map.h"

namespace sparsegen::emulator {

/// A box on its way from shared memory, which is read as late as the engine may: when the thread waits for that.
struct PendingStore {
    TensorMap map;
    const void* shared;
    Coordinates first;

    void land() const;
};

/// One thread's stores of boxes.
using BoxStores = CommitGroups<PendingStore>;

}  // namespace sparsegen::emulator
