template <int kBytes>
__device__ __forceinline__ void copy_async(void* shared, const void* global, bool valid = true) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16, "cp.async moves 4, 8 or 16 bytes");
#if defined(SPARSEGEN_EMULATOR)
  sparsegen::emulator::copy_async(shared, global, kBytes, valid);
#else
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  const int bytes = valid ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(address), "l"(global), "r"(bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;\n" ::"r"(address), "l"(global), "n"(kBytes), "r"(bytes) : "memory");
  }
#endif
}

__device__ __forceinline__ void copy_async_commit() {
#if defined(SPARSEGEN_EMULATOR)
  sparsegen::emulator::copy_async_commit();
#else
  asm volatile("cp.async.commit_group;\n" ::: "memory");
#endif
}

template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
#if defined(SPARSEGEN_EMULATOR)
  sparsegen::emulator::copy_async_wait(kPending);
#else
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
#endif
}
