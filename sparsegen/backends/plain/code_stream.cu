// Packs a matrix in compressed sparse rows for quantized_stream_spmm; the format is told in
// sparsegen/kernels/quantized/code_streams.py.
#include "row_parts.cuh"

constexpr unsigned kWholeWarp = 0xffffffffu;
constexpr int kTiles = 4, kTileSide = 32;  // of a warp in a step, side by side

// A lane's row of a step's warp, and where its nonzeros at or behind the warp's first column begin and end.
struct RowPart {
  int number, end, column;
};

__device__ __forceinline__ RowPart row_part(int lane, int step, int warp, int m, int steps, int warps_m, int warps_k,
                                            const int* offsets, const int* columns, const int* rows, bool is_ordered) {
  const int place = (step / steps * warps_m + warp % warps_m) * kTileSide + lane;
  const int row = is_ordered ? rows[place] : place;
  RowPart part = {0, 0, (step % steps * warps_k + warp / warps_m) * kTiles * kTileSide};
  if (row < m) {
    part.end = offsets[row + 1];
    part.number = lower_bound(columns, offsets[row], part.end, part.column);
  }
  return part;
}

// The places of a row's nonzeros in a tile as bits; goes on to the next tile.
__device__ __forceinline__ unsigned next_tile(RowPart& part, const int* columns) {
  unsigned present = 0;
  part.column += kTileSide;
  for (; part.number < part.end && columns[part.number] < part.column; ++part.number) {
    present |= 1u << (columns[part.number] - part.column + kTileSide);
  }
  return present;
}

// Calls put(bit, number, is_there) for each of a lane's 32 weights in the order of its codes: `number` is the nonzero's if one
// is there. `present` are the places in the lane's row, `first` is the number of its first nonzero.
template <class Put>
__device__ __forceinline__ void for_each_weight(int lane, unsigned present, int first, Put put) {
  unsigned bits[4];
  int numbers[4];
  #pragma unroll
  for (int part = 0; part < 4; ++part) {
    const unsigned theirs = __shfl_sync(kWholeWarp, present, 8 * part + lane / 4);
    const int shift = lane % 4 * 8;
    bits[part] = theirs >> shift & 0xffu;
    numbers[part] = __shfl_sync(kWholeWarp, first, 8 * part + lane / 4) + __popc(theirs & ((1u << shift) - 1));
  }
  #pragma unroll
  for (int i = 0; i < 32; ++i) {
    const int part = i / 8 % 2 * 2 + i / 2 % 2;  // row 8 part + g
    const int column = i / 16 * 4 + i / 4 % 2 * 2 + i % 2;
    put(i, numbers[part] + __popc(bits[part] & ((1u << column) - 1)), (bits[part] >> column & 1u) != 0);
  }
}

// Masks [steps of all groups, warps, lanes, 4]: a warp for a step's warp.
extern "C" __global__ void code_stream_masks(int m, int total, int steps, int warps_m, int warps_k, int is_ordered,
                                             const int* offsets, const int* columns, const int* rows, uint4* masks) {
  const int number = warp_number(), lane = threadIdx.x % 32, warps = warps_m * warps_k;
  if (number >= total * warps) return;
  RowPart part = row_part(lane, number / warps, number % warps, m, steps, warps_m, warps_k, offsets, columns, rows,
                          is_ordered != 0);
  unsigned words[kTiles];
  #pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    words[tile] = 0;
    const unsigned present = next_tile(part, columns);
    for_each_weight(lane, present, 0, [&](int i, int, bool is_there) { words[tile] |= (is_there ? 1u : 0u) << i; });
  }
  masks[static_cast<long long>(number) * 32 + lane] = make_uint4(words[0], words[1], words[2], words[3]);
}

