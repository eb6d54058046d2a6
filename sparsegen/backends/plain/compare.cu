// How far a result lies from its reference, measured by a bound: see sparsegen/verify/bounds.py.
#if !defined(SPARSEGEN_EMULATOR)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

__device__ float real(float x) { return x; }
__device__ float real(__half x) { return __half2float(x); }
__device__ float real(__nv_bfloat16 x) { return __bfloat162float(x); }

// Raises *worst to the largest error over its bound; NaN counts as infinite. The bits of floats that are not negative
// are ordered as the floats are. Element i is a sum of terms[i / stride % lengths] terms; `factors` are those of sums,
// typical sums, exact values, and the smallest numbers. Where the exact result is NaN, the output shall be left as it was: NaN.
template <class T>
__device__ void raise_worst(int count, int stride, int lengths, const T* result, const double* exact, const float* magnitude,
                            const float* terms, const float* factors, float largest, unsigned* worst) {
  const float sums = 4 * factors[0], typical = 4 * factors[1], smallest = factors[3];
  const double relative = factors[2];
  float mine = 0;
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += static_cast<long long>(gridDim.x) * blockDim.x) {
    const float actual = real(result[i]), root = sqrtf(terms[static_cast<int>(i) / stride % lengths] + 2);
    const double bound =
        static_cast<double>(sums * root + typical / root) * magnitude[i] + relative * fabs(exact[i]) + smallest;
    float error = static_cast<float>(fabs(actual - exact[i]) / bound);
    if (fabsf(actual) == INFINITY && fabs(exact[i]) > largest) error = 0;
    if (exact[i] != exact[i] && actual != actual) error = 0;
    if (error != error) error = INFINITY;
    mine = error > mine ? error : mine;
  }
  if (mine > 0) atomicMax(worst, __float_as_uint(mine));
}

extern "C" __global__ void worst_error_float32(int count, int stride, int lengths, const float* result, const double* exact,
                                               const float* magnitude, const float* terms, const float* factors,
                                               unsigned* worst) {
  raise_worst(count, stride, lengths, result, exact, magnitude, terms, factors, INFINITY, worst);
}

extern "C" __global__ void worst_error_float16(int count, int stride, int lengths, const __half* result, const double* exact,
                                               const float* magnitude, const float* terms, const float* factors,
                                               unsigned* worst) {
  raise_worst(count, stride, lengths, result, exact, magnitude, terms, factors, 65504.0f, worst);
}

extern "C" __global__ void worst_error_bfloat16(int count, int stride, int lengths, const __nv_bfloat16* result,
                                                const double* exact, const float* magnitude, const float* terms,
                                                const float* factors, unsigned* worst) {
  raise_worst(count, stride, lengths, result, exact, magnitude, terms, factors, INFINITY, worst);
}
