// Masks of blocks in the buffer that kernels walk (sparsegen/matrix/block_mask.py): what all kernels that make them share.
//
// One launch: each thread block makes a band of 32 rows, or of as many as the file says, a warp for each row, and turns it on its side. The last one to
// finish ranks rows and columns by their live blocks and writes both halves of the buffer. Scratch is zero before the first
// launch and its counter again after each; it holds the counter (two words of 64 bits), for each band the seed and step that
// it was drawn from, the rows' words in their own order, and the columns'. A single thread block makes all bands, one after
// the other, of masks that fit in its shared memory, which is its scratch then.
#if !defined(SPARSEGEN_EMULATOR)
#define SPARSEGEN_SHARED(type, name, count) __shared__ __align__(16) type name[count]
#endif

#if !defined(SPARSEGEN_BAND)
#define SPARSEGEN_BAND 32
#endif

constexpr int kWarp = 32, kBand = SPARSEGEN_BAND, kThreads = kWarp * kBand, kMostLines = 4096, kLineBits = 12;
constexpr int kDrawnBand = 32;  // rows for which scratch says what they were drawn from
constexpr int kPool = 8320;  // shared words of 32 bits that bands and ranks are made in
constexpr int kFew = kThreads < 512 ? kThreads / 2 : 256;  // lines of a side that are ranked by counting
constexpr int kOwnRows = 128, kOwnColumns = 256;  // of a mask that one thread block makes
constexpr int kOwnWords = 2 + 2 * (kOwnRows / kDrawnBand) + kOwnRows * kOwnColumns / 64 + kOwnColumns * kOwnRows / 64;
constexpr unsigned kWholeWarp = 0xffffffffu;
static_assert(1 << kLineBits == kMostLines, "a key's lower bits name a line");
static_assert(kBand == 8 || kBand == 32, "a column has a byte or a word of a band");
static_assert(2 * kFew <= kThreads && 4 * kFew <= 2 * kMostLines, "two threads a line, and room for keys and ranks");
static_assert(kPool >= 2 * kMostLines && kPool >= kBand * (kMostLines / 32 + 1), "ranks fit, and a band's bits");

#include "early_start.cuh"

using Word = unsigned long long;

struct Shape {
  int rows, columns, row_words, column_words;
  __device__ Shape(int rows, int columns)
      : rows(rows), columns(columns), row_words((columns + 63) / 64), column_words((rows + 63) / 64) {}
  __device__ int quads() const { return (columns + 3) / 4; }
  __device__ int bands() const { return (rows + kBand - 1) / kBand; }
  __device__ int drawn_bands() const { return (rows + kDrawnBand - 1) / kDrawnBand; }
  // Whether one thread block makes the mask, in shared memory.
  __device__ bool is_own() const { return gridDim.x == 1 && rows <= kOwnRows && columns <= kOwnColumns; }
  __device__ Word* drawn_from(Word* scratch) const { return scratch + 2; }
  __device__ Word* row_bits(Word* scratch) const { return drawn_from(scratch) + 2 * drawn_bands(); }
  __device__ Word* column_bits(Word* scratch) const { return row_bits(scratch) + static_cast<long long>(rows) * row_words; }
  __device__ long long bit_words() const { return static_cast<long long>(rows) * row_words + static_cast<long long>(columns) * column_words; }
  __device__ long long scratch_words() const { return 2 + 2 * drawn_bands() + bit_words(); }
  __device__ long long mask_words() const { return bit_words() + (rows + 1) / 2 + (columns + 1) / 2; }
};

// What other threads wrote, to shared memory or past the first-level cache.
__device__ __forceinline__ Word written(const Word* place) { return *static_cast<const volatile Word*>(place); }

__device__ __forceinline__ int sum_before(int value, int lane) {
  int sum = value;
  #pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const int other = __shfl_up_sync(kWholeWarp, sum, step);
    if (lane >= step) sum += other;
  }
  return sum - value;
}

// Keys below `key` are live, and the first `equals` of those that are equal to it.
struct Cut {
  unsigned key;
  int equals;
  bool has_more_equals;  // than live ones
};

// Four bits of each lane put together: lanes 0, 8, 16 and 24 get the word of theirs and the next seven.
__device__ __forceinline__ unsigned gathered(unsigned four, int lane) {
  unsigned word = four << 4 * (lane % 8);
  #pragma unroll
  for (int step = 1; step < 8; step *= 2) word |= __shfl_xor_sync(kWholeWarp, word, step);
  return word;
}

// Each of these gives a lane's four bits of a row, called by whole warps with rising quads; bits past the end may be set.

