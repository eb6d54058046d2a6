template <unsigned kMask>
__device__ __forceinline__ unsigned and_or(unsigned word, unsigned bits) {
#if defined(SPARSEGEN_EMULATOR)
  return (word & kMask) | bits;
#else
  unsigned result;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;\n" : "=r"(result) : "r"(word), "n"(kMask), "r"(bits));
  return result;
#endif
}
