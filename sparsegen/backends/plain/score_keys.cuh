// Scores of blocks as keys of 32 bits, of which the smallest are those of the largest scores.
// Four neighbouring numbers of a row, by one load where rows are made of whole ones; NaN past the end.
struct Fours {
  const float* values;
  int columns;
  bool are_whole;
  __device__ __forceinline__ Fours(const float* values, int columns)
      : values(values), columns(columns), are_whole(columns % 4 == 0 && reinterpret_cast<unsigned long long>(values) % sizeof(float4) == 0) {}
  __device__ __forceinline__ float4 operator()(int row, int quad) const {
    const float nan = __uint_as_float(0x7fc00000u);  // NVRTC has no NAN
    float four[4] = {nan, nan, nan, nan};
    const float* const from = values + static_cast<long long>(row) * columns + 4 * quad;
    if (are_whole) return 4 * quad < columns ? *reinterpret_cast<const float4*>(from) : make_float4(nan, nan, nan, nan);
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (4 * quad + i < columns) four[i] = from[i];
    }
    return make_float4(four[0], four[1], four[2], four[3]);
  }
};

// Scores of blocks as keys: those of the largest are the smallest. NaN has the highest, which is past the end of a row too.
using Scores = Fours;
constexpr unsigned kLowest = 0xff800000u;  // the key of -inf

__device__ __forceinline__ unsigned key_of(float score) {
  const unsigned bits = __float_as_uint(score + 0.0f);  // -0 is 0
  return score != score ? 0xffffffffu : bits >> 31 ? bits : ~bits ^ 0x80000000u;
}

__device__ __forceinline__ void keys_of(const Scores& scores, int row, int quad, unsigned (&found)[4]) {
  const float4 four = scores(row, quad);
  found[0] = key_of(four.x), found[1] = key_of(four.y), found[2] = key_of(four.z), found[3] = key_of(four.w);
}

__device__ __forceinline__ float score_of(unsigned key) { return __uint_as_float(key >> 31 ? key : ~key ^ 0x80000000u); }

__device__ __forceinline__ unsigned may_live(const Scores&, const unsigned (&keys)[4]) {
  unsigned four = 0;
  #pragma unroll
  for (int i = 0; i < 4; ++i) four |= keys[i] < kLowest ? 1u << i : 0u;
  return four;
}