template <class Source>
struct BelowCut {
  Source source;
  Cut cut;
  int columns, equals;  // that came before
  __device__ __forceinline__ unsigned operator()(int row, int quad) {
    unsigned keys[4], four = 0;
    keys_of(source, row, quad, keys);
    #pragma unroll
    for (int i = 0; i < 4; ++i) four |= keys[i] < cut.key || (!cut.has_more_equals && keys[i] == cut.key) ? 1u << i : 0u;
    const unsigned allowed = may_live(source, keys);
    if (!cut.has_more_equals) return four & allowed;
    unsigned same = 0;
    #pragma unroll
    for (int i = 0; i < 4; ++i) same |= 4 * quad + i < columns && keys[i] == cut.key ? 1u << i : 0u;
    const int own = __popc(same), before = sum_before(own, threadIdx.x % kWarp);
    int number = equals + before;
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (same >> i & 1u) four |= number++ < cut.equals ? 1u << i : 0u;
    }
    equals += __shfl_sync(kWholeWarp, before + own, kWarp - 1);
    return four & allowed;
  }
};

// What a column has of a band.
template <int kRows>
struct ColumnPart {
  using Type = unsigned;
};

template <>
struct ColumnPart<8> {
  using Type = unsigned char;
};

// A lane's column of kRows rows in shared memory, of 32 columns in a word.
template <int kRows>
__device__ __forceinline__ unsigned turned(const unsigned* bits, int stride, int half, int lane) {
  unsigned own = 0;
  if (kRows < kWarp) {
    #pragma unroll
    for (int row = 0; row < kRows; ++row) own |= (bits[row * stride + half] >> lane & 1u) << row;
    return own;
  }
  const unsigned word = bits[lane * stride + half];
  #pragma unroll
  for (int column = 0; column < kWarp; ++column) {
    const unsigned found = __ballot_sync(kWholeWarp, word >> column & 1u);
    if (lane == column) own = found;
  }
  return own;
}

// A band's rows to scratch, and on their side; the band's bits lie in shared memory in between.
template <class Source>
__device__ void make_band(const Shape& shape, int band, Source source, Word* scratch, unsigned* bits) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, row = band * kBand + warp;
  const int halves = 2 * shape.row_words, stride = halves + 1;  // odd: no two rows in one bank
  unsigned* const rows = reinterpret_cast<unsigned*>(shape.row_bits(scratch));
  for (int half = 0; half < halves; half += 4) {
    const int own = half + lane / 8, quad = 8 * half + lane, left = shape.columns - 4 * quad;
    unsigned four = row < shape.rows ? source(row, quad) : 0u;
    four = left >= 4 ? four : left > 0 ? four & ((1u << left) - 1) : 0u;
    const unsigned word = gathered(four, lane);
    if (lane % 8 == 0 && own < halves) {
      bits[warp * stride + own] = word;
      if (row < shape.rows) rows[static_cast<long long>(row) * halves + own] = word;
    }
  }
  __syncthreads();
  using Part = typename ColumnPart<kBand>::Type;
  constexpr int kParts = 64 / kBand;
  Part* const columns = reinterpret_cast<Part*>(shape.column_bits(scratch));
  for (int half = warp; half < halves; half += kBand) {
    const unsigned own = turned<kBand>(bits, stride, half, lane);
    const int column = kWarp * half + lane;
    if (column < shape.columns) columns[static_cast<long long>(kParts) * column * shape.column_words + band] = static_cast<Part>(own);
  }
}

// A thread block's own scratch. Of a column's last word an odd number of bands leaves half.
__device__ __forceinline__ Word* cleared(const Shape& shape, Word* own) {
  for (int column = threadIdx.x; column < shape.columns; column += kThreads) {
    shape.column_bits(own)[(column + 1LL) * shape.column_words - 1] = 0;
  }
  __syncthreads();
  return own;
}

// Whether all other thread blocks have finished their bands; what they wrote is seen then.
__device__ bool is_last(Word* scratch, unsigned* told) {
  unsigned* const counter = reinterpret_cast<unsigned*>(scratch);
  __syncthreads();
  if (gridDim.x == 1) return true;
  if (threadIdx.x == 0) {
    __threadfence();
    *told = atomicAdd(counter, 1u);
    __threadfence();
  }
  __syncthreads();
  const bool found = *told == gridDim.x - 1;
  if (found && threadIdx.x == 0) *counter = 0;
  return found;
}

// The lines of a side with their live blocks as keys: more of them first, equal ones in their own order. Keys of lines past
// the end are the highest.
__device__ void name_lines(int lines, unsigned* keys, int padded) {
  for (int line = threadIdx.x; line < padded; line += kThreads) {
    keys[line] = line < lines ? static_cast<unsigned>(kMostLines << kLineBits | line) : 0xffffffffu;
  }
}

__device__ void count_lines(int lines, int words, const Word* bits, unsigned* keys) {
  #pragma unroll 4
  for (int place = threadIdx.x; place < lines * words; place += kThreads) {
    atomicAdd(&keys[place / words], 0u - (static_cast<unsigned>(__popcll(written(bits + place))) << kLineBits));
  }
}

