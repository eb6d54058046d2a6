constexpr int vector_alignment(int bytes) { return bytes % 16 == 0 ? 16 : bytes % 8 == 0 ? 8 : bytes % 4 == 0 ? 4 : 2; }

template <typename T, int kCount>
struct alignas(vector_alignment(kCount * sizeof(T))) Vector {
  T element[kCount];
};

template <int kCount, typename T>
__device__ __forceinline__ Vector<T, kCount> load_vector(const T* from) {
  return *reinterpret_cast<const Vector<T, kCount>*>(from);
}

template <int kCount, typename T>
__device__ __forceinline__ void store_vector(T* to, const Vector<T, kCount>& vector) {
  *reinterpret_cast<Vector<T, kCount>*>(to) = vector;
}
