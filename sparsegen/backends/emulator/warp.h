// Warp shuffles, votes and barriers: lanes meet, and the last to arrive hands out the results.
#pragma once

#include <cstddef>
#include <cstring>
#include <type_traits>

namespace sparsegen::emulator {

inline constexpr unsigned kWarpSize = 32;
inline constexpr unsigned kFullMask = 0xFFFFFFFFu;

enum class WarpOperation : unsigned char { barrier, shuffle, vote };

/// What one lane brings to a meeting of its warp, and takes from it.
struct WarpRequest {
    static constexpr std::size_t kValueBytes = 16;

    WarpOperation operation = WarpOperation::barrier;
    unsigned mask = 0;
    int line = 0;
    unsigned source_lane = 0;  // shuffle: whose value to take
    bool predicate = false;    // vote
    unsigned ballot = 0;       // vote: out
    alignas(kValueBytes) std::byte value[kValueBytes] = {};
    alignas(kValueBytes) std::byte result[kValueBytes] = {};  // shuffle: out
};

/// Waits until every lane of the mask has come to the same operation on the same line; whether this one was the last to
/// come, which goes on before the others do.
bool meet(WarpRequest& request);

/// The running thread's lane, 0 to 31.
unsigned lane();

template <class T>
T shuffle(unsigned mask, T value, unsigned source_lane, int line) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= WarpRequest::kValueBytes);
    WarpRequest request{.operation = WarpOperation::shuffle, .mask = mask, .line = line, .source_lane = source_lane};
    std::memcpy(request.value, &value, sizeof value);
    meet(request);
    std::memcpy(&value, request.result, sizeof value);
    return value;
}

inline unsigned ballot(unsigned mask, bool predicate, int line) {
    WarpRequest request{.operation = WarpOperation::vote, .mask = mask, .line = line, .predicate = predicate};
    meet(request);
    return request.ballot;
}

inline unsigned segment_start(unsigned width) { return lane() & ~(width - 1); }
inline unsigned segment_end(unsigned width) { return segment_start(width) + width; }

}  // namespace sparsegen::emulator

// The source lanes are those of PTX's shfl: outside the segment of `width` lanes, a lane's own value comes back.

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, int line = __builtin_LINE()) {
    using namespace sparsegen::emulator;
    const auto w = static_cast<unsigned>(width);
    return shuffle(mask, value, segment_start(w) + (static_cast<unsigned>(source) & (w - 1)), line);
}

template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, int line = __builtin_LINE()) {
    using namespace sparsegen::emulator;
    const bool inside = lane() >= segment_start(static_cast<unsigned>(width)) + delta;
    return shuffle(mask, value, inside ? lane() - delta : lane(), line);
}

template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, int line = __builtin_LINE()) {
    using namespace sparsegen::emulator;
    const bool inside = lane() + delta < segment_end(static_cast<unsigned>(width));
    return shuffle(mask, value, inside ? lane() + delta : lane(), line);
}

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, int line = __builtin_LINE()) {
    using namespace sparsegen::emulator;
    const unsigned source = lane() ^ static_cast<unsigned>(lane_mask);
    return shuffle(mask, value, source < segment_end(static_cast<unsigned>(width)) ? source : lane(), line);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
    return sparsegen::emulator::ballot(mask, predicate != 0, line);
}

inline int __any_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
    return sparsegen::emulator::ballot(mask, predicate != 0, line) != 0;
}

inline int __all_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
    return sparsegen::emulator::ballot(mask, predicate != 0, line) == mask;
}

inline void __syncwarp(unsigned mask = sparsegen::emulator::kFullMask, int line = __builtin_LINE()) {
    sparsegen::emulator::WarpRequest request{.mask = mask, .line = line};
    sparsegen::emulator::meet(request);
}
