__device__ __forceinline__ bool is_elected() {
#if defined(SPARSEGEN_EMULATOR)
  return threadIdx.x % 32 == 0;
#else
  unsigned elected = 0;
  asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff;\n@p mov.u32 %0, 1; }\n" : "+r"(elected));
  return elected != 0;
#endif
}
