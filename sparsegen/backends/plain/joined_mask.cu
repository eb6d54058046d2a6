// Masks of blocks by other masks, whose words are put together, by lists of columns, and by places alone; see block_mask.cuh.
#include "block_mask.cuh"

constexpr int kRowsAt = kBand * (kMostLines / 32 + 1);  // of a band's own rows in the pool, behind where make_band turns them
constexpr int kMostHalves = kMostLines / 32;            // words of 32 bits in a row
static_assert(kRowsAt + kBand * kMostHalves <= kPool, "a band's rows fit twice");

// Unites or cuts a band's rows, which lie in shared memory, with the rows of a mask that are at most `by` rows away.
// The mask's rows lie by rank; which rank has a row is found in its order first, as 16-bit numbers in the pool.
__device__ void join_rows(const Shape& shape, int band, int by, bool unites, const Word* mask, unsigned* pool) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, halves = 2 * shape.row_words;
  const int first = max(0, band * kBand - by), last = min(shape.rows, (band + 1) * kBand + by);
  unsigned short* const rank_of = reinterpret_cast<unsigned short*>(pool);
  unsigned* const rows = pool + kRowsAt;
  const int* const order = reinterpret_cast<const int*>(mask + static_cast<long long>(shape.rows) * shape.row_words);
  for (int rank = threadIdx.x; rank < shape.rows; rank += kThreads) {
    const int row = order[rank];
    if (row >= first && row < last) rank_of[row - first] = static_cast<unsigned short>(rank);
  }
  __syncthreads();
  const unsigned* const bits = reinterpret_cast<const unsigned*>(mask);
  const int own = band * kBand + warp, from = max(0, own - by), to = min(shape.rows, own + by + 1);
  for (int half = lane; own < shape.rows && half < halves; half += kWarp) {
    unsigned found = 0;
    for (int row = from; row < to; ++row) found |= bits[static_cast<long long>(rank_of[row - first]) * halves + half];
    unsigned* const word = rows + warp * halves + half;
    *word = unites ? *word | found : *word & found;
  }
  __syncthreads();  // the pool becomes the next mask's, or the band's
}

__device__ __forceinline__ void clear_rows(const Shape& shape, unsigned* pool) {
  const int words = kBand * 2 * shape.row_words;
  for (int i = threadIdx.x; i < words; i += kThreads) pool[kRowsAt + i] = 0;
  __syncthreads();
}

// A band's joined rows: a block lives where one does that is at most `by` columns away.
struct Joined {
  const unsigned* rows;
  int halves, by, columns;
  __device__ __forceinline__ unsigned operator()(int, int quad) const {
    const unsigned* const row = rows + threadIdx.x / kWarp * halves;
    if (quad / 8 >= halves) return 0;
    if (by == 0) return row[quad / 8] >> 4 * (quad % 8) & 15u;
    unsigned four = 0;
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = 4 * quad + i, from = max(0, column - by), to = min(columns - 1, column + by);  // both count
      unsigned any = 0;
      for (int half = from / 32; half <= to / 32; ++half) {
        unsigned word = row[half];
        if (half == from / 32) word &= ~0u << from % 32;
        if (half == to / 32) word &= ~0u >> (31 - to % 32);
        any |= word;
      }
      four |= any ? 1u << i : 0u;
    }
    return four;
  }
};

// Each mask is the union of those of its group, dilated by rows and columns.
extern "C" __global__ void __launch_bounds__(kThreads)
    dilated_union(int rows, int columns, int group, int by_rows, int by_columns, const Word* masks, Word* scratch, Word* mask) {
  SPARSEGEN_SHARED(unsigned, pool, kPool);
  SPARSEGEN_SHARED(unsigned, told, 1);
  SPARSEGEN_SHARED(Word, own, kOwnWords);
  const Shape shape(rows, columns);
  scratch = shape.is_own() ? cleared(shape, own) : scratch + own_mask() * shape.scratch_words();
  masks += own_mask() / group * group * shape.mask_words();
  const Joined source{pool + kRowsAt, 2 * shape.row_words, by_columns, columns};
  finish(shape, scratch, pool, told, mask + own_mask() * shape.mask_words(), [&](int band) {
    clear_rows(shape, pool);
    for (int i = 0; i < group; ++i) join_rows(shape, band, by_rows, true, masks + i * shape.mask_words(), pool);
    make_band(shape, band, source, scratch, pool);
  });
}

