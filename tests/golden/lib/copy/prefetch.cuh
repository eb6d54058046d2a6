__device__ __forceinline__ void prefetch_l2(const void* from, unsigned bytes) {
#if defined(SPARSEGEN_EMULATOR)
  const volatile unsigned char* const memory = static_cast<const volatile unsigned char*>(from);
  static_cast<void>(memory[0] + memory[bytes - 1]);
#else
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;\n" ::"l"(from), "r"(bytes) : "memory");
#endif
}

__device__ __forceinline__ void prefetch_line(const void* from) {
#if defined(SPARSEGEN_EMULATOR)
  static_cast<void>(*static_cast<const volatile unsigned char*>(from));
#else
  asm volatile("prefetch.global.L2 [%0];\n" ::"l"(from) : "memory");
#endif
}
