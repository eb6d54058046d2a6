// lib/reduce/four_sums.cuh.j2

struct Shares {
  long long work;
  int places;
  int blocks;

  __device__ __forceinline__ Shares(int tiles, int tile_places)
      : work(static_cast<long long>(tiles) * tile_places), places(tile_places), blocks(static_cast<int>(gridDim.x)) {}

  __device__ __forceinline__ long long begin(int block) const { return work * block / blocks; }

  __device__ __forceinline__ int owner(long long place) const { return static_cast<int>(((place + 1) * blocks - 1) / work); }
};

struct Parts {
  const Shares& shares;
  float4* parts;
  unsigned* counters;
  unsigned* came;
  unsigned warpgroup;
  int barrier;

  __device__ __forceinline__ float4* slot(int block, int tile) const {
    constexpr int kOwn = kTileN / 8 * 128;
    const bool is_first = shares.begin(block) / shares.places == tile;
    return parts + (((2ll * block + (is_first ? 0 : 1)) * kConsumers + warpgroup) * kOwn + threadIdx.x % 128);
  }

  __device__ __forceinline__ bool add_up(Sums& sums, int tile) const {
    const long long begin = static_cast<long long>(tile) * shares.places;
    const int first = shares.owner(begin), last = shares.owner(begin + shares.places - 1);
    if (first == last) return true;
    float4* const own = slot(static_cast<int>(blockIdx.x), tile);
    #pragma unroll
    for (int j = 0; j < kTileN / 8; ++j) __stcg(own + j * 128, together(sums[j]));
    unsigned* const counter = counters + tile * kConsumers + warpgroup;
    if (!is_last_of(last - first + 1, counter, came, threadIdx.x % 128, [&] { meet_at<128>(barrier); })) return false;
    #pragma unroll
    for (int j = 0; j < kTileN / 8; ++j) sums[j][0] = sums[j][1] = sums[j][2] = sums[j][3] = 0.0f;
    for (int block = first; block <= last; ++block) {
      const float4* const from = slot(block, tile);
      #pragma unroll
      for (int j = 0; j < kTileN / 8; ++j) add_to(sums[j], __ldcg(from + j * 128));
    }
    return true;
  }
};
