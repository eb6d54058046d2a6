// A warp's product of mma.sp from fragments in memory: of each lane four words of A, four of B, and its metadata.
#include "sparsegen_emulator.h"

extern "C" __global__ void sparse_products(const unsigned* fragments, float* out) {
  unsigned a[4], b[4];
  for (int i = 0; i < 4; ++i) {
    a[i] = fragments[threadIdx.x * 9 + i];
    b[i] = fragments[threadIdx.x * 9 + 4 + i];
  }
  const unsigned metadata = fragments[threadIdx.x * 9 + 8];
  float upper[4] = {1, 1, 1, 1}, lower[4] = {};
  sparsegen::emulator::mma_sparse_16bit<__half>(upper, a, b, metadata, 0);
  sparsegen::emulator::mma_sparse_16bit<__half>(lower, a, b, metadata, 1);
  for (int i = 0; i < 4; ++i) {
    out[threadIdx.x * 8 + i] = upper[i];
    out[threadIdx.x * 8 + 4 + i] = lower[i];
  }
}
