// Counts this subwarp of kThreads, or warp, where it takes part; returns how many came before. What it wrote is seen by all
// that come later, and what the earlier ones wrote is seen by it. All threads of the warp call it together.
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
+// Returns to all threads of a warp how many have arrived so far, without counting it; what these wrote is visible then.
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
