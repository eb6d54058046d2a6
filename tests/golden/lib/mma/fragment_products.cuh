template <int kWords>
struct Factor {
  unsigned high[kWords];

  __device__ __forceinline__ void take(const unsigned (&words)[kWords]) {
    #pragma unroll
    for (int i = 0; i < kWords; ++i) high[i] = words[i];
  }
};

__device__ __forceinline__ void add_product(float (&sum)[4], const Factor<4>& a, const Factor<2>& b) {
  mma(sum, a.high, b.high);
}
(2) from (1):
@@
+  unsigned low[kWords];
@@
-1 bc2d86
+    for (int i = 0; i < kWords; ++i) split_tf32(words[i], high[i], low[i]);
@@
-1 45571a
+  float part[4] = {};
+  mma(part, a.low, b.high);
+  mma(part, a.high, b.low);
+  mma(part, a.high, b.high);
+  #pragma unroll
+  for (int e = 0; e < 4; ++e) sum[e] += part[e];
