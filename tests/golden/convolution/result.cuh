// lib/barrier/finished.cuh.j2 (2)

struct OwnTile {
  int group, first_filter, part, parts;
};

__device__ __forceinline__ OwnTile own_tile(int filters) {
  const int group_tiles = (filters / kGroups + kTileN - 1) / kTileN, tiles = kGroups * group_tiles;
  const int tile = static_cast<int>(blockIdx.x) % tiles;
  return {tile / group_tiles, tile % group_tiles * kTileN, static_cast<int>(blockIdx.x) / tiles, static_cast<int>(gridDim.x) / tiles};
}

struct Result {
  const Images& images;
  const UnitMask& mask;
  const Element* bias;
  Element* y;

  __device__ __forceinline__ void store(const Unit& unit, int pixel, int filter, bool is_active, const Vector<float, kVectorY>& sums) const {
    const int row = unit.row * kUnit + pixel / kUnit, column = unit.column * kUnit + pixel % kUnit;
    if (row >= images.out_height || column >= images.out_width || images.first_filter + filter >= images.group_filters()) return;
    const int of_all = images.group * images.group_filters() + images.first_filter + filter;
    const long long out_plane = static_cast<long long>(images.out_height) * images.out_width;
    const long long in_plane = static_cast<long long>(row) * images.out_width + column;
    const long long at = (unit.image * out_plane + in_plane) * images.filters + of_all;
    [[maybe_unused]] const bool is_wanted = is_active;
    Vector<Element, kVectorY> found;
    #pragma unroll
    for (int e = 0; e < kVectorY; ++e) {
      float value = finished(sums.element[e] + to_float(bias[of_all + e]));
      found.element[e] = to_element(value);
    }
    store_vector(y + at, found);
  }

  __device__ __forceinline__ static int pixel_of(int line, int along) { return line; }
  __device__ __forceinline__ static int filter_of(int line, int along) { return along; }

  __device__ __forceinline__ void store_tile(const float* out, const Unit* units, int count) const {
    constexpr int kLineVectors = kOutLine / kVectorY;
    for (int i = threadIdx.x; i < kOutLines * kLineVectors; i += kThreads) {
      const int line = i / kLineVectors, along = i % kLineVectors * kVectorY, pixel = pixel_of(line, along);
      if (pixel / kPixels >= count) continue;
      store(units[pixel / kPixels], pixel % kPixels, filter_of(line, along), true, load_vector<kVectorY>(out + line * kOutPitch + along));
    }
  }
};
(2) from (1):
@@
-1 973d0d
+// lib/barrier/finished.cuh.j2 (1)
@@
+  const Element* residual;
@@
+    const auto added = load_vector<kVectorY>(residual + at);
@@
+      value += to_float(added.element[e]);
@@
+
+  __device__ __forceinline__ void fill(const Unit& unit) const {
+    constexpr int kLines = kPixels, kLineVectors = kTileN / kVectorY;
+    constexpr int kAlong = kLineVectors < 32 ? kLineVectors : 32, kPassLines = 32 / kAlong;
+    static_assert(32 % kAlong == 0 && kLines % kPassLines == 0, "lanes share lines evenly");
+    const int lane = static_cast<int>(threadIdx.x) % 32;
+    for (int line = lane / kAlong; line < kLines; line += kPassLines) {
+      #pragma unroll
+      for (int vector = lane % kAlong; vector < kLineVectors; vector += kAlong) {
+        const int along = vector * kVectorY;
+        store(unit, pixel_of(line, along), filter_of(line, along), false, {});
+      }
+    }
+  }
+
+  __device__ __forceinline__ void fill_rest(const Words& words, int first_word, int count, const UnitList& list, const OwnTile& own) const {
+    constexpr int kWarps = kThreads / 32, kWordUnits = 32;
+    const int warp = static_cast<int>(threadIdx.x) / 32;
+    for (int i = own.part * kWarps + warp; i < count * kWordUnits; i += own.parts * kWarps) {
+      if (list.active[i / kWordUnits] >> i % kWordUnits & 1) continue;
+      const Unit unit = words.unit(first_word + i / kWordUnits, i % kWordUnits);
+      if (unit.column < mask.unit_columns) fill(unit);
+    }
+  }
(3) from (1):
@@
-1 973d0d
+// lib/barrier/finished.cuh.j2 (1)
@@
-1 e47948
@@
-1 c78157
+      float value = sums.element[e];
(4) from (2):
@@
-2 47ba0f
@@
-1 f3a784
+    const long long at = (static_cast<long long>(unit.image) * images.filters + of_all) * out_plane + in_plane;
@@
-1 b3fcba
@@
-2 45e5b5
+      float value = sums.element[e];
+      if (!is_wanted) value = 0.0f;
@@
-2 c673d9
+  __device__ __forceinline__ static int pixel_of(int line, int along) { return along; }
+  __device__ __forceinline__ static int filter_of(int line, int along) { return line; }
@@
-1 33ea30
+    constexpr int kLines = kTileN, kLineVectors = kPixels / kVectorY;
(5) from (2):
@@
-2 47ba0f
@@
-1 b3fcba
@@
-2 45e5b5
+      float value = sums.element[e];
(6) from (5):
@@
+      if (!is_wanted) value = 0.0f;
(7) from (1):
@@
-9 1b4953
(8) from (2):
@@
-9 3efe0a
(9) from (3):
@@
-9 1b4953
(10) from (5):
@@
-9 3efe0a
(11) from (6):
@@
-9 3efe0a
