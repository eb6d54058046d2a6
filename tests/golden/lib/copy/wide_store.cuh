__device__ __forceinline__ void store_whole(unsigned* to, const Vector<unsigned, 4>& vector) {
#if defined(SPARSEGEN_EMULATOR)
  store_vector(to, vector);
#else
  asm volatile("st.global.v4.b32 [%0], { %1, %2, %3, %4};\n" ::"l"(__cvta_generic_to_global(to)), "r"(vector.element[0]),
               "r"(vector.element[1]), "r"(vector.element[2]), "r"(vector.element[3])
               : "memory");
#endif
}
