// Masks of the blocks with the largest scores: so many of a row or of a mask, the fewest that make up a share of their row's
// softmax, or those from a threshold on; see block_mask.cuh. What is -inf or NaN never lives.
#include "block_mask.cuh"

// Scores of blocks as keys: those of the largest are the smallest.
struct Scores {
  const float* values;
  int columns;
};
constexpr unsigned kLowest = 0xff800000u;  // the key of -inf; NaN has a greater one

__device__ __forceinline__ void keys_of(const Scores& scores, int row, int quad, unsigned (&found)[4]) {
  #pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int column = 4 * quad + i;
    found[i] = 0xffffffffu;
    if (column >= scores.columns) continue;
    const float value = scores.values[static_cast<long long>(row) * scores.columns + column] + 0.0f;  // -0 is 0
    const unsigned bits = __float_as_uint(value);
    if (value == value) found[i] = bits >> 31 ? bits : ~bits ^ 0x80000000u;
  }
}

__device__ __forceinline__ float score_of(unsigned key) { return __uint_as_float(key >> 31 ? key : ~key ^ 0x80000000u); }

__device__ __forceinline__ unsigned may_live(const Scores&, const unsigned (&keys)[4]) {
  unsigned four = 0;
  #pragma unroll
  for (int i = 0; i < 4; ++i) four |= keys[i] < kLowest ? 1u << i : 0u;
  return four;
}

#include "radix_cut.cuh"

// A warp's row of scores, kQuads × 4 of them in the registers of each lane; with none they are read again each time.
template <int kQuads>
struct Row {
  unsigned keys[kQuads > 0 ? 4 * kQuads : 1];
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

  template <class Visit>
  __device__ __forceinline__ void each(const Visit& visit) const {
    if (kQuads > 0) {
      #pragma unroll
      for (int i = 0; i < 4 * kQuads; ++i) visit(keys[i]);
      return;
    }
    for (int quad = threadIdx.x % kWarp; 4 * quad < source.columns; quad += kWarp) {
      unsigned four[4];
      keys_of(source, row, quad, four);
      #pragma unroll
      for (int j = 0; j < 4; ++j) visit(four[j]);
    }
  }
};

__device__ __forceinline__ int warp_sum(int value) { return __reduce_add_sync(kWholeWarp, value); }

__device__ __forceinline__ float warp_sum(float value) {
  #pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(kWholeWarp, value, step);
  return value;
}

// The amount that a key stands for: each one of the same, or its part of the row's softmax, times the same for all.
struct Counted {
  using Amount = int;
  int wanted;
  template <class OwnRow>
  __device__ __forceinline__ void start(const OwnRow&) {}
  __device__ __forceinline__ int operator()(unsigned) const { return 1; }
};

struct Shared {
  using Amount = float;
  float share;
  unsigned first;  // the largest score's key
  float largest, wanted;
  template <class OwnRow>
  __device__ __forceinline__ void start(const OwnRow& row) {
    unsigned least = 0xffffffffu;
    row.each([&](unsigned key) { least = min(least, key); });
    #pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2) least = min(least, __shfl_xor_sync(kWholeWarp, least, step));
    first = least, largest = score_of(least);
    float sum = 0.0f;
    row.each([&](unsigned key) { sum += (*this)(key); });
    wanted = share * warp_sum(sum);
  }
  // Of an infinite score nothing is left for finite ones.
  __device__ __forceinline__ float operator()(unsigned key) const {
    return key >= kLowest ? 0.0f : key == first ? 1.0f : __expf(score_of(key) - largest);
  }
};

// The cut through a row at the first key up to which the wanted amount is there: two bits of it at a time. Sums are taken
// in one order, so that more keys never sum to less.
template <int kQuads, class Amounts>
__device__ Cut cut_of_row(const Scores& source, int row, Amounts amount) {
  using Amount = typename Amounts::Amount;
  const Row<kQuads> own(source, row);
  amount.start(own);
  unsigned key = 0;
  #pragma unroll 1
  for (int shift = 30; shift >= 0; shift -= 2) {
    Amount sums[3] = {};
    own.each([&](unsigned other) {
      const Amount part = amount(other);
      #pragma unroll
      for (unsigned i = 0; i < 3; ++i) sums[i] += other <= key + ((i + 1) << shift) - 1 ? part : Amount(0);
    });
    unsigned digit = 0;
    #pragma unroll
    for (int i = 0; i < 3; ++i) digit += warp_sum(sums[i]) < amount.wanted ? 1u : 0u;
    key += digit << shift;
  }
  Amount below = 0;
  int same = 0;
  own.each([&](unsigned other) {
    below += other < key ? amount(other) : Amount(0);
    same += other == key ? 1 : 0;
  });
  const float part = static_cast<float>(amount(key)), left = static_cast<float>(amount.wanted - warp_sum(below));
  same = warp_sum(same);
  const int equals = part > 0.0f ? min(same, max(1, static_cast<int>(ceilf(left / part)))) : same;
  return {key, equals, same > equals};
}

