template <int kThreads>
__device__ __forceinline__ void meet_at(int number) {
#if defined(SPARSEGEN_EMULATOR)
  sparsegen::emulator::named_barrier(number, kThreads);
#else
  asm volatile("bar.sync %0, %1;\n" ::"r"(number), "n"(kThreads) : "memory");
#endif
}
