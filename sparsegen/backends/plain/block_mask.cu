// Masks of blocks that are drawn, or given as bits or bools; see block_mask.cuh. The random words are those of
// sparsegen/matrix/block_mask_draw.py.
#include "block_mask.cuh"
#include "philox.cuh"

constexpr int kKeyShift = 0;  // tests make keys equal by it

// What exact counts compare: the smallest are live, of equal ones the first.
__device__ __forceinline__ void keys_of(const Random& random, int row, int quad, unsigned (&found)[4]) {
  const uint4 words = random(row, quad);
  found[0] = words.x >> kKeyShift, found[1] = words.y >> kKeyShift;
  found[2] = words.z >> kKeyShift, found[3] = words.w >> kKeyShift;
}

// Of four blocks those that may live at all.
__device__ __forceinline__ unsigned may_live(const Random&, const unsigned (&)[4]) { return 15u; }

#include "radix_cut.cuh"

struct Independent {
  Random random;
  unsigned threshold;
  __device__ __forceinline__ unsigned operator()(int row, int quad) {
    const uint4 words = random(row, quad);
    return (words.x >= threshold ? 1u : 0u) | (words.y >= threshold ? 2u : 0u) | (words.z >= threshold ? 4u : 0u) |
           (words.w >= threshold ? 8u : 0u);
  }
};

struct Bits {
  const unsigned* words;
  int row_words;  // of 64 bits
  __device__ __forceinline__ unsigned operator()(int row, int quad) const {
    const int half = quad / 8;
    return half < 2 * row_words ? words[2LL * row * row_words + half] >> 4 * (quad % 8) & 15u : 0u;
  }
};

struct Bools {
  const unsigned char* live;
  int columns;
  __device__ __forceinline__ unsigned operator()(int row, int quad) const {
    unsigned four = 0;
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = 4 * quad + i;
      if (column < columns && live[static_cast<long long>(row) * columns + column]) four |= 1u << i;
    }
    return four;
  }
};

// Past the first-level cache, which keeps what it read before another kernel ended.
__device__ __forceinline__ Random named_by(const Word* state) { return Random(__ldcg(state), __ldcg(state + 1)); }

// Whether all bands were drawn from this; each warp finds out by itself.
__device__ __forceinline__ bool drew_all(const Random& random, const Shape& shape, Word* scratch) {
  bool differs = false;
  for (int band = threadIdx.x % kWarp; band < shape.bands(); band += kWarp) {
    const Word* const from = shape.drawn_from(scratch) + 2 * band;
    differs |= written(from) != random.seed || written(from + 1) != random.step;
  }
  return !__any_sync(kWholeWarp, differs);
}

// The bands of this thread block. The pool is the next one's behind each.
template <class MakeBand>
__device__ __forceinline__ void make_bands(const Shape& shape, const Random& random, int first, int step, const MakeBand& make) {
  for (int band = first; band < shape.bands(); band += step) {
    if (band > first) __syncthreads();
    make(random, band);
  }
}

// The mask that a state names; the state then names the next one. `make_of(shape, random, band, scratch, pool)` makes a band.
//
// Early: the mask is made and ranked while the kernel before may still run, from what the state is by then, and stored when
// that kernel has ended. If the state is another one then, the last thread block makes the whole mask anew. Until then this
// kernel writes to scratch alone. That is safe with two of them in turn: it begins when the launch before on these has
// waited for all kernels before it, so that the last but one has ended. Therefore no thread block lets the next kernel begin
// before it has waited itself. A product behind sets itself up while the mask is stored; a draw from the same state may begin
// with the old one and make its mask anew. Thread blocks that end early need not wait, as the last one does.
template <class MakeBand>
__device__ __forceinline__ void draw(int rows, int columns, bool early, Word* state, Word* scratch, Word* mask, const MakeBand& make_of) {
  SPARSEGEN_SHARED(unsigned, pool, kPool);
  SPARSEGEN_SHARED(unsigned, told, 1);
  SPARSEGEN_SHARED(Word, named, 2);
  SPARSEGEN_SHARED(Word, own, kOwnWords);
  const Shape shape(rows, columns);
  if (shape.is_own()) scratch = cleared(shape, own);
  const auto make = [&](const Random& random, int band) { make_of(shape, random, band, scratch, pool); };
  if (!early) {
    wait_for_kernel_before();
    let_next_kernel_begin();
  }
  const Random seen = named_by(state);
  make_bands(shape, seen, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), make);
  if (gridDim.x > 1 && threadIdx.x == 0) {
    Word* const from = shape.drawn_from(scratch) + 2 * blockIdx.x;
    from[0] = seen.seed, from[1] = seen.step;
  }
  if (!is_last(scratch, told)) return;
  const bool agreed = !early || gridDim.x == 1 || drew_all(seen, shape, scratch);
  Ranks ranks = rank_lines(shape, scratch, pool);
  if (early) wait_for_kernel_before();
  if (threadIdx.x == 0) {
    if (early) let_next_kernel_begin();
    const Random now = early ? named_by(state) : seen;
    state[1] = now.step + 1;
    named[0] = now.seed, named[1] = now.step;
    *told = agreed && now.seed == seen.seed && now.step == seen.step;
  }
  write_mask(shape, scratch, ranks, mask);
  __syncthreads();
  if (*told) return;
  make_bands(shape, Random(named[0], named[1]), 0, 1, make);
  __syncthreads();
  ranks = rank_lines(shape, scratch, pool);
  write_mask(shape, scratch, ranks, mask);
}

