// Scores of blocks: the tokens of each block of Q and K reduced to one, column by column, and the products of these in float32.
#if !defined(SPARSEGEN_EMULATOR)
#define SPARSEGEN_SHARED(type, name, count) __shared__ __align__(16) type name[count]
#endif

#include "early_start.cuh"
#include "vector.cuh"

constexpr int kThreads = 256;
constexpr int kRows = 8;     // of a thread that are on their way at once
constexpr int kTile = 32;    // rows and columns of products that a thread block makes
constexpr int kDepth = 128;  // columns of Q and K that it has in shared memory at once
constexpr int kStride = kDepth + 4;  // no two rows of a quarter warp in one bank

struct Tokens {
  int heads, tokens, block;
  int batch_step, head_step, token_step;  // in elements
  int together;  // blocks that a thread block reduces: as many as all loads of its threads fit
};

__device__ __forceinline__ float wide(float x) { return x; }
__device__ __forceinline__ float wide(__half x) { return __half2float(x); }
__device__ __forceinline__ float wide(__nv_bfloat16 x) { return __bfloat162float(x); }

// The greater one, or what is no number.
__device__ __forceinline__ float greater(float a, float b) { return b > a || b != b ? b : a; }

// A thread block reduces some blocks of tokens of one head. Q's heads come first, then K's, along the grid's y; its z is the batch.
template <class T, int kWidth>
__device__ void pool_tokens(Tokens of, int head, int columns, bool takes_most, const T* tokens, float* pooled, float* sums) {
  using Part = typename Moved<T, kWidth>::Type;
  const int across = columns / kWidth, wide_as = min(across, kThreads), groups = kThreads / wide_as / of.together;  // of a block
  const int group = threadIdx.x / wide_as, number = static_cast<int>(blockIdx.x) * of.together + group / groups;
  const int blocks = (of.tokens + of.block - 1) / of.block, first = min(number, blocks) * of.block;
  const int size = group / groups < of.together ? min(of.block, of.tokens - first) : 0;  // below 1 past the last block
  const T* const from = tokens + static_cast<long long>(blockIdx.z) * of.batch_step + static_cast<long long>(head) * of.head_step +
                        static_cast<long long>(first) * of.token_step;
  float* const to = pooled + (static_cast<long long>(blockIdx.z) * of.heads + head) * blocks * columns;
  for (int begin = 0; begin < across; begin += wide_as) {
    const int part = begin + threadIdx.x % wide_as, here = min(wide_as, across - begin) * kWidth;
    float own[kWidth];
    #pragma unroll
    for (int j = 0; j < kWidth; ++j) own[j] = takes_most ? -INFINITY : 0.0f;
    for (int row = group % groups; row < size && part < across; row += kRows * groups) {
      Part loaded[kRows] = {};
      #pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int at = row + i * groups;
        if (at < size) loaded[i] = *reinterpret_cast<const Part*>(from + static_cast<long long>(at) * of.token_step + part * kWidth);
      }
      #pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (row + i * groups >= size) continue;
        Vector<T, kWidth> numbers;
        memcpy(&numbers, &loaded[i], sizeof numbers);
        #pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          const float value = wide(numbers.of[j]);
          own[j] = takes_most ? greater(own[j], value) : own[j] + value;
        }
      }
    }
    __syncthreads();
    #pragma unroll
    for (int j = 0; j < kWidth; ++j) sums[threadIdx.x * kWidth + j] = own[j];
    __syncthreads();
    for (int item = threadIdx.x; item < here * of.together; item += kThreads) {
      const int own = item / here, column = item % here, block = static_cast<int>(blockIdx.x) * of.together + own;
      if (block >= blocks) break;
      const float* const parts = sums + own * groups * wide_as * kWidth + column;
      float sum = parts[0];
      for (int i = 1; i < groups; ++i) {
        const float other = parts[i * wide_as * kWidth];
        sum = takes_most ? greater(sum, other) : sum + other;
      }
      to[static_cast<long long>(block) * columns + begin * kWidth + column] = takes_most ? sum : sum / min(of.block, of.tokens - block * of.block);
    }
  }
}

#define SPARSEGEN_POOL_BLOCKS(name, type, width)                                                                                        \
  extern "C" __global__ void __launch_bounds__(kThreads)                                                                                \
      name(int columns, int takes_most, int query_heads, int queries, int block_rows, int query_batch_step, int query_head_step,        \
           int query_step, int queries_together, int key_heads, int keys, int block_columns, int key_batch_step, int key_head_step,     \
           int key_step, int keys_together, const type* q, const type* k, float* pooled_q, float* pooled_k) {                           \
    SPARSEGEN_SHARED(float, sums, kThreads * width);                                                                                    \
    wait_for_kernel_before();                                                                                                           \
    let_next_kernel_begin();                                                                                                            \
    const int head = blockIdx.y;                                                                                                        \
    const Tokens of_q = {query_heads, queries, block_rows, query_batch_step, query_head_step, query_step, queries_together};            \
    const Tokens of_k = {key_heads, keys, block_columns, key_batch_step, key_head_step, key_step, keys_together};                       \
    const Tokens own = head < query_heads ? of_q : of_k;                                                                                \
    if (blockIdx.x * static_cast<long long>(own.block) * own.together >= own.tokens) return;                                            \
    pool_tokens<type, width>(own, head < query_heads ? head : head - query_heads, columns, takes_most != 0,                             \
                             head < query_heads ? q : k, head < query_heads ? pooled_q : pooled_k, sums);                               \
  }

