constexpr int kSlots = 16;

struct TileQueue {
  Barrier full[kSlots];
  unsigned numbers[kSlots];

  __device__ __forceinline__ void init() {
    for (int slot = 0; slot < kSlots; ++slot) barrier_init(full + slot, 1);
  }
};

struct TileScheduler {
  TileQueue& queue;
  unsigned* counters;
  int clusters, cluster;
  int taken = 0;
  unsigned fetched = 0;

  __device__ __forceinline__ TileScheduler(TileQueue& queue, unsigned* counters)
      : queue(queue), counters(counters), clusters(static_cast<int>(gridDim.x / kClusterBlocks)),
        cluster(static_cast<int>(blockIdx.x / kClusterBlocks)) {}

  __device__ __forceinline__ void prefetch() {
    if constexpr (kCounted) {
      if (cluster_rank() == 0) {
        unsigned number = 0;
        if (threadIdx.x % 32 == 0) {
          number = clusters + atomicAdd(counters, 1u);
          store_word_at(queue.numbers + taken % kSlots, number, queue.full + taken % kSlots, 1);
        }
        fetched = __shfl_sync(0xffffffffu, number, 0);
      }
    }
  }

  __device__ __forceinline__ int next() {
    if (kCounted && cluster_rank() == 1) {
      const int slot = taken % kSlots;
      if (threadIdx.x % 32 == 0) barrier_arrive_expecting(queue.full + slot, 4);
      __syncwarp();
      barrier_wait(queue.full + slot, taken / kSlots % 2);
      fetched = queue.numbers[slot];
    }
    ++taken;
    if constexpr (kCounted) return static_cast<int>(fetched);
    return taken * clusters + (taken % 2 == 0 ? cluster : clusters - 1 - cluster);
  }

  __device__ __forceinline__ void finish() {
    if constexpr (kCounted) {
      if (cluster_rank() == 0 && threadIdx.x % 32 == 0) {
        __threadfence();
        if (atomicAdd(counters + 1, 1u) == static_cast<unsigned>(clusters) - 1) counters[0] = 0, counters[1] = 0;
      }
    }
  }
};
(2) from (1):
@@
-1 f11d27
@@
-7 9e4f4e
