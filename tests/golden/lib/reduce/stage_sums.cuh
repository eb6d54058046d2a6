template <int kTiles>
__device__ __forceinline__ void clear(float (&sums)[kTiles][4]) {
  #pragma unroll
  for (auto& tile : sums) tile[0] = tile[1] = tile[2] = tile[3] = 0.0f;
}

constexpr int kMostPartTiles = 16;

template <int kTiles, int kPartTiles>
__device__ __forceinline__ void add_part(float (&sums)[kTiles][4], int first, const float (&part)[kPartTiles][4]) {
  #pragma unroll
  for (int i = 0; i < kPartTiles; ++i) {
    #pragma unroll
    for (int e = 0; e < 4; ++e) sums[first + i][e] += part[i][e];
  }
}

template <int kTiles>
__device__ __forceinline__ void add_stage(float (&sums)[kTiles][4], const unsigned char* a, const unsigned char* b) {
  constexpr int kPartTiles = kTiles < kMostPartTiles ? kTiles : kMostPartTiles;
  #pragma unroll
  for (int first = 0; first < kTiles; first += kPartTiles) {
    float part[kPartTiles][4];
    warpgroup_begin();
    #pragma unroll
    for (int step = 0; step < kProducts; ++step) warpgroup_mma(part, a + step * 32, b + first / 8 * kPieceBytes + step * 32, step > 0);
    warpgroup_commit();
    warpgroup_wait<0>();
    warpgroup_settle(part);
    add_part(sums, first, part);
  }
}
