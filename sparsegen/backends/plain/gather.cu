// New values on a packed pattern: each stored element takes the nonzero that it holds, padding takes zero. There are `sets`
// of values on the same pattern, each of `count` stored elements from `nonzeros` values; a thread reads the number of its
// nonzero once for kSets of them, blockIdx.y counts these.
constexpr int kSets = 8;

template <class Word>
__device__ __forceinline__ void gather(int count, int nonzeros, int sets, const int* __restrict__ source,
                                       const Word* __restrict__ values, Word* __restrict__ stored) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const int nonzero = source[i];
  const int first = blockIdx.y * kSets;
  Word word[kSets];  // all loads first, so that they overlap
  #pragma unroll
  for (int s = 0; s < kSets; ++s) {
    const bool is_there = nonzero >= 0 && first + s < sets;
    word[s] = is_there ? values[static_cast<long long>(first + s) * nonzeros + nonzero] : Word{0};
  }
  #pragma unroll
  for (int s = 0; s < kSets; ++s) {
    if (first + s < sets) stored[static_cast<long long>(first + s) * count + i] = word[s];
  }
}

extern "C" __global__ void gather_16(int count, int nonzeros, int sets, const int* source, const unsigned short* values,
                                     unsigned short* stored) {
  gather(count, nonzeros, sets, source, values, stored);
}

extern "C" __global__ void gather_32(int count, int nonzeros, int sets, const int* source, const unsigned* values,
                                     unsigned* stored) {
  gather(count, nonzeros, sets, source, values, stored);
}