SPARSEGEN_POOL_BLOCKS(pool_blocks_float32_4, float, 4)
SPARSEGEN_POOL_BLOCKS(pool_blocks_float32_1, float, 1)
SPARSEGEN_POOL_BLOCKS(pool_blocks_float16_8, __half, 8)
SPARSEGEN_POOL_BLOCKS(pool_blocks_float16_1, __half, 1)
SPARSEGEN_POOL_BLOCKS(pool_blocks_bfloat16_8, __nv_bfloat16, 8)
SPARSEGEN_POOL_BLOCKS(pool_blocks_bfloat16_1, __nv_bfloat16, 1)

// Some columns of 32 rows to shared memory, by 16 bytes where rows are made of whole ones; zeros past the ends.
__device__ __forceinline__ void load_tile(const float* from, int rows, int columns, int first_row, int first_column, float* tile) {
  #pragma unroll
  for (int i = 0; i < kTile * kDepth / 4 / kThreads; ++i) {
    const int item = i * kThreads + threadIdx.x, row = item / (kDepth / 4), column = item % (kDepth / 4) * 4, left = columns - first_column - column;
    const float* const own = from + static_cast<long long>(first_row + row) * columns + first_column + column;
    float4 four = {0.0f, 0.0f, 0.0f, 0.0f};
    if (first_row + row < rows && left > 0) {
      if (columns % 4 == 0) {
        four = *reinterpret_cast<const float4*>(own);
      } else {
        four = {own[0], left > 1 ? own[1] : 0.0f, left > 2 ? own[2] : 0.0f, left > 3 ? own[3] : 0.0f};
      }
    }
    *reinterpret_cast<float4*>(tile + row * kStride + column) = four;
  }
}

// scale · pooled Q · pooled Kᵀ, 32 × 32 of one head by a thread block. The grid's x goes over batch × heads of Q.
extern "C" __global__ void __launch_bounds__(kThreads, 2)
    score_blocks(int rows, int columns, int depth, int group, int scale_bits, const float* pooled_q, const float* pooled_k, float* scores) {
  SPARSEGEN_SHARED(float, q, kTile * kStride);
  SPARSEGEN_SHARED(float, k, kTile * kStride);
  wait_for_kernel_before();
  let_next_kernel_begin();
  const int first_row = blockIdx.z * kTile, first_column = blockIdx.y * kTile;
  const float* const from_q = pooled_q + static_cast<long long>(blockIdx.x) * rows * depth;
  const float* const from_k = pooled_k + static_cast<long long>(blockIdx.x / group) * columns * depth;
  const int row = threadIdx.x / 16, column = threadIdx.x % 16;  // and those 16 further on
  float sums[2][2] = {};
  for (int begin = 0; begin < depth; begin += kDepth) {
    if (begin > 0) __syncthreads();
    load_tile(from_q, rows, depth, first_row, begin, q);
    load_tile(from_k, columns, depth, first_column, begin, k);
    __syncthreads();
    const int here = min(kDepth, depth - begin);
    #pragma unroll 8
    for (int i = 0; i < here; i += 4) {
      float4 a[2], b[2];
      #pragma unroll
      for (int j = 0; j < 2; ++j) {
        a[j] = *reinterpret_cast<const float4*>(q + (row + 16 * j) * kStride + i);
        b[j] = *reinterpret_cast<const float4*>(k + (column + 16 * j) * kStride + i);
      }
      #pragma unroll
      for (int j = 0; j < 2; ++j) {
        #pragma unroll
        for (int l = 0; l < 2; ++l) {
          sums[j][l] += a[j].x * b[l].x;
          sums[j][l] += a[j].y * b[l].y;
          sums[j][l] += a[j].z * b[l].z;
          sums[j][l] += a[j].w * b[l].w;
        }
      }
    }
  }
  const float scale = __int_as_float(scale_bits);
  #pragma unroll
  for (int j = 0; j < 2; ++j) {
    #pragma unroll
    for (int l = 0; l < 2; ++l) {
      const int to_row = first_row + row + 16 * j, to_column = first_column + column + 16 * l;
      if (to_row < rows && to_column < columns) {
        scores[(static_cast<long long>(blockIdx.x) * rows + to_row) * columns + to_column] = scale * sums[j][l];
      }
    }
  }
}
