__device__ __forceinline__ void multiply_add(const Element* stage, int first_row, int first_column, Sums& sums) {
  #pragma unroll
  for (int inner = 0; inner < kStep; inner += kProductStep) {
    unsigned a[kRowTiles][4];
    unsigned a_low[kRowTiles][4];
    #pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
      load_a(a[i], stage, first_row + i * 16, inner);
      #pragma unroll
      for (int e = 0; e < 4; ++e) split_tf32(a[i][e], a[i][e], a_low[i][e]);
    }
    #pragma unroll
    for (int j = 0; j < kColumnTiles; j += 2) {
      unsigned both[4];
      load_b(both, stage + kAElements, first_column + j * 8, inner);
      #pragma unroll
      for (int half = 0; half < 2; ++half) {
        unsigned b[2], b_low[2];
        #pragma unroll
        for (int e = 0; e < 2; ++e) split_tf32(both[half * 2 + e], b[e], b_low[e]);
        #pragma unroll
        for (int i = 0; i < kRowTiles; ++i) {
          float part[4] = {};
          mma(part, a_low[i], b);
          mma(part, a[i], b_low);
          mma(part, a[i], b);
          #pragma unroll
          for (int e = 0; e < 4; ++e) sums[i][j + half][e] += part[e];
        }
      }
    }
  }
}
(2) from (1):
@@
-1 e68b65
@@
-2 4bcaaf
@@
-1 5caa85
+        const unsigned b[2] = {both[half * 2], both[half * 2 + 1]};
@@
-10 378d81
+        for (int i = 0; i < kRowTiles; ++i) mma(sums[i][j + half], a[i], b);
