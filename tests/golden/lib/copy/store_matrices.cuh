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
