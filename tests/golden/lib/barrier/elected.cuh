// By all lanes of a warp: whether this one is chosen, the same one every time. Behind threadIdx.x % 32 == 0, each copy of a box would go
// through a loop over lanes that might differ: some 30 instructions.
__device__ __forceinline__ bool is_elected() {
#if defined(SPARSEGEN_EMULATOR)
  return threadIdx.x % 32 == 0;
#else
  unsigned elected = 0;
  asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff;\n@p mov.u32 %0, 1; }\n" : "+r"(elected));
  return elected != 0;
#endif
}
