__device__ __forceinline__ unsigned load_shared_4(SharedAddress address) {
#if defined(SPARSEGEN_EMULATOR)
  return *reinterpret_cast<const unsigned*>(address);
#else
  unsigned word;
  asm volatile("ld.shared.u32 %0, [%1];\n" : "=r"(word) : "r"(address));
  return word;
#endif
}

__device__ __forceinline__ void store_shared_4(SharedAddress address, unsigned word) {
#if defined(SPARSEGEN_EMULATOR)
  *reinterpret_cast<unsigned*>(const_cast<unsigned char*>(address)) = word;
#else
  asm volatile("st.shared.u32 [%0], %1;\n" ::"r"(address), "r"(word));
#endif
}

__device__ __forceinline__ SharedAddress advance(SharedAddress address, unsigned counts, unsigned strides) {
#if defined(SPARSEGEN_EMULATOR)
  return address + __dp4a(counts, strides, 0u);
#else
  return __dp4a(counts, strides, address);
#endif
}

template <unsigned kSelector>
__device__ __forceinline__ unsigned permute_bytes(unsigned low, unsigned high) {
#if defined(SPARSEGEN_EMULATOR)
  return sparsegen::emulator::permute_bytes(low, high, kSelector);
#else
  unsigned word;
  asm("prmt.b32 %0, %1, %2, %3;\n" : "=r"(word) : "r"(low), "r"(high), "n"(kSelector));
  return word;
#endif
}

__device__ __forceinline__ unsigned kept(unsigned word) {
#if defined(SPARSEGEN_EMULATOR)
  return word;
#else
  return __shfl_sync(0xffffffffu, word, 0);
#endif
}

__device__ __forceinline__ unsigned kept_lane(unsigned word) {
#if !defined(SPARSEGEN_EMULATOR)
  asm volatile("" : "+r"(word));
#endif
  return word;
}
