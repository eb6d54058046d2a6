using CachePolicy = unsigned long long;

__device__ __forceinline__ CachePolicy evict_first() {
#if defined(SPARSEGEN_EMULATOR)
  return 0;
#else
  CachePolicy policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0;\n" : "=l"(policy));
  return policy;
#endif
}

__device__ __forceinline__ void copy_async_16(void* shared, const void* global, bool valid, CachePolicy policy) {
#if defined(SPARSEGEN_EMULATOR)
  copy_async<16>(shared, global, valid);
#else
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;\n" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(shared))),
               "l"(global), "r"(valid ? 16 : 0), "l"(policy)
               : "memory");
#endif
}

__device__ __forceinline__ void copy_async_16_if(bool condition, void* shared, const void* global, bool valid,
                                                 CachePolicy policy) {
#if defined(SPARSEGEN_EMULATOR)
  if (condition) copy_async<16>(shared, global, valid);
#else
  asm volatile("{ .reg .pred p; setp.ne.s32 p, %4, 0; @p cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3; }\n" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(shared))),
               "l"(global), "r"(valid ? 16 : 0), "l"(policy), "r"(static_cast<int>(condition))
               : "memory");
#endif
}
