// 8 x 8 matrices of 16-bit elements to shared memory: lane i gives the address of row i % 8, 16 bytes, of matrix i / 8,
// and of each matrix the word (lane / 4, lane % 4).
__device__ __forceinline__ void store_matrices(void* row, const unsigned (&fragment)[4]) {
#if defined(SPARSEGEN_EMULATOR)
  sparsegen::emulator::store_matrices(row, fragment);
#else
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], { %1, %2, %3, %4};\n" ::"r"(address), "r"(fragment[0]),
               "r"(fragment[1]), "r"(fragment[2]), "r"(fragment[3])
               : "memory");
#endif
}

// The same of two matrices; lanes 16 to 31 repeat the addresses of the first 16.
__device__ __forceinline__ void store_matrices(void* row, const unsigned (&fragment)[2]) {
#if defined(SPARSEGEN_EMULATOR)
  sparsegen::emulator::store_matrices(row, fragment);
#else
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], { %1, %2};\n" ::"r"(address), "r"(fragment[0]),
               "r"(fragment[1])
               : "memory");
#endif
}

// The same of four matrices that are transposed on their way: of matrix j a lane holds the two elements of column lane / 4
// that begin at row lane % 4 * 2.
__device__ __forceinline__ void store_matrices_transposed(void* row, const unsigned (&fragment)[4]) {
#if defined(SPARSEGEN_EMULATOR)
  sparsegen::emulator::store_matrices(row, fragment, true);
#else
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], { %1, %2, %3, %4};\n" ::"r"(address), "r"(fragment[0]),
               "r"(fragment[1]), "r"(fragment[2]), "r"(fragment[3])
               : "memory");
#endif
}
