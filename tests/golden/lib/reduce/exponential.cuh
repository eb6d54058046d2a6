__device__ __forceinline__ float fast_exp2(float x) {
#if defined(SPARSEGEN_EMULATOR)
  return exp2f(x);
#else
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(power) : "f"(x));
  return power;
#endif
}
