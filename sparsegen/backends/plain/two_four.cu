// Packs a matrix in compressed sparse rows for quantized_sparse_mma_spmm; the format is told in sparsegen/kernels/layouts/two_four.py.
#include "row_parts.cuh"

constexpr int kUnitRows = 32, kUnitColumns = 128, kVectorBytes = 32 * 16, kFours = 32;

// Where a code is in a unit, in bits.
__device__ __forceinline__ int code_place(int row, int four, int place, int bits, int is_paired) {
  const int tile = row / 16, half = row / 8 % 2, step = four / 8, k_half = four / 4 % 2;
  const int lane = row % 8 * 4 + four % 4;
  if (bits == 4) return ((tile * 32 + lane) * 16 + step * 4 + place * 2 + k_half) * 8 + half * 4;
  const int byte = step % 2 * 8 + k_half * 4 + (is_paired != 0 ? half * 2 + place : place * 2 + half);
  return (((tile * 2 + step / 2) * 32 + lane) * 16 + byte) * 8;
}

// Codes [strips, units across, layers, vectors, lanes, 16 bytes], zero's at the start, and metadata, of one vector, which are zero: a
// warp for the layers of a unit, a lane for a row. Rows share words; differences from what is there add up to what must be there.
extern "C" __global__ void two_four_units(int m, int strips, int across, int layers, int bits, int is_paired, int zero,
                                          const int* offsets, const int* columns, const unsigned char* codes, unsigned* packed, unsigned* metadata) {
  const int number = warp_number(), lane = threadIdx.x % 32;
  if (number >= strips * across) return;
  const int row = number / across * kUnitRows + lane, first = number % across * kUnitColumns;
  const int unit_words = bits * 4 / 8 * kVectorBytes / 4;
  unsigned* const own = packed + static_cast<long long>(number) * layers * unit_words;
  unsigned* const own_metadata = metadata + static_cast<long long>(number) * layers * (kVectorBytes / 4);
  const int end = row < m ? offsets[row + 1] : 0;
  int nonzero = row < m ? lower_bound(columns, offsets[row], end, first) : 0;
  for (int four = 0; four < kFours; ++four) {
    unsigned places[2] = {0xcu, 0xcu};  // of the first column and of the last one
    int rank = 0;
    for (; nonzero < end && columns[nonzero] < first + (four + 1) * 4; ++nonzero, ++rank) {
      const unsigned inside = static_cast<unsigned>(columns[nonzero] - first) % 4;
      const int layer = rank / 2, place = rank % 2 == 1 || inside == 3 ? 1 : 0;
      const int at = layer * unit_words * 32 + code_place(lane, four, place, bits, is_paired);
      atomicAdd(own + at / 32, static_cast<unsigned>(codes[nonzero] - zero) << at % 32);
      places[layer] = place == 0 ? (places[layer] & ~3u) | inside : (places[layer] & 3u) | inside << 2;
    }
    const int owner = lane % 8 * 4 + lane / 16 * 2 + four / 4 % 2;
    for (int layer = 0; layer < layers; ++layer) {
      const int word = layer * (kVectorBytes / 4) + owner * 4 + four / 8;
      atomicAdd(own_metadata + word, places[layer] << (lane / 8 % 2 * 16 + four % 4 * 4));
    }
  }
}
