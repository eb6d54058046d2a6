// Y = X with blocks dropped and the others scaled: the mask is that of block_mask.cu for the same seed and step, made again
// where it is needed, which costs less than to store and read it. Dropped blocks are not read. No X stands for ones. Seed
// and step are given where there is no state. The grid's z goes over results behind each other, whose steps are apart.
constexpr int kRows = 4;  // of a thread, all in one block: sides are multiples of 16

#include "early_start.cuh"
#include "philox.cuh"
#include "vector.cuh"

__device__ __forceinline__ float one(float) { return 1.0f; }
__device__ __forceinline__ __half one(__half) { return __float2half_rn(1.0f); }
__device__ __forceinline__ __nv_bfloat16 one(__nv_bfloat16) { return __float2bfloat16_rn(1.0f); }

// A thread takes kWidth neighbours of kRows rows. The grid's y goes over groups of rows.
template <class T, int kWidth>
__device__ __forceinline__ void drop(int rows, int columns, int block_rows, int block_columns, unsigned threshold,
                                     float scale, const Random& random, const T* x, T* y) {
  const int column = (blockIdx.x * blockDim.x + threadIdx.x) * kWidth;
  if (column >= columns) return;
  for (int first = blockIdx.y * kRows; first < rows; first += gridDim.y * kRows) {
    const int block = column / block_columns, place = block % 4;
    const uint4 words = random(first / block_rows, block / 4);
    const unsigned word = place == 0 ? words.x : place == 1 ? words.y : place == 2 ? words.z : words.w;
    const bool is_live = word >= threshold;
    Vector<T, kWidth> part[kRows] = {};
    #pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (!is_live || first + i >= rows) continue;
      if (x != nullptr) {
        part[i] = *reinterpret_cast<const Vector<T, kWidth>*>(x + static_cast<long long>(first + i) * columns + column);
      } else {
        #pragma unroll
        for (int j = 0; j < kWidth; ++j) part[i].of[j] = one(part[i].of[j]);
      }
    }
    #pragma unroll
    for (int i = 0; i < kRows; ++i) {
      #pragma unroll
      for (int j = 0; j < kWidth; ++j) part[i].of[j] = times(part[i].of[j], scale);
      if (first + i < rows) {
        *reinterpret_cast<Vector<T, kWidth>*>(y + static_cast<long long>(first + i) * columns + column) = part[i];
      }
    }
  }
}

#define SPARSEGEN_DROP(name, type, width)                                                                       \
  extern "C" __global__ void name(int rows, int columns, int block_rows, int block_columns, unsigned threshold, \
                                  int scale_bits, const Word* state, Word seed, Word step, Word apart,          \
                                  const type* x, type* y) {                                                     \
    wait_for_kernel_before();                                                                                   \
    let_next_kernel_begin();                                                                                    \
    const Random random = state != nullptr ? Random(state) : Random(seed, step + blockIdx.z * apart);           \
    type* const result = y + blockIdx.z * static_cast<long long>(rows) * columns;                               \
    drop<type, width>(rows, columns, block_rows, block_columns, threshold, __int_as_float(scale_bits), random, x, \
                      result);                                                                                  \
  }

SPARSEGEN_DROP(drop_float32_4, float, 4)
SPARSEGEN_DROP(drop_float32_1, float, 1)
SPARSEGEN_DROP(drop_float16_8, __half, 8)
SPARSEGEN_DROP(drop_float16_1, __half, 1)
SPARSEGEN_DROP(drop_bfloat16_8, __nv_bfloat16, 8)
SPARSEGEN_DROP(drop_bfloat16_1, __nv_bfloat16, 1)

// A state of this seed and step.
extern "C" __global__ void store_state(Word seed, Word step, Word* state) {
  wait_for_kernel_before();
  let_next_kernel_begin();
  state[0] = seed, state[1] = step;
}
