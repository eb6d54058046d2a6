#if defined(SPARSEGEN_EMULATOR)
using RowsOperand = sparsegen::emulator::SwizzledRows;
#else
using RowsOperand = unsigned long long;
#endif

__device__ __forceinline__ RowsOperand rows_operand(const unsigned char* start, unsigned group_stride) {
#if defined(SPARSEGEN_EMULATOR)
  return {start, kRowBytes, group_stride};
#else
  constexpr unsigned long long kSwizzle = (kRowBytes == 128 ? 1ull : kRowBytes == 64 ? 2ull : 3ull) << 62;
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(start));
  return kSwizzle | static_cast<unsigned long long>(group_stride >> 4) << 32 | 1u << 16 | address >> 4;
#endif
}

__device__ __forceinline__ RowsOperand moved(RowsOperand operand, unsigned bytes) {
#if defined(SPARSEGEN_EMULATOR)
  return {operand.start + bytes, operand.row_bytes, operand.group_stride};
#else
  return operand + (bytes >> 4);
#endif
}

__device__ __forceinline__ void warpgroup_mma_rows(float (&sums)[8][4], RowsOperand a, RowsOperand b) {
#if defined(SPARSEGEN_EMULATOR)
  sparsegen::emulator::wgmma_16bit<Element, 8>(sums, a, b);
#else
  asm volatile(
      "{ .reg .pred add; setp.ne.b32 add, 1, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 { "
      "%0, %1, %2, %3, "
      "%4, %5, %6, %7, "
      "%8, %9, %10, %11, "
      "%12, %13, %14, %15, "
      "%16, %17, %18, %19, "
      "%20, %21, %22, %23, "
      "%24, %25, %26, %27, "
      "%28, %29, %30, %31 "
      "}, %32, %33, add, 1, 1, 0, 0;\n"
      "}\n"
      : "+f"(sums[0][0]), "+f"(sums[0][1]), "+f"(sums[0][2]), "+f"(sums[0][3]),
        "+f"(sums[1][0]), "+f"(sums[1][1]), "+f"(sums[1][2]), "+f"(sums[1][3]),
        "+f"(sums[2][0]), "+f"(sums[2][1]), "+f"(sums[2][2]), "+f"(sums[2][3]),
        "+f"(sums[3][0]), "+f"(sums[3][1]), "+f"(sums[3][2]), "+f"(sums[3][3]),
        "+f"(sums[4][0]), "+f"(sums[4][1]), "+f"(sums[4][2]), "+f"(sums[4][3]),
        "+f"(sums[5][0]), "+f"(sums[5][1]), "+f"(sums[5][2]), "+f"(sums[5][3]),
        "+f"(sums[6][0]), "+f"(sums[6][1]), "+f"(sums[6][2]), "+f"(sums[6][3]),
        "+f"(sums[7][0]), "+f"(sums[7][1]), "+f"(sums[7][2]), "+f"(sums[7][3])
      : "l"(a), "l"(b));
#endif
}
(2) from (1):
@@
-1 c9399f
+      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 { "
(3) from (1):
@@
-1 4cf1ba
+__device__ __forceinline__ void warpgroup_mma_rows(float (&sums)[4][4], const unsigned (&a)[4], RowsOperand b) {
@@
-1 877265
+  sparsegen::emulator::wgmma_16bit<Element, 4>(sums, a, b);
@@
-1 c9399f
+      "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 { "
@@
-6 85b826
+      "%12, %13, %14, %15 "
+      "}, { %16, %17, %18, %19}, %20, add, 1, 1, 0;\n"
@@
-6 b91cc8
+        "+f"(sums[3][0]), "+f"(sums[3][1]), "+f"(sums[3][2]), "+f"(sums[3][3])
+      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
