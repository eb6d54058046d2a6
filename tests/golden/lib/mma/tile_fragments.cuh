__device__ __forceinline__ void load_a(unsigned (&fragment)[4], const Element* a, int row, int inner) {
  const unsigned lane = threadIdx.x % 32, matrix = lane / 8, in_matrix = lane % 8;
  load_matrices(fragment, a + (row + matrix % 2 * 8 + in_matrix) * kAPitch + inner + matrix / 2 * kChunk);
}

__device__ __forceinline__ void load_b(unsigned (&fragment)[4], const Element* b, int column, int inner) {
  const unsigned lane = threadIdx.x % 32, matrix = lane / 8, in_matrix = lane % 8;
  load_matrices(fragment, b + (column + matrix / 2 * 8 + in_matrix) * kBPitch + inner + matrix % 2 * kChunk);
}
(2) from (1):
@@
-1 c37412
+  load_matrices_transposed(fragment, a + (inner + matrix / 2 * 8 + in_matrix) * kAPitch + row + matrix % 2 * 8);
@@
-1 2e6813
+  load_matrices_transposed(fragment, b + (inner + matrix % 2 * 8 + in_matrix) * kBPitch + column + matrix / 2 * 8);
(3) from (1):
@@
-1 c37412
+  load_matrices_transposed(fragment, a + (inner + matrix / 2 * 8 + in_matrix) * kAPitch + row + matrix % 2 * 8);
(4) from (1):
@@
-1 2e6813
+  load_matrices_transposed(fragment, b + (inner + matrix % 2 * 8 + in_matrix) * kBPitch + column + matrix / 2 * 8);
(5) from (1):
@@
-1 c37412
+  const unsigned group = lane / 4, pair = lane % 4;
+  (void)matrix, (void)in_matrix;
+  #pragma unroll
+  for (int i = 0; i < 4; ++i) {
+    fragment[i] = __float_as_uint(a[(inner + pair + i / 2 * 4) * kAPitch + row + group + i % 2 * 8]);
+  }
@@
-1 2e6813
+  const unsigned group = lane / 4, pair = lane % 4;
+  (void)matrix, (void)in_matrix;
+  #pragma unroll
+  for (int i = 0; i < 4; ++i) {
+    fragment[i] = __float_as_uint(b[(inner + pair + i % 2 * 4) * kBPitch + column + group + i / 2 * 8]);
+  }
(6) from (2):
@@
-5 a98dee
(7) from (5):
@@
-10 263793
