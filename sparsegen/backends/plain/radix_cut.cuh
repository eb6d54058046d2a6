// The cut through 32-bit keys below which so many are live, found digit by digit; see block_mask.cuh. Wants keys_of and may_live
// of what has the keys.
constexpr int kDigits = 256, kDigitBits = 8, kWordBits = 32;

__device__ __forceinline__ void meet_threads(int threads) {
  if (threads == kWarp) {
    __syncwarp();
  } else {
    __syncthreads();
  }
}

// The cut below which so many keys of these rows are live, at least one; digit by digit from the top, each by a histogram
// that kThreadsTogether threads (a warp or the block) share. Its last two places take what was found.
template <int kThreadsTogether, class Source>
__device__ Cut cut_after(int live, const Shape& shape, const Source& source, int first_row, int rows, unsigned* histogram) {
  const int thread = threadIdx.x % kThreadsTogether, lane = threadIdx.x % kWarp, quads = shape.quads();
  unsigned prefix = 0, equals = 0;
  int wanted = live;
  for (int shift = kWordBits - kDigitBits; shift >= 0; shift -= kDigitBits) {
    for (int digit = thread; digit < kDigits; digit += kThreadsTogether) histogram[digit] = 0;
    meet_threads(kThreadsTogether);
    for (long long item = thread; item < static_cast<long long>(rows) * quads; item += kThreadsTogether) {
      const int row = first_row + static_cast<int>(item / quads), quad = static_cast<int>(item % quads);
      unsigned keys[4];
      keys_of(source, row, quad, keys);
      #pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool is_candidate = shift + kDigitBits == kWordBits || keys[i] >> (shift + kDigitBits) == prefix;
        if (4 * quad + i < shape.columns && is_candidate) atomicAdd(&histogram[keys[i] >> shift & (kDigits - 1)], 1u);
      }
    }
    meet_threads(kThreadsTogether);
    if (thread < kWarp) {
      constexpr int kEach = kDigits / kWarp;
      unsigned counts[kEach];
      int sum = 0;
      #pragma unroll
      for (int i = 0; i < kEach; ++i) sum += counts[i] = histogram[lane * kEach + i];
      int before = sum_before(sum, lane);
      #pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (before < wanted && wanted <= before + static_cast<int>(counts[i])) {
          histogram[kDigits] = lane * kEach + i;
          histogram[kDigits + 1] = wanted - before;
          histogram[kDigits + 2] = counts[i];
        }
        before += counts[i];
      }
    }
    meet_threads(kThreadsTogether);
    prefix = prefix << kDigitBits | histogram[kDigits];
    wanted = histogram[kDigits + 1];
    equals = histogram[kDigits + 2];
    meet_threads(kThreadsTogether);
  }
  return {prefix, wanted, equals > static_cast<unsigned>(wanted)};
}
constexpr int kHistogram = kDigits + 4;

// How many keys of the rows from the first one to this one are equal to the cut's.
template <class Source>
__device__ int equals_before(const Cut& cut, const Shape& shape, const Source& source, int row) {
  const int lane = threadIdx.x % kWarp, quads = shape.quads();
  int found = 0;
  for (long long item = lane; item < static_cast<long long>(row) * quads; item += kWarp) {
    const int quad = static_cast<int>(item % quads);
    unsigned keys[4];
    keys_of(source, static_cast<int>(item / quads), quad, keys);
    #pragma unroll
    for (int i = 0; i < 4; ++i) found += 4 * quad + i < shape.columns && keys[i] == cut.key;
  }
  #pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) found += __shfl_xor_sync(kWholeWarp, found, step);
  return found;
}

// A band whose rows keep their `live` smallest keys; of equal ones the first.
template <class Source>
__device__ __forceinline__ void cut_rows(const Shape& shape, int band, int live, const Source& source, Word* scratch, unsigned* pool) {
  const int warp = threadIdx.x / kWarp, row = band * kBand + warp;
  Cut cut{};
  if (row < shape.rows) cut = cut_after<kWarp>(live, shape, source, row, 1, pool + warp * kHistogram);
  __syncthreads();  // the pool becomes the band's
  make_band(shape, band, BelowCut<Source>{source, cut, shape.columns, 0}, scratch, pool);
}

// A band of a mask that keeps its `live` smallest keys. Every thread block finds the cut itself: it would otherwise wait for another one.
template <class Source>
__device__ __forceinline__ void cut_whole(const Shape& shape, int band, int live, const Source& source, Word* scratch, unsigned* pool) {
  const int row = band * kBand + threadIdx.x / kWarp;
  const Cut cut = cut_after<kThreads>(live, shape, source, 0, shape.rows, pool);
  const int before = cut.has_more_equals ? equals_before(cut, shape, source, min(row, shape.rows)) : 0;
  __syncthreads();  // the pool becomes the band's
  make_band(shape, band, BelowCut<Source>{source, cut, shape.columns, before}, scratch, pool);
}

static_assert(kPool >= kBand * kHistogram, "a histogram for each warp fits");
