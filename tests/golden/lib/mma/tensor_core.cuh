__device__ __forceinline__ void load_matrices(unsigned (&fragment)[4], const void* row) {
#if defined(SPARSEGEN_EMULATOR)
  sparsegen::emulator::load_matrices(fragment, row, false);
#else
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 { %0, %1, %2, %3}, [%4];\n"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(address));
#endif
}

__device__ __forceinline__ void load_matrices(unsigned (&fragment)[2], const void* row) {
#if defined(SPARSEGEN_EMULATOR)
  sparsegen::emulator::load_matrices(fragment, row, false);
#else
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 { %0, %1}, [%2];\n"
               : "=r"(fragment[0]), "=r"(fragment[1])
               : "r"(address));
#endif
}

__device__ __forceinline__ void load_matrices_transposed(unsigned (&fragment)[4], const void* row) {
#if defined(SPARSEGEN_EMULATOR)
  sparsegen::emulator::load_matrices(fragment, row, true);
#else
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 { %0, %1, %2, %3}, [%4];\n"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(address));
#endif
}

__device__ __forceinline__ void load_matrices_transposed(unsigned (&fragment)[2], const void* row) {
#if defined(SPARSEGEN_EMULATOR)
  sparsegen::emulator::load_matrices(fragment, row, true);
#else
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 { %0, %1}, [%2];\n"
               : "=r"(fragment[0]), "=r"(fragment[1])
               : "r"(address));
#endif
}

__device__ __forceinline__ void mma(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#if defined(SPARSEGEN_EMULATOR)
  sparsegen::emulator::mma_16bit<Element>(sum, a, b);
#else
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 { %0, %1, %2, %3}, { %4, %5, %6, %7}, { %8, %9}, { %0, %1, %2, %3};\n"
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}
(2) from (1):
@@
-1 5c3ff8
+  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 { %0, %1, %2, %3}, { %4, %5, %6, %7}, { %8, %9}, { %0, %1, %2, %3};\n"
(3) from (1):
@@
-22 fb76f7
@@
-1 322842
+  sparsegen::emulator::mma_tf32(sum, a, b);
@@
-1 5c3ff8
+  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 { %0, %1, %2, %3}, { %4, %5, %6, %7}, { %8, %9}, { %0, %1, %2, %3};\n"
@@
+
+__device__ __forceinline__ void split_tf32(unsigned number, unsigned& high, unsigned& low) {
+  constexpr unsigned kKept = 0xffffe000u;
+  high = (number + 0x1000u) & kKept;
+  const float rest = __uint_as_float(number) - __uint_as_float(high);
+  low = (__float_as_uint(rest) + 0x1000u) & kKept;
+}
