// What needs every lane's part: lanes of a full warp bring theirs, and one of them does the work of all.
#pragma once

#include "fault.h"
#include "place.h"
#include "warp.h"

namespace sparsegen::emulator {

/// Calls `work(lanes)` once, with what each lane of the running warp brought, when all 32 have come; they go on after it.
template <class T, class Work>
void together(const T& mine, int line, Work work) {
    constexpr unsigned kMaxWarps = 32;
    static thread_local T brought[kMaxWarps][kWarpSize];
    T* const lanes = brought[running_place->number / kWarpSize];
    lanes[lane()] = mine;
    WarpRequest request{.mask = kFullMask, .line = line};
    if (meet(request)) work(static_cast<const T*>(lanes));
}

/// Of the values of all 32 lanes the one that `pick(a, b)` leaves.
template <class T, class Pick>
T reduce(unsigned mask, T value, int line, Pick pick) {
    if (mask != kFullMask) {
        fault("line %d: a reduction over lanes 0x%08x; the emulator has it for whole warps only", line, mask);
    }
    together(&value, line, [&](T* const* values) {
        T result = *values[0];
        for (unsigned i = 1; i < kWarpSize; ++i) result = pick(result, *values[i]);
        for (unsigned i = 0; i < kWarpSize; ++i) *values[i] = result;
    });
    return value;
}

}  // namespace sparsegen::emulator

inline int __reduce_add_sync(unsigned mask, int value, int line = __builtin_LINE()) {
    return sparsegen::emulator::reduce(mask, value, line, [](int a, int b) { return a + b; });
}

inline unsigned __reduce_add_sync(unsigned mask, unsigned value, int line = __builtin_LINE()) {
    return sparsegen::emulator::reduce(mask, value, line, [](unsigned a, unsigned b) { return a + b; });
}

inline int __reduce_max_sync(unsigned mask, int value, int line = __builtin_LINE()) {
    return sparsegen::emulator::reduce(mask, value, line, [](int a, int b) { return a > b ? a : b; });
}

inline unsigned __reduce_max_sync(unsigned mask, unsigned value, int line = __builtin_LINE()) {
    return sparsegen::emulator::reduce(mask, value, line, [](unsigned a, unsigned b) { return a > b ? a : b; });
}

inline int __reduce_min_sync(unsigned mask, int value, int line = __builtin_LINE()) {
    return sparsegen::emulator::reduce(mask, value, line, [](int a, int b) { return a < b ? a : b; });
}

inline unsigned __reduce_min_sync(unsigned mask, unsigned value, int line = __builtin_LINE()) {
    return sparsegen::emulator::reduce(mask, value, line, [](unsigned a, unsigned b) { return a < b ? a : b; });
}
