// Launches that begin while the kernel before them still ends (programmatic dependent launch, sm_90 and later); elsewhere
// both do nothing. Some thread of each kernel waits, so that it ends behind the one before.

// Before the first access to memory that another kernel touches.
__device__ __forceinline__ void wait_for_kernel_before() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}

// The kernel behind this one may begin when each thread block has said so or ended; it waits for this one's end by itself.
// Said by a thread that has waited, so that all kernels before this one have ended then.
__device__ __forceinline__ void let_next_kernel_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}