template <class Amounts>
__device__ __forceinline__ void cut_band(const Shape& shape, int band, const Scores& source, const Amounts& amount, Word* scratch,
                                         unsigned* pool) {
  const int row = band * kBand + threadIdx.x / kWarp;
  Cut cut{};
  if (row < shape.rows) {
    cut = shape.columns <= 4 * kWarp    ? cut_of_row<1>(source, row, amount)
          : shape.columns <= 16 * kWarp ? cut_of_row<4>(source, row, amount)
                                        : cut_of_row<0>(source, row, amount);
  }
  make_band(shape, band, BelowCut<Scores>{source, cut, shape.columns, 0}, scratch, pool);
}

struct FromThreshold {
  const float* values;
  const float* thresholds;  // one for each score, or none
  float threshold;
  int columns;
  __device__ __forceinline__ unsigned operator()(int row, int quad) const {
    unsigned four = 0;
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = 4 * quad + i;
      if (column >= columns) continue;
      const long long at = static_cast<long long>(row) * columns + column;
      const float value = values[at], least = thresholds == nullptr ? threshold : thresholds[at];
      if (value >= least && value > -INFINITY) four |= 1u << i;
    }
    return four;
  }
};

// Of each row the blocks with the `live` largest scores; of equal ones the first.
extern "C" __global__ void __launch_bounds__(kThreads)
    largest_of_rows(int rows, int columns, int live, const float* scores, Word* scratch, Word* mask) {
  SPARSEGEN_SHARED(unsigned, pool, kPool);
  SPARSEGEN_SHARED(unsigned, told, 1);
  SPARSEGEN_SHARED(Word, own, kOwnWords);
  const Shape shape(rows, columns);
  scratch = shape.is_own() ? cleared(shape, own) : scratch + own_mask() * shape.scratch_words();
  const Scores source{scores + own_mask() * rows * columns, columns};
  finish(shape, scratch, pool, told, mask + own_mask() * shape.mask_words(),
         [&](int band) { cut_band(shape, band, source, Counted{live}, scratch, pool); });
}

// Likewise of the whole mask.
extern "C" __global__ void __launch_bounds__(kThreads)
    largest_of_whole(int rows, int columns, int live, const float* scores, Word* scratch, Word* mask) {
  SPARSEGEN_SHARED(unsigned, pool, kPool);
  SPARSEGEN_SHARED(unsigned, told, 1);
  const Shape shape(rows, columns);
  scratch += own_mask() * shape.scratch_words();
  const Scores source{scores + own_mask() * rows * columns, columns};
  finish(shape, scratch, pool, told, mask + own_mask() * shape.mask_words(),
         [&](int band) { cut_whole(shape, band, live, source, scratch, pool); });
}

// Of each row the fewest blocks whose softmax sums to this share; of equal ones the first.
extern "C" __global__ void __launch_bounds__(kThreads)
    share_of_rows(int rows, int columns, int share_bits, const float* scores, Word* scratch, Word* mask) {
  SPARSEGEN_SHARED(unsigned, pool, kPool);
  SPARSEGEN_SHARED(unsigned, told, 1);
  SPARSEGEN_SHARED(Word, own, kOwnWords);
  const Shape shape(rows, columns);
  scratch = shape.is_own() ? cleared(shape, own) : scratch + own_mask() * shape.scratch_words();
  const Scores source{scores + own_mask() * rows * columns, columns};
  const Shared amount{__int_as_float(share_bits), 0, 0.0f, 0.0f};
  finish(shape, scratch, pool, told, mask + own_mask() * shape.mask_words(),
         [&](int band) { cut_band(shape, band, source, amount, scratch, pool); });
}

// The blocks with scores from a threshold on: of each score its own, or without these the same for all.
extern "C" __global__ void __launch_bounds__(kThreads)
    from_threshold(int rows, int columns, int threshold_bits, const float* scores, const float* thresholds, Word* scratch, Word* mask) {
  SPARSEGEN_SHARED(unsigned, pool, kPool);
  SPARSEGEN_SHARED(unsigned, told, 1);
  SPARSEGEN_SHARED(Word, own, kOwnWords);
  const Shape shape(rows, columns);
  scratch = shape.is_own() ? cleared(shape, own) : scratch + own_mask() * shape.scratch_words();
  const long long before = own_mask() * rows * columns;
  const FromThreshold source{scores + before, thresholds == nullptr ? nullptr : thresholds + before, __int_as_float(threshold_bits), columns};
  finish(shape, scratch, pool, told, mask + own_mask() * shape.mask_words(),
         [&](int band) { make_band(shape, band, source, scratch, pool); });
}
