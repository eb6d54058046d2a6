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

// What a bit of a mask stands for: a weight, in the order of for_each_weight.
struct Codes {
  static constexpr int kOfTile = 32;

  static __device__ __forceinline__ int unit_of(int i) { return i; }
};

// Or two, of neighbouring registers: they share a byte.
struct Pairs {
  static constexpr int kOfTile = 16;

  static __device__ __forceinline__ int unit_of(int i) { return i / 8 * 4 + i % 2 * 2 + i % 8 / 4; }
};

// Of a lane's step.
template <class Unit>
constexpr int kMaskWords = kTiles * Unit::kOfTile / 32;

// Masks [steps of all groups, warps, lanes]: a warp for a step's warp.
template <class Unit>
__device__ __forceinline__ void write_masks(int m, int total, int steps, int warps_m, int warps_k, int is_ordered,
                                            const int* offsets, const int* columns, const int* rows, unsigned* masks) {
  const int number = warp_number(), lane = threadIdx.x % 32, warps = warps_m * warps_k;
  if (number >= total * warps) return;
  RowPart part = row_part(lane, number / warps, number % warps, m, steps, warps_m, warps_k, offsets, columns, rows,
                          is_ordered != 0);
  unsigned words[kMaskWords<Unit>] = {};
  #pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const unsigned present = next_tile(part, columns);
    for_each_weight(lane, present, 0, [&](int i, int, bool is_there) {
      const int bit = tile * Unit::kOfTile + Unit::unit_of(i);
      words[bit / 32] |= (is_there ? 1u : 0u) << bit % 32;
    });
  }
  unsigned* const mine = masks + (static_cast<long long>(number) * 32 + lane) * kMaskWords<Unit>;
  #pragma unroll
  for (int i = 0; i < kMaskWords<Unit>; ++i) mine[i] = words[i];
}

extern "C" __global__ void masks_of_codes(int m, int total, int steps, int warps_m, int warps_k, int is_ordered,
                                          const int* offsets, const int* columns, const int* rows, unsigned* masks) {
  write_masks<Codes>(m, total, steps, warps_m, warps_k, is_ordered, offsets, columns, rows, masks);
}

extern "C" __global__ void masks_of_pairs(int m, int total, int steps, int warps_m, int warps_k, int is_ordered,
                                          const int* offsets, const int* columns, const int* rows, unsigned* masks) {
  write_masks<Pairs>(m, total, steps, warps_m, warps_k, is_ordered, offsets, columns, rows, masks);
}

// Where in its stream each lane is before each step [steps of all groups, warps, lanes], what that asks of the ring, and how
// many chunks each stream has: a warp for each stream.
template <class Unit>
__device__ __forceinline__ void follow_streams(int blocks, int total, int warps, int orders_of_step, int chunk_units,
                                               int kept_chunks, int ahead, const unsigned* masks,
                                               int* positions, unsigned* orders, int* chunks) {
  const int number = warp_number(), lane = threadIdx.x % 32;
  if (number >= blocks * warps) return;
  const int block = number / warps, warp = number % warps;
  const int begin = static_cast<int>(static_cast<long long>(block) * total / blocks);
  const int end = static_cast<int>(static_cast<long long>(block + 1) * total / blocks);
  int at = 0, held = 0;
  for (int step = begin; step < end; ++step) {
    const long long place = (static_cast<long long>(step) * warps + warp) * 32 + lane;
    int taken = 0;
    #pragma unroll
    for (int i = 0; i < kMaskWords<Unit>; ++i) taken += __popc(masks[place * kMaskWords<Unit> + i]);
    const int farthest = __reduce_max_sync(kWholeWarp, at + taken) + ahead;
    const int needed = max(held, (farthest + chunk_units - 1) / chunk_units);
    if (needed > held) at = max(at, (needed - kept_chunks) * chunk_units);
    positions[place] = at;
    at += taken;
    if (lane == 0) orders[static_cast<long long>(step) * orders_of_step + warp] = static_cast<unsigned>(needed - held);
    held = needed;
  }
  if (lane == 0) chunks[number] = held;
}

extern "C" __global__ void positions_of_codes(int blocks, int total, int warps, int orders_of_step, int chunk_units,
                                              int kept_chunks, int ahead, const unsigned* masks, int* positions,
                                              unsigned* orders, int* chunks) {
  follow_streams<Codes>(blocks, total, warps, orders_of_step, chunk_units, kept_chunks, ahead, masks, positions, orders,
                        chunks);
}

