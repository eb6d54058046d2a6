__device__ __forceinline__ void copy_step(unsigned char* slot, Barrier* full, unsigned lane, const uint4* masks,
                                          const uint4* orders, const Element* b, int first_k, int k, int n,
                                          CachePolicy policy) {
  if (lane < kOrderBytes / 16) {
    copy_async_16(slot + kMaskBytes + kActivationBytes + lane * 16, orders + lane, true, policy);
  }
  #pragma unroll
  for (unsigned i = 0; i < kMaskBytes / 16; i += 32) {
    if (kMaskBytes / 16 % 32 == 0 || i + lane < kMaskBytes / 16) {
      copy_async_16(slot + (i + lane) * 16, masks + i + lane, true, policy);
    }
  }
  constexpr unsigned kChunks = kStepK / 8;
  const unsigned chunk = lane % kChunks;
  #pragma unroll
  for (unsigned i = 0; i < kWarpsK * kTokens; i += 32 / kChunks) {
    const unsigned row = i + lane / kChunks;
    const int token = static_cast<int>(row % kTokens);
    const int column = first_k + static_cast<int>(row / kTokens * kStepK + chunk * 8);
    const bool inside = token < n && column < k;
    const Element* const from = b + static_cast<long long>(inside ? token : 0) * k + (inside ? column : 0);
    unsigned char* const to = slot + activation_offset(row, chunk);
    copy_async<16>(to, from, inside);
  }
  copy_async_arrive(full);
}
constexpr unsigned kArrivalsFull = 32;

__device__ __forceinline__ unsigned first_step_of(unsigned block, unsigned total) {
  return static_cast<unsigned>(static_cast<unsigned long long>(block) * total / gridDim.x);
}

__device__ __forceinline__ unsigned block_of(unsigned step, unsigned total) {
  return static_cast<unsigned>((static_cast<unsigned long long>(step + 1) * gridDim.x - 1) / total);
}
