constexpr int kRowElements = 128 / sizeof(Element);
constexpr int kStep = kRowElements;
constexpr int kProducts = 4;
constexpr int kPieceBytes = 64 * 128;
constexpr int kRingBytes = 24 * kPieceBytes;
constexpr int kMostStages = 8;
constexpr int kConsumers = 2;
constexpr int kProducer = 128 * kConsumers;
constexpr int kThreads = kProducer + 128;
[[maybe_unused]] constexpr int kNoRows = 0xffff;

__host__ __device__ constexpr int stage_bytes(int columns) { return (kConsumers + columns / 64) * kPieceBytes; }
__host__ __device__ constexpr int stages_of(int columns) {
  return kRingBytes / stage_bytes(columns) < kMostStages ? kRingBytes / stage_bytes(columns) : kMostStages;
}

// lib/persistent/arriving_lanes.cuh.j2

using StageDescriptor = Vector<unsigned, 4>;
constexpr unsigned kLast = 4;
constexpr unsigned kEnd = 8;
[[maybe_unused]] constexpr unsigned kRelayout = 16;

struct Stage {
  int number = 0;
  unsigned parities = 0;

  __device__ __forceinline__ unsigned parity() const { return parities >> number & 1; }
  __device__ __forceinline__ void advance(int stages) {
    parities ^= 1u << number;
    if (++number == stages) number = 0;
  }
};

struct Ring {
  StageDescriptor descriptors[kMostStages];
  Barrier full[kMostStages];
  Barrier empty[kMostStages];

  __device__ __forceinline__ void init() {
    for (int stage = 0; stage < kMostStages; ++stage) {
      barrier_init(full + stage, 1);
      barrier_init(empty + stage, 4 * kConsumers * kArrivingLanes * kClusterBlocks);
    }
  }

  __device__ __forceinline__ void wait_empty(const Stage& stage) { barrier_wait(empty + stage.number, stage.parity() ^ 1); }

  __device__ __forceinline__ void signal(const Stage& stage, unsigned flags) {
    wait_empty(stage);
    if (threadIdx.x % 32 == 0) {
      descriptors[stage.number].element[0] = flags;
      barrier_arrive(full + stage.number);
    }
    __syncwarp();
  }

  __device__ __forceinline__ unsigned wait_full(const Stage& stage) {
    barrier_wait(full + stage.number, stage.parity());
    return descriptors[stage.number].element[0];
  }

  __device__ __forceinline__ void release(int stage) {
    const unsigned lane = threadIdx.x % 32;
    __syncwarp();
    if constexpr (kArrivingLanes == 1) {
      if (lane < kClusterBlocks) barrier_arrive_at(empty + stage, lane);
    } else if constexpr (kClusterBlocks == 1) {
      barrier_arrive(empty + stage);
    } else {
      for (unsigned block = 0; block < kClusterBlocks; ++block) barrier_arrive_at(empty + stage, block);
    }
  }
};
(2) from (1):
@@
-1 313059
+constexpr int kStep = 128;