extern "C" __global__ void __launch_bounds__(kThreads)
    draw_bernoulli(int rows, int columns, unsigned threshold, int early, Word* state, Word* scratch, Word* mask) {
  draw(rows, columns, early != 0, state, scratch, mask, [=](const Shape& shape, const Random& random, int band, Word* own, unsigned* pool) {
    make_band(shape, band, Independent{random, threshold}, own, pool);
  });
}

extern "C" __global__ void __launch_bounds__(kThreads)
    draw_exact_rows(int rows, int columns, int live, int early, Word* state, Word* scratch, Word* mask) {
  draw(rows, columns, early != 0, state, scratch, mask, [=](const Shape& shape, const Random& random, int band, Word* own, unsigned* pool) {
    cut_rows(shape, band, live, random, own, pool);
  });
}

extern "C" __global__ void __launch_bounds__(kThreads)
    draw_exact_whole(int rows, int columns, int live, int early, Word* state, Word* scratch, Word* mask) {
  draw(rows, columns, early != 0, state, scratch, mask, [=](const Shape& shape, const Random& random, int band, Word* own, unsigned* pool) {
    cut_whole(shape, band, live, random, own, pool);
  });
}

// A line to the place of its rank, where each lane has a line of one word.
__device__ __forceinline__ void write_line(int lines, unsigned own, Word* __restrict__ out) {
  const int lane = threadIdx.x;
  const unsigned key = static_cast<unsigned>(lane < lines ? kWarp - __popc(own) : 2 * kWarp) * kWarp + lane;
  int rank = 0;
  #pragma unroll
  for (int other = 0; other < kWarp; ++other) rank += __shfl_sync(kWholeWarp, key, other) < key;
  int* const order = reinterpret_cast<int*>(out + lines);
  if (lane < lines) out[rank] = own, order[rank] = lane;
  if (lane == lines && lines % 2 != 0) order[lines] = 0;
}

// The mask of independent blocks that `draw` makes, of at most 32 rows and columns of them: one warp, with a lane for each
// line, which needs neither shared memory nor scratch, and waits for no other warp.
extern "C" __global__ void __launch_bounds__(kWarp)
    draw_few(int rows, int columns, unsigned threshold, int early, Word* state, Word* mask) {
  if (!early) {
    wait_for_kernel_before();
    let_next_kernel_begin();
  }
  const int lane = threadIdx.x;
  unsigned row = 0, column = 0;
  const auto make = [&](const Random& random) {
    Independent is_live{random, threshold};
    row = 0;
    #pragma unroll 2
    for (int quad = 0; 4 * quad < columns; ++quad) row |= is_live(lane, quad) << 4 * quad;
    row = lane < rows ? row & 0xffffffffu >> (kWarp - columns) : 0u;
    #pragma unroll
    for (int i = 0; i < kWarp; ++i) {
      const unsigned found = __ballot_sync(kWholeWarp, row >> i & 1u);
      if (lane == i) column = found;
    }
  };
  const Random seen = named_by(state);
  make(seen);
  Random now = seen;
  if (early) {
    wait_for_kernel_before();
    let_next_kernel_begin();
    now = named_by(state);
    if (__any_sync(kWholeWarp, now.seed != seen.seed || now.step != seen.step)) make(now);
  }
  __syncwarp();  // all lanes have read the state
  if (lane == 0) state[1] = now.step + 1;
  write_line(rows, row, mask);
  write_line(columns, column, mask + rows + (rows + 1) / 2);
}

// Rows of bits in their own order.
extern "C" __global__ void __launch_bounds__(kThreads)
    finish_bits(int rows, int columns, const unsigned* words, Word* scratch, Word* mask) {
  SPARSEGEN_SHARED(unsigned, pool, kPool);
  SPARSEGEN_SHARED(unsigned, told, 1);
  SPARSEGEN_SHARED(Word, own, kOwnWords);
  const Shape shape(rows, columns);
  scratch = shape.is_own() ? cleared(shape, own) : scratch + own_mask() * shape.scratch_words();
  const Bits source{words + own_mask() * 2 * rows * shape.row_words, shape.row_words};
  finish(shape, scratch, pool, told, mask + own_mask() * shape.mask_words(),
         [&](int band) { make_band(shape, band, source, scratch, pool); });
}

// A byte for each block, live unless it is zero.
extern "C" __global__ void __launch_bounds__(kThreads)
    finish_bools(int rows, int columns, const unsigned char* live, Word* scratch, Word* mask) {
  SPARSEGEN_SHARED(unsigned, pool, kPool);
  SPARSEGEN_SHARED(unsigned, told, 1);
  SPARSEGEN_SHARED(Word, own, kOwnWords);
  const Shape shape(rows, columns);
  scratch = shape.is_own() ? cleared(shape, own) : scratch + own_mask() * shape.scratch_words();
  const Bools source{live + own_mask() * rows * columns, columns};
  finish(shape, scratch, pool, told, mask + own_mask() * shape.mask_words(),
         [&](int band) { make_band(shape, band, source, scratch, pool); });
}
