__device__ __forceinline__ void wait_for_kernel_before() {
#if !defined(SPARSEGEN_EMULATOR)
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}

__device__ __forceinline__ void let_next_kernel_begin() {
#if !defined(SPARSEGEN_EMULATOR)
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}
