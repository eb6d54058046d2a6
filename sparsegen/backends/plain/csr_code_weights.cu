// The full weight, with its zeros, of what was packed for quantized_csr_spmm: for products with many tokens.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "code_number.cuh"
#include "row_parts.cuh"

// A warp for each row, which writes zeros and then its weights. scales and zero points are [groups, m].
template <class Code, class Element>
__device__ __forceinline__ void expand(int m, int k, int group_columns, int is_asymmetric, int is_short,
                                       const int* __restrict__ row_offsets, const void* __restrict__ column_indices,
                                       const unsigned char* __restrict__ codes, const float* __restrict__ scales,
                                       const float* __restrict__ zero_points, unsigned short* __restrict__ full) {
  const int row = warp_number(), lane = threadIdx.x % 32;
  if (row >= m) return;
  unsigned short* const to = full + static_cast<long long>(row) * k;
  for (int column = lane; column < k; column += 32) to[column] = 0;
  __syncwarp();
  for (int i = row_offsets[row] + lane; i < row_offsets[row + 1]; i += 32) {
    const unsigned column = is_short != 0 ? static_cast<const unsigned short*>(column_indices)[i]
                                          : static_cast<const unsigned*>(column_indices)[i];
    const unsigned code = Code::kBits == 4 ? codes[i / 2] >> i % 2 * 4 & 15 : codes[i];
    const long long place = static_cast<long long>(column / group_columns) * m + row;
    const float number = Code::number(code) - (is_asymmetric != 0 ? zero_points[place] : 0.0f);
    to[column] = static_cast<unsigned short>(Element::bits(number * scales[place]));
  }
}

#define SPARSEGEN_CSR_CODE_WEIGHTS(name, Code, Element)                                                                       \
  extern "C" __global__ void name(int m, int k, int group_columns, int is_asymmetric, int is_short, const int* row_offsets,   \
                                  const void* column_indices, const unsigned char* codes, const float* scales,               \
                                  const float* zero_points, unsigned short* full) {                                          \
    expand<Code, Element>(m, k, group_columns, is_asymmetric, is_short, row_offsets, column_indices, codes, scales,           \
                          zero_points, full);                                                                                \
  }

SPARSEGEN_CSR_CODE_WEIGHTS(expand_int4_float16, Int4, Float16)
SPARSEGEN_CSR_CODE_WEIGHTS(expand_int4_bfloat16, Int4, Bfloat16)
SPARSEGEN_CSR_CODE_WEIGHTS(expand_int8_float16, Int8, Float16)
SPARSEGEN_CSR_CODE_WEIGHTS(expand_int8_bfloat16, Int8, Bfloat16)
SPARSEGEN_CSR_CODE_WEIGHTS(expand_e4m3_float16, E4m3, Float16)
SPARSEGEN_CSR_CODE_WEIGHTS(expand_e4m3_bfloat16, E4m3, Bfloat16)
