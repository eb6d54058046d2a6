// lib/mma/warpgroup_groups.cuh.j2

#if !defined(SPARSEGEN_EMULATOR)
__device__ __forceinline__ unsigned long long matrix_descriptor(const void* start, unsigned block_stride) {
  const unsigned long long address = static_cast<unsigned>(__cvta_generic_to_shared(start));
  constexpr unsigned long long kGroupStride = 8 * 128, kSwizzle128 = 1ull << 62;
  return (address & 0x3ffff) >> 4 | static_cast<unsigned long long>(block_stride >> 4) << 16 | (kGroupStride >> 4) << 32 |
         kSwizzle128;
}
#endif

__device__ __forceinline__ void warpgroup_mma(float (&sums)[32][4], const void* a, const void* b, bool add = true) {
#if defined(SPARSEGEN_EMULATOR)
  if (!add) {
    for (auto& tile : sums) tile[0] = tile[1] = tile[2] = tile[3] = 0.0f;
  }
  sparsegen::emulator::wgmma_16bit<Element, 32>(sums, {a, true}, {b, false, kBBlockBytes});
#else
  asm volatile(
      "{ .reg .pred add; setp.ne.b32 add, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 { "
      "%0, %1, %2, %3, "
      "%4, %5, %6, %7, "
      "%8, %9, %10, %11, "
      "%12, %13, %14, %15, "
      "%16, %17, %18, %19, "
      "%20, %21, %22, %23, "
      "%24, %25, %26, %27, "
      "%28, %29, %30, %31, "
      "%32, %33, %34, %35, "
      "%36, %37, %38, %39, "
      "%40, %41, %42, %43, "
      "%44, %45, %46, %47, "
      "%48, %49, %50, %51, "
      "%52, %53, %54, %55, "
      "%56, %57, %58, %59, "
      "%60, %61, %62, %63, "
      "%64, %65, %66, %67, "
      "%68, %69, %70, %71, "
      "%72, %73, %74, %75, "
      "%76, %77, %78, %79, "
      "%80, %81, %82, %83, "
      "%84, %85, %86, %87, "
      "%88, %89, %90, %91, "
      "%92, %93, %94, %95, "
      "%96, %97, %98, %99, "
      "%100, %101, %102, %103, "
      "%104, %105, %106, %107, "
      "%108, %109, %110, %111, "
      "%112, %113, %114, %115, "
      "%116, %117, %118, %119, "
      "%120, %121, %122, %123, "
      "%124, %125, %126, %127 "
      "}, %128, %129, add, 1, 1, 0, 1;\n"
      "}\n"
      : "+f"(sums[0][0]), "+f"(sums[0][1]), "+f"(sums[0][2]), "+f"(sums[0][3]),
        "+f"(sums[1][0]), "+f"(sums[1][1]), "+f"(sums[1][2]), "+f"(sums[1][3]),
        "+f"(sums[2][0]), "+f"(sums[2][1]), "+f"(sums[2][2]), "+f"(sums[2][3]),
        "+f"(sums[3][0]), "+f"(sums[3][1]), "+f"(sums[3][2]), "+f"(sums[3][3]),
        "+f"(sums[4][0]), "+f"(sums[4][1]), "+f"(sums[4][2]), "+f"(sums[4][3]),
        "+f"(sums[5][0]), "+f"(sums[5][1]), "+f"(sums[5][2]), "+f"(sums[5][3]),
        "+f"(sums[6][0]), "+f"(sums[6][1]), "+f"(sums[6][2]), "+f"(sums[6][3]),
        "+f"(sums[7][0]), "+f"(sums[7][1]), "+f"(sums[7][2]), "+f"(sums[7][3]),
        "+f"(sums[8][0]), "+f"(sums[8][1]), "+f"(sums[8][2]), "+f"(sums[8][3]),
        "+f"(sums[9][0]), "+f"(sums[9][1]), "+f"(sums[9][2]), "+f"(sums[9][3]),
        "+f"(sums[10][0]), "+f"(sums[10][1]), "+f"(sums[10][2]), "+f"(sums[10][3]),
        "+f"(sums[11][0]), "+f"(sums[11][1]), "+f"(sums[11][2]), "+f"(sums[11][3]),
        "+f"(sums[12][0]), "+f"(sums[12][1]), "+f"(sums[12][2]), "+f"(sums[12][3]),
        "+f"(sums[13][0]), "+f"(sums[13][1]), "+f"(sums[13][2]), "+f"(sums[13][3]),
        "+f"(sums[14][0]), "+f"(sums[14][1]), "+f"(sums[14][2]), "+f"(sums[14][3]),
        "+f"(sums[15][0]), "+f"(sums[15][1]), "+f"(sums[15][2]), "+f"(sums[15][3]),
        "+f"(sums[16][0]), "+f"(sums[16][1]), "+f"(sums[16][2]), "+f"(sums[16][3]),
        "+f"(sums[17][0]), "+f"(sums[17][1]), "+f"(sums[17][2]), "+f"(sums[17][3]),
        "+f"(sums[18][0]), "+f"(sums[18][1]), "+f"(sums[18][2]), "+f"(sums[18][3]),
        "+f"(sums[19][0]), "+f"(sums[19][1]), "+f"(sums[19][2]), "+f"(sums[19][3]),
        "+f"(sums[20][0]), "+f"(sums[20][1]), "+f"(sums[20][2]), "+f"(sums[20][3]),
        "+f"(sums[21][0]), "+f"(sums[21][1]), "+f"(sums[21][2]), "+f"(sums[21][3]),
        "+f"(sums[22][0]), "+f"(sums[22][1]), "+f"(sums[22][2]), "+f"(sums[22][3]),
        "+f"(sums[23][0]), "+f"(sums[23][1]), "+f"(sums[23][2]), "+f"(sums[23][3]),
        "+f"(sums[24][0]), "+f"(sums[24][1]), "+f"(sums[24][2]), "+f"(sums[24][3]),
        "+f"(sums[25][0]), "+f"(sums[25][1]), "+f"(sums[25][2]), "+f"(sums[25][3]),
        "+f"(sums[26][0]), "+f"(sums[26][1]), "+f"(sums[26][2]), "+f"(sums[26][3]),
        "+f"(sums[27][0]), "+f"(sums[27][1]), "+f"(sums[27][2]), "+f"(sums[27][3]),
        "+f"(sums[28][0]), "+f"(sums[28][1]), "+f"(sums[28][2]), "+f"(sums[28][3]),
        "+f"(sums[29][0]), "+f"(sums[29][1]), "+f"(sums[29][2]), "+f"(sums[29][3]),
        "+f"(sums[30][0]), "+f"(sums[30][1]), "+f"(sums[30][2]), "+f"(sums[30][3]),
        "+f"(sums[31][0]), "+f"(sums[31][1]), "+f"(sums[31][2]), "+f"(sums[31][3])
      : "l"(matrix_descriptor(a, 16)), "l"(matrix_descriptor(b, kBBlockBytes)), "r"(static_cast<unsigned>(add)));
#endif
}
(2) from (1):
@@
-1 0e1c45
+  sparsegen::emulator::wgmma_16bit<Element, 32>(sums, {a, true}, {b, true});
@@
-1 bf19cd
+      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 { "
@@
-1 514b7e
+      "}, %128, %129, add, 1, 1, 0, 0;\n"
@@
-1 d489e5
+      : "l"(matrix_descriptor(a, 16)), "l"(matrix_descriptor(b, 16)), "r"(static_cast<unsigned>(add)));
(3) from (1):
@@
-1 c450c9
+__device__ __forceinline__ void warpgroup_mma(float (&sums)[24][4], const void* a, const void* b, bool add = true) {
@@
-1 0e1c45
+  sparsegen::emulator::wgmma_16bit<Element, 24>(sums, {a, false}, {b, false, kBBlockBytes});
@@
-2 a6597e
+      "{ .reg .pred add; setp.ne.b32 add, %98, 0;\n"
+      "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 { "
@@
-10 5f70f9
+      "%92, %93, %94, %95 "
+      "}, %96, %97, add, 1, 1, 1, 1;\n"
@@
-9 30fba7
+        "+f"(sums[23][0]), "+f"(sums[23][1]), "+f"(sums[23][2]), "+f"(sums[23][3])
(4) from (2):
@@
-1 c450c9
+__device__ __forceinline__ void warpgroup_mma(float (&sums)[16][4], const void* a, const void* b, bool add = true) {
@@
-1 319e1e
+  sparsegen::emulator::wgmma_8bit<sparsegen::emulator::e4m3, sparsegen::emulator::e4m3, 16>(sums, {a, true}, {b, true});
@@
-2 299078
+      "{ .reg .pred add; setp.ne.b32 add, %66, 0;\n"
+      "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 { "
@@
-18 6ca64d
+      "%60, %61, %62, %63 "
+      "}, %64, %65, add, 1, 1;\n"
@@
-17 24ec5c
+        "+f"(sums[15][0]), "+f"(sums[15][1]), "+f"(sums[15][2]), "+f"(sums[15][3])
(5) from (2):
@@
-1 319e1e
+  sparsegen::emulator::wgmma_tf32<32>(sums, {a, true}, {b, true});
@@
-1 d8815b
+      "wgmma.mma_async.sync.aligned.m64n256k8.f32.tf32.tf32 { "
@@
-1 f30046
+      "}, %128, %129, add, 1, 1;\n"
(6) from (1):
@@
-1 0e1c45
+  sparsegen::emulator::wgmma_16bit<Element, 32>(sums, {a, false}, {b, false, kBBlockBytes});
@@
-1 514b7e
+      "}, %128, %129, add, 1, 1, 1, 1;\n"
(7) from (1):
@@
-1 bf19cd
+      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 { "
@@
+__device__ __forceinline__ void warpgroup_mma(float (&sums)[16][4], const void* a, const void* b, bool add = true) {
+#if defined(SPARSEGEN_EMULATOR)
+  if (!add) {
+    for (auto& tile : sums) tile[0] = tile[1] = tile[2] = tile[3] = 0.0f;
+  }
+  sparsegen::emulator::wgmma_16bit<Element, 16>(sums, {a, true}, {b, false, kBBlockBytes});
+#else
+  asm volatile(
+      "{ .reg .pred add; setp.ne.b32 add, %66, 0;\n"
+      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 { "
+      "%0, %1, %2, %3, "
+      "%4, %5, %6, %7, "
+      "%8, %9, %10, %11, "
+      "%12, %13, %14, %15, "
+      "%16, %17, %18, %19, "
+      "%20, %21, %22, %23, "
+      "%24, %25, %26, %27, "
+      "%28, %29, %30, %31, "
+      "%32, %33, %34, %35, "
+      "%36, %37, %38, %39, "
+      "%40, %41, %42, %43, "
+      "%44, %45, %46, %47, "
+      "%48, %49, %50, %51, "
+      "%52, %53, %54, %55, "
+      "%56, %57, %58, %59, "
+      "%60, %61, %62, %63 "
+      "}, %64, %65, add, 1, 1, 0, 1;\n"
+      "}\n"
+      : "+f"(sums[0][0]), "+f"(sums[0][1]), "+f"(sums[0][2]), "+f"(sums[0][3]),
+        "+f"(sums[1][0]), "+f"(sums[1][1]), "+f"(sums[1][2]), "+f"(sums[1][3]),
+        "+f"(sums[2][0]), "+f"(sums[2][1]), "+f"(sums[2][2]), "+f"(sums[2][3]),
+        "+f"(sums[3][0]), "+f"(sums[3][1]), "+f"(sums[3][2]), "+f"(sums[3][3]),
+        "+f"(sums[4][0]), "+f"(sums[4][1]), "+f"(sums[4][2]), "+f"(sums[4][3]),
+        "+f"(sums[5][0]), "+f"(sums[5][1]), "+f"(sums[5][2]), "+f"(sums[5][3]),
+        "+f"(sums[6][0]), "+f"(sums[6][1]), "+f"(sums[6][2]), "+f"(sums[6][3]),
+        "+f"(sums[7][0]), "+f"(sums[7][1]), "+f"(sums[7][2]), "+f"(sums[7][3]),
+        "+f"(sums[8][0]), "+f"(sums[8][1]), "+f"(sums[8][2]), "+f"(sums[8][3]),
+        "+f"(sums[9][0]), "+f"(sums[9][1]), "+f"(sums[9][2]), "+f"(sums[9][3]),
+        "+f"(sums[10][0]), "+f"(sums[10][1]), "+f"(sums[10][2]), "+f"(sums[10][3]),
+        "+f"(sums[11][0]), "+f"(sums[11][1]), "+f"(sums[11][2]), "+f"(sums[11][3]),
+        "+f"(sums[12][0]), "+f"(sums[12][1]), "+f"(sums[12][2]), "+f"(sums[12][3]),
+        "+f"(sums[13][0]), "+f"(sums[13][1]), "+f"(sums[13][2]), "+f"(sums[13][3]),
+        "+f"(sums[14][0]), "+f"(sums[14][1]), "+f"(sums[14][2]), "+f"(sums[14][3]),
+        "+f"(sums[15][0]), "+f"(sums[15][1]), "+f"(sums[15][2]), "+f"(sums[15][3])
+      : "l"(matrix_descriptor(a, 16)), "l"(matrix_descriptor(b, kBBlockBytes)), "r"(static_cast<unsigned>(add)));
+#endif
+}
(8) from (4):
@@
-1 a0f8a9
+  sparsegen::emulator::wgmma_8bit<sparsegen::emulator::e5m2, sparsegen::emulator::e4m3, 16>(sums, {a, true}, {b, true});
@@
-1 2c0e53
+      "wgmma.mma_async.sync.aligned.m64n128k32.f32.e5m2.e4m3 { "
(9) from (7):
@@
-1 0e1c45
+  sparsegen::emulator::wgmma_tf32<32>(sums, {a, true}, {b, true});
@@
-1 d8815b
+      "wgmma.mma_async.sync.aligned.m64n256k8.f32.tf32.tf32 { "
@@
-1 514b7e
+      "}, %128, %129, add, 1, 1;\n"
@@
-1 d489e5
+      : "l"(matrix_descriptor(a, 16)), "l"(matrix_descriptor(b, 16)), "r"(static_cast<unsigned>(add)));
@@
-1 07f23a
+  sparsegen::emulator::wgmma_tf32<16>(sums, {a, true}, {b, true});
@@
-1 7e51d7
+      "wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 { "
@@
-1 a3ad54
+      "}, %64, %65, add, 1, 1;\n"
@@
-1 d489e5
+      : "l"(matrix_descriptor(a, 16)), "l"(matrix_descriptor(b, 16)), "r"(static_cast<unsigned>(add)));
(10) from (9):
@@
-1 374b64
+  sparsegen::emulator::wgmma_16bit<Element, 32>(sums, {a, true}, {b, true});
@@
-1 d06685
+      "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 { "
@@
-1 2af4ce
+      "}, %128, %129, add, 1, 1, 0, 0;\n"
@@
-1 5c1b20
+  sparsegen::emulator::wgmma_16bit<Element, 16>(sums, {a, true}, {b, true});
@@
-1 f58433
+      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 { "
@@
-1 575809
+      "}, %64, %65, add, 1, 1, 0, 0;\n"
(11) from (1):
@@
-80 cf4783
