// Masks of the blocks with the largest scores of their rows: so many, the fewest that make up a share of the row's softmax, or
// those from a threshold on; see block_mask.cuh. What is -inf or NaN never lives. Bands have 8 rows, so that the cuts through rows,
// which take most of the time, have all multiprocessors.
#define SPARSEGEN_BAND 8
#include "block_mask.cuh"

#include "score_keys.cuh"

// A warp's row of scores, kQuads × 4 of them in the registers of each lane; with none they are read again each time.
template <int kQuads>
struct Row {
  static constexpr int kKeys = 4 * kQuads;
  unsigned keys[kQuads > 0 ? kKeys : 1];
  Scores source;
  int row;

  __device__ __forceinline__ Row(const Scores& source, int row) : source(source), row(row) {
    #pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      unsigned four[4];
      keys_of(source, row, threadIdx.x % kWarp + i * kWarp, four);
      #pragma unroll
      for (int j = 0; j < 4; ++j) keys[4 * i + j] = four[j];
    }
  }

  // Calls visit(key, its number among those of the lane).
  template <class Visit>
  __device__ __forceinline__ void each(const Visit& visit) const {
    #pragma unroll
    for (int i = 0; i < kKeys; ++i) visit(keys[i], i);
    for (int quad = threadIdx.x % kWarp; kQuads == 0 && 4 * quad < source.columns; quad += kWarp) {
      unsigned four[4];
      keys_of(source, row, quad, four);
      #pragma unroll
      for (int j = 0; j < 4; ++j) visit(four[j], 0);
    }
  }
};

__device__ __forceinline__ int warp_sum(int value) { return __reduce_add_sync(kWholeWarp, value); }

// Of numbers below 2^47, in two parts.
__device__ __forceinline__ Word warp_sum(Word value) {
  constexpr int kPart = 27;
  const Word low = __reduce_add_sync(kWholeWarp, static_cast<unsigned>(value) & ((1u << kPart) - 1));
  return (static_cast<Word>(__reduce_add_sync(kWholeWarp, static_cast<unsigned>(value >> kPart))) << kPart) + low;
}

// The wanted number of keys.
template <int kQuads>
struct Counted {
  int wanted;
  __device__ __forceinline__ void start(const Row<kQuads>&, unsigned, int there) { wanted = min(wanted, there); }
  __device__ __forceinline__ bool is_met(int count) const { return count == wanted; }
  __device__ __forceinline__ bool reaches(const Row<kQuads>& own, unsigned most, int& count) const {
    count = 0;
    own.each([&](unsigned key, int) { count += key <= most ? 1 : 0; });
    count = warp_sum(count);
    return count >= wanted;
  }
  __device__ __forceinline__ int equals(const Row<kQuads>&, unsigned, int below) const { return wanted - below; }
};

// As many keys as have the wanted part of the row's softmax, in parts of 2^-31 of the largest: their sums are exact, so that
// more keys never sum to less.
template <int kQuads>
struct Shared {
  static constexpr float kOne = 2147483648.0f;
  static constexpr bool kHolds = kQuads == 1 || kQuads == 2;  // more parts than these would not fit beside the keys
  float share;
  unsigned first;  // the largest score's key
  float largest;
  Word wanted;
  unsigned parts[kHolds ? 4 * kQuads : 1];

  // Of an infinite score nothing is left for finite ones.
  __device__ __forceinline__ unsigned part_of(unsigned key) const {
    return key >= kLowest ? 0u : static_cast<unsigned>(kOne * (key == first ? 1.0f : __expf(score_of(key) - largest)));
  }
  __device__ __forceinline__ Word sum(const Row<kQuads>& own, unsigned most, int& count) const {
    Word found = 0;
    count = 0;
    own.each([&](unsigned key, int i) {
      const unsigned part = kHolds ? parts[i] : part_of(key);
      found += key <= most ? part : 0u;
      count += key <= most ? 1 : 0;
    });
    count = warp_sum(count);
    return warp_sum(found);
  }
  __device__ __forceinline__ void start(const Row<kQuads>& own, unsigned least, int) {
    first = least, largest = score_of(least);
    if (kHolds) own.each([&](unsigned key, int i) { parts[i] = part_of(key); });
    int count;
    const Word all = sum(own, kLowest - 1, count);
    wanted = max(Word(1), min(all, static_cast<Word>(ceilf(share * static_cast<float>(all)))));
  }
  __device__ __forceinline__ bool is_met(int) const { return false; }
  __device__ __forceinline__ bool reaches(const Row<kQuads>& own, unsigned most, int& count) const {
    return sum(own, most, count) >= wanted;
  }
  // Of the keys that are equal to this one as many as the sum of those below it leaves.
  __device__ __forceinline__ int equals(const Row<kQuads>& own, unsigned key, int) const {
    int count;
    const Word below = key == first ? 0 : sum(own, key - 1, count);
    return max(1, static_cast<int>(ceilf(static_cast<float>(wanted - below) / static_cast<float>(part_of(key)))));
  }
};

