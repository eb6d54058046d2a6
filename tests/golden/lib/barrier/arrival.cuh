template <int kThreads = 32>
__device__ __forceinline__ unsigned count_arrival(unsigned* counter, unsigned thread, bool takes_part = true) {
  unsigned before = 0;
  __syncwarp();
  if (takes_part && thread == 0) {
#if defined(SPARSEGEN_EMULATOR)
    before = atomicAdd(counter, 1u);
#else
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;\n" : "=r"(before) : "l"(counter) : "memory");
#endif
  }
  __syncwarp();
  return __shfl_sync(0xffffffffu, before, 0, kThreads);
}
(2) from (1):
@@
+
+__device__ __forceinline__ unsigned arrivals_so_far(unsigned* counter, unsigned thread) {
+  unsigned found = 0;
+  if (thread == 0) {
+#if defined(SPARSEGEN_EMULATOR)
+    found = atomicAdd(counter, 0u);
+#else
+    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];\n" : "=r"(found) : "l"(counter) : "memory");
+#endif
+  }
+  __syncwarp();
+  return __shfl_sync(0xffffffffu, found, 0);
+}
