// New values on a packed pattern: each stored element takes the nonzero that it holds, padding takes zero.
template <class Word>
__device__ __forceinline__ void gather(int count, const int* source, const Word* values, Word* stored) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) stored[i] = source[i] < 0 ? Word{0} : values[source[i]];
}

extern "C" __global__ void gather_16(int count, const int* source, const unsigned short* values, unsigned short* stored) {
  gather(count, source, values, stored);
}

extern "C" __global__ void gather_32(int count, const int* source, const unsigned* values, unsigned* stored) {
  gather(count, source, values, stored);
}