// Where in its stream each lane is before each step [steps of all groups, warps, lanes], what that asks of the ring, and how
// many chunks each stream has: a warp for each stream.
extern "C" __global__ void code_stream_positions(int blocks, int total, int warps, int orders_of_step, int chunk_codes,
                                                 int kept_chunks, int ahead, const uint4* masks, int* positions,
                                                 unsigned* orders, int* chunks) {
  const int number = warp_number(), lane = threadIdx.x % 32;
  if (number >= blocks * warps) return;
  const int block = number / warps, warp = number % warps;
  const int begin = static_cast<int>(static_cast<long long>(block) * total / blocks);
  const int end = static_cast<int>(static_cast<long long>(block + 1) * total / blocks);
  int at = 0, held = 0;
  for (int step = begin; step < end; ++step) {
    const long long place = (static_cast<long long>(step) * warps + warp) * 32 + lane;
    const uint4 mask = masks[place];
    const int taken = __popc(mask.x) + __popc(mask.y) + __popc(mask.z) + __popc(mask.w);
    const int farthest = __reduce_max_sync(kWholeWarp, at + taken) + ahead;
    const int needed = max(held, (farthest + chunk_codes - 1) / chunk_codes);
    if (needed > held) at = max(at, (needed - kept_chunks) * chunk_codes);
    positions[place] = at;
    at += taken;
    if (lane == 0) orders[static_cast<long long>(step) * orders_of_step + warp] = static_cast<unsigned>(needed - held);
    held = needed;
  }
  if (lane == 0) chunks[number] = held;
}

// Calls put(place, number) for every nonzero of a step's warp, at its place among all stored codes.
template <class Put>
__device__ __forceinline__ void scatter(int m, int total, int steps, int warps_m, int warps_k, int blocks, int is_ordered,
                                        const int* offsets, const int* columns, const int* rows, const int* positions,
                                        int chunk_codes, const int* starts, Put put) {
  const int number = warp_number(), lane = threadIdx.x % 32, warps = warps_m * warps_k;
  if (number >= total * warps) return;
  const int step = number / warps, warp = number % warps, word_codes = chunk_codes / 8;
  RowPart part = row_part(lane, step, warp, m, steps, warps_m, warps_k, offsets, columns, rows, is_ordered != 0);
  const int block = static_cast<int>((static_cast<long long>(step + 1) * blocks - 1) / total);
  const int begin = starts[block * warps + warp] * chunk_codes;
  int position = positions[static_cast<long long>(number) * 32 + lane];
  for (int tile = 0; tile < kTiles; ++tile) {
    const int first = part.number;
    const unsigned present = next_tile(part, columns);
    for_each_weight(lane, present, first, [&](int, int nonzero, bool is_there) {
      if (!is_there) return;
      const int word = (begin + position) / word_codes;
      put((static_cast<long long>(word) * 32 + lane) * word_codes + position % word_codes, nonzero);
      ++position;
    });
  }
}

extern "C" __global__ void code_stream_8(int m, int total, int steps, int warps_m, int warps_k, int blocks, int is_ordered,
                                         const int* offsets, const int* columns, const int* rows, const int* positions,
                                         int chunk_codes, const int* starts, const unsigned char* codes,
                                         unsigned char* packed) {
  scatter(m, total, steps, warps_m, warps_k, blocks, is_ordered, offsets, columns, rows, positions, chunk_codes, starts,
          [&](long long place, int number) { packed[place] = codes[number]; });
}

// Two codes share a byte, which is zero at the start.
extern "C" __global__ void code_stream_4(int m, int total, int steps, int warps_m, int warps_k, int blocks, int is_ordered,
                                         const int* offsets, const int* columns, const int* rows, const int* positions,
                                         int chunk_codes, const int* starts, const unsigned char* codes, unsigned* packed) {
  scatter(m, total, steps, warps_m, warps_k, blocks, is_ordered, offsets, columns, rows, positions, chunk_codes, starts,
          [&](long long place, int number) {
            atomicOr(packed + place / 8, static_cast<unsigned>(codes[number]) << 4 * static_cast<unsigned>(place % 8));
          });
}
