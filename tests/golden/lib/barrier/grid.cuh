#define SPARSEGEN_GRID_TOGETHER

__device__ __forceinline__ void grid_sync(unsigned* counter) {
#if defined(SPARSEGEN_EMULATOR)
  sparsegen::emulator::cluster_sync();
#else
  constexpr unsigned kTop = 0x80000000u;
  __syncthreads();
  if (threadIdx.x == 0) {
    const unsigned share = blockIdx.x == 0 ? kTop - (gridDim.x - 1) : 1;
    unsigned before, now;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;\n" : "=r"(before) : "l"(counter), "r"(share) : "memory");
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];\n" : "=r"(now) : "l"(counter) : "memory");
    } while (((now ^ before) & kTop) == 0);
  }
  __syncthreads();
#endif
}
