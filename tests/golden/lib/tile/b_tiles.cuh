constexpr int kBRows = kTileK, kBColumns = kTileN, kBSwizzle = 1;
constexpr int kBRowBytes = block_row_bytes(kBColumns * sizeof(Element));
[[maybe_unused]] constexpr int kBBlockBytes = kBRows * kBRowBytes;
constexpr int kBRowChunks = kBColumns / kChunk;
constexpr int kRowsPerPass = kLoaders / kBRowChunks;
static_assert(kLoaders % kBRowChunks == 0, "a row's chunks go to different threads");

struct BLoader {
  const Element* source;
  unsigned tile_row, target;
  int row, column;

  __device__ __forceinline__ void start(unsigned thread, const Element* b, int row_length, int first_row, int first_column) {
    const unsigned chunk = thread % kBRowChunks;
    tile_row = thread / kBRowChunks;
    row = first_row + static_cast<int>(tile_row);
    column = first_column + static_cast<int>(chunk) * kChunk;
    source = b + static_cast<long long>(row) * row_length + column;
    target = along_row<kBRowBytes, kBBlockBytes>(
        tile_row * kBRowBytes + swizzle<kBRowBytes, kBSwizzle>(tile_row) * 16, chunk * 16);
  }

  __device__ __forceinline__ void load(unsigned char* tile, int first_k, int k, int n) const {
    constexpr bool kRowsDivide = kDividesK, kColumnsDivide = kDividesN;
    const int rows = k - first_k, row_length = n, this_column = column;
    const Element* from = source + static_cast<long long>(first_k) * row_length;
    #pragma unroll
    for (int first = 0; first < kBRows; first += kRowsPerPass) {
      if (kBRows % kRowsPerPass != 0 && tile_row + first >= kBRows) break;
      const bool inside = (kRowsDivide || row + first < rows) && (kColumnsDivide || this_column < row_length);
      unsigned char* const to = tile + (target ^ swizzle<kBRowBytes, kBSwizzle>(first) * 16) + first * kBRowBytes;
      copy_async<16>(to, from, inside);
      from += static_cast<long long>(kRowsPerPass) * row_length;
    }
  }
};
(2) from (1):
@@
-1 014486
+constexpr int kBRows = kTileN, kBColumns = kTileK, kBSwizzle = 1;
@@
-3 246bce
+    constexpr bool kRowsDivide = kDividesN, kColumnsDivide = kDividesK;
+    const int rows = n, row_length = k, this_column = column + first_k;
+    const Element* from = source + first_k;
(3) from (1):
@@
-1 014486
+constexpr int kBRows = kTileK, kBColumns = kTileN, kBSwizzle = 2;
