__device__ __forceinline__ float4 load_from_cluster(const float4* shared, unsigned rank) {
#if defined(SPARSEGEN_EMULATOR)
  return *static_cast<const float4*>(sparsegen::emulator::map_shared(shared, rank, sizeof(float4)));
#else
  const unsigned own = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  unsigned address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(address) : "r"(own), "r"(rank));
  float4 loaded;
  asm volatile("ld.shared::cluster.v4.f32 { %0, %1, %2, %3 }, [%4];\n"
               : "=f"(loaded.x), "=f"(loaded.y), "=f"(loaded.z), "=f"(loaded.w) : "r"(address) : "memory");
  return loaded;
#endif
}
