constexpr int block_row_bytes(int row_bytes) { return row_bytes < 128 ? row_bytes : 128; }

template <int kRowBytes, int kStride = 1>
__device__ constexpr unsigned swizzle(unsigned row) {
  constexpr unsigned kChunks = kRowBytes / 16;
  constexpr unsigned kRowsPerCycle = 8 / kChunks;
  return row / kRowsPerCycle * kStride & (kChunks - 1);
}

template <int kRowBytes, int kBlockBytes>
__device__ __forceinline__ unsigned along_row(unsigned offset, unsigned bytes) {
  return (offset ^ bytes % kRowBytes) + bytes / kRowBytes * kBlockBytes;
}
