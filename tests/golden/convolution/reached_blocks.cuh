using MaskWord = unsigned long long;

struct Mask {
  const MaskWord* words;
  int row_words;
  int rows;

  __device__ __forceinline__ bool has_live(int image, int row, int first, int last) const {
    const MaskWord* const line = words + (static_cast<long long>(image) * rows + row) * row_words;
    for (int number = first / 64; number <= last / 64; ++number) {
      MaskWord word = line[number];
      if (number == first / 64) word &= ~0ull << first % 64;
      if (number == last / 64) word &= ~0ull >> (63 - last % 64);
      if (word != 0) return true;
    }
    return false;
  }
};

struct Blocks {
  int first, last;
};

template <int kTapCount, int kStride, int kPadding, int kDilation, int kBlock>
struct Axis {
  static constexpr int kParts = kStride <= kBlock ? 1 : kUnit;
  static constexpr int kPartOutputs = kUnit / kParts;
  int outputs, pixels;

  __device__ __forceinline__ int groups(int first_output) const {
    constexpr bool kOfOutput = kDilation == 1 && kTapCount >= kStride, kOfUnit = kStride == 1 && kDilation <= kUnit;
    return kOfOutput || (kOfUnit && first_output + kUnit <= outputs) ? 1 : kTapCount;
  }

  template <int kStep>
  __device__ __forceinline__ Blocks blocks(int first_output, int part, int first_tap, int last_tap) const {
    const int begin = first_output + part * kPartOutputs, end = min(begin + kPartOutputs, outputs);
    int low = begin * kStride - kPadding + first_tap * kDilation, high = (end - 1) * kStride - kPadding + last_tap * kDilation;
    if (low < 0) low += (kStep - 1 - low) / kStep * kStep;
    if (high >= pixels) high -= (high - pixels + kStep) / kStep * kStep;
    return high < low || end <= begin ? Blocks{0, -1} : Blocks{low / kBlock, high / kBlock};
  }

  __device__ __forceinline__ Blocks of_group(int first_output, int part, int group, int groups) const {
    return groups == 1 ? blocks<1>(first_output, part, 0, kTapCount - 1) : blocks<kStride>(first_output, part, group, group);
  }
};
using RowAxis = Axis<1, 1, 0, 1, kBlockRows>;
using ColumnAxis = Axis<1, 1, 0, 1, kBlockColumns>;

struct UnitMask {
  Mask mask;
  RowAxis down;
  ColumnAxis along;
  int unit_rows, unit_columns;

  __device__ __forceinline__ bool is_active(int image, int unit_row, int unit_column) const {
    bool found = false;
    const int row_groups = down.groups(unit_row * kUnit), column_groups = along.groups(unit_column * kUnit);
    for (int r = 0; r < row_groups * RowAxis::kParts; ++r) {
      const Blocks rows = down.of_group(unit_row * kUnit, r % RowAxis::kParts, r / RowAxis::kParts, row_groups);
      for (int s = 0; s < column_groups * ColumnAxis::kParts; ++s) {
        const Blocks columns = along.of_group(unit_column * kUnit, s % ColumnAxis::kParts, s / ColumnAxis::kParts, column_groups);
        if (columns.last < columns.first) continue;
        for (int row = rows.first; row <= rows.last; ++row) found = found || mask.has_live(image, row, columns.first, columns.last);
      }
    }
    return found;
  }

  __device__ __forceinline__ unsigned active_units(int image, int unit_row, int unit_column) const {
    constexpr int kBlockUnits = kBlockColumns / kUnit;
    const MaskWord* const line = mask.words + (static_cast<long long>(image) * mask.rows + unit_row * kUnit / kBlockRows) * mask.row_words;
    const int first = unit_column / kBlockUnits;
    MaskWord blocks = line[first / 64] >> first % 64;
    if (32 % kBlockUnits != 0 && first % 64 != 0 && first / 64 + 1 < mask.row_words) blocks |= line[first / 64 + 1] << (64 - first % 64);
    unsigned found = 0;
    #pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int block = 32 % kBlockUnits == 0 ? i / kBlockUnits : (unit_column + i) / kBlockUnits - first;
      found |= static_cast<unsigned>(blocks >> block & 1) << i;
    }
    const int left = unit_columns - unit_column;
    return left >= 32 ? found : found & ((1u << left) - 1);
  }
};

__device__ __forceinline__ UnitMask unit_mask(const MaskWord* words, int mask_rows, int mask_columns, [[maybe_unused]] int height,
                                              [[maybe_unused]] int width, int out_height, int out_width) {
  const RowAxis down{out_height, out_height};
  const ColumnAxis along{out_width, out_width};
  return { {words, (mask_columns + 63) / 64, mask_rows}, down, along, (out_height + kUnit - 1) / kUnit, (out_width + kUnit - 1) / kUnit};
}
(2) from (1):
@@
-16 23acdc
(3) from (1):
@@
+using TapWord = unsigned long long;
@@
-2 216daf
+using RowAxis = Axis<kRows, kStrideRows, kPaddingRows, kDilationRows, kBlockRows>;
+using ColumnAxis = Axis<kColumns, kStrideColumns, kPaddingColumns, kDilationColumns, kBlockColumns>;
@@
-11 7651d5
+  __device__ __forceinline__ TapWord taps(int image, int unit_row, int unit_column) const {
+    TapWord found = 0;
+    for (int tap = 0; tap < kRows * kColumns; ++tap) {
+      bool is_live = false;
+      for (int r = 0; r < RowAxis::kParts; ++r) {
+        const Blocks rows = down.blocks<kStrideRows>(unit_row * kUnit, r, tap / kColumns, tap / kColumns);
+        for (int s = 0; s < ColumnAxis::kParts; ++s) {
+          const Blocks columns = along.blocks<kStrideColumns>(unit_column * kUnit, s, tap % kColumns, tap % kColumns);
+          if (columns.last < columns.first) continue;
+          for (int row = rows.first; row <= rows.last; ++row) {
+            is_live = is_live || mask.has_live(image, row, columns.first, columns.last);
+          }
+        }
+      }
+      if (is_live) found |= TapWord{1} << tap;
@@
-2 506864
+    return found;
@@
-2 a32b54
+  const RowAxis down{out_height, height};
+  const ColumnAxis along{out_width, width};
(4) from (1):
@@
-14 4f2225
+  __device__ __forceinline__ bool computes(int image, int row, int column) const {
+    return mask.has_live(image, row / kBlockRows, column / kBlockColumns, column / kBlockColumns);
