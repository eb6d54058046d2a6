// The full weight, with its zeros, of what was packed for quantized_stream_spmm: for products with many tokens, which read it
// once. The format is told in sparsegen/kernels/quantized/code_streams.py.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "async_copy.cuh"
#include "code_number.cuh"
#include "row_parts.cuh"

#if !defined(SPARSEGEN_EMULATOR)
#define SPARSEGEN_DYNAMIC_SHARED(type, name) extern __shared__ __align__(16) type name[]
#endif

constexpr unsigned kWholeWarp = 0xffffffffu;
constexpr int kTiles = 4, kTileSide = 32, kStepColumns = kTiles * kTileSide;  // of a warp in a step
constexpr unsigned kRowWords = 32, kChunkRows = 8;  // of a stream: a row has a word for each lane

// Which of the next units each of four takes, by a mask of those that are there: a nibble for each, 4 and its number for one
// that is not. In the upper half stands how many they are, in bits.
template <unsigned kUnitBits>
__device__ __forceinline__ unsigned selectors_of(unsigned mask) {
  unsigned selectors = 0, count = 0;
  #pragma unroll
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned is_there = mask >> i & 1u;
    selectors |= (is_there != 0 ? count : 4 + i) << 4 * i;
    count += is_there;
  }
  return selectors | count * kUnitBits << 16;
}

// Four bytes of the eight in `low` and `high`, by a nibble for each in the lower half of `selectors`, below 8.
__device__ __forceinline__ unsigned permute(unsigned low, unsigned high, unsigned selectors) {
#if defined(SPARSEGEN_EMULATOR)
  return __byte_perm(low, high, selectors);
#else
  unsigned word;
  asm("prmt.b32 %0, %1, %2, %3;\n" : "=r"(word) : "r"(low), "r"(high), "r"(selectors));
  return word;
#endif
}

// A lane's bits of a step.
template <class Code>
struct alignas(16 / Code::kOfUnit) Masks {
  unsigned of[kTiles / Code::kOfUnit];
};

// A lane's four rows in a tile: what numbers are multiplied by, and what numbers of zero are, before.
struct Rows {
  float scale[4], zero[4];
};

// Bytes of units become pairs of neighbouring weights, `of` rows 8 apart.
template <class Code, class Element>
struct Weights {
  unsigned of[4][4];

  __device__ __forceinline__ static float weight(float number, const Rows& rows, int row) {
    return (Code::kAbove == 0.0f ? number : number - rows.zero[row]) * rows.scale[row];
  }

  // The number-th four units of a tile. Single codes are of two rows' two neighbouring columns, row by row; each of four pairs has
  // the codes of two rows in one column, the first ones of two pairs of columns before the second ones.
  __device__ __forceinline__ void put(int number, unsigned bytes, const Rows& rows) {
    if constexpr (Code::kOfUnit == 1) {
      const int row = number / 2 % 2 * 2, pair = number / 4 * 2 + number % 2;
      float numbers[4];
      Code::numbers(bytes, numbers);
      #pragma unroll
      for (int h = 0; h < 2; ++h) {
        of[row + h][pair] = Element::pair(weight(numbers[2 * h], rows, row + h), weight(numbers[2 * h + 1], rows, row + h));
      }
    } else {
      const int row = number % 2 * 2, pair = number / 2 * 2;
      #pragma unroll
      for (int h = 0; h < 2; ++h) {
        float numbers[4];
        Code::numbers(bytes >> 4 * h & 0x0f0f0f0fu, numbers);
        #pragma unroll
        for (int p = 0; p < 2; ++p) {
          of[row + h][pair + p] = Element::pair(weight(numbers[p], rows, row + h), weight(numbers[p + 2], rows, row + h));
        }
      }
    }
  }
};

