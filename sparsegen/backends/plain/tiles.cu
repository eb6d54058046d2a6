// SBNet's gather and scatter (Ren et al., CVPR 2018): the pixels around live blocks side by side, and results back to their blocks.
// A block's place is three numbers: image, row and column of its first pixel, which may lie outside of the image. A pixel has
// `words` words.
struct alignas(16) Words {
  unsigned word[4];
};

template <class Word>
__device__ __forceinline__ void gather(int blocks, int rows, int columns, int height, int width, int words, const int* places, const Word* x,
                                       Word* tiles) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x, pixel = i / words;
  const int block = static_cast<int>(pixel / (rows * columns)), within = static_cast<int>(pixel % (rows * columns));
  if (block >= blocks) return;
  const int row = places[3 * block + 1] + within / columns, column = places[3 * block + 2] + within % columns;
  const bool is_inside = row >= 0 && row < height && column >= 0 && column < width;
  const long long from = (static_cast<long long>(places[3 * block]) * height + row) * width + column;
  tiles[i] = is_inside ? x[from * words + i % words] : Word{};
}

template <class Word>
__device__ __forceinline__ void scatter(int blocks, int rows, int columns, int height, int width, int words, const int* places,
                                        const Word* tiles, Word* y) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x, pixel = i / words;
  const int block = static_cast<int>(pixel / (rows * columns)), within = static_cast<int>(pixel % (rows * columns));
  if (block >= blocks) return;
  const int row = places[3 * block + 1] + within / columns, column = places[3 * block + 2] + within % columns;
  if (row >= height || column >= width) return;
  const long long to = (static_cast<long long>(places[3 * block]) * height + row) * width + column;
  y[to * words + i % words] = tiles[i];
}

extern "C" __global__ void gather_16(int blocks, int rows, int columns, int height, int width, int words, const int* places, const Words* x,
                                     Words* tiles) {
  gather(blocks, rows, columns, height, width, words, places, x, tiles);
}

extern "C" __global__ void gather_2(int blocks, int rows, int columns, int height, int width, int words, const int* places,
                                    const unsigned short* x, unsigned short* tiles) {
  gather(blocks, rows, columns, height, width, words, places, x, tiles);
}

extern "C" __global__ void scatter_16(int blocks, int rows, int columns, int height, int width, int words, const int* places,
                                      const Words* tiles, Words* y) {
  scatter(blocks, rows, columns, height, width, words, places, tiles, y);
}

extern "C" __global__ void scatter_2(int blocks, int rows, int columns, int height, int width, int words, const int* places,
                                     const unsigned short* tiles, unsigned short* y) {
  scatter(blocks, rows, columns, height, width, words, places, tiles, y);
}
