// Makes the stores of threads to shared memory visible to tensor cores and TMA after the next barrier.
__device__ __forceinline__ void fence_shared_for_tensor_cores() {
#if !defined(SPARSEGEN_EMULATOR)
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
#endif
}

// Before the first product of a group: what this thread did to the sums is done.
__device__ __forceinline__ void warpgroup_begin() {
#if !defined(SPARSEGEN_EMULATOR)
  asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
#endif
}

// Closes the group of all products issued since the last one.
__device__ __forceinline__ void warpgroup_commit() {
#if !defined(SPARSEGEN_EMULATOR)
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
#endif
}

// Waits until at most kPending groups of products are under way; until then neither the sums nor the operands of the others
// may be touched.
template <int kPending>
__device__ __forceinline__ void warpgroup_wait() {
#if !defined(SPARSEGEN_EMULATOR)
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
#endif
}

// Follows a wait: else the compiler may read sums before it.
template <int kTiles>
__device__ __forceinline__ void warpgroup_settle(float (&sums)[kTiles][4]) {
#if !defined(SPARSEGEN_EMULATOR)
  #pragma unroll
  for (int i = 0; i < kTiles * 4; ++i) asm volatile("" : "+f"(sums[i / 4][i % 4])::"memory");
#endif
}