// Both halves of the keys, each in rising order (Batcher's bitonic sort). Warps stay with 64 keys for as long as they can.
__device__ void sort_both(unsigned* keys, int padded) {
  __syncthreads();
  for (int run = 2; run <= padded; run *= 2) {
    for (int step = run / 2; step > 0; step /= 2) {
      for (int pair = threadIdx.x; pair < padded; pair += kThreads) {
        const int first = 2 * pair - (pair & (step - 1)), second = first + step;
        const unsigned a = keys[first], b = keys[second];
        if ((a > b) == ((first & (padded - 1) & run) == 0)) keys[first] = b, keys[second] = a;
      }
      const int next = step > 1 ? step / 2 : run;
      if (step > kWarp || next > kWarp) {
        __syncthreads();
      } else {
        __syncwarp();
      }
    }
  }
  __syncthreads();
}

// The same of at most kFew lines a side, into other memory: a line's rank is the number of smaller keys, which several
// threads count. All keys but those past the end are different.
__device__ void rank_few(const unsigned* keys, unsigned* ranked, int padded) {
  const int each = kThreads / (2 * padded), line = threadIdx.x / each, part = threadIdx.x % each;
  const unsigned own = keys[line];
  const int side = line & padded, fours = padded / each / 4;
  const uint4* const others = reinterpret_cast<const uint4*>(keys + side) + part * fours;
  int rank = 0;
  for (int i = 0; i < fours; ++i) {
    const uint4 four = others[i];
    rank += (four.x < own) + (four.y < own) + (four.z < own) + (four.w < own);
  }
  for (int step = each / 2; step > 0; step /= 2) rank += __shfl_xor_sync(kWholeWarp, rank, step);
  if (part == 0) ranked[side + rank] = own;
  __syncthreads();
}

// One half of the buffer.
__device__ void write_side(int lines, int words, const Word* bits, const unsigned* keys, Word* __restrict__ out) {
  constexpr unsigned kLine = kMostLines - 1;
  #pragma unroll 4
  for (int place = threadIdx.x; place < lines * words; place += kThreads) {
    const int rank = place / words, word = place - rank * words;
    out[place] = written(bits + static_cast<long long>(keys[rank] & kLine) * words + word);
  }
  int* const order = reinterpret_cast<int*>(out + static_cast<long long>(lines) * words);
  for (int rank = threadIdx.x; rank < (lines + 1) / 2 * 2; rank += kThreads) {
    order[rank] = rank < lines ? static_cast<int>(keys[rank] & kLine) : 0;
  }
}

// The lines of both sides by rank; keys have room for two times the longer one, rounded up to a power of two.
struct Ranks {
  const unsigned *rows, *columns;
};

__device__ Ranks rank_lines(const Shape& shape, Word* scratch, unsigned* keys) {
  int padded = 2 * kWarp;
  while (padded < max(shape.rows, shape.columns)) padded *= 2;
  name_lines(shape.rows, keys, padded);
  name_lines(shape.columns, keys + padded, padded);
  __syncthreads();
  count_lines(shape.rows, shape.row_words, shape.row_bits(scratch), keys);
  count_lines(shape.columns, shape.column_words, shape.column_bits(scratch), keys + padded);
  if (padded <= kFew) {
    __syncthreads();
    rank_few(keys, keys + 2 * padded, padded);
    keys += 2 * padded;
  } else {
    sort_both(keys, padded);
  }
  return {keys, keys + padded};
}

__device__ void write_mask(const Shape& shape, Word* scratch, const Ranks& ranks, Word* mask) {
  write_side(shape.rows, shape.row_words, shape.row_bits(scratch), ranks.rows, mask);
  const long long half = static_cast<long long>(shape.rows) * shape.row_words + (shape.rows + 1) / 2;
  write_side(shape.columns, shape.column_words, shape.column_bits(scratch), ranks.columns, mask + half);
}

// The mask of live blocks that are given; masks that the grid's y counts are made side by side, each with scratch of its own.
// `make(band)` makes a band.
template <class MakeBand>
__device__ __forceinline__ void finish(const Shape& shape, Word* scratch, unsigned* pool, unsigned* told, Word* mask,
                                       const MakeBand& make) {
  wait_for_kernel_before();
  let_next_kernel_begin();  // the product that takes the mask may set itself up
  for (int band = static_cast<int>(blockIdx.x); band < shape.bands(); band += static_cast<int>(gridDim.x)) {
    make(band);
    __syncthreads();  // the pool is the next band's
  }
  if (is_last(scratch, told)) write_mask(shape, scratch, rank_lines(shape, scratch, pool), mask);
}

// Which of them a thread block makes.
__device__ __forceinline__ long long own_mask() { return blockIdx.y; }

// The same with bands that are kept in scratch memory alone: `make(shape, band, scratch, pool)` makes one.
template <class MakeBand>
__device__ __forceinline__ void finish_in_scratch(int rows, int columns, Word* scratch, Word* mask, const MakeBand& make) {
  SPARSEGEN_SHARED(unsigned, pool, kPool);
  SPARSEGEN_SHARED(unsigned, told, 1);
  const Shape shape(rows, columns);
  scratch += own_mask() * shape.scratch_words();
  finish(shape, scratch, pool, told, mask + own_mask() * shape.mask_words(), [&](int band) { make(shape, band, scratch, pool); });
}
