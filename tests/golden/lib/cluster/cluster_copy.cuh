__device__ __forceinline__ void barrier_arrive_at(Barrier* barrier, unsigned rank) {
#if defined(SPARSEGEN_EMULATOR)
  sparsegen::emulator::barrier_arrive_at(barrier, rank);
#else
  const unsigned own = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
  asm volatile(
      "{ .reg .b32 theirs; mapa.shared::cluster.u32 theirs, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [theirs]; }\n" ::"r"(own), "r"(rank)
      : "memory");
#endif
}

__device__ __forceinline__ void copy_bulk_to_cluster(void* shared, const void* global, unsigned bytes, Barrier* barrier) {
#if defined(SPARSEGEN_EMULATOR)
  sparsegen::emulator::copy_bulk_to_cluster(shared, global, bytes, barrier, kClusterBlocks);
#else
  constexpr unsigned short kAllBlocks = (1u << kClusterBlocks) - 1;
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;\n" ::"r"(
          static_cast<unsigned>(__cvta_generic_to_shared(shared))),
      "l"(global), "r"(bytes), "r"(static_cast<unsigned>(__cvta_generic_to_shared(barrier))), "h"(kAllBlocks)
      : "memory");
#endif
}
