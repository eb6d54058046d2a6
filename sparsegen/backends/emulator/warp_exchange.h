// What needs every lane's part: lanes of a full warp read what the others brought.
#pragma once

#include <algorithm>

#include "block.h"
#include "fault.h"
#include "warp.h"

namespace sparsegen::emulator {

/// What each lane of the running warp brought, readable from `read` until it returns.
///
/// All 32 lanes take part. They meet before the reading and after it, so that no lane overwrites what another reads.
template <class T, class Read>
void exchange(const T& mine, int line, Read read) {
    constexpr unsigned kMaxWarps = 32;
    static thread_local T brought[kMaxWarps][kWarpSize];
    T* const lanes = brought[running_thread->number / kWarpSize];
    lanes[lane()] = mine;
    WarpRequest before{.mask = kFullMask, .line = line};
    meet(before);
    read(static_cast<const T*>(lanes));
    WarpRequest after{.mask = kFullMask, .line = line};
    meet(after);
}

/// Of the values of all 32 lanes the one that `pick(a, b)` leaves.
template <class T, class Pick>
T reduce(unsigned mask, T value, int line, Pick pick) {
    if (mask != kFullMask) {
        fault("line %d: a reduction over lanes 0x%08x; the emulator has it for whole warps only", line, mask);
    }
    T result = value;
    exchange(value, line, [&](const T* lanes) {
        for (unsigned i = 0; i < kWarpSize; ++i) {
            result = pick(result, lanes[i]);
        }
    });
    return result;
}

}  // namespace sparsegen::emulator

inline int __reduce_max_sync(unsigned mask, int value, int line = __builtin_LINE()) {
    return sparsegen::emulator::reduce(mask, value, line, [](int a, int b) { return std::max(a, b); });
}

inline int __reduce_min_sync(unsigned mask, int value, int line = __builtin_LINE()) {
    return sparsegen::emulator::reduce(mask, value, line, [](int a, int b) { return std::min(a, b); });
}
