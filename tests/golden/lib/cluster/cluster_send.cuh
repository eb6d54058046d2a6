__device__ __forceinline__ void send_to(void* shared, const Vector<unsigned, 4>& sent, Barrier* barrier, unsigned rank) {
#if defined(SPARSEGEN_EMULATOR)
  sparsegen::emulator::store_vector_at(shared, sent.element, barrier, rank);
#else
  asm volatile(
      "{ .reg .b32 place, theirs; mapa.shared::cluster.u32 place, %0, %6; mapa.shared::cluster.u32 theirs, %5, %6;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [place], { %1, %2, %3, %4}, [theirs]; }\n" ::"r"(
          static_cast<unsigned>(__cvta_generic_to_shared(shared))),
      "r"(sent.element[0]), "r"(sent.element[1]), "r"(sent.element[2]), "r"(sent.element[3]),
      "r"(static_cast<unsigned>(__cvta_generic_to_shared(barrier))), "r"(rank)
      : "memory");
#endif
}

__device__ __forceinline__ void put_at(void* shared, const Vector<unsigned, 4>& sent, unsigned rank) {
#if defined(SPARSEGEN_EMULATOR)
  store_vector(static_cast<unsigned*>(sparsegen::emulator::map_shared(shared, rank, sizeof(sent))), sent);
#else
  asm volatile(
      "{ .reg .b32 place; mapa.shared::cluster.u32 place, %0, %5;\n"
      "st.shared::cluster.v4.b32 [place], { %1, %2, %3, %4}; }\n" ::"r"(
          static_cast<unsigned>(__cvta_generic_to_shared(shared))),
      "r"(sent.element[0]), "r"(sent.element[1]), "r"(sent.element[2]), "r"(sent.element[3]), "r"(rank)
      : "memory");
#endif
}

__device__ __forceinline__ void put_word_at(void* shared, unsigned word, unsigned rank) {
#if defined(SPARSEGEN_EMULATOR)
  *static_cast<unsigned*>(sparsegen::emulator::map_shared(shared, rank, sizeof(word))) = word;
#else
  asm volatile(
      "{ .reg .b32 place; mapa.shared::cluster.u32 place, %0, %2;\n"
      "st.shared::cluster.b32 [place], %1; }\n" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(shared))),
      "r"(word), "r"(rank)
      : "memory");
#endif
}
