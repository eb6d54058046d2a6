// Grids whose blocks wait for one another; all of them are resident at once, as launches with `Launch.together` see to. They
// are blocks along x.
#define SPARSEGEN_GRID_TOGETHER

// Waits, again and again. All waits of a kernel, and of kernels before it with as many blocks, add up in a counter, which
// somebody makes zero now and then, between kernels.
struct Grid {
  unsigned* counter;
  unsigned reached;

  // Others may wait already, but nobody is through before this block has come.
  __device__ explicit Grid(unsigned* counter) : counter(counter), reached(0) {
    const unsigned now = *reinterpret_cast<volatile unsigned*>(counter);
    reached = now - now % gridDim.x;
  }

  // For all threads of the grid; what each of them wrote before is seen by all.
  __device__ void wait() {
    reached += gridDim.x;
#if defined(SPARSEGEN_EMULATOR)
    if (threadIdx.x == 0) atomicAdd(counter, 1u);
    sparsegen::emulator::cluster_sync();
#else
    __syncthreads();
    if (threadIdx.x == 0) {
      unsigned now;
      asm volatile("red.release.gpu.global.add.u32 [%0], %1;\n" ::"l"(counter), "r"(1u) : "memory");
      do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];\n" : "=r"(now) : "l"(counter) : "memory");
      } while (static_cast<int>(now - reached) < 0);
    }
    __syncthreads();
#endif
  }
};
