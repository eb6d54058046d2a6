__device__ __forceinline__ void mma_short(float (&sum)[4], const unsigned (&a)[2], unsigned b) {
#if defined(SPARSEGEN_EMULATOR)
  const unsigned whole_a[4] = {a[0], a[1], 0, 0}, whole_b[2] = {b, 0};
  sparsegen::emulator::mma_16bit<Element>(sum, whole_a, whole_b);
#else
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 { %0, %1, %2, %3}, { %4, %5}, { %6}, { %0, %1, %2, %3};\n"
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
               : "r"(a[0]), "r"(a[1]), "r"(b));
#endif
}

__device__ __forceinline__ unsigned bias_parts(unsigned which) {
  const unsigned word = threadIdx.x % 4 - 2 * which;
  return word == 0 ? 0x10003c00u : word == 1 ? 0x0004u : 0;
}

template <int kTiles>
__device__ __forceinline__ void start_sums(float (&sums)[kTiles][4], const unsigned (&bias)[2], unsigned parts) {
  float first[4] = {};
  mma_short(first, bias, parts);
  #pragma unroll
  for (int j = 0; j < kTiles; ++j) {
    #pragma unroll
    for (int i = 0; i < 4; ++i) sums[j][i] = kDying ? fminf(first[i], 0.0f) : first[i];
  }
}
