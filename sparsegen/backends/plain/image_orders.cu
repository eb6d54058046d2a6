// Images of 16-bit elements from one memory order to the other, by a mask of spatial blocks: pixels that no live block needs are not
// read. The order with channels innermost has a number of channels that vectors divide; those that the images have not are zeros.
#if !defined(SPARSEGEN_EMULATOR)
#define SPARSEGEN_SHARED(type, name, count) __shared__ __align__(16) type name[count]
#endif

#include "early_start.cuh"

using Element = unsigned short;
using Word = unsigned long long;

constexpr int kPixels = 64, kChannels = 64;  // of a tile: neighbours in a row of pixels
constexpr int kPitch = kChannels / 2 + 1;    // words of a pixel, so that those of neighbours are in different banks
constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kVector = 8;  // elements that a vector of 16 bytes has
constexpr int kFew = kVector;  // channels of images that have a thread for each pixel

struct alignas(16) Vector {
  unsigned of[kVector / 2];
};

struct Images {
  int count, rows, columns, channels;
  int stored;  // channels of a pixel in the order with channels innermost, a multiple of kVector where they are written

  __device__ __forceinline__ int tiles() const { return (columns + kPixels - 1) / kPixels; }  // of a row
  __device__ __forceinline__ long long pixel(int line, int column) const { return static_cast<long long>(line) * columns + column; }
  // The place of a channel's row of pixels where channels are outermost.
  __device__ __forceinline__ long long plane_row(int image, int row, int channel) const {
    return ((static_cast<long long>(image) * channels + channel) * rows + row) * columns;
  }
};

// Neighbours in a row of pixels.
struct Tile {
  int line, first, image, row;

  __device__ __forceinline__ Tile(const Images& size, int number)
      : line(number / size.tiles()), first((number - line * size.tiles()) * kPixels), image(line / size.rows), row(line - image * size.rows) {}
};

// The outputs of a convolution that read a pixel along one direction: from (at - first) / stride, rounded up, to (at + padding) / stride.
struct Axis {
  int outputs, block;
  int first, padding, stride;  // first: the reach of the filter less the padding

  __device__ __forceinline__ int low(int at) const { return at > first ? (at - first + stride - 1) / stride : 0; }
  __device__ __forceinline__ int high(int at) const { return min((at + padding) / stride, outputs - 1); }
};

// A mask of blocks over the outputs that read pixels; over the pixels themselves with a filter of one tap.
struct Mask {
  const Word* words;  // none: all pixels are needed
  int rows, row_words;
  Axis down, across;

  __device__ __forceinline__ bool needs(int image, int row, int column) const {
    if (words == nullptr) return true;
    const int top = down.low(row), bottom = down.high(row), left = across.low(column), right = across.high(column);
    if (top > bottom || left > right) return false;
    const int first = left / across.block, last = right / across.block;
    for (int block_row = top / down.block; block_row <= bottom / down.block; ++block_row) {
      const Word* const line = words + (static_cast<long long>(image) * rows + block_row) * row_words;
      for (int number = first / 64; number <= last / 64; ++number) {
        Word word = line[number];
        if (number == first / 64) word &= ~0ull << first % 64;
        if (number == last / 64) word &= ~0ull >> (63 - last % 64);
        if (word != 0) return true;
      }
    }
    return false;
  }
};

__device__ __forceinline__ unsigned pair(Element low, Element high) { return low | static_cast<unsigned>(high) << 16; }

// Bits of the pixels of a tile that are needed, in every thread. `needed` has a place for each.
__device__ __forceinline__ Word needed_pixels(const Mask& mask, const Images& size, const Tile& tile, bool* needed) {
  const int lane = static_cast<int>(threadIdx.x) % 32, own = static_cast<int>(threadIdx.x);
  if (own < kPixels) needed[own] = tile.first + own < size.columns && mask.needs(tile.image, tile.row, tile.first + own);
  __syncthreads();
  const Word low = __ballot_sync(0xffffffffu, needed[lane]), high = __ballot_sync(0xffffffffu, needed[32 + lane]);
  return low | high << 32;
}

