// Boxes on their way from shared memory to arrays.
#pragma once

#include <vector>

#include "tensor_map.h"

namespace sparsegen::emulator {

/// A box on its way from shared memory, which is read as late as the engine may: when the thread waits for that.
struct PendingStore {
    TensorMap map;
    const void* shared;
    Coordinates first;

    void land() const;
};

/// One thread's stores of boxes in groups.
class BoxStores {
public:
    void issue(const PendingStore& store) { stores_.push_back({store, open_group_}); }
    void commit() { ++open_group_; }
    /// Lands all but the `pending_groups` youngest groups that were committed.
    void wait(int pending_groups);
    void clear();
    bool empty() const { return stores_.empty(); }

private:
    struct Grouped {
        PendingStore store;
        int group;
    };
    std::vector<Grouped> stores_;
    int open_group_ = 0;  // groups below it are committed
};

}  // namespace sparsegen::emulator
