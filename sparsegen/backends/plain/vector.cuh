// Neighbouring elements that one access moves, and what is done to them: in float32, rounded once.
#if !defined(SPARSEGEN_EMULATOR)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

template <class T, int kWidth>
struct alignas(sizeof(T) * kWidth) Vector {
  T of[kWidth];
};

__device__ __forceinline__ float times(float x, float scale) { return x * scale; }
__device__ __forceinline__ __half times(__half x, float scale) { return __float2half_rn(__half2float(x) * scale); }
__device__ __forceinline__ __nv_bfloat16 times(__nv_bfloat16 x, float scale) {
  return __float2bfloat16_rn(__bfloat162float(x) * scale);
}

// The same without types, so that what is only moved stays in whole registers; a single element as it is.
template <class T, int kWidth>
struct Moved {
  using Type = Vector<unsigned, sizeof(T) * kWidth / sizeof(unsigned)>;
};

template <class T>
struct Moved<T, 1> {
  using Type = Vector<T, 1>;
};

template <class T, int kWidth, class Part>
__device__ __forceinline__ Part times_all(Part part, float scale) {
  Vector<T, kWidth> numbers;
  memcpy(&numbers, &part, sizeof part);
  #pragma unroll
  for (int j = 0; j < kWidth; ++j) numbers.of[j] = times(numbers.of[j], scale);
  memcpy(&part, &numbers, sizeof part);
  return part;
}
