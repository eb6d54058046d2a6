// Packs a matrix in compressed sparse rows for lane_stream_spmm; the format is told in sparsegen/kernels/layouts/lane_stream.py.
#if !defined(SPARSEGEN_EMULATOR)
#include <cuda_fp16.h>
#endif

#include "row_parts.cuh"

constexpr unsigned kWholeWarp = 0xffffffffu;
constexpr int kPair = 16;  // elements of every lane by which streams grow
constexpr int kRows = 32, kColumns = 64;  // of a warp in a step: two tiles side by side

// What a lane holds of a tile: of rows 16 i + 8 h + g the 8 columns 8 t + c, as bit c of a byte, and the number of the
// row's first nonzero at or behind column 8 t.
struct LaneTile {
  unsigned bits[2][2];
  int first[2][2];
};

// Both tiles of a step's warp. Each lane reads a row of both, and hands out what others hold of it.
__device__ __forceinline__ void read_tiles(int lane, int step, int warp, int m, int steps, int warps_m, int warps_k,
                                           const int* offsets, const int* columns, const int* rows, bool is_ordered,
                                           LaneTile (&tiles)[2]) {
  const int place = (step / steps * warps_m + warp % warps_m) * kRows + lane;
  const int first_column = (step % steps * warps_k + warp / warps_m) * kColumns;
  const int row = is_ordered ? rows[place] : place;
  const int end = row < m ? offsets[row + 1] : 0;
  int number = row < m ? lower_bound(columns, offsets[row], end, first_column) : 0;
  #pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    const int tile_column = first_column + tile * 32, first = number;
    unsigned present = 0;
    for (; number < end && columns[number] < tile_column + 32; ++number) present |= 1u << (columns[number] - tile_column);
    #pragma unroll
    for (int i = 0; i < 2; ++i) {
      #pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int from = 16 * i + 8 * h + lane / 4, shift = lane % 4 * 8;
        const unsigned theirs = __shfl_sync(kWholeWarp, present, from);
        tiles[tile].bits[i][h] = theirs >> shift & 0xffu;
        tiles[tile].first[i][h] = __shfl_sync(kWholeWarp, first, from) + __popc(theirs & ((1u << shift) - 1));
      }
    }
  }
}

// Masks [steps of all groups, warps, lanes, 2]: a warp for both tiles of a step's warp.
extern "C" __global__ void lane_stream_masks(int m, int total, int steps, int warps_m, int warps_k,
                                             int is_ordered, const int* offsets, const int* columns, const int* rows,
                                             uint2* masks) {
  const int number = warp_number(), lane = threadIdx.x % 32, warps = warps_m * warps_k;
  if (number >= total * warps) return;
  const int step = number / warps, warp = number % warps;
  LaneTile tiles[2];
  read_tiles(lane, step, warp, m, steps, warps_m, warps_k, offsets, columns, rows, is_ordered != 0, tiles);
  unsigned words[2];
  #pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    words[tile] = 0;
    #pragma unroll
    for (int u = 0; u < 2; ++u) {
      #pragma unroll
      for (int i = 0; i < 2; ++i) {
        #pragma unroll
        for (int p = 0; p < 2; ++p) {
          #pragma unroll
          for (int h = 0; h < 2; ++h) {
            const unsigned both = tiles[tile].bits[i][h] >> (4 * u + 2 * p) & 3u;
            words[tile] |= both << (8 * (2 * p + h) + 2 * (2 * u + i));
          }
        }
      }
    }
  }
  masks[static_cast<long long>(number) * 32 + lane] = make_uint2(words[0], words[1]);
}

// Elements that a ring must have got for its lanes to come so far: two more than the farthest, in whole pairs.
__device__ __forceinline__ int needed_for(int position) {
  return (__reduce_max_sync(kWholeWarp, position) + 2 + kPair - 1) / kPair * kPair;
}

