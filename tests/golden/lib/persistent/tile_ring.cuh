constexpr int kRowElements = 128 / sizeof(Element);  // elements in a row of 128 bytes, the widest that TMA swizzles
constexpr int kStep = kRowElements;  // places of the contraction in a stage
constexpr int kProducts = 4;  // instructions per stage; each takes 32 bytes of the contraction
constexpr int kPieceBytes = 64 * 128;  // 64 rows of A, 64 columns of B, or 64 rows of the result
constexpr int kRingBytes = 24 * kPieceBytes;
constexpr int kMostStages = 8;
constexpr int kConsumers = 2;  // warpgroups
constexpr int kProducer = 128 * kConsumers;  // the first thread of the third warpgroup, whose first warp is the producer
constexpr int kThreads = kProducer + 128;
[[maybe_unused]] constexpr int kNoRows = 0xffff;  // a warpgroup without rows: the last tile may be half a tile

__host__ __device__ constexpr int stage_bytes(int columns) { return (kConsumers + columns / 64) * kPieceBytes; }
__host__ __device__ constexpr int stages_of(int columns) {
  return kRingBytes / stage_bytes(columns) < kMostStages ? kRingBytes / stage_bytes(columns) : kMostStages;
}

// lib/persistent/arriving_lanes.cuh.j2

using StageDescriptor = Vector<unsigned, 4>;
constexpr unsigned kLast = 4;  // the last stage of its tile
constexpr unsigned kEnd = 8;  // an empty stage behind the last tile
[[maybe_unused]] constexpr unsigned kRelayout = 16;  // an empty stage; later stages have the size of narrow tiles

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
-constexpr int kStep = kRowElements;  // places of the contraction in a stage
+constexpr int kStep = 128;  // places of the contraction in a stage