// A warp for a step's warp, those of neighbouring steps in a thread block. All that it reads is asked for at once, but for the
// codes, which wait for the masks: `positions` say where in its stream each lane is. The rows of the stream that lanes take words
// of come to shared memory, no more than kept_chunks chunks, as in the kernel's ring; then a lane writes four rows' eight
// neighbouring columns of tile after tile. scales and zero_points are [groups, m], a group of 2^group_shift columns; without zero
// points zero is the code of zero.
template <class Code, class Element>
__device__ __forceinline__ void expand(int m, int k, int blocks, int total, int steps, int warps_m, int warps_k,
                                       int kept_chunks, int group_shift, int is_ordered, int is_asymmetric,
                                       const unsigned* __restrict__ masks, const unsigned* __restrict__ positions,
                                       const int* __restrict__ starts, const unsigned* __restrict__ values,
                                       const int* __restrict__ rows, const float* __restrict__ scales,
                                       const float* __restrict__ zero_points, unsigned short* __restrict__ full) {
  constexpr unsigned kUnitBits = Code::kBits * Code::kOfUnit;
  constexpr int kFours = kTileSide / Code::kOfUnit / 4;  // of a lane's units in a tile
  SPARSEGEN_DYNAMIC_SHARED(unsigned, memory);
  const unsigned step = warp_number(), lane = threadIdx.x % 32;
  const unsigned warp = blockIdx.z * warps_m + blockIdx.y, warps = warps_m * warps_k;
  if (step >= static_cast<unsigned>(total)) return;
  const unsigned block = ((step + 1) * blocks - 1) / total;
  const long long place = (static_cast<long long>(step) * warps + warp) * 32 + lane;
  const Masks<Code> present = reinterpret_cast<const Masks<Code>*>(masks)[place];
  unsigned at = positions[place] * kUnitBits;  // in bits
  const long long begin = static_cast<long long>(starts[block * warps + warp]) * kChunkRows;

  const int first_row = static_cast<int>(step / steps * warps_m + blockIdx.y) * kTileSide + static_cast<int>(lane / 4);
  const int first_column = static_cast<int>(step % steps * warps_k + blockIdx.z) * kStepColumns + static_cast<int>(lane % 4 * 8);
  int row[4];
  long long place_of_row[4];  // in the full weight, from the first column on
  #pragma unroll
  for (int part = 0; part < 4; ++part) {
    row[part] = is_ordered != 0 ? rows[first_row + 8 * part] : first_row + 8 * part;
    place_of_row[part] = static_cast<long long>(row[part]) * k + first_column;
  }
  Rows of_tile[kTiles];
  #pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const int group = (min(first_column + tile * kTileSide, k - 1) >> group_shift) * m;
    #pragma unroll
    for (int part = 0; part < 4; ++part) of_tile[tile].scale[part] = scales[group + min(row[part], m - 1)] * Code::kFactor;
    #pragma unroll
    for (int part = 0; part < 4; ++part) {
      of_tile[tile].zero[part] = Code::kAbove;
      if (Code::kHasZeros && is_asymmetric != 0) of_tile[tile].zero[part] += zero_points[group + min(row[part], m - 1)];
    }
  }

  unsigned taken = 0;
  #pragma unroll
  for (int i = 0; i < kTiles / Code::kOfUnit; ++i) taken += __popc(present.of[i]);
  const unsigned first = __reduce_min_sync(kWholeWarp, at / 32);
  const unsigned end = __reduce_max_sync(kWholeWarp, (at + taken * kUnitBits) / 32) + 2;  // four units may lie in two words
  unsigned* const own = memory + threadIdx.x / 32 * (kept_chunks * kChunkRows * kRowWords);
  const unsigned* const from = values + (begin + first) * kRowWords;
  for (unsigned i = lane * 4; i < (end - first) * kRowWords; i += 1024) {
    unsigned* const to_some = own + i;
    const unsigned* const some = from + i;
    #pragma unroll
    for (unsigned j = 0; j < 1024; j += 128) {
      if (i + j < (end - first) * kRowWords) copy_async_16(to_some + j, some + j);
    }
  }
  copy_async_wait();
  __syncwarp();

  at -= first * 32;
  const unsigned table = selectors_of<kUnitBits>(lane);
  #pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const Rows& of = of_tile[tile];
    const unsigned mask = Code::kOfUnit == 2 ? present.of[tile / 2] >> tile % 2 * 16 : present.of[tile];
    unsigned nothing[2];  // a word of units of zeros, for the rows of each 16
    #pragma unroll
    for (int half = 0; half < 2; ++half) {
      const unsigned low = __float_as_uint(of.zero[2 * half]), high = __float_as_uint(of.zero[2 * half + 1]);
      nothing[half] = Code::kHasZeros ? __byte_perm(low, high, 0x4400) : Code::kZeros;  // codes are lowest in their fractions
    }
    Weights<Code, Element> found;
    #pragma unroll
    for (int four = 0; four < kFours; ++four) {
      const unsigned chosen = __shfl_sync(kWholeWarp, table, static_cast<int>(mask >> 4 * four));
      const unsigned* const word = own + at / 32 * kRowWords + lane;
      unsigned units = __funnelshift_r(word[0], word[kRowWords], at);
      if constexpr (kUnitBits == 4) units = __byte_perm(units, units >> 4, 0x5140) & 0x0f0f0f0fu;
      found.put(four, permute(units, nothing[four / 2 % 2], chosen), of);
      at += chosen >> 16;
    }
    #pragma unroll
    for (int part = 0; part < 4; ++part) {
      const auto& some = found.of[part];
      unsigned short* const to = full + place_of_row[part] + tile * kTileSide;
      const int left = row[part] < m ? k - first_column - tile * kTileSide : 0;  // columns
      if (k % 8 == 0) {
        if (left > 0) *reinterpret_cast<uint4*>(to) = make_uint4(some[0], some[1], some[2], some[3]);
        continue;
      }
      #pragma unroll
      for (int e = 0; e < 8; ++e) {
        if (e < left) to[e] = static_cast<unsigned short>(some[e / 2] >> e % 2 * 16);
      }
    }
  }
}

