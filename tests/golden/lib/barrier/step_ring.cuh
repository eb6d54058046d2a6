template <class Load, class Use>
__device__ __forceinline__ void each_step(const Load& load, const Use& use) {
  int filled = 0;
  bool is_more = true;
  #pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) {
    is_more = is_more && load(stage);
    filled += is_more;
  }
  for (int step = 0; step < filled; ++step) {
    if (is_more) {
      copy_async_wait<kStages - 2>();
    } else {
      copy_async_wait<0>();
    }
    __syncthreads();
    if (is_more) {
      is_more = load((step + kStages - 1) % kStages);
      filled += is_more;
    }
    use(step % kStages);
  }
}
