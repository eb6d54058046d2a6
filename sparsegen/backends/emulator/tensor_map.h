// Tensor maps (TMA): copies of boxes of an array to and from shared memory, swizzled, with zeros outside the array.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace sparsegen::emulator {

inline constexpr unsigned kMostDimensions = 5;

/// What tensor_maps.py writes in place of the driver's 128 opaque bytes. Dimensions are innermost first.
struct alignas(64) TensorMap {
    char* array;
    std::uint64_t strides[kMostDimensions];  // bytes
    std::uint32_t sizes[kMostDimensions];
    std::uint32_t box[kMostDimensions];
    std::uint32_t steps[kMostDimensions];
    std::uint32_t rank;
    std::uint32_t item_bytes;
    std::uint32_t swizzle_bytes;  // 0: none

    unsigned box_bytes() const;
};
static_assert(sizeof(TensorMap) == 128);

using Coordinates = std::array<int, kMostDimensions>;

/// The box from these coordinates on, to shared memory; its bytes, zeros among them, count at the barrier.
void copy_box(void* shared, const TensorMap& map, Coordinates first, void* barrier, int line = __builtin_LINE());
/// The same to the same place of those blocks of the cluster whose bits are set, counted by the barrier of each.
void copy_box_to_cluster(void* shared, const TensorMap& map, Coordinates first, void* barrier, unsigned blocks,
                         int line = __builtin_LINE());
/// The box from shared memory; what lies outside the array is dropped.
void store_box(const TensorMap& map, Coordinates first, const void* shared, int line = __builtin_LINE());
void store_box_commit();
void store_box_wait(int pending_groups);

}  // namespace sparsegen::emulator