#define SPARSEGEN_CODE_STREAM_WEIGHTS(name, Code, Element)                                                                     \
  extern "C" __global__ void __launch_bounds__(128)                                                                            \
      name(int m, int k, int blocks, int total, int steps, int warps_m, int warps_k, int kept_chunks, int group_shift,         \
           int is_ordered, int is_asymmetric, const unsigned* masks, const unsigned* positions, const int* starts,             \
           const unsigned* values, const int* rows, const float* scales, const float* zero_points, unsigned short* full) {     \
    expand<Code, Element>(m, k, blocks, total, steps, warps_m, warps_k, kept_chunks, group_shift, is_ordered, is_asymmetric,   \
                          masks, positions, starts, values, rows, scales, zero_points, full);                                  \
  }

SPARSEGEN_CODE_STREAM_WEIGHTS(expand_int4_float16, Int4, Float16)
SPARSEGEN_CODE_STREAM_WEIGHTS(expand_int4_bfloat16, Int4, Bfloat16)
SPARSEGEN_CODE_STREAM_WEIGHTS(expand_int4_pairs_float16, Int4Pairs, Float16)
SPARSEGEN_CODE_STREAM_WEIGHTS(expand_int4_pairs_bfloat16, Int4Pairs, Bfloat16)
SPARSEGEN_CODE_STREAM_WEIGHTS(expand_int8_float16, Int8, Float16)
SPARSEGEN_CODE_STREAM_WEIGHTS(expand_int8_bfloat16, Int8, Bfloat16)
SPARSEGEN_CODE_STREAM_WEIGHTS(expand_e4m3_float16, E4m3, Float16)
SPARSEGEN_CODE_STREAM_WEIGHTS(expand_e4m3_bfloat16, E4m3, Bfloat16)