// The cut through a row at the first key up to which the wanted amount is there, between the least and the greatest: halves
// of what is left, until one key is or the amount is met.
template <template <int> class Amounts, int kQuads>
__device__ Cut cut_of_row(const Scores& source, int row, Amounts<kQuads> amount) {
  const Row<kQuads> own(source, row);
  unsigned low = kLowest, high = 0;
  int below = 0, there = 0;  // keys below low, and up to high
  own.each([&](unsigned key, int) {
    low = min(low, key);
    if (key < kLowest) high = max(high, key), ++there;
  });
  low = __reduce_min_sync(kWholeWarp, low), high = __reduce_max_sync(kWholeWarp, high), there = warp_sum(there);
  if (there == 0) return {0u, 0, false};
  amount.start(own, low, there);
  while (low < high && there - below > 1 && !amount.is_met(there)) {
    const unsigned middle = low + (high - low) / 2;
    int count;
    if (amount.reaches(own, middle, count)) {
      high = middle, there = count;
    } else {
      low = middle + 1, below = count;
    }
  }
  const int same = there - below;
  if (low < high || same == 1 || amount.is_met(there)) return {high, same, false};
  const int equals = amount.equals(own, high, below);
  return {high, equals, same > equals};
}

template <template <int> class Amounts, class Given>
__device__ __forceinline__ void cut_band(const Shape& shape, int band, const Scores& source, Given given, Word* scratch,
                                         unsigned* pool) {
  const int row = band * kBand + threadIdx.x / kWarp;
  Cut cut{};
  if (row < shape.rows) {
    cut = shape.columns <= 4 * kWarp    ? cut_of_row(source, row, Amounts<1>{given})
          : shape.columns <= 8 * kWarp  ? cut_of_row(source, row, Amounts<2>{given})
          : shape.columns <= 16 * kWarp ? cut_of_row(source, row, Amounts<4>{given})
                                        : cut_of_row(source, row, Amounts<0>{given});
  }
  make_band(shape, band, BelowCut<Scores>{source, cut, shape.columns, 0}, scratch, pool);
}

struct FromThreshold {
  Fours scores, thresholds;  // the latter of each score, or without an address the same for all
  float threshold;
  __device__ __forceinline__ unsigned operator()(int row, int quad) const {
    const float4 four = scores(row, quad);
    float4 least = make_float4(threshold, threshold, threshold, threshold);
    if (thresholds.values != nullptr) least = thresholds(row, quad);
    const auto lives = [](float value, float from) { return value >= from && value > -INFINITY ? 1u : 0u; };
    return lives(four.x, least.x) | lives(four.y, least.y) << 1 | lives(four.z, least.z) << 2 | lives(four.w, least.w) << 3;
  }
};

// Of each row the blocks with the `live` largest scores; of equal ones the first.
extern "C" __global__ void __launch_bounds__(kThreads, 3)
    largest_of_rows(int rows, int columns, int live, const float* scores, Word* scratch, Word* mask) {
  const Scores source{scores + own_mask() * rows * columns, columns};
  finish_in_scratch(rows, columns, scratch, mask,
                    [&](const Shape& shape, int band, Word* scratch, unsigned* pool) { cut_band<Counted>(shape, band, source, live, scratch, pool); });
}

// Of each row the fewest blocks whose softmax sums to this share; of equal ones the first.
extern "C" __global__ void __launch_bounds__(kThreads, 3)
    share_of_rows(int rows, int columns, int share_bits, const float* scores, Word* scratch, Word* mask) {
  const Scores source{scores + own_mask() * rows * columns, columns};
  finish_in_scratch(rows, columns, scratch, mask,
                    [&](const Shape& shape, int band, Word* scratch, unsigned* pool) { cut_band<Shared>(shape, band, source, __int_as_float(share_bits), scratch, pool); });
}

// The blocks with scores from a threshold on: of each score its own, or without these the same for all.
extern "C" __global__ void __launch_bounds__(kThreads, 3)
    from_threshold(int rows, int columns, int threshold_bits, const float* scores, const float* thresholds, Word* scratch, Word* mask) {
  const long long before = own_mask() * rows * columns;
  const FromThreshold source{{scores + before, columns},
                             {thresholds == nullptr ? nullptr : thresholds + before, columns},
                             __int_as_float(threshold_bits)};
  finish_in_scratch(rows, columns, scratch, mask,
                    [&](const Shape& shape, int band, Word* scratch, unsigned* pool) { make_band(shape, band, source, scratch, pool); });
}
