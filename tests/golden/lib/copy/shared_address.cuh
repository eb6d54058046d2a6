#if defined(SPARSEGEN_EMULATOR)
using SharedAddress = const unsigned char*;
#else
using SharedAddress = unsigned;
#endif

__device__ __forceinline__ SharedAddress shared_address(const unsigned char* shared) {
#if defined(SPARSEGEN_EMULATOR)
  return shared;
#else
  return static_cast<unsigned>(__cvta_generic_to_shared(shared));
#endif
}

__device__ __forceinline__ Vector<unsigned, 4> load_shared_16(SharedAddress address) {
#if defined(SPARSEGEN_EMULATOR)
  return load_vector<4>(reinterpret_cast<const unsigned*>(address));
#else
  Vector<unsigned, 4> words;
  asm volatile("ld.shared.v4.u32 { %0, %1, %2, %3 }, [%4];\n"
               : "=r"(words.element[0]), "=r"(words.element[1]), "=r"(words.element[2]), "=r"(words.element[3])
               : "r"(address));
  return words;
#endif
}
