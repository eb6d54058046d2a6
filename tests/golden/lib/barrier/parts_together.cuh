struct PartCounters {
  unsigned arrived;
  unsigned taken;
  unsigned left;
  unsigned unused[5];
};

template <int kBlocks>
struct PartsTogether {
  static constexpr int kPatience = 40;

  PartCounters& counters;
  unsigned thread;

  template <class Meet>
  __device__ __forceinline__ bool are_complete(unsigned* came, const Meet& meet) const {
    __threadfence();
    meet();
    if (thread / 32 == 0) {
      unsigned found = count_arrival(&counters.arrived, thread) + 1;
      #pragma unroll 1
      for (int i = 0; i < kPatience && found < kBlocks; ++i) {
        pause();
        found = arrivals_so_far(&counters.arrived, thread);
      }
      if (thread == 0) *came = found;
    }
    meet();
    __threadfence();
    return *came == kBlocks;
  }

  template <class AddUp>
  __device__ __forceinline__ void each_slice(unsigned slices, const AddUp& add_up) const {
    for (;;) {
      const unsigned slice = count_arrival(&counters.taken, thread % 32);
      if (slice >= slices) return;
      add_up(slice);
    }
  }

  template <class Meet>
  __device__ __forceinline__ void leave(const Meet& meet) const {
    meet();
    if (thread / 32 == 0 && count_arrival(&counters.left, thread) + 1 == kBlocks && thread == 0) {
      counters.arrived = counters.taken = counters.left = 0;
    }
  }

 private:
  __device__ __forceinline__ static void pause() {
#if !defined(SPARSEGEN_EMULATOR)
    asm volatile("nanosleep.u32 100;\n" ::: "memory");
#endif
  }
};