// From planes, or from pixels with as many channels as the images have, to pixels with `stored` ones. Those that are not needed get
// zeros, or stay as they are. The grid's x goes over tiles of pixels, its y over those of channels.
template <bool kPlanes>
__device__ __forceinline__ void to_pixels(const Images& size, const Mask& mask, bool fills, const Element* x, Element* y, unsigned* tile,
                                          bool* needed) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int first_channel = static_cast<int>(blockIdx.y) * kChannels, lines = size.count * size.rows;
  for (int number = blockIdx.x; number < lines * size.tiles(); number += gridDim.x) {
    const Tile place(size, number);
    const Word live = needed_pixels(mask, size, place, needed);
    if (live != 0 || fills) {
      if (kPlanes) {
        #pragma unroll
        for (int i = 0; i < kChannels / 2 / kWarps; ++i) {
          const int own = i * kWarps + warp, channel = first_channel + own * 2;  // two channels of a word
          const Element* const from = x + size.plane_row(place.image, place.row, channel) + place.first;
          const long long plane = static_cast<long long>(size.rows) * size.columns;
          #pragma unroll
          for (int at = lane; at < kPixels; at += 32) {
            const bool reads = live >> at & 1;
            const Element low = reads && channel < size.channels ? from[at] : Element{0};
            const Element high = reads && channel + 1 < size.channels ? from[plane + at] : Element{0};
            tile[at * kPitch + own] = pair(low, high);
          }
        }
      } else {
        Element* const elements = reinterpret_cast<Element*>(tile);
        #pragma unroll
        for (int i = 0; i < kPixels / kWarps; ++i) {
          const int at = i * kWarps + warp;
          const Element* const from = x + size.pixel(place.line, place.first + at) * size.channels + first_channel;
          #pragma unroll
          for (int channel = lane; channel < kChannels; channel += 32) {
            const bool reads = (live >> at & 1) && first_channel + channel < size.channels;
            elements[at * kPitch * 2 + channel] = reads ? from[channel] : Element{0};
          }
        }
      }
      __syncthreads();
      #pragma unroll
      for (int i = 0; i < kPixels * kChannels / kVector / kThreads; ++i) {
        constexpr int kPieces = kChannels / kVector;
        const int piece = static_cast<int>(threadIdx.x) % kPieces, at = i * (kThreads / kPieces) + static_cast<int>(threadIdx.x) / kPieces;
        const int channel = first_channel + piece * kVector;
        if (place.first + at >= size.columns || channel >= size.stored || !(fills || (live >> at & 1))) continue;
        Vector found;
        #pragma unroll
        for (int e = 0; e < kVector / 2; ++e) found.of[e] = tile[at * kPitch + piece * (kVector / 2) + e];
        *reinterpret_cast<Vector*>(y + size.pixel(place.line, place.first + at) * size.stored + channel) = found;
      }
    }
    __syncthreads();
  }
}

// The same of images with at most kFew channels: a thread for each pixel.
__device__ __forceinline__ void few_to_pixels(const Images& size, const Mask& mask, bool fills, bool has_planes, const Element* x, Element* y) {
  const int all = size.count * size.rows * size.columns, stride = static_cast<int>(gridDim.x * blockDim.x);
  const long long step = has_planes ? static_cast<long long>(size.rows) * size.columns : 1;
  for (int at = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); at < all; at += stride) {
    const int line = at / size.columns, column = at - line * size.columns, image = line / size.rows, row = line - image * size.rows;
    const bool is_needed = mask.needs(image, row, column);
    if (!is_needed && !fills) continue;
    Vector found = {};
    if (is_needed) {
      const Element* const from = x + (has_planes ? size.plane_row(image, row, 0) + column : static_cast<long long>(at) * size.channels);
      #pragma unroll
      for (int c = 0; c < kFew; c += 2) {
        const Element low = c < size.channels ? from[c * step] : Element{0}, high = c + 1 < size.channels ? from[(c + 1) * step] : Element{0};
        found.of[c / 2] = pair(low, high);
      }
    }
    *reinterpret_cast<Vector*>(y + static_cast<long long>(at) * kVector) = found;
  }
}

