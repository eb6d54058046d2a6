// Copies kVector elements, or puts zeros in their place.
template <int kVector>
__device__ __forceinline__ void load_elements(Element* shared, const Element* global, bool valid) {
  if constexpr (kVector * sizeof(Element) >= 4) {
    copy_async<kVector * sizeof(Element)>(shared, global, valid);
  } else {
    *shared = valid ? *global : to_element(0.0f);
  }
}
