// Waits until the kernel before has ended. Precedes the first access to memory that earlier kernels write or read.
__device__ __forceinline__ void wait_for_kernel_before() {
#if !defined(SPARSEGEN_EMULATOR)
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}

// The kernel behind this one may begin when each block has said so or ended; it still waits for this one's end. Said by a thread that
// has waited itself, so that all kernels before this one have ended then: one that begins early overlaps with no other one.
__device__ __forceinline__ void let_next_kernel_begin() {
#if !defined(SPARSEGEN_EMULATOR)
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}
