using Scores = float[kRowTiles][kKeyTiles][4];
using Sums = float[kRowTiles][kWidthTiles][4];

template <class Queries>
__device__ __forceinline__ void score(const Queries& queries, const unsigned char* keys, unsigned place, Scores& scores) {
  #pragma unroll
  for (int i = 0; i < kRowTiles; ++i) {
    #pragma unroll
    for (int j = 0; j < kKeyTiles; ++j) {
      #pragma unroll
      for (int e = 0; e < 4; ++e) scores[i][j][e] = 0.0f;
    }
  }
  #pragma unroll
  for (int step = 0; step < kWidthSteps; ++step) {
    unsigned a[kRowTiles][4];
    #pragma unroll
    for (int i = 0; i < kRowTiles; ++i) queries.load(a[i], i, step);
    const unsigned char* const from = keys + along_row<kRowBytes, kKeyBlockBytes>(place, step * 32);
    #pragma unroll
    for (int j = 0; j < kKeyTiles; j += 2) {
      unsigned pair[4];
      load_matrices(pair, from + j * 8 * kRowBytes);
      const unsigned low[2] = {pair[0], pair[1]}, high[2] = {pair[2], pair[3]};
      #pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
        mma(scores[i][j], a[i], low);
        mma(scores[i][j + 1], a[i], high);
      }
    }
  }
}

__device__ __forceinline__ void add_values(const Scores& weights, const unsigned char* values, unsigned place, Sums& sums) {
  #pragma unroll
  for (int step = 0; step < kTileN / 16; ++step) {
    unsigned a[kRowTiles][4];
    #pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
      #pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float* const two = weights[i][2 * step + e / 2] + e % 2 * 2;
        a[i][e] = to_pair(two[0], two[1]);
      }
    }
    const unsigned char* const from = values + step * 16 * kRowBytes;
    #pragma unroll
    for (int j = 0; j < kWidthTiles; j += 2) {
      unsigned pair[4];
      load_matrices_transposed(pair, from + along_row<kRowBytes, kKeyBlockBytes>(place, j * 16));
      const unsigned low[2] = {pair[0], pair[1]}, high[2] = {pair[2], pair[3]};
      #pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
        mma(sums[i][j], a[i], low);
        mma(sums[i][j + 1], a[i], high);
      }
    }
  }
}