// Where in its stream each lane is before each tile, what that asks of the ring, and how far the farthest of a stream's
// lanes gets: a warp for each stream.
extern "C" __global__ void lane_stream_positions(int blocks, int total, int warps, int orders_of_step, int refill_tiles,
                                                 int ring_rows, const uint2* masks, int2* positions, unsigned* orders,
                                                 int* farthest) {
  const int number = warp_number(), lane = threadIdx.x % 32;
  if (number >= blocks * warps) return;
  const int block = number / warps, warp = number % warps;
  const int begin = static_cast<int>(static_cast<long long>(block) * total / blocks);
  const int end = static_cast<int>(static_cast<long long>(block + 1) * total / blocks);
  int at = 0, filled = 0;
  for (int step = begin; step < end; ++step) {
    const long long place = (static_cast<long long>(step) * warps + warp) * 32 + lane;
    const uint2 mask = masks[place];
    const int taken[2] = {__popc(mask.x), __popc(mask.y)};
    int before[2];
    unsigned order = 0;
    #pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      if (tile % refill_tiles == 0) {
        const int ahead = refill_tiles == 2 ? taken[0] + taken[1] : taken[tile];
        const int needed = max(filled, needed_for(at + ahead));
        const int kept = needed - ring_rows;  // no lane is more than a ring behind
        const unsigned late = __any_sync(kWholeWarp, at < kept) ? 8u : 0u;
        at = max(at, kept);
        order |= (static_cast<unsigned>((needed - filled) / kPair) | late) << 16 * tile;
        filled = needed;
      }
      before[tile] = at;
      at += taken[tile];
    }
    positions[place] = make_int2(before[0], before[1]);
    if (lane == 0) orders[static_cast<long long>(step) * orders_of_step + warp] = order;
  }
  at = __reduce_max_sync(kWholeWarp, at);
  if (lane == 0) farthest[number] = at;
}

// Calls put(place, number) for every nonzero of both tiles of a step's warp, in the order of its lanes' streams.
template <class Put>
__device__ __forceinline__ void scatter(int m, int total, int steps, int warps_m, int warps_k, int blocks,
                                        int is_ordered, const int* offsets, const int* columns, const int* rows,
                                        const int2* positions, int head_pairs, const int* starts, Put put) {
  const int number = warp_number(), lane = threadIdx.x % 32, warps = warps_m * warps_k;
  if (number >= total * warps) return;
  const int step = number / warps, warp = number % warps;
  LaneTile tiles[2];
  read_tiles(lane, step, warp, m, steps, warps_m, warps_k, offsets, columns, rows, is_ordered != 0, tiles);
  const int block = static_cast<int>((static_cast<long long>(step + 1) * blocks - 1) / total);
  const int stream = block * warps + warp, head = stream * head_pairs, rest = starts[stream] - head_pairs;
  const int2 position = positions[static_cast<long long>(number) * 32 + lane];
  #pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    int element = 1 + (tile == 0 ? position.x : position.y);
    #pragma unroll
    for (int u = 0; u < 2; ++u) {
      #pragma unroll
      for (int i = 0; i < 2; ++i) {
        #pragma unroll
        for (int p = 0; p < 2; ++p) {
          #pragma unroll
          for (int h = 0; h < 2; ++h) {
            #pragma unroll
            for (int e = 0; e < 2; ++e) {
              const int bit = 4 * u + 2 * p + e;
              const unsigned bits = tiles[tile].bits[i][h];
              if (!(bits >> bit & 1u)) continue;
              const int pair = element / kPair;
              const long long chunk = (pair < head_pairs ? head : rest) * 2LL + element / 8;
              put((chunk * 32 + lane) * 8 + element % 8,
                  tiles[tile].first[i][h] + __popc(bits & ((1u << bit) - 1)));
              ++element;
            }
          }
        }
      }
    }
  }
}

__device__ __forceinline__ unsigned short float16_bits(float x) { return __half_as_ushort(__float2half_rn(x)); }

__device__ __forceinline__ unsigned short bfloat16_bits(float x) {
  const unsigned bits = __float_as_uint(x);
  return static_cast<unsigned short>(x != x ? 0x7fc0u : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

extern "C" __global__ void lane_stream_float16(int m, int total, int steps, int warps_m, int warps_k,
                                               int blocks, int is_ordered, const int* offsets, const int* columns,
                                               const int* rows, const int2* positions, int head_pairs,
                                               const int* starts, const float* values, unsigned short* packed) {
  scatter(m, total, steps, warps_m, warps_k, blocks, is_ordered, offsets, columns, rows, positions, head_pairs,
          starts, [&](long long place, int number) { packed[place] = float16_bits(values[number]); });
}

extern "C" __global__ void lane_stream_bfloat16(int m, int total, int steps, int warps_m, int warps_k,
                                                int blocks, int is_ordered, const int* offsets, const int* columns,
                                                const int* rows, const int2* positions, int head_pairs,
                                                const int* starts, const float* values, unsigned short* packed) {
  scatter(m, total, steps, warps_m, warps_k, blocks, is_ordered, offsets, columns, rows, positions, head_pairs,
          starts, [&](long long place, int number) { packed[place] = bfloat16_bits(values[number]); });
}

extern "C" __global__ void lane_stream_source(int m, int total, int steps, int warps_m, int warps_k,
                                              int blocks, int is_ordered, const int* offsets, const int* columns,
                                              const int* rows, const int2* positions, int head_pairs, const int* starts,
                                              int* source) {
  scatter(m, total, steps, warps_m, warps_k, blocks, is_ordered, offsets, columns, rows, positions, head_pairs,
          starts, [&](long long place, int number) { source[place] = number; });
}