extern "C" __global__ void positions_of_pairs(int blocks, int total, int warps, int orders_of_step, int chunk_units,
                                              int kept_chunks, int ahead, const unsigned* masks, int* positions,
                                              unsigned* orders, int* chunks) {
  follow_streams<Pairs>(blocks, total, warps, orders_of_step, chunk_units, kept_chunks, ahead, masks, positions, orders,
                        chunks);
}

// Calls put(place, numbers) for every unit of a step's warp that is stored, at its place among all stored ones: the numbers
// of its nonzeros, or -1.
template <class Unit, class Put>
__device__ __forceinline__ void scatter(int m, int total, int steps, int warps_m, int warps_k, int blocks, int is_ordered,
                                        const int* offsets, const int* columns, const int* rows, const int* positions,
                                        int chunk_units, const int* starts, Put put) {
  const int number = warp_number(), lane = threadIdx.x % 32, warps = warps_m * warps_k;
  if (number >= total * warps) return;
  const int step = number / warps, warp = number % warps, word_units = chunk_units / 8;
  RowPart part = row_part(lane, step, warp, m, steps, warps_m, warps_k, offsets, columns, rows, is_ordered != 0);
  const int block = static_cast<int>((static_cast<long long>(step + 1) * blocks - 1) / total);
  const int begin = starts[block * warps + warp] * chunk_units;
  int position = positions[static_cast<long long>(number) * 32 + lane];
  constexpr int kOfUnit = 32 / Unit::kOfTile;
  for (int tile = 0; tile < kTiles; ++tile) {
    const int first = part.number;
    const unsigned present = next_tile(part, columns);
    int numbers[Unit::kOfTile][kOfUnit];
    for_each_weight(lane, present, first, [&](int i, int nonzero, bool is_there) {
      numbers[Unit::unit_of(i)][kOfUnit == 1 ? 0 : i / 2 % 2] = is_there ? nonzero : -1;
    });
    #pragma unroll
    for (int unit = 0; unit < Unit::kOfTile; ++unit) {
      bool is_there = false;
      #pragma unroll
      for (int i = 0; i < kOfUnit; ++i) is_there |= numbers[unit][i] >= 0;
      if (!is_there) continue;
      const int word = (begin + position) / word_units;
      put((static_cast<long long>(word) * 32 + lane) * word_units + position % word_units, numbers[unit]);
      ++position;
    }
  }
}

extern "C" __global__ void codes_of_8_bits(int m, int total, int steps, int warps_m, int warps_k, int blocks, int is_ordered,
                                           const int* offsets, const int* columns, const int* rows, const int* positions,
                                           int chunk_units, const int* starts, const unsigned char* codes,
                                           unsigned char* packed) {
  scatter<Codes>(m, total, steps, warps_m, warps_k, blocks, is_ordered, offsets, columns, rows, positions, chunk_units, starts,
                 [&](long long place, const int (&numbers)[1]) { packed[place] = codes[numbers[0]]; });
}

// Two codes share a byte, which is zero at the start.
extern "C" __global__ void codes_of_4_bits(int m, int total, int steps, int warps_m, int warps_k, int blocks, int is_ordered,
                                           const int* offsets, const int* columns, const int* rows, const int* positions,
                                           int chunk_units, const int* starts, const unsigned char* codes, unsigned* packed) {
  scatter<Codes>(m, total, steps, warps_m, warps_k, blocks, is_ordered, offsets, columns, rows, positions, chunk_units, starts,
                 [&](long long place, const int (&numbers)[1]) {
                   atomicOr(packed + place / 8,
                            static_cast<unsigned>(codes[numbers[0]]) << 4 * static_cast<unsigned>(place % 8));
                 });
}

// 8 is the code of zero.
extern "C" __global__ void pairs_of_4_bits(int m, int total, int steps, int warps_m, int warps_k, int blocks, int is_ordered,
                                           const int* offsets, const int* columns, const int* rows, const int* positions,
                                           int chunk_units, const int* starts, const unsigned char* codes,
                                           unsigned char* packed) {
  scatter<Pairs>(m, total, steps, warps_m, warps_k, blocks, is_ordered, offsets, columns, rows, positions, chunk_units, starts,
                 [&](long long place, const int (&numbers)[2]) {
                   const unsigned low = numbers[0] < 0 ? 8u : codes[numbers[0]];
                   const unsigned high = numbers[1] < 0 ? 8u : codes[numbers[1]];
                   packed[place] = static_cast<unsigned char>(low | high << 4);
                 });
}
