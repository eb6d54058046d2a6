// convolution/reached_blocks.cuh.j2 (1)

// convolution/unit_share.cuh.j2

constexpr int kSegmentWords = 1024;

__device__ __forceinline__ int bit_of_rank(unsigned word, int rank) {
  int place = 0;
  #pragma unroll
  for (int width = 16; width > 0; width /= 2) {
    const int below = __popc(word >> place & ((1u << width) - 1));
    if (rank >= below) rank -= below, place += width;
  }
  return place;
}

struct Unit {
  int image, row, column;
};

struct UnitList {
  Unit units[kListUnits];
  unsigned active[kSegmentWords];
  int before[kSegmentWords];
  int of_warp[kThreads / 32];
};

struct Words {
  const UnitMask& mask;
  int row_words;

  __device__ __forceinline__ Unit unit(int word, int bit) const {
    const int row = word / row_words, image = row / mask.unit_rows;
    return {image, row - image * mask.unit_rows, (word - row * row_words) * 32 + bit};
  }
};

__device__ __forceinline__ int count_units(const Words& words, int first_word, int count, UnitList& list) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const Unit first = words.unit(first_word + i, 0);
    list.active[i] = words.mask.active_units(first.image, first.row, first.column);
  }
  meet_at<kThreads>(1);
  const int thread_words = (count + kThreads - 1) / kThreads, begin = min(static_cast<int>(threadIdx.x) * thread_words, count);
  const int end = min(begin + thread_words, count);
  int own = 0;
  for (int word = begin; word < end; ++word) own += __popc(list.active[word]);
  int up_to = own;
  #pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, up_to, step);
    if (lane >= step) up_to += other;
  }
  if (lane == 31) list.of_warp[warp] = up_to;
  meet_at<kThreads>(1);
  int total = 0, before = up_to - own;
  #pragma unroll
  for (int i = 0; i < kThreads / 32; ++i) {
    if (i < warp) before += list.of_warp[i];
    total += list.of_warp[i];
  }
  for (int word = begin; word < end; ++word) {
    list.before[word] = before;
    before += __popc(list.active[word]);
  }
  meet_at<kThreads>(1);
  return total;
}

__device__ __forceinline__ void list_units(const Words& words, int first_word, int word_count, const Share& share, int first, int count,
                                           UnitList& list) {
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const int wanted = share.number(first + i);
    int low = 0, high = word_count;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (list.before[middle] <= wanted) low = middle; else high = middle;
    }
    const Unit unit = words.unit(first_word + low, bit_of_rank(list.active[low], wanted - list.before[low]));
    list.units[i] = unit;
  }
}

template <class Compute, class EndSegment>
__device__ __forceinline__ void each_list(const UnitMask& mask, int images, int parts, int own, UnitList& list, const Compute& compute,
                                          const EndSegment& end_segment) {
  const Words words{mask, (mask.unit_columns + 31) / 32};
  const int all_words = images * mask.unit_rows * words.row_words;
  for (int first_word = 0; first_word < all_words; first_word += kSegmentWords) {
    const int word_count = min(kSegmentWords, all_words - first_word);
    const Share share{count_units(words, first_word, word_count, list), parts, own};
    for (int first_unit = 0; first_unit < share.count(); first_unit += kListUnits) {
      const int listed = min(kListUnits, share.count() - first_unit);
      list_units(words, first_word, word_count, share, first_unit, listed, list);
      meet_at<kThreads>(1);
      compute(listed);
    }
    end_segment(words, first_word, word_count);
    meet_at<kThreads>(1);
  }
}
(2) from (1):
@@
-1 669463
+// convolution/reached_blocks.cuh.j2 (2)
@@
-3 8db4df
+  for (int i = warp; i < count; i += kThreads / 32) {
+    const Unit unit = words.unit(first_word + i, lane);
+    const bool is_active = unit.column < words.mask.unit_columns && words.mask.is_active(unit.image, unit.row, unit.column);
+    const unsigned found = __ballot_sync(0xffffffffu, is_active);
+    if (lane == 0) list.active[i] = found;
@@
-1 5082c0
+  __syncthreads();
@@
-1 5082c0
+  __syncthreads();
@@
-1 5082c0
+  __syncthreads();
@@
-1 d6dad5
+      __syncthreads();
@@
-1 da1a4f
+    __syncthreads();
(3) from (2):
@@
-1 05da89
+// convolution/reached_blocks.cuh.j2 (3)
@@
+  TapWord taps[kListUnits];
@@
+    list.taps[i] = words.mask.taps(unit.image, unit.row, unit.column);
@@
+
+// convolution/tap_sort.cuh.j2
@@
+      sort_by_taps(list, listed);
+      __syncthreads();
(4) from (2):
@@
-1 05da89
+// convolution/reached_blocks.cuh.j2 (1)
@@
-5 3e8a81
+  for (int i = threadIdx.x; i < count; i += kThreads) {
+    const Unit first = words.unit(first_word + i, 0);
+    list.active[i] = words.mask.active_units(first.image, first.row, first.column);
(5) from (2):
@@
-1 05da89
+// convolution/reached_blocks.cuh.j2 (4)
