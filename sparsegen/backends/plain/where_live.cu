// Y = scale · X where the block of an element is live, by the packed mask (sparsegen/matrix/block_mask.py). Elsewhere Y gets zeros,
// or stays as it is. Dead blocks of X are not read. No X stands for Y: its live blocks stay as they are.
constexpr int kWordBits = 64;

// Rows of a thread, all in one row of blocks: more where it takes fewer neighbours, so that enough bytes are on their way.
constexpr int rows_of(int width) { return width < 4 ? 16 / width : 4; }

#include "early_start.cuh"
#include "vector.cuh"

using Word = unsigned long long;

struct Sizes {
  int rows, columns, block_rows, block_columns;
  int x_step, y_step;  // elements from one row to the next
  int row_words;       // words of the bits of a row of blocks
  int order_at;        // words before the order of these rows
  int mask_words;      // words of one batch element
  int groups;          // of rows, all rows of blocks together
};

// A thread takes kWidth neighbours, within one block, of some rows. The grid's y goes over groups of rows, its z over the batch.
template <class T, int kWidth>
__device__ __forceinline__ void copy_live(const Sizes& size, bool fills_dead, float scale, const Word* mask, const T* x, T* y) {
  using Part = typename Moved<T, kWidth>::Type;
  constexpr int kRows = rows_of(kWidth);
  const int column = (blockIdx.x * blockDim.x + threadIdx.x) * kWidth;
  if (column >= size.columns) return;
  const int block = column / size.block_columns, in_block = (size.block_rows + kRows - 1) / kRows;
  const Word* bits = mask + static_cast<long long>(blockIdx.z) * size.mask_words;
  const int* order = reinterpret_cast<const int*>(bits + size.order_at);
  const long long above = static_cast<long long>(blockIdx.z) * size.rows, x_step = size.x_step, y_step = size.y_step;
  for (int at = blockIdx.y; at < size.groups; at += gridDim.y) {
    const int rank = at / in_block;
    const Word word = bits[static_cast<long long>(rank) * size.row_words + block / kWordBits];
    const int begin = order[rank] * size.block_rows, first = begin + (at - rank * in_block) * kRows;
    const int end = size.rows - begin < size.block_rows ? size.rows : begin + size.block_rows;
    const bool is_live = word >> block % kWordBits & 1;
    if (is_live ? x == nullptr : !fills_dead) continue;
    Part part[kRows] = {};
    if (is_live) {
      const T* from = x + (above + first) * x_step + column;
      #pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (first + i < end) part[i] = *reinterpret_cast<const Part*>(from + i * x_step);
      }
      if (scale != 1.0f) {
        #pragma unroll
        for (int i = 0; i < kRows; ++i) part[i] = times_all<T, kWidth>(part[i], scale);
      }
    }
    T* to = y + (above + first) * y_step + column;
    #pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (first + i < end) *reinterpret_cast<Part*>(to + i * y_step) = part[i];
    }
  }
}

#define SPARSEGEN_WHERE_LIVE(name, type, width)                                                                     \
  extern "C" __global__ void name(int rows, int columns, int block_rows, int block_columns, int x_step, int y_step, \
                                  int row_words, int order_at, int mask_words, int groups, int fills_dead,          \
                                  int scale_bits, const Word* mask, const type* x, type* y) {                       \
    wait_for_kernel_before();                                                                                       \
    let_next_kernel_begin();                                                                                        \
    const Sizes size = {rows,   columns,   block_rows, block_columns, x_step,                                       \
                        y_step, row_words, order_at,   mask_words,    groups};                                      \
    copy_live<type, width>(size, fills_dead != 0, __int_as_float(scale_bits), mask, x, y);                          \
  }

SPARSEGEN_WHERE_LIVE(where_live_float32_4, float, 4)
SPARSEGEN_WHERE_LIVE(where_live_float32_2, float, 2)
SPARSEGEN_WHERE_LIVE(where_live_float32_1, float, 1)
SPARSEGEN_WHERE_LIVE(where_live_float16_8, __half, 8)
SPARSEGEN_WHERE_LIVE(where_live_float16_4, __half, 4)
SPARSEGEN_WHERE_LIVE(where_live_float16_2, __half, 2)
SPARSEGEN_WHERE_LIVE(where_live_float16_1, __half, 1)
SPARSEGEN_WHERE_LIVE(where_live_bfloat16_8, __nv_bfloat16, 8)
SPARSEGEN_WHERE_LIVE(where_live_bfloat16_4, __nv_bfloat16, 4)
SPARSEGEN_WHERE_LIVE(where_live_bfloat16_2, __nv_bfloat16, 2)
SPARSEGEN_WHERE_LIVE(where_live_bfloat16_1, __nv_bfloat16, 1)
