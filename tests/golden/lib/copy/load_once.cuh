template <int kCount, typename T>
__device__ __forceinline__ Vector<T, kCount> load_once(const T* from) {
  constexpr int kBytes = static_cast<int>(sizeof(Vector<T, kCount>));
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16, "a load moves 4, 8 or 16 bytes");
  if constexpr (kBytes == 16) {
    const uint4 words = __ldcg(reinterpret_cast<const uint4*>(from));
    return reinterpret_cast<const Vector<T, kCount>&>(words);
  } else if constexpr (kBytes == 8) {
    const uint2 words = __ldcg(reinterpret_cast<const uint2*>(from));
    return reinterpret_cast<const Vector<T, kCount>&>(words);
  } else {
    const unsigned word = __ldcg(reinterpret_cast<const unsigned*>(from));
    return reinterpret_cast<const Vector<T, kCount>&>(word);
  }
}
