template <int kVector>
__device__ __forceinline__ void load_elements(Element* shared, const Element* global, bool valid) {
  if constexpr (kVector * sizeof(Element) >= 4) {
    copy_async<kVector * sizeof(Element)>(shared, global, valid);
  } else {
    *shared = valid ? *global : to_element(0.0f);
  }
}

struct Piece {
  Element* shared;
  const Element* global;
  bool valid;
  bool exists = true;
};

template <int kCount>
struct Pieces {
  static constexpr int value = kCount;
};

template <int kVector, int kCount, class Each>
__device__ __forceinline__ void load_pieces(const Each& piece) {
  if constexpr (kVector * sizeof(Element) >= 4) {
    #pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const Piece own = piece(i);
      if (own.exists) load_elements<kVector>(own.shared, own.global, own.valid);
    }
  } else {
    Element held[kCount];
    #pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const Piece own = piece(i);
      held[i] = *own.global;
      if (!own.valid) held[i] = to_element(0.0f);
    }
    #pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const Piece own = piece(i);
      if (own.exists) *own.shared = held[i];
    }
  }
}

template <int kVector, int kAll, class Each>
__device__ __forceinline__ void load_all(const Each& piece) {
  constexpr int kOwn = kAll / kThreads, kTogether = kOwn < 8 ? kOwn : 8;
  const auto load_own = [&](auto count, int first) {
    load_pieces<kVector, decltype(count)::value>([&](int i) { return piece((first + i) * kThreads + static_cast<int>(threadIdx.x)); });
  };
  if constexpr (kOwn > 0) {
    #pragma unroll 1
    for (int first = 0; first <= kOwn - kTogether; first += kTogether) load_own(Pieces<kTogether>{}, first);
    if constexpr (kOwn % kTogether != 0) load_own(Pieces<kOwn % kTogether>{}, kOwn - kOwn % kTogether);
  }
  if (kAll % kThreads != 0 && static_cast<int>(threadIdx.x) < kAll % kThreads) load_own(Pieces<1>{}, kOwn);
}
