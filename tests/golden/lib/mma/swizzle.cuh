// Tiles lie in shared memory as blocks of rows of up to 128 bytes. These are swizzled: chunk c of row r lies at place
// c ^ swizzle(r) of its row, so that the rows of a fragment meet different banks. As this is linear over exclusive or,
// steps through a tile are exclusive ors of byte offsets.
constexpr int block_row_bytes(int row_bytes) { return row_bytes < 128 ? row_bytes : 128; }

template <int kRowBytes, int kStride = 1>
__device__ constexpr unsigned swizzle(unsigned row) {
  constexpr unsigned kChunks = kRowBytes / 16;
  constexpr unsigned kRowsPerCycle = 8 / kChunks;  // rows in the 128 bytes of all banks
  return row / kRowsPerCycle * kStride & (kChunks - 1);
}

// Where `bytes`, a multiple of what a lane's offset leaves free of a row, lead from that offset.
template <int kRowBytes, int kBlockBytes>
__device__ __forceinline__ unsigned along_row(unsigned offset, unsigned bytes) {
  return (offset ^ bytes % kRowBytes) + bytes / kRowBytes * kBlockBytes;
}
