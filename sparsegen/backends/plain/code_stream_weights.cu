// The full weight, with its zeros, of what was packed for quantized_stream_spmm: for products with many tokens, which read it
// once. The format is told in sparsegen/kernels/quantized/code_streams.py.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "code_number.cuh"
#include "row_parts.cuh"

constexpr int kTiles = 4, kTileSide = 32, kStepColumns = kTiles * kTileSide;  // of a warp in a step

// A warp goes along a stream as the kernel does, and writes the 32 x 32 weights of tile after tile: a lane four rows' eight
// neighbouring columns. scales and zero_points are [groups, m]; without the latter zero is the code of zero.
template <class Code, class Element>
__device__ __forceinline__ void expand(int m, int k, int blocks, int total, int steps, int warps_m, int warps_k,
                                       int orders_of_step, int kept_chunks, int group_columns, int is_ordered,
                                       int is_asymmetric, const unsigned* __restrict__ masks, const unsigned* __restrict__ orders,
                                       const int* __restrict__ starts, const unsigned* __restrict__ values,
                                       const int* __restrict__ rows, const float* __restrict__ scales,
                                       const float* __restrict__ zero_points, unsigned short* __restrict__ full) {
  constexpr unsigned kUnitBits = Code::kBits * Code::kOfUnit, kOfWord = 32 / kUnitBits, kOfChunk = 8 * kOfWord;
  constexpr bool kPairs = Code::kOfUnit == 2;
  const int number = warp_number(), lane = threadIdx.x % 32, warps = warps_m * warps_k;
  if (number >= blocks * warps) return;
  const int block = number / warps, warp = number % warps;
  const int begin = static_cast<int>(static_cast<long long>(block) * total / blocks);
  const int end = static_cast<int>(static_cast<long long>(block + 1) * total / blocks);
  const unsigned* const words = values + static_cast<long long>(starts[number]) * 8 * 32 + lane;
  unsigned at = 0, held = 0;
  for (int step = begin; step < end; ++step) {
    const unsigned order = orders[static_cast<long long>(step) * orders_of_step + warp];
    held += order;
    if (order != 0 && held > static_cast<unsigned>(kept_chunks)) at = max(at, (held - kept_chunks) * kOfChunk);
    const unsigned* const mask = masks + ((static_cast<long long>(step) * warps + warp) * 32 + lane) * (kTiles / Code::kOfUnit);
    const int first_row = (step / steps * warps_m + warp % warps_m) * kTileSide + lane / 4;
    const int first_column = (step % steps * warps_k + warp / warps_m) * kStepColumns + lane % 4 * 8;
    #pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int column = first_column + tile * kTileSide;
      unsigned found[4][4] = {};  // rows 8 apart, and pairs of columns
      float scale[4] = {}, zero[4] = {};
      int row[4];
      #pragma unroll
      for (int part = 0; part < 4; ++part) {
        row[part] = first_row + 8 * part;
        if (is_ordered != 0) row[part] = rows[row[part]];
        if (row[part] >= m || column >= k) continue;
        const long long place = static_cast<long long>(column / group_columns) * m + row[part];
        scale[part] = scales[place];
        if (is_asymmetric != 0) zero[part] = zero_points[place];
      }
      const unsigned present = kPairs ? mask[tile / 2] >> tile % 2 * 16 : mask[tile];
      const auto put = [&](int octet, int number, int e, unsigned code) {  // the weight of a register's half
        const int part = octet % 2 * 2 + number % 2, pair = octet / 2 * 2 + number / 2;
        const float weight = (Code::number(code & ((1u << Code::kBits) - 1)) - zero[part]) * scale[part];
        found[part][pair] |= Element::bits(weight) << e * 16;
      };
      #pragma unroll
      for (int i = 0; i < 32 / Code::kOfUnit; ++i) {
        if ((present >> i & 1u) == 0) continue;
        const unsigned unit = words[static_cast<long long>(at / kOfWord) * 32] >> at % kOfWord * kUnitBits;
        ++at;
        if (kPairs) {
          put(i / 4, i % 2 * 2, i / 2 % 2, unit);
          put(i / 4, i % 2 * 2 + 1, i / 2 % 2, unit >> Code::kBits);
        } else {
          put(i / 8, i / 2 % 4, i % 2, unit);
        }
      }
      #pragma unroll
      for (int part = 0; part < 4; ++part) {
        if (row[part] >= m || column >= k) continue;
        unsigned short* const to = full + static_cast<long long>(row[part]) * k + column;
        if (k % 8 == 0) {
          *reinterpret_cast<uint4*>(to) = make_uint4(found[part][0], found[part][1], found[part][2], found[part][3]);
          continue;
        }
        #pragma unroll
        for (int e = 0; e < 8; ++e) {
          if (column + e < k) to[e] = static_cast<unsigned short>(found[part][e / 2] >> e % 2 * 16);
        }
      }
    }
  }
}

#define SPARSEGEN_CODE_STREAM_WEIGHTS(name, Code, Element)                                                                   \
  extern "C" __global__ void name(int m, int k, int blocks, int total, int steps, int warps_m, int warps_k,                  \
                                  int orders_of_step, int kept_chunks, int group_columns, int is_ordered, int is_asymmetric, \
                                  const unsigned* masks, const unsigned* orders, const int* starts, const unsigned* values,     \
                                  const int* rows, const float* scales, const float* zero_points, unsigned short* full) {    \
    expand<Code, Element>(m, k, blocks, total, steps, warps_m, warps_k, orders_of_step, kept_chunks, group_columns,          \
                          is_ordered, is_asymmetric, masks, orders, starts, values, rows, scales, zero_points, full);        \
  }

SPARSEGEN_CODE_STREAM_WEIGHTS(expand_int4_float16, Int4, Float16)
SPARSEGEN_CODE_STREAM_WEIGHTS(expand_int4_bfloat16, Int4, Bfloat16)
SPARSEGEN_CODE_STREAM_WEIGHTS(expand_int4_pairs_float16, Int4Pairs, Float16)
SPARSEGEN_CODE_STREAM_WEIGHTS(expand_int4_pairs_bfloat16, Int4Pairs, Bfloat16)
SPARSEGEN_CODE_STREAM_WEIGHTS(expand_int8_float16, Int8, Float16)
SPARSEGEN_CODE_STREAM_WEIGHTS(expand_int8_bfloat16, Int8, Bfloat16)
SPARSEGEN_CODE_STREAM_WEIGHTS(expand_e4m3_float16, E4m3, Float16)
SPARSEGEN_CODE_STREAM_WEIGHTS(expand_e4m3_bfloat16, E4m3, Bfloat16)
