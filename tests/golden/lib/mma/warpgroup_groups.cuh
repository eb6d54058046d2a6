__device__ __forceinline__ void fence_shared_for_tensor_cores() {
#if !defined(SPARSEGEN_EMULATOR)
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
#endif
}

__device__ __forceinline__ void warpgroup_begin() {
#if !defined(SPARSEGEN_EMULATOR)
  asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
#endif
}

__device__ __forceinline__ void warpgroup_commit() {
#if !defined(SPARSEGEN_EMULATOR)
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
#endif
}

template <int kPending>
__device__ __forceinline__ void warpgroup_wait() {
#if !defined(SPARSEGEN_EMULATOR)
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
#endif
}

template <int kTiles>
__device__ __forceinline__ void warpgroup_settle(float (&sums)[kTiles][4]) {
#if !defined(SPARSEGEN_EMULATOR)
  #pragma unroll
  for (int i = 0; i < kTiles * 4; ++i) asm volatile("" : "+f"(sums[i / 4][i % 4])::"memory");
#endif
}
