// Transposes of two row-major matrices with equally many rows, in one launch: tiles of the second stand behind those of the first.
#if !defined(SPARSEGEN_EMULATOR)
#define SPARSEGEN_SHARED(type, name, count) __shared__ __align__(16) type name[count]
#endif

constexpr int kSide = 32, kRows = 8;  // of a tile, and those that the threads of a block load or store at once

#include "early_start.cuh"

// The grid's y goes over tiles of rows. A column of padding keeps the columns of a tile in different banks.
template <class Word>
__device__ __forceinline__ void transpose(int rows, int columns, int first_column, const Word* x, Word* turned, Word* tile) {
  const int across = static_cast<int>(threadIdx.x) % kSide, down = static_cast<int>(threadIdx.x) / kSide;
  for (int first = static_cast<int>(blockIdx.y) * kSide; first < rows; first += static_cast<int>(gridDim.y) * kSide) {
    #pragma unroll
    for (int i = down; i < kSide; i += kRows) {
      const int row = first + i, column = first_column + across;
      if (row < rows && column < columns) tile[i * (kSide + 1) + across] = x[static_cast<long long>(row) * columns + column];
    }
    __syncthreads();
    #pragma unroll
    for (int i = down; i < kSide; i += kRows) {
      const int row = first + across, column = first_column + i;
      if (row < rows && column < columns) turned[static_cast<long long>(column) * rows + row] = tile[across * (kSide + 1) + i];
    }
    __syncthreads();
  }
}

#define SPARSEGEN_TRANSPOSE(name, type)                                                                                   \
  extern "C" __global__ void __launch_bounds__(kSide * kRows)                                                             \
      name(int rows, int columns, int other_columns, const type* x, const type* other, type* turned, type* other_turned) { \
    SPARSEGEN_SHARED(type, tile, kSide * (kSide + 1));                                                                    \
    wait_for_kernel_before();                                                                                             \
    let_next_kernel_begin();                                                                                              \
    const int number = static_cast<int>(blockIdx.x), tiles = (columns + kSide - 1) / kSide;                               \
    if (number < tiles) {                                                                                                 \
      transpose<type>(rows, columns, number * kSide, x, turned, tile);                                                    \
    } else {                                                                                                              \
      transpose<type>(rows, other_columns, (number - tiles) * kSide, other, other_turned, tile);                          \
    }                                                                                                                     \
  }

SPARSEGEN_TRANSPOSE(transpose_16, unsigned short)
SPARSEGEN_TRANSPOSE(transpose_32, unsigned)
