// Copies from global to shared memory that a thread need not wait for one by one (cp.async, sm_80 and later).

// 16 bytes, at addresses that 16 divides.
__device__ __forceinline__ void copy_async_16(void* shared, const void* global) {
#if defined(SPARSEGEN_EMULATOR)
  sparsegen::emulator::copy_async(shared, global, 16, true);
#else
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;\n" ::"r"(address), "l"(global) : "memory");
#endif
}

// Waits for all of the thread's own.
__device__ __forceinline__ void copy_async_wait() {
#if defined(SPARSEGEN_EMULATOR)
  sparsegen::emulator::copy_async_commit();
  sparsegen::emulator::copy_async_wait(0);
#else
  asm volatile("cp.async.wait_all;\n" ::: "memory");
#endif
}
