(2) from (1):
@@
+
+// x times the share of a normal distribution that lies below x.
+__device__ __forceinline__ float gelu(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678f)); }
