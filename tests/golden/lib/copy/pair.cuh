__device__ __forceinline__ unsigned to_pair(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return reinterpret_cast<const unsigned&>(pair);
}
(2) from (1):
@@
-1 e8bb0e
+  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
