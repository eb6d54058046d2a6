// Rows of bools as bits, 64 of a row in a word (sparsegen/matrix/bits.py): a thread makes one word.

extern "C" __global__ void pack_rows(int rows, int columns, const unsigned char* bools, unsigned long long* words) {
  const int across = (columns + 63) / 64;
  const long long at = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= static_cast<long long>(rows) * across) return;
  const long long row = at / across;
  const int first = static_cast<int>(at % across) * 64, count = columns - first < 64 ? columns - first : 64;
  unsigned long long word = 0;
  for (int i = 0; i < count; ++i) word |= static_cast<unsigned long long>(bools[row * columns + first + i] != 0) << i;
  words[at] = word;
}
