template <int kCount>
__device__ __forceinline__ void add_to_global(float* sums, const float (&x)[kCount]) {
#if defined(SPARSEGEN_EMULATOR)
  for (int i = 0; i < kCount; ++i) atomicAdd(sums + i, x[i]);
#else
#if __CUDA_ARCH__ >= 900
  constexpr int kAtOnce = kCount;
#else
  constexpr int kAtOnce = 1;
#endif
  #pragma unroll
  for (int i = 0; i < kCount; i += kAtOnce) {
    if constexpr (kAtOnce == 4) {
      asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], { %1, %2, %3, %4 };\n"
                   ::"l"(sums), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]) : "memory");
    } else if constexpr (kAtOnce == 2) {
      asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], { %1, %2 };\n" ::"l"(sums), "f"(x[0]), "f"(x[1]) : "memory");
    } else {
      asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;\n" ::"l"(sums + i), "f"(x[i]) : "memory");
    }
  }
#endif
}
