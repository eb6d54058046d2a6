struct RemotePlace {
#if defined(SPARSEGEN_EMULATOR)
  void* shared;
  unsigned rank;
#else
  unsigned address;
#endif
};

__device__ __forceinline__ RemotePlace remote_place(void* shared, unsigned rank) {
#if defined(SPARSEGEN_EMULATOR)
  return {shared, rank};
#else
  RemotePlace found;
  asm("mapa.shared::cluster.u32 %0, %1, %2;\n"
      : "=r"(found.address) : "r"(static_cast<unsigned>(__cvta_generic_to_shared(shared))), "r"(rank));
  return found;
#endif
}

struct SharedPlace {
#if defined(SPARSEGEN_EMULATOR)
  const unsigned char* shared;
#else
  unsigned address;
#endif
};

__device__ __forceinline__ SharedPlace shared_place(const void* shared) {
#if defined(SPARSEGEN_EMULATOR)
  return {static_cast<const unsigned char*>(shared)};
#else
  SharedPlace found;
  asm volatile("mov.u32 %0, %1;\n" : "=r"(found.address) : "r"(static_cast<unsigned>(__cvta_generic_to_shared(shared))));
  return found;
#endif
}

__device__ __forceinline__ Vector<unsigned, 4> load_behind(const SharedPlace& place, unsigned bytes) {
#if defined(SPARSEGEN_EMULATOR)
  return load_vector<4>(reinterpret_cast<const unsigned*>(place.shared + bytes));
#else
  Vector<unsigned, 4> loaded;
  asm volatile("ld.shared.v4.u32 { %0, %1, %2, %3}, [%4];\n"
               : "=r"(loaded.element[0]), "=r"(loaded.element[1]), "=r"(loaded.element[2]), "=r"(loaded.element[3])
               : "r"(place.address + bytes) : "memory");
  return loaded;
#endif
}

__device__ __forceinline__ void send_behind(const RemotePlace& place, unsigned bytes, const Vector<unsigned, 4>& sent,
                                            const RemotePlace& barrier) {
#if defined(SPARSEGEN_EMULATOR)
  sparsegen::emulator::store_vector_at(static_cast<unsigned char*>(place.shared) + bytes, sent.element, barrier.shared,
                                       place.rank);
#else
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], { %1, %2, %3, %4}, [%5];\n" ::"r"(
          place.address + bytes),
      "r"(sent.element[0]), "r"(sent.element[1]), "r"(sent.element[2]), "r"(sent.element[3]), "r"(barrier.address)
      : "memory");
#endif
}
