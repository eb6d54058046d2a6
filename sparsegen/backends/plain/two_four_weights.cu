// The full weight, with its zeros, of what was packed for quantized_sparse_mma_spmm: for products with many tokens, which read it once. The
// format is told in sparsegen/kernels/layouts/two_four.py.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "code_number.cuh"
#include "row_parts.cuh"

constexpr int kUnitRows = 32, kFours = 32, kVectorBytes = 32 * 16;
constexpr int kListWords = 32;  // of a unit whose columns are chosen, behind its metadata

// Where a code is in a unit, in bits.
template <class Code>
__device__ __forceinline__ int code_place(int row, int four, int place, int is_paired) {
  const int tile = row / 16, half = row / 8 % 2, step = four / 8, k_half = four / 4 % 2;
  const int lane = row % 8 * 4 + four % 4;
  if constexpr (Code::kBits == 4) return ((tile * 32 + lane) * 16 + step * 4 + place * 2 + k_half) * 8 + half * 4;
  const int byte = step % 2 * 8 + k_half * 4 + (is_paired != 0 ? half * 2 + place : place * 2 + half);
  return (((tile * 2 + step / 2) * 32 + lane) * 16 + byte) * 8;
}

// The column of a four's place among its `of`, of which a list says where a kernel has it: eight neighbours are turned there.
__device__ __forceinline__ int chosen_column(const unsigned* list, int four, int place, int first_eight) {
  const int at = static_cast<int>(list[four % 8 * 4 + place] >> four / 8 * 8 & 0xff);
  return at / 8 * 8 + ((at - 2 * (first_eight + at / 8)) & 7);
}

// A warp for the layers of a unit; a lane writes 8 neighbouring columns of a row at a time. scales are [groups, m]. Fours are those
// of 4 columns, or chosen from 8 or 16.
template <class Code, class Element>
__device__ __forceinline__ void expand(int m, int k, int of, int strips, int across, int layers, int is_paired, int group_columns,
                                       const unsigned* __restrict__ codes, const unsigned* __restrict__ metadata,
                                       const float* __restrict__ scales,
                                       unsigned short* __restrict__ full) {
  constexpr int kVectorWords = kVectorBytes / 4, kUnitWords = Code::kBits * 4 / 8 * kVectorWords;
  const int number = warp_number(), lane = threadIdx.x % 32;
  if (number >= strips * across) return;
  const unsigned* const own = codes + static_cast<long long>(number) * layers * kUnitWords;
  const int metadata_words = kVectorWords + (of == 4 ? 0 : kListWords);
  const unsigned* const own_metadata = metadata + static_cast<long long>(number) * layers * metadata_words;
  for (int i = 0; i < 4 * of; ++i) {
    const int inside = i / of * 8 + lane / 4, row = number / across * kUnitRows + inside;
    const int first = i % of * 32 + lane % 4 * 8, column = number % across * (kFours * of) + first;
    if (row >= m || column >= k) continue;
    const float scale = scales[static_cast<long long>(column / group_columns) * m + row];
    float weights[8] = {};
    for (int layer = 0; layer < layers; ++layer) {
      const unsigned* const words = own + layer * kUnitWords;
      const unsigned* const places_of = own_metadata + layer * metadata_words;
      for (int part = 0; part < (of == 4 ? 2 : 1); ++part) {
        const int four = first / of + part, owner = inside % 8 * 4 + inside / 16 * 2 + four / 4 % 2;
        const unsigned places = places_of[owner * 4 + four / 8] >> (inside / 8 % 2 * 16 + four % 4 * 4);
        #pragma unroll
        for (int place = 0; place < 2; ++place) {
          const int at = code_place<Code>(inside, four, place, is_paired);
          const float weight = Code::number(words[at / 32] >> at % 32 & ((1u << Code::kBits) - 1)) * scale;
          const int inside_four = static_cast<int>(places >> 2 * place & 3);
          const int to = of == 4 ? part * 4 + inside_four
                                 : chosen_column(places_of + kVectorWords, four, inside_four, column / of * of / 8) - column % of;
          #pragma unroll
          for (int e = 0; e < 8; ++e) weights[e] += to == e ? weight : 0.0f;
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

#define SPARSEGEN_TWO_FOUR_WEIGHTS(name, Code, Element)                                                                      \
  extern "C" __global__ void name(int m, int k, int of, int strips, int across, int layers, int is_paired, int group_columns, \
                                  const unsigned* codes, const unsigned* metadata, const float* scales,                     \
                                  unsigned short* full) {                                                                   \
    expand<Code, Element>(m, k, of, strips, across, layers, is_paired, group_columns, codes, metadata, scales, full);       \
  }

SPARSEGEN_TWO_FOUR_WEIGHTS(expand_int4_float16, Int4, Float16)
SPARSEGEN_TWO_FOUR_WEIGHTS(expand_int4_bfloat16, Int4, Bfloat16)
SPARSEGEN_TWO_FOUR_WEIGHTS(expand_int8_float16, Int8, Float16)
SPARSEGEN_TWO_FOUR_WEIGHTS(expand_int8_bfloat16, Int8, Bfloat16)
SPARSEGEN_TWO_FOUR_WEIGHTS(expand_e4m3_float16, E4m3, Float16)
SPARSEGEN_TWO_FOUR_WEIGHTS(expand_e4m3_bfloat16, E4m3, Bfloat16)
