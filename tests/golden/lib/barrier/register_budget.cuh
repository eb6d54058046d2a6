// All threads of a warpgroup: they need no more than kRegisters from here on, the others may have the rest.
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
#if !defined(SPARSEGEN_EMULATOR)
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
#endif
}

// All threads of a warpgroup: waits until each can have kRegisters.
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
#if !defined(SPARSEGEN_EMULATOR)
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
#endif
}
