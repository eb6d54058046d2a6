__device__ __forceinline__ unsigned widen(Element element) {
  unsigned short bits;
  memcpy(&bits, &element, sizeof bits);
#if defined(SPARSEGEN_EMULATOR)
  return bits;
#else
  unsigned word;
  asm("cvt.u32.u16 %0, %1;\n" : "=r"(word) : "h"(bits));
  return word;
#endif
}

__device__ __forceinline__ Element narrow(unsigned word) {
  const unsigned short bits = static_cast<unsigned short>(word);
  Element element;
  memcpy(&element, &bits, sizeof bits);
  return element;
}
