// New values on a packed pattern: each stored element takes the nonzero that it holds, padding takes zero. blockIdx.y counts
// sets of values on the same pattern, each of `count` stored elements from `nonzeros` values.
template <class Word>
__device__ __forceinline__ void gather(int count, int nonzeros, const int* source, const Word* values, Word* stored) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  const long long set = blockIdx.y;
  if (i < count) stored[set * count + i] = source[i] < 0 ? Word{0} : values[set * nonzeros + source[i]];
}

extern "C" __global__ void gather_16(int count, int nonzeros, const int* source, const unsigned short* values,
                                     unsigned short* stored) {
  gather(count, nonzeros, source, values, stored);
}

extern "C" __global__ void gather_32(int count, int nonzeros, const int* source, const unsigned* values,
                                     unsigned* stored) {
  gather(count, nonzeros, source, values, stored);
}
