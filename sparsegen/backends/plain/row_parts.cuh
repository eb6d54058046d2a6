// What packers of streams share: parts of rows in compressed sparse rows, and warps that each take one.

// The first nonzero of a row's part [begin, end) that is not before a column.
__device__ __forceinline__ int lower_bound(const int* columns, int begin, int end, int column) {
  while (begin < end) {
    const int middle = begin + (end - begin) / 2;
    if (columns[middle] < column) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

__device__ __forceinline__ int warp_number() { return (blockIdx.x * blockDim.x + threadIdx.x) / 32; }
