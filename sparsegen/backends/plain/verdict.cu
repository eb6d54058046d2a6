// How far a result lies from a float64 reference, on the device: see sparsegen/references.py.
#if !defined(SPARSEGEN_EMULATOR)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

// What the product does not know: adds bias and residual, applies ReLU or GELU, and makes the bound of
// `SpmmProblem.reference` of the sums of absolute values. An element (row, column) is at row * c_row + column * c_column.
extern "C" __global__ void spmm_bound(int m, int n, int c_row, int c_column, int has_bias, int has_residual, int has_relu,
                                      int has_gelu, int bits, const int* offsets, const float* bias,
                                      const float* residual, double* exact, float* magnitude) {
  const long long element = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (element >= static_cast<long long>(m) * n) return;
  const long long row = element / n, column = element % n;
  const long long place = row * c_row + column * c_column;
  double value = exact[place], size = magnitude[place];
  if (has_bias) {
    value += bias[row];
    size += fabs(static_cast<double>(bias[row]));
  }
  if (has_residual) {
    value += residual[place];
    size += fabs(static_cast<double>(residual[place]));
  }
  if (has_relu && value < 0) value = 0;
  if (has_gelu) {
    value = 0.5 * value * (1 + erf(value * 0.70710678118654752440));
    size *= 1.5;
  }
  const double growth = 4 * sqrt(offsets[row + 1] - offsets[row] + 2.0);
  const double smallest = bits == 11 ? ldexp(1.0, -24) : ldexp(1.0, -126);
  exact[place] = value;
  magnitude[place] = static_cast<float>(ldexp(growth * size, -24) + ldexp(2 * fabs(value), -bits) + smallest);
}

// The same of sampled dot products of k terms, which may be scaled by the pattern's values.
extern "C" __global__ void sddmm_bound(int count, int k, int has_scale, int bits, const float* scale, double* exact,
                                       float* magnitude) {
  const long long element = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (element >= count) return;
  const double factor = has_scale ? static_cast<double>(scale[element]) : 1.0;
  const double value = exact[element] * factor, size = magnitude[element] * fabs(factor);
  const double smallest = bits == 11 ? ldexp(1.0, -24) : ldexp(1.0, -126);
  exact[element] = value;
  magnitude[element] =
      static_cast<float>(ldexp(4 * sqrt(k + 2.0) * size, -24) + ldexp(2 * fabs(value), -bits) + smallest);
}

__device__ float real(float x) { return x; }
__device__ float real(__half x) { return __half2float(x); }
__device__ float real(__nv_bfloat16 x) { return __bfloat162float(x); }

// Raises *worst to the largest error over its bound; NaN counts as infinite. The bits of floats that are not negative
// are ordered as the floats are.
template <class T>
__device__ void raise_worst(int count, const T* result, const double* exact, const float* bound, float largest,
                            unsigned* worst) {
  float mine = 0;
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += static_cast<long long>(gridDim.x) * blockDim.x) {
    const float actual = real(result[i]);
    float error = static_cast<float>(fabs(actual - exact[i]) / bound[i]);
    if (fabsf(actual) == INFINITY && fabs(exact[i]) > largest) error = 0;
    if (error != error) error = INFINITY;
    mine = error > mine ? error : mine;
  }
  if (mine > 0) atomicMax(worst, __float_as_uint(mine));
}

extern "C" __global__ void worst_error_float32(int count, const float* result, const double* exact, const float* bound,
                                               unsigned* worst) {
  raise_worst(count, result, exact, bound, INFINITY, worst);
}

extern "C" __global__ void worst_error_float16(int count, const __half* result, const double* exact, const float* bound,
                                               unsigned* worst) {
  raise_worst(count, result, exact, bound, 65504.0f, worst);
}

extern "C" __global__ void worst_error_bfloat16(int count, const __nv_bfloat16* result, const double* exact,
                                                const float* bound, unsigned* worst) {
  raise_worst(count, result, exact, bound, INFINITY, worst);
}
