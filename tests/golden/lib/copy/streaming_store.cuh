template <int kCount, typename T>
__device__ __forceinline__ void store_streaming(T* to, const Vector<T, kCount>& vector) {
  constexpr int kBytes = static_cast<int>(sizeof(vector));
  static_assert(kBytes == 2 || kBytes == 4 || kBytes == 8 || kBytes == 16, "a store moves 2, 4, 8 or 16 bytes");
  if constexpr (kBytes == 16) {
    __stcs(reinterpret_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&vector));
  } else if constexpr (kBytes == 8) {
    __stcs(reinterpret_cast<uint2*>(to), *reinterpret_cast<const uint2*>(&vector));
  } else if constexpr (kBytes == 4) {
    __stcs(reinterpret_cast<unsigned*>(to), *reinterpret_cast<const unsigned*>(&vector));
  } else {
    __stcs(reinterpret_cast<unsigned short*>(to), *reinterpret_cast<const unsigned short*>(&vector));
  }
}
