__device__ __forceinline__ void copy_bulk(void* shared, const void* global, unsigned bytes, Barrier* barrier) {
#if defined(SPARSEGEN_EMULATOR)
  sparsegen::emulator::copy_bulk(shared, global, bytes, barrier);
#else
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(
          static_cast<unsigned>(__cvta_generic_to_shared(shared))),
      "l"(global), "r"(bytes), "r"(static_cast<unsigned>(__cvta_generic_to_shared(barrier)))
      : "memory");
#endif
}
(2) from (1):
@@
-1 f8b582
+__device__ __forceinline__ void copy_bulk(void* shared, const void* global, unsigned bytes, Barrier* barrier,
+                                          CachePolicy policy) {
@@
-1 70b4ed
+      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;\n" ::"r"(
@@
-1 b53355
+      "l"(global), "r"(bytes), "r"(static_cast<unsigned>(__cvta_generic_to_shared(barrier))), "l"(policy)
