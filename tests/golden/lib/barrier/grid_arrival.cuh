__device__ __forceinline__ void grid_arrive(unsigned* counter) {
#if defined(SPARSEGEN_EMULATOR)
  sparsegen::emulator::grid_arrive(counter);
#else
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;\n" ::"l"(counter) : "memory");
#endif
}

__device__ __forceinline__ void grid_wait(unsigned* counter, unsigned arrivals) {
#if defined(SPARSEGEN_EMULATOR)
  sparsegen::emulator::grid_wait(counter, arrivals);
#else
  unsigned now;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];\n" : "=r"(now) : "l"(counter) : "memory");
  } while (static_cast<int>(now - arrivals) < 0);
#endif
}

__device__ __forceinline__ void fence_before_bulk_reads() {
#if !defined(SPARSEGEN_EMULATOR)
  asm volatile("fence.proxy.async.global;\n" ::: "memory");
#endif
}
