using Barrier = unsigned long long;

__device__ __forceinline__ void barrier_init(Barrier* barrier, unsigned arrivals) {
#if defined(SPARSEGEN_EMULATOR)
  sparsegen::emulator::barrier_init(barrier, arrivals);
#else
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
  asm volatile("mbarrier.init.shared.b64 [%0], %1;\n" ::"r"(address), "r"(arrivals) : "memory");
#endif
}

__device__ __forceinline__ void barrier_arrive(Barrier* barrier) {
#if defined(SPARSEGEN_EMULATOR)
  sparsegen::emulator::barrier_arrive(barrier);
#else
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
  asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }\n" ::"r"(address) : "memory");
#endif
}

__device__ __forceinline__ void barrier_wait(Barrier* barrier, unsigned parity) {
#if defined(SPARSEGEN_EMULATOR)
  sparsegen::emulator::barrier_wait(barrier, parity);
#else
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
  unsigned complete;
  do {
#if __CUDA_ARCH__ >= 900
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }\n"
                 : "=r"(complete) : "r"(address), "r"(parity) : "memory");
#else
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }\n"
                 : "=r"(complete) : "r"(address), "r"(parity) : "memory");
#endif
  } while (!complete);
#endif
}

__device__ __forceinline__ void copy_async_arrive(Barrier* barrier) {
#if defined(SPARSEGEN_EMULATOR)
  sparsegen::emulator::copy_async_arrive(barrier);
#else
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];\n" ::"r"(address) : "memory");
#endif
}
