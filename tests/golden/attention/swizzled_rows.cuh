constexpr int least_power(int least) {
  int power = 1;
  while (power < least) power *= 2;
  return power;
}
constexpr int kRowBytes = block_row_bytes(least_power(kPaddedWidth) * 2);
constexpr int kBlocks = (kPaddedWidth * 2 + kRowBytes - 1) / kRowBytes;
constexpr int kKeyBlockBytes = kTileN * kRowBytes;

template <int kBlockBytes>
__device__ __forceinline__ unsigned place_of(unsigned row, unsigned chunk) {
  constexpr unsigned kRowChunks = kRowBytes / 16;
  return chunk / kRowChunks * kBlockBytes + row * kRowBytes + (chunk % kRowChunks ^ swizzle<kRowBytes>(row)) * 16;
}
