struct Totals {
  float reference[kRowTiles][2];
  float sum[kRowTiles][2];
};

__device__ __forceinline__ float subtrahend(float reference, float factor) {
  return reference == kLowest ? 0.0f : __fmul_rn(reference, factor);
}

__device__ __forceinline__ void refer_to(const float (&largest)[kRowTiles][2], float factor, Totals& totals, Sums& sums) {
  #pragma unroll
  for (int i = 0; i < kRowTiles; ++i) {
    #pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float from = totals.reference[i][half] == kLowest ? kLowest : subtrahend(totals.reference[i][half], factor);
      const float shrinking = fast_exp2(from - subtrahend(largest[i][half], factor));
      totals.reference[i][half] = largest[i][half];
      totals.sum[i][half] *= shrinking;
      #pragma unroll
      for (int j = 0; j < kWidthTiles; ++j) {
        sums[i][j][half * 2] *= shrinking;
        sums[i][j][half * 2 + 1] *= shrinking;
      }
    }
  }
}

__device__ __forceinline__ void weigh(Scores& scores, float factor, Totals& totals, Sums& sums) {
  float largest[kRowTiles][2];
  bool outgrown = false;
  #pragma unroll
  for (int i = 0; i < kRowTiles; ++i) {
    #pragma unroll
    for (int half = 0; half < 2; ++half) {
      float found = totals.reference[i][half];
      #pragma unroll
      for (int j = 0; j < kKeyTiles; ++j) {
        found = fmaxf(found, fmaxf(scores[i][j][half * 2], scores[i][j][half * 2 + 1]));
      }
      found = fmaxf(found, __shfl_xor_sync(0xffffffffu, found, 1));
      found = fmaxf(found, __shfl_xor_sync(0xffffffffu, found, 2));
      largest[i][half] = found;
      outgrown |= (found - totals.reference[i][half]) * factor > kSlack;
    }
  }
  if (__any_sync(0xffffffffu, outgrown)) refer_to(largest, factor, totals, sums);
  #pragma unroll
  for (int i = 0; i < kRowTiles; ++i) {
    #pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float subtracted = subtrahend(totals.reference[i][half], factor);
      #pragma unroll
      for (int j = 0; j < kKeyTiles; ++j) {
        #pragma unroll
        for (int e = half * 2; e < half * 2 + 2; ++e) {
          const float weight = fast_exp2(__fmaf_rn(scores[i][j][e], factor, -subtracted));
          scores[i][j][e] = weight;
          totals.sum[i][half] += weight;
        }
      }
    }
  }
}