// The union or the intersection of two masks.
extern "C" __global__ void __launch_bounds__(kThreads)
    both_masks(int rows, int columns, int unites, const Word* left, const Word* right, Word* scratch, Word* mask) {
  SPARSEGEN_SHARED(unsigned, pool, kPool);
  SPARSEGEN_SHARED(unsigned, told, 1);
  SPARSEGEN_SHARED(Word, own, kOwnWords);
  const Shape shape(rows, columns);
  scratch = shape.is_own() ? cleared(shape, own) : scratch + own_mask() * shape.scratch_words();
  const long long before = own_mask() * shape.mask_words();
  const Joined source{pool + kRowsAt, 2 * shape.row_words, 0, columns};
  finish(shape, scratch, pool, told, mask + before, [&](int band) {
    clear_rows(shape, pool);
    join_rows(shape, band, 0, true, left + before, pool);
    join_rows(shape, band, 0, unites != 0, right + before, pool);
    make_band(shape, band, source, scratch, pool);
  });
}

// The columns that a list names, to a band's rows: of each row as many as are counted, at most `slots`.
__device__ void list_columns(const Shape& shape, int band, int slots, const int* counts, const int* columns, unsigned* pool) {
  const int warp = threadIdx.x / kWarp, row = band * kBand + warp;
  const int count = row < shape.rows ? min(counts[row], slots) : 0;
  for (int i = threadIdx.x % kWarp; i < count; i += kWarp) {
    const int column = columns[static_cast<long long>(row) * slots + i];
    if (column < 0 || column >= shape.columns) continue;
    atomicOr(pool + kRowsAt + warp * 2 * shape.row_words + column / 32, 1u << column % 32);
  }
  __syncthreads();
}

// The blocks of one or two lists of columns; without the second one its counts are none.
extern "C" __global__ void __launch_bounds__(kThreads)
    listed(int rows, int columns, int slots, int more_slots, const int* counts, const int* indices, const int* more_counts,
           const int* more_indices, Word* scratch, Word* mask) {
  SPARSEGEN_SHARED(unsigned, pool, kPool);
  SPARSEGEN_SHARED(unsigned, told, 1);
  SPARSEGEN_SHARED(Word, own, kOwnWords);
  const Shape shape(rows, columns);
  scratch = shape.is_own() ? cleared(shape, own) : scratch + own_mask() * shape.scratch_words();
  const long long lines = own_mask() * rows;
  const Joined source{pool + kRowsAt, 2 * shape.row_words, 0, columns};
  finish(shape, scratch, pool, told, mask + own_mask() * shape.mask_words(), [&](int band) {
    clear_rows(shape, pool);
    list_columns(shape, band, slots, counts + lines, indices + lines * slots, pool);
    if (more_counts != nullptr) {
      list_columns(shape, band, more_slots, more_counts + lines, more_indices + lines * more_slots, pool);
    }
    make_band(shape, band, source, scratch, pool);
  });
}

// Blocks of queries × keys in which a query sees a key: least <= key - query <= most, or key < sinks and key - query <= most.
struct Window {
  int queries, keys, block_rows, block_columns, least, most, sinks, columns;
  __device__ __forceinline__ unsigned operator()(int row, int quad) const {
    const int first_query = row * block_rows, last_query = min(queries - first_query, block_rows) + first_query - 1;
    unsigned four = 0;
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = 4 * quad + i;
      if (column >= columns) continue;
      const int first = column * block_columns, last = min(keys - first, block_columns) + first - 1;
      // A rectangle of places has every difference between those of two of its corners.
      if (first - last_query <= most && (last - first_query >= least || first < sinks)) four |= 1u << i;
    }
    return four;
  }
};

extern "C" __global__ void __launch_bounds__(kThreads)
    window(int rows, int columns, int queries, int keys, int block_rows, int block_columns, int least, int most, int sinks,
           Word* scratch, Word* mask) {
  SPARSEGEN_SHARED(unsigned, pool, kPool);
  SPARSEGEN_SHARED(unsigned, told, 1);
  SPARSEGEN_SHARED(Word, own, kOwnWords);
  const Shape shape(rows, columns);
  if (shape.is_own()) scratch = cleared(shape, own);
  const Window source{queries, keys, block_rows, block_columns, least, most, sinks, columns};
  finish(shape, scratch, pool, told, mask, [&](int band) { make_band(shape, band, source, scratch, pool); });
}
