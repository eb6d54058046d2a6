using Element = __half;

__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ __half to_element(float x) { return __float2half_rn(x); }
(2) from (1):
@@
-1 9e5735
+using Element = __nv_bfloat16;
@@
-2 77441a
+__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
+__device__ __forceinline__ __nv_bfloat16 to_element(float x) { return __float2bfloat16_rn(x); }
(3) from (1):
@@
-1 9e5735
+using Element = float;
@@
-2 77441a
+__device__ __forceinline__ float to_float(float x) { return x; }
+__device__ __forceinline__ float to_element(float x) { return x; }
