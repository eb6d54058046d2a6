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

constexpr int kListed = 128;

struct LiveKeys {
  unsigned long long bits[kPieces];
  unsigned words = 0;
  int strip = 0;

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

  __device__ __forceinline__ int list_word(unsigned (&list)[kListed], int end) {
    const int lane = static_cast<int>(threadIdx.x % 32), from = 31 - __clz(static_cast<int>(words));
    words ^= 1u << from;
    unsigned own[kPieces][2], any[2] = {0, 0};
    #pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const unsigned long long word = __shfl_sync(0xffffffffu, bits[i], from);
      own[i][0] = static_cast<unsigned>(word), own[i][1] = static_cast<unsigned>(word >> 32);
      any[0] |= own[i][0], any[1] |= own[i][1];
    }
    const int of_last = __popc(any[1]);
    #pragma unroll
    for (int half = 0; half < 2; ++half) {
      if ((any[half] >> lane & 1) == 0) continue;
      const int before = __popc(any[half] >> lane >> 1) + (half == 0 ? of_last : 0);
      unsigned pieces = 0;
      #pragma unroll
      for (int i = 0; i < kPieces; ++i) pieces |= (own[i][half] >> lane & 1) << i;
      list[(end + before) % kListed] = static_cast<unsigned>((strip * 32 + from) * 64 + half * 32 + lane) << kPieces | pieces;
    }
    __syncwarp();
    return end + of_last + __popc(any[0]);
  }

 private:
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
