template <int kRegisters>
__device__ __forceinline__ void give_registers() {
#if !defined(SPARSEGEN_EMULATOR)
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
#endif
}

template <int kRegisters>
__device__ __forceinline__ void take_registers() {
#if !defined(SPARSEGEN_EMULATOR)
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
#endif
}
