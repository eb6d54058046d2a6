// The full weight, with its zeros, of what was packed for quantized_sparse_mma_spmm: for products with many tokens, which read it once. The
// format is told in sparsegen/kernels/layouts/two_four.py.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "code_number.cuh"
#include "row_parts.cuh"

constexpr int kUnitRows = 32, kUnitColumns = 128, kVectorBytes = 32 * 16;

// Where a code is in a unit, in bits.
template <class Code>
__device__ __forceinline__ int code_place(int row, int four, int place, int is_paired) {
  const int tile = row / 16, half = row / 8 % 2, step = four / 8, k_half = four / 4 % 2;
  const int lane = row % 8 * 4 + four % 4;
  if constexpr (Code::kBits == 4) return ((tile * 32 + lane) * 16 + step * 4 + place * 2 + k_half) * 8 + half * 4;
  const int byte = step % 2 * 8 + k_half * 4 + (is_paired != 0 ? half * 2 + place : place * 2 + half);
  return (((tile * 2 + step / 2) * 32 + lane) * 16 + byte) * 8;
}

// A warp for the layers of a unit; a lane writes 8 neighbouring columns of a row at a time. scales are [groups, m].
template <class Code, class Element>
__device__ __forceinline__ void expand(int m, int k, int strips, int across, int layers, int is_paired, int group_columns,
                                       const unsigned* __restrict__ codes, const unsigned* __restrict__ metadata,
                                       const float* __restrict__ scales,
                                       unsigned short* __restrict__ full) {
  constexpr int kVectorWords = kVectorBytes / 4, kUnitWords = Code::kBits * 4 / 8 * kVectorWords;
  const int number = warp_number(), lane = threadIdx.x % 32;
  if (number >= strips * across) return;
  const unsigned* const own = codes + static_cast<long long>(number) * layers * kUnitWords;
  const unsigned* const own_metadata = metadata + static_cast<long long>(number) * layers * kVectorWords;
  for (int i = 0; i < 16; ++i) {
    const int inside = i / 4 * 8 + lane / 4, row = number / across * kUnitRows + inside;
    const int first = i % 4 * 32 + lane % 4 * 8, column = number % across * kUnitColumns + first;
    if (row >= m || column >= k) continue;
    const float scale = scales[static_cast<long long>(column / group_columns) * m + row];
    float weights[8] = {};
    for (int layer = 0; layer < layers; ++layer) {
      const unsigned* const words = own + layer * kUnitWords;
      #pragma unroll
      for (int part = 0; part < 2; ++part) {
        const int four = first / 4 + part, owner = inside % 8 * 4 + inside / 16 * 2 + four / 4 % 2;
        const unsigned places = own_metadata[layer * kVectorWords + owner * 4 + four / 8] >> (inside / 8 % 2 * 16 + four % 4 * 4);
        #pragma unroll
        for (int place = 0; place < 2; ++place) {
          const int at = code_place<Code>(inside, four, place, is_paired);
          const float weight = Code::number(words[at / 32] >> at % 32 & ((1u << Code::kBits) - 1)) * scale;
          #pragma unroll
          for (int e = 0; e < 4; ++e) weights[part * 4 + e] += (places >> 2 * place & 3) == e ? weight : 0.0f;
        }
      }
    }
    unsigned short* const to = full + static_cast<long long>(row) * k + column;
    if (k % 8 == 0) {
      unsigned pairs[4];
      #pragma unroll
      for (int e = 0; e < 4; ++e) pairs[e] = Element::bits(weights[2 * e]) | Element::bits(weights[2 * e + 1]) << 16;
      *reinterpret_cast<uint4*>(to) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
      continue;
    }
    #pragma unroll
    for (int e = 0; e < 8; ++e) {
      if (column + e < k) to[e] = static_cast<unsigned short>(Element::bits(weights[e]));
    }
  }
}

#define SPARSEGEN_TWO_FOUR_WEIGHTS(name, Code, Element)                                                                   \
  extern "C" __global__ void name(int m, int k, int strips, int across, int layers, int is_paired, int group_columns,    \
                                  const unsigned* codes, const unsigned* metadata, const float* scales,                  \
                                  unsigned short* full) {                                                                \
    expand<Code, Element>(m, k, strips, across, layers, is_paired, group_columns, codes, metadata, scales, full);        \
  }

SPARSEGEN_TWO_FOUR_WEIGHTS(expand_int4_float16, Int4, Float16)
SPARSEGEN_TWO_FOUR_WEIGHTS(expand_int4_bfloat16, Int4, Bfloat16)
SPARSEGEN_TWO_FOUR_WEIGHTS(expand_int8_float16, Int8, Float16)
SPARSEGEN_TWO_FOUR_WEIGHTS(expand_int8_bfloat16, Int8, Bfloat16)
SPARSEGEN_TWO_FOUR_WEIGHTS(expand_e4m3_float16, E4m3, Float16)
SPARSEGEN_TWO_FOUR_WEIGHTS(expand_e4m3_bfloat16, E4m3, Bfloat16)
