// Puts the values of compressed sparse rows, one block for each row, into a dense matrix of zeros.

template <typename Value>
__device__ __forceinline__ void scatter(int row_stride, int column_stride, const int* offsets, const int* columns,
                                        const Value* values, Value* dense) {
  Value* start = dense + static_cast<long long>(blockIdx.x) * row_stride;
  for (int i = offsets[blockIdx.x] + threadIdx.x; i < offsets[blockIdx.x + 1]; i += blockDim.x) {
    start[static_cast<long long>(columns[i]) * column_stride] = values[i];
  }
}

extern "C" __global__ void scatter_32(int row_stride, int column_stride, const int* offsets,
                                      const int* columns, const unsigned* values, unsigned* dense) {
  scatter(row_stride, column_stride, offsets, columns, values, dense);
}

extern "C" __global__ void scatter_16(int row_stride, int column_stride, const int* offsets,
                                      const int* columns, const unsigned short* values, unsigned short* dense) {
  scatter(row_stride, column_stride, offsets, columns, values, dense);
}
