// Sums of a matrix's columns, added in float32: the gradient of a bias. One launch in which each thread block has some columns of all
// rows, so that sums are the same each time.
#if !defined(SPARSEGEN_EMULATOR)
#define SPARSEGEN_SHARED(type, name, count) __shared__ __align__(16) type name[count]
#endif

constexpr int kThreads = 512, kWarp = 32, kAtOnce = 8;  // rows that a thread reads before it adds them
constexpr unsigned kWholeWarp = 0xffffffffu;

#include "early_start.cuh"
#include "vector.cuh"

__device__ __forceinline__ float number(float x) { return x; }
__device__ __forceinline__ float number(__half x) { return __half2float(x); }
__device__ __forceinline__ float number(__nv_bfloat16 x) { return __bfloat162float(x); }

__device__ __forceinline__ void store(float* to, float x) { *to = x; }
__device__ __forceinline__ void store(__half* to, float x) { *to = __float2half_rn(x); }
__device__ __forceinline__ void store(__nv_bfloat16* to, float x) { *to = __float2bfloat16_rn(x); }

// kLanes threads side by side have kWidth columns each; those of other rows are kLanes apart.
template <class T, int kWidth, int kLanes>
__device__ __forceinline__ void add_columns(int rows, int columns, const T* x, T* sums, float* parts) {
  constexpr int kRows = kThreads / kLanes, kColumns = kLanes * kWidth;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kLanes, warp = thread / kWarp;
  const int column = static_cast<int>(blockIdx.x) * kColumns + lane * kWidth;
  float sum[kWidth] = {};
  if (column < columns) {
    for (int first = thread / kLanes; first < rows; first += kRows * kAtOnce) {
      Vector<T, kWidth> found[kAtOnce] = {};
      #pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int row = first + i * kRows;
        if (row < rows) found[i] = *reinterpret_cast<const Vector<T, kWidth>*>(x + static_cast<long long>(row) * columns + column);
      }
      #pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        #pragma unroll
        for (int j = 0; j < kWidth; ++j) sum[j] += number(found[i].of[j]);
      }
    }
  }
  #pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    #pragma unroll
    for (int apart = kWarp / 2; apart >= kLanes; apart /= 2) sum[j] += __shfl_xor_sync(kWholeWarp, sum[j], apart);
    if (thread % kWarp < kLanes) parts[warp * kColumns + lane * kWidth + j] = sum[j];
  }
  __syncthreads();
  for (int own = thread; own < kColumns; own += kThreads) {
    if (static_cast<int>(blockIdx.x) * kColumns + own >= columns) break;
    float whole = 0.0f;
    #pragma unroll
    for (int i = 0; i < kThreads / kWarp; ++i) whole += parts[i * kColumns + own];
    store(sums + static_cast<int>(blockIdx.x) * kColumns + own, whole);
  }
}

#define SPARSEGEN_COLUMN_SUMS(name, type, width, lanes)                                    \
  extern "C" __global__ void __launch_bounds__(kThreads)                                   \
      name(int rows, int columns, const type* x, type* sums) {                             \
    SPARSEGEN_SHARED(float, parts, kThreads / kWarp * lanes * width);                       \
    wait_for_kernel_before();                                                              \
    let_next_kernel_begin();                                                               \
    add_columns<type, width, lanes>(rows, columns, x, sums, parts);                        \
  }

SPARSEGEN_COLUMN_SUMS(add_float32_4x1, float, 4, 1)
SPARSEGEN_COLUMN_SUMS(add_float32_4x2, float, 4, 2)
SPARSEGEN_COLUMN_SUMS(add_float32_4x4, float, 4, 4)
SPARSEGEN_COLUMN_SUMS(add_float32_1x16, float, 1, 16)
SPARSEGEN_COLUMN_SUMS(add_float16_8x1, __half, 8, 1)
SPARSEGEN_COLUMN_SUMS(add_float16_8x2, __half, 8, 2)
SPARSEGEN_COLUMN_SUMS(add_float16_8x4, __half, 8, 4)
SPARSEGEN_COLUMN_SUMS(add_float16_1x16, __half, 1, 16)
SPARSEGEN_COLUMN_SUMS(add_bfloat16_8x1, __nv_bfloat16, 8, 1)
SPARSEGEN_COLUMN_SUMS(add_bfloat16_8x2, __nv_bfloat16, 8, 2)
SPARSEGEN_COLUMN_SUMS(add_bfloat16_8x4, __nv_bfloat16, 8, 4)
SPARSEGEN_COLUMN_SUMS(add_bfloat16_1x16, __nv_bfloat16, 1, 16)
