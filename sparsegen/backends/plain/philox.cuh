// Random words that a seed and a step name, of sparsegen/matrix/block_mask_draw.py.

using Word = unsigned long long;

// Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011: ten rounds of Philox4x32.
__device__ __forceinline__ uint4 philox(uint4 counter, unsigned key, unsigned other_key) {
  #pragma unroll
  for (int round = 0; round < 10; ++round) {
    const unsigned high = __umulhi(0xD2511F53u, counter.x), low = 0xD2511F53u * counter.x;
    const unsigned other_high = __umulhi(0xCD9E8D57u, counter.z), other_low = 0xCD9E8D57u * counter.z;
    counter = make_uint4(other_high ^ counter.y ^ key, other_low, high ^ counter.w ^ other_key, low);
    key += 0x9E3779B9u, other_key += 0xBB67AE85u;
  }
  return counter;
}

// Each block's random word, four neighbours at a time.
struct Random {
  Word seed, step;
  __device__ Random(Word seed, Word step) : seed(seed), step(step) {}
  __device__ explicit Random(const Word* state) : Random(state[0], state[1]) {}
  __device__ __forceinline__ uint4 operator()(int row, int quad) const {
    const uint4 counter = make_uint4(quad, row, static_cast<unsigned>(step), static_cast<unsigned>(step >> 32));
    return philox(counter, static_cast<unsigned>(seed), static_cast<unsigned>(seed >> 32));
  }
};
