template <int kHeld, int kCount>
__device__ __forceinline__ void reduce(float (&sum)[kStrip], int thread, unsigned lanes) {
  if constexpr (kCount > 1) {
    constexpr int kOther = kCount / 2;
    if constexpr (kHeld > 1) {
      constexpr int kHalf = kHeld / 2;
      const bool is_upper = (thread & kOther) != 0;
      #pragma unroll
      for (int i = 0; i < kHalf; ++i) {
        const float kept = is_upper ? sum[i + kHalf] : sum[i];
        const float given = is_upper ? sum[i] : sum[i + kHalf];
        sum[i] = kept + __shfl_xor_sync(lanes, given, kOther);
      }
      reduce<kHalf, kOther>(sum, thread, lanes);
    } else {
      sum[0] += __shfl_xor_sync(lanes, sum[0], kOther);
      reduce<1, kOther>(sum, thread, lanes);
    }
  }
}
