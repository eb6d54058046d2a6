template <int kSelector>
__device__ __forceinline__ void mma_sparse(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[4], unsigned metadata) {
#if defined(SPARSEGEN_EMULATOR)
  sparsegen::emulator::mma_sparse_16bit<Element>(sum, a, b, metadata, kSelector);
#else
  asm volatile(
      "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 { %0, %1, %2, %3}, { %4, %5, %6, %7}, "
      "{ %8, %9, %10, %11}, { %0, %1, %2, %3}, %12, %13;\n"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(metadata), "n"(kSelector));
#endif
}
(2) from (1):
@@
-1 253496
+      "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.bf16.bf16.f32 { %0, %1, %2, %3}, { %4, %5, %6, %7}, "
