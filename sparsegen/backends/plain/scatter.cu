// New values in a full matrix: of `count` nonzeros each goes to its place, the number of its element in row-major order.
template <class Word>
__device__ __forceinline__ void scatter(int count, const long long* __restrict__ places, const Word* __restrict__ values,
                                        Word* __restrict__ full) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) full[places[i]] = values[i];
}

extern "C" __global__ void scatter_16(int count, const long long* places, const unsigned short* values,
                                      unsigned short* full) {
  scatter(count, places, values, full);
}

extern "C" __global__ void scatter_32(int count, const long long* places, const unsigned* values, unsigned* full) {
  scatter(count, places, values, full);
}
