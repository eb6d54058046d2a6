__device__ __forceinline__ bool barrier_is_complete(Barrier* barrier, unsigned parity) {
#if defined(SPARSEGEN_EMULATOR)
  return sparsegen::emulator::barrier_is_complete(barrier, parity);
#else
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
  unsigned complete;
  asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }\n"
               : "=r"(complete) : "r"(address), "r"(parity) : "memory");
  return complete != 0;
#endif
}
