__device__ __forceinline__ unsigned clipped_pair(float low, float high, unsigned limit) {
#if defined(SPARSEGEN_EMULATOR)
  const float most = __half2float(reinterpret_cast<const __half2&>(limit).x);
  const float least = 0.0f;
  __half2 pair;
  pair.x = __float2half_rn(fminf(fmaxf(low, least), most));
  pair.y = __float2half_rn(fminf(fmaxf(high, least), most));
  return reinterpret_cast<const unsigned&>(pair);
#else
  unsigned pair;
  asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;\nmin.f16x2 %0, %0, %3;\n" : "=&r"(pair) : "f"(high), "f"(low), "r"(limit));
  return pair;
#endif
}
