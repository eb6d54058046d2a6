constexpr int kNowhere = -1;
constexpr unsigned kEveryPiece = (1u << kPieces) - 1;

struct Band {
  int least, most, sinks;

  __device__ __forceinline__ explicit Band(const int* words) : least(words[0]), most(words[1]), sinks(words[2]) {}
};

struct Queries {
  int first[kPieces];
  int ranks[kPieces];
};

struct LiveKeys {
  unsigned long long bits[kPieces];
  unsigned long long rest = 0;
  unsigned words = 0;
  int strip = 0;
  int lane_of_rest = 0;

  __device__ __forceinline__ void load(const Queries& queries, const MaskRows& mask, const Band& band, int query_count, int key_count, int which) {
    const int word = which * 32 + static_cast<int>(threadIdx.x % 32);
    unsigned long long any = 0;
    #pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int first = queries.first[i];
      unsigned long long seen = 0;
      if (first != kNowhere) {
        const int last = min(first + kPieceRows, query_count) - 1;
        const int upper = min(last + band.most, key_count - 1), lower = first + band.least;
        seen = upper < 0 ? 0 : before(upper / kBlockKeys + 1, word);
        if (lower > 0) seen &= ~before(lower / kBlockKeys, word) | before((band.sinks + kBlockKeys - 1) / kBlockKeys, word);
        if (seen != 0) seen &= mask.word(queries.ranks[i], word);
      }
      bits[i] = seen;
      any |= seen;
    }
    strip = which;
    rest = 0;
    words = __ballot_sync(0xffffffffu, any != 0);
  }

  __device__ __forceinline__ int count() const {
    unsigned long long any = 0;
    #pragma unroll
    for (int i = 0; i < kPieces; ++i) any |= bits[i];
    int found = __popcll(any);
    #pragma unroll
    for (int other = 16; other > 0; other /= 2) found += __shfl_xor_sync(0xffffffffu, found, other);
    return found;
  }

  __device__ __forceinline__ int take(unsigned& pieces) {
    if (rest == 0) {
      if (words == 0) return -1;
      begin_word();
    }
    const int bit = 63 - __clzll(static_cast<long long>(rest));
    rest ^= 1ull << bit;
    pieces = 1;
    if constexpr (kPieces > 1) {
      pieces = 0;
      #pragma unroll
      for (int i = 0; i < kPieces; ++i) pieces |= static_cast<unsigned>(bits[i] >> bit & 1) << i;
      pieces = __shfl_sync(0xffffffffu, pieces, lane_of_rest);
    }
    return (strip * 32 + lane_of_rest) * 64 + bit;
  }

 private:
  __device__ __forceinline__ void begin_word() {
    lane_of_rest = 31 - __clz(static_cast<int>(words));
    words ^= 1u << lane_of_rest;
    unsigned long long any = 0;
    #pragma unroll
    for (int i = 0; i < kPieces; ++i) any |= bits[i];
    rest = __shfl_sync(0xffffffffu, any, lane_of_rest);
  }

  __device__ __forceinline__ static unsigned long long before(int count, int word) {
    const int there = count - 64 * word;
    return there <= 0 ? 0 : there >= 64 ? ~0ull : (1ull << there) - 1;
  }
};
(2) from (1):
@@
-1 2cf8a7
@@
-1 9969a5
+  __device__ __forceinline__ void load(const Queries& queries, const Band& band, int query_count, int key_count, int which) {
@@
-1 7744e9
