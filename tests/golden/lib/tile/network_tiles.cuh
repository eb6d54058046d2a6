constexpr int kTile = 256;
constexpr int kPair = 2 * kTile + 64;
constexpr int kUnit = 64;
constexpr int kGeneral = 0, kPairs = 1, kChains = 2, kTwins = 3;
constexpr unsigned kAll = 0xffffffffu;

struct Network {
  const Vector<int, 4>* layers;
  const unsigned* places;
  const Vector<int, 4>* general;
  const int* blocks;
  const Element* values;
};

__device__ __forceinline__ float joined_bias(const Vector<unsigned, 2>& parts) {
  const __half2 first = reinterpret_cast<const __half2&>(parts.element[0]);
  const __half2 last = reinterpret_cast<const __half2&>(parts.element[1]);
  const float bias = __low2float(first) + (__high2float(first) * 0x1p-11f + __low2float(last) * 0x1p-22f);
  return kDying ? fminf(bias, 0.0f) : bias;
}

__device__ __forceinline__ void load_fragment(unsigned (&fragment)[4], const Element* tile, unsigned lane) {
  const auto words = load_once<4>(reinterpret_cast<const unsigned*>(tile) + 4 * lane);
  #pragma unroll
  for (int i = 0; i < 4; ++i) fragment[i] = words.element[i];
}

template <int kTiles>
__device__ __forceinline__ void start_sums(float (&sums)[kTiles][4], float bias, unsigned first) {
  const unsigned row = threadIdx.x % 32 / 4 + first;
  const float upper = __shfl_sync(kAll, bias, row), lower = __shfl_sync(kAll, bias, row + 8);
  #pragma unroll
  for (int j = 0; j < kTiles; ++j) sums[j][0] = sums[j][1] = upper, sums[j][2] = sums[j][3] = lower;
}
