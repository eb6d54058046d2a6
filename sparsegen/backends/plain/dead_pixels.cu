// Images with zeros over the pixels that lie in dead blocks of a mask: copied, or where they lie. Dead pixels are not read, nor any where
// the images lie already. The mask is of bools, or packed: a bit for each block, rows of whole words of 64 bits.
#include "early_start.cuh"

constexpr int kThreads = 256;
constexpr int kPlanes = 16;  // channels that a thread block writes of a row of pixels, where these are outermost
constexpr int kAtOnce = 4;  // accesses of a thread that are on their way together

struct Images {
  int rows, columns, channels;
  int mask_rows, mask_columns, block_rows, block_columns;
};

// A row of pixels of all images, and whether its pixels live.
template <bool kIsPacked>
struct Row {
  const Images& size;
  int image, row;
  const unsigned char* live;

  __device__ __forceinline__ Row(const Images& images, const unsigned char* mask, int line)
      : size(images), image(line / images.rows), row(line - image * images.rows) {
    const int line_bytes = kIsPacked ? (images.mask_columns + 63) / 64 * 8 : images.mask_columns;
    live = mask + (static_cast<long long>(image) * images.mask_rows + row / images.block_rows) * line_bytes;
  }

  __device__ __forceinline__ bool is_live(int column) const {
    const int block = column / size.block_columns;
    return kIsPacked ? live[block / 8] >> block % 8 & 1 : live[block] != 0;
  }
};

// The grid's x goes over rows of pixels, its y over channels. No X stands for Y.
template <class T, bool kIsPacked>
__device__ __forceinline__ void zero_in_planes(const Images& size, const unsigned char* mask, const T* x, T* y) {
  const Row<kIsPacked> own(size, mask, static_cast<int>(blockIdx.x));
  const int first = static_cast<int>(blockIdx.y) * kPlanes, last = min(first + kPlanes, size.channels);
  const int sharing = max(1, min(kPlanes / kAtOnce, kThreads / size.columns));  // threads of a column, where these are few
  const long long plane = static_cast<long long>(size.rows) * size.columns;
  const long long line = static_cast<long long>(own.image) * size.channels * plane + static_cast<long long>(own.row) * size.columns;
  for (int item = static_cast<int>(threadIdx.x); item < size.columns * sharing; item += kThreads) {
    const int some = item / size.columns, column = item - some * size.columns;
    const bool is_live = own.is_live(column);
    if (is_live && x == nullptr) continue;
    for (int channel = first + some * kAtOnce; channel < last; channel += sharing * kAtOnce) {
      const long long at = line + channel * plane + column;
      T found[kAtOnce];
      #pragma unroll
      for (int i = 0; i < kAtOnce; ++i) found[i] = is_live && channel + i < last ? x[at + i * plane] : T(0);
      #pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (channel + i < last) y[at + i * plane] = found[i];
      }
    }
  }
}

// The same where the channels of a pixel follow one another. T divides them.
template <class T, bool kIsPacked>
__device__ __forceinline__ void zero_in_pixels(const Images& size, const unsigned char* mask, const T* x, T* y) {
  const Row<kIsPacked> own(size, mask, static_cast<int>(blockIdx.x));
  const int all = size.columns * size.channels;
  const long long line = static_cast<long long>(blockIdx.x) * all;
  for (int begin = static_cast<int>(threadIdx.x); begin < all; begin += kThreads * kAtOnce) {
    T found[kAtOnce];
    bool writes[kAtOnce];
    #pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = begin + i * kThreads;
      const bool is_live = at < all && own.is_live(at / size.channels);
      writes[i] = at < all && !(is_live && x == nullptr);
      found[i] = is_live && writes[i] ? x[line + at] : T{};
    }
    #pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (writes[i]) y[line + begin + i * kThreads] = found[i];
    }
  }
}

struct alignas(16) Vector {
  unsigned of[4];
};

#define SPARSEGEN_ZERO(name, function, type, is_packed)                                                                 \
  extern "C" __global__ void __launch_bounds__(kThreads) name(int rows, int columns, int channels, int mask_rows,       \
                                                              int mask_columns, int block_rows, int block_columns,      \
                                                              const unsigned char* mask, const type* x, type* y) {      \
    wait_for_kernel_before();                                                                                           \
    let_next_kernel_begin();                                                                                            \
    const Images size = {rows, columns, channels, mask_rows, mask_columns, block_rows, block_columns};                  \
    function<type, is_packed>(size, mask, x, y);                                                                        \
  }
#define SPARSEGEN_ZERO_BY_MASK(name, function, type) \
  SPARSEGEN_ZERO(name, function, type, false)        \
  SPARSEGEN_ZERO(name##_packed, function, type, true)

SPARSEGEN_ZERO_BY_MASK(zero_in_planes_2, zero_in_planes, unsigned short)
SPARSEGEN_ZERO_BY_MASK(zero_in_planes_4, zero_in_planes, unsigned)
SPARSEGEN_ZERO_BY_MASK(zero_in_pixels_2, zero_in_pixels, unsigned short)
SPARSEGEN_ZERO_BY_MASK(zero_in_pixels_4, zero_in_pixels, unsigned)
SPARSEGEN_ZERO_BY_MASK(zero_in_pixels_16, zero_in_pixels, Vector)
