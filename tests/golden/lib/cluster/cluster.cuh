constexpr unsigned kClusterBlocks = 1;
#define SPARSEGEN_CLUSTER_BLOCKS 1

__device__ __forceinline__ unsigned cluster_rank() {
#if defined(SPARSEGEN_EMULATOR)
  return sparsegen::emulator::cluster_rank();
#else
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(rank));
  return rank;
#endif
}

__device__ __forceinline__ void cluster_sync() {
#if defined(SPARSEGEN_EMULATOR)
  sparsegen::emulator::cluster_sync();
#else
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;\n" ::: "memory");
#endif
}

__device__ __forceinline__ void cluster_meet() {
#if defined(SPARSEGEN_EMULATOR)
  sparsegen::emulator::cluster_sync();
#else
  asm volatile("barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait;\n" ::: "memory");
#endif
}
(2) from (1):
@@
-2 2fa0c0
+constexpr unsigned kClusterBlocks = 2;
+#define SPARSEGEN_CLUSTER_BLOCKS 2
