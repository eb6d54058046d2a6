// Zeros over the pixels of images that lie in dead blocks of a mask of bools; the others stay as they are, and nothing of the images is
// read.
#include "early_start.cuh"

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kPlanes = 16;  // channels that a thread block writes of a row of pixels, where these are outermost

struct Images {
  int rows, columns, channels;
  int mask_rows, mask_columns, block_rows, block_columns;
};

// A row of pixels of all images, and whether its pixels live.
struct Row {
  const Images& size;
  int image, row;
  const bool* live;

  __device__ __forceinline__ Row(const Images& images, const bool* mask, int line)
      : size(images), image(line / images.rows), row(line - image * images.rows),
        live(mask + (static_cast<long long>(image) * images.mask_rows + row / images.block_rows) * images.mask_columns) {}

  __device__ __forceinline__ bool is_live(int column) const { return live[column / size.block_columns]; }
};

// The grid's x goes over rows of pixels, its y over channels.
template <class T>
__device__ __forceinline__ void zero_in_planes(const Images& size, const bool* mask, T* y) {
  const Row own(size, mask, static_cast<int>(blockIdx.x));
  const int first = static_cast<int>(blockIdx.y) * kPlanes, last = min(first + kPlanes, size.channels);
  const long long plane = static_cast<long long>(size.rows) * size.columns;
  T* const line = y + (static_cast<long long>(own.image) * size.channels + first) * plane + static_cast<long long>(own.row) * size.columns;
  for (int column = static_cast<int>(threadIdx.x); column < size.columns; column += kThreads) {
    if (own.is_live(column)) continue;
    T* to = line + column;
    for (int channel = first; channel < last; ++channel, to += plane) *to = T(0);
  }
}

// The same where the channels of a pixel follow one another: a warp for each pixel. T divides them.
template <class T>
__device__ __forceinline__ void zero_in_pixels(const Images& size, const bool* mask, T* y) {
  const Row own(size, mask, static_cast<int>(blockIdx.x));
  T* const line = y + static_cast<long long>(blockIdx.x) * size.columns * size.channels;
  for (int column = static_cast<int>(threadIdx.x) / 32; column < size.columns; column += kWarps) {
    if (own.is_live(column)) continue;
    T* const pixel = line + static_cast<long long>(column) * size.channels;
    for (int at = static_cast<int>(threadIdx.x) % 32; at < size.channels; at += 32) pixel[at] = T{};
  }
}

struct alignas(16) Vector {
  unsigned of[4];
};

#define SPARSEGEN_ZERO(name, function, type)                                                                            \
  extern "C" __global__ void __launch_bounds__(kThreads) name(int rows, int columns, int channels, int mask_rows,       \
                                                              int mask_columns, int block_rows, int block_columns,      \
                                                              const bool* mask, type* y) {                              \
    wait_for_kernel_before();                                                                                           \
    let_next_kernel_begin();                                                                                            \
    const Images size = {rows, columns, channels, mask_rows, mask_columns, block_rows, block_columns};                  \
    function<type>(size, mask, y);                                                                                      \
  }

SPARSEGEN_ZERO(zero_in_planes_2, zero_in_planes, unsigned short)
SPARSEGEN_ZERO(zero_in_planes_4, zero_in_planes, unsigned)
SPARSEGEN_ZERO(zero_in_pixels_2, zero_in_pixels, unsigned short)
SPARSEGEN_ZERO(zero_in_pixels_4, zero_in_pixels, unsigned)
SPARSEGEN_ZERO(zero_in_pixels_16, zero_in_pixels, Vector)
