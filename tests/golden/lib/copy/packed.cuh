template <typename T, int kCount>
struct Packed {
  static_assert(kCount * sizeof(T) % 4 == 0, "elements fill whole words");
  Vector<unsigned, kCount * sizeof(T) / 4> words;
};

template <int kCount, typename T>
__device__ __forceinline__ Packed<T, kCount> load_packed(const T* from) {
  return {load_vector<kCount * sizeof(T) / 4>(reinterpret_cast<const unsigned*>(from))};
}

template <typename T, int kCount>
__device__ __forceinline__ unsigned unpack(const Packed<T, kCount>& packed, int i) {
  if constexpr (sizeof(T) == 4) return packed.words.element[i];
  const unsigned word = packed.words.element[i / 2];
#if defined(SPARSEGEN_EMULATOR)
  return i % 2 ? word >> 16 : word & 0xffffu;
#else
  return __byte_perm(word, 0, i % 2 ? 0x4432 : 0x4410);
#endif
}

template <int kCount>
__device__ __forceinline__ float unpack_float(const Packed<Element, kCount>& packed, int i) {
  return __uint_as_float(packed.words.element[i]);
}
(2) from (1):
@@
-1 882e11
+  const __half2 pair = reinterpret_cast<const __half2&>(packed.words.element[i / 2]);
+  return i % 2 ? __high2float(pair) : __low2float(pair);
(3) from (1):
@@
-1 882e11
+  const unsigned word = packed.words.element[i / 2];
+  return __uint_as_float(i % 2 ? word & 0xffff0000u : word << 16);
