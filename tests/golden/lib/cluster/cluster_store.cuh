__device__ __forceinline__ void store_word_at(unsigned* shared, unsigned word, Barrier* barrier, unsigned rank) {
#if defined(SPARSEGEN_EMULATOR)
  sparsegen::emulator::store_word_at(shared, word, barrier, rank);
#else
  asm volatile(
      "{ .reg .b32 place, theirs; mapa.shared::cluster.u32 place, %0, %3; mapa.shared::cluster.u32 theirs, %2, %3;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [place], %1, [theirs]; }\n" ::"r"(
          static_cast<unsigned>(__cvta_generic_to_shared(shared))),
      "r"(word), "r"(static_cast<unsigned>(__cvta_generic_to_shared(barrier))), "r"(rank)
      : "memory");
#endif
}
