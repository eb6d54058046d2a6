__device__ __forceinline__ void barrier_arrive_expecting(Barrier* barrier, unsigned bytes) {
#if defined(SPARSEGEN_EMULATOR)
  sparsegen::emulator::barrier_arrive(barrier, bytes);
#else
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;\n" ::"r"(address), "r"(bytes) : "memory");
#endif
}

__device__ __forceinline__ void barrier_init_fence() {
#if !defined(SPARSEGEN_EMULATOR)
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
#endif
}