// From pixels of `stored` channels to planes of the first ones; pixels that are not needed get zeros.
__device__ __forceinline__ void to_planes(const Images& size, const Mask& mask, const Element* x, Element* y, unsigned* tile, bool* needed) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int first_channel = static_cast<int>(blockIdx.y) * kChannels, lines = size.count * size.rows;
  Element* const elements = reinterpret_cast<Element*>(tile);
  for (int number = blockIdx.x; number < lines * size.tiles(); number += gridDim.x) {
    const Tile place(size, number);
    const Word live = needed_pixels(mask, size, place, needed);
    if (size.stored % kVector == 0) {
      #pragma unroll
      for (int i = 0; i < kPixels * kChannels / kVector / kThreads; ++i) {
        constexpr int kPieces = kChannels / kVector;
        const int piece = static_cast<int>(threadIdx.x) % kPieces, at = i * (kThreads / kPieces) + static_cast<int>(threadIdx.x) / kPieces;
        const int channel = first_channel + piece * kVector;
        if (!(live >> at & 1) || channel >= size.channels) continue;
        const Vector found = *reinterpret_cast<const Vector*>(x + size.pixel(place.line, place.first + at) * size.stored + channel);
        #pragma unroll
        for (int e = 0; e < kVector / 2; ++e) tile[at * kPitch + piece * (kVector / 2) + e] = found.of[e];
      }
    } else {
      #pragma unroll
      for (int i = 0; i < kPixels / kWarps; ++i) {
        const int at = i * kWarps + warp;
        const Element* const from = x + size.pixel(place.line, place.first + at) * size.stored + first_channel;
        #pragma unroll
        for (int channel = lane; channel < kChannels; channel += 32) {
          if ((live >> at & 1) && first_channel + channel < size.channels) elements[at * kPitch * 2 + channel] = from[channel];
        }
      }
    }
    __syncthreads();
    for (int own = warp; own < kChannels && first_channel + own < size.channels; own += kWarps) {
      Element* const to = y + size.plane_row(place.image, place.row, first_channel + own) + place.first;
      #pragma unroll
      for (int at = lane; at < kPixels; at += 32) {
        if (place.first + at < size.columns) to[at] = live >> at & 1 ? elements[at * kPitch * 2 + own] : Element{0};
      }
    }
    __syncthreads();
  }
}

#define SPARSEGEN_SIZES                                                                                                          \
  int images, int rows, int columns, int channels, int stored, int mask_rows, int row_words, int out_rows, int block_rows,       \
      int first_row, int padding_rows, int stride_rows, int out_columns, int block_columns, int first_column, int padding_columns, \
      int stride_columns, int fills
#define SPARSEGEN_OF_SIZES                                                                           \
  const Images size = {images, rows, columns, channels, stored};                                     \
  const Mask mask = {words, mask_rows, row_words, {out_rows, block_rows, first_row, padding_rows, stride_rows}, \
                     {out_columns, block_columns, first_column, padding_columns, stride_columns}}
#define SPARSEGEN_TO_PIXELS(name, planes)                                                                                  \
  extern "C" __global__ void __launch_bounds__(kThreads) name(SPARSEGEN_SIZES, const Word* words, const Element* x, Element* y) { \
    SPARSEGEN_SHARED(unsigned, tile, kPixels * kPitch);                                                                    \
    SPARSEGEN_SHARED(bool, needed, kPixels);                                                                               \
    wait_for_kernel_before();                                                                                              \
    let_next_kernel_begin();                                                                                               \
    SPARSEGEN_OF_SIZES;                                                                                                    \
    to_pixels<planes>(size, mask, fills != 0, x, y, tile, needed);                                                         \
  }
#define SPARSEGEN_FEW_TO_PIXELS(name, planes)                                                                              \
  extern "C" __global__ void __launch_bounds__(kThreads) name(SPARSEGEN_SIZES, const Word* words, const Element* x, Element* y) { \
    wait_for_kernel_before();                                                                                              \
    let_next_kernel_begin();                                                                                               \
    SPARSEGEN_OF_SIZES;                                                                                                    \
    few_to_pixels(size, mask, fills != 0, planes, x, y);                                                                   \
  }

SPARSEGEN_TO_PIXELS(planes_to_pixels, true)
SPARSEGEN_TO_PIXELS(pixels_to_pixels, false)
SPARSEGEN_FEW_TO_PIXELS(few_planes_to_pixels, true)
SPARSEGEN_FEW_TO_PIXELS(few_pixels_to_pixels, false)

extern "C" __global__ void __launch_bounds__(kThreads) pixels_to_planes(SPARSEGEN_SIZES, const Word* words, const Element* x, Element* y) {
  SPARSEGEN_SHARED(unsigned, tile, kPixels * kPitch);
  SPARSEGEN_SHARED(bool, needed, kPixels);
  wait_for_kernel_before();
  let_next_kernel_begin();
  SPARSEGEN_OF_SIZES;
  (void)fills;
  to_planes(size, mask, x, y, tile, needed);
}
