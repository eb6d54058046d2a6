// Images of 16-bit elements from one memory order to the other, by a mask of spatial blocks: pixels that no live block needs are not
// read. The order with channels innermost has a number of channels that vectors divide; those that the images have not are zeros.
#if !defined(SPARSEGEN_EMULATOR)
#define SPARSEGEN_SHARED(type, name, count) __shared__ __align__(16) type name[count]
#endif

#include "early_start.cuh"

using Element = unsigned short;
using Word = unsigned long long;

constexpr int kPixels = 32, kChannels = 32;  // that a warp takes at once: neighbours of an image, channels of a part
constexpr int kThreads = 256, kWarps = kThreads / 32, kResident = 3;  // thread blocks of a multiprocessor
constexpr int kVector = 8, kPieces = kChannels / kVector;  // elements of 16 bytes, and vectors of a part
constexpr int kFew = kVector, kFewAtOnce = 4;  // channels of images that have a thread for each pixel, and pixels that it reads at once

struct alignas(16) Vector {
  unsigned of[kVector / 2];
};

struct Images {
  int count, rows, columns, channels;
  int stored;  // channels of a pixel in the order with channels innermost, a multiple of kVector where they are written

  __device__ __forceinline__ int plane() const { return rows * columns; }
  __device__ __forceinline__ int image_groups() const { return (plane() + kPixels - 1) / kPixels; }
  __device__ __forceinline__ int groups() const { return count * image_groups(); }
};

// A number that is not negative, divided: strides and blocks are mostly powers of two.
__device__ __forceinline__ int divided(int number, int by) { return (by & (by - 1)) == 0 ? number >> (__ffs(by) - 1) : number / by; }

// The outputs of a convolution that read a pixel along one direction: from (at - first) / stride, rounded up, to (at + padding) / stride.
struct Axis {
  int outputs, block;
  int first, padding, stride;  // first: the reach of the filter less the padding

  __device__ __forceinline__ int low(int at) const { return at > first ? divided(at - first + stride - 1, stride) : 0; }
  __device__ __forceinline__ int high(int at) const { return min(divided(at + padding, stride), outputs - 1); }
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
    const int first = divided(left, across.block), last = divided(right, across.block), last_row = divided(bottom, down.block);
    for (int block_row = divided(top, down.block); block_row <= last_row; ++block_row) {
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

// Neighbours of an image; of the last ones `count` are pixels.
struct Group {
  int image, first, count;
  unsigned live;  // bits of those that are needed, in every lane

  __device__ __forceinline__ Group(const Images& size, const Mask& mask, int number) {
    const int of_image = size.image_groups(), lane = static_cast<int>(threadIdx.x) % 32;
    image = number / of_image;
    first = (number - image * of_image) * kPixels;
    count = min(kPixels, size.plane() - first);
    const int row = (first + lane) / size.columns;
    live = __ballot_sync(0xffffffffu, lane < count && mask.needs(image, row, first + lane - row * size.columns));
  }
  // Elements before a pixel with so many channels innermost, and before the group in a channel's plane.
  __device__ __forceinline__ long long pixel(const Images& size, int channels, int at) const {
    return (static_cast<long long>(image) * size.plane() + first + at) * channels;
  }
  __device__ __forceinline__ long long in_plane(const Images& size, int channel) const {
    return (static_cast<long long>(image) * size.channels + channel) * size.plane() + first;
  }
};

// A warp's pixels with the channels of a part, in shared memory: vectors, of which neither rows nor columns meet in a bank. The place of
// a sum of pixels without common bits is the exclusive or of theirs.
__device__ __forceinline__ constexpr int place_of(int pixel, int piece) {
  return (pixel * kPieces + piece) ^ (pixel >> 3 & 1) << 2 ^ ((pixel >> 1 ^ pixel >> 4) & 1) << 1 ^ (pixel >> 2 & 1);
}

__device__ __forceinline__ unsigned pair(Element low, Element high) { return low | static_cast<unsigned>(high) << 16; }

// True if rows of so many elements are whole vectors.
__device__ __forceinline__ bool are_whole(const void* address, int row) {
  return row % kVector == 0 && reinterpret_cast<size_t>(address) % sizeof(Vector) == 0;
}

// Up to kVector neighbours from any address.
struct Neighbours {
  const Element* from;
  int count;  // of those that are wanted; the others are zeros

  // Elements between the whole vector that they begin in and the first one.
  __device__ __forceinline__ int shift() const { return static_cast<int>(reinterpret_cast<size_t>(from) / sizeof(Element) % kVector); }
  __device__ __forceinline__ Vector one_by_one() const {
    Vector found;
    #pragma unroll
    for (int i = 0; i < kVector; i += 2) {
      found.of[i / 2] = pair(i < count ? from[i] : Element{0}, i + 1 < count ? from[i + 1] : Element{0});
    }
    return found;
  }
  // They as a vector, of the two whole ones around them.
  __device__ __forceinline__ Vector of(const Vector& first, const Vector& second) const {
    const int by = shift();
    unsigned words[kVector];
    #pragma unroll
    for (int i = 0; i < kVector; ++i) words[i] = i < kVector / 2 ? first.of[i] : second.of[i - kVector / 2];
    #pragma unroll
    for (int i = 0; i < 6; ++i) words[i] = by & 4 ? words[i + 2] : words[i];
    #pragma unroll
    for (int i = 0; i < 5; ++i) words[i] = by & 2 ? words[i + 1] : words[i];
    Vector found;
    #pragma unroll
    for (int i = 0; i < kVector / 2; ++i) {
      const unsigned both = __funnelshift_r(words[i], words[i + 1], (by & 1) * 16);
      found.of[i] = count >= 2 * i + 2 ? both : count == 2 * i + 1 ? both & 0xffffu : 0u;
    }
    return found;
  }
};

// How pixels are read.
enum class Reading { kWhole, kShifted, kElements };

// The way for the pixels `begin` to `end` of `all`, with so many channels: whole vectors, or the two around each vector. Those may lie
// outside of the images in the first and the last pixels, which are read by elements.
__device__ __forceinline__ Reading reading_of(const Element* x, int channels, long long begin, long long end, long long all) {
  if (are_whole(x, channels)) return Reading::kWhole;
  return begin == 0 || (all - end) * channels < kVector ? Reading::kElements : Reading::kShifted;
}

// A lane's vectors of a group's pixels, `wanted(i)` each, to `put(i, vector)`, all of them on their way at once.
template <class Wanted, class Put>
__device__ __forceinline__ void take_pixels(Reading how, Wanted wanted, Put put) {
  if (how == Reading::kElements) {
    __syncwarp();
    #pragma unroll 1
    for (int i = 0; i < kPieces; ++i) put(i, wanted(i).one_by_one());
    return;
  }
  Vector first[kPieces] = {}, second[kPieces] = {};
  #pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const Neighbours want = wanted(i);
    const Vector* const whole = reinterpret_cast<const Vector*>(want.from - want.shift());
    if (want.count > 0) first[i] = whole[0];
    if (want.shift() + want.count > kVector) second[i] = whole[1];
  }
  __syncwarp();
  #pragma unroll
  for (int i = 0; i < kPieces; ++i) put(i, how == Reading::kWhole ? first[i] : wanted(i).of(first[i], second[i]));
}

// A part's channels of a warp's pixels into shared memory, from planes that are whole vectors.
__device__ __forceinline__ void take_vectors(const Images& size, const Group& group, int first, const Element* x, Vector* own) {
  const int lane = static_cast<int>(threadIdx.x) % 32, eight = lane % kPieces, channels = lane / kPieces;
  const bool reads = (group.live >> eight * kVector & 0xffu) != 0;
  Vector of[4] = {};  // eight pixels of two neighbouring channels, and of two that lie behind all lanes' first ones
  #pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int channel = first + i / 2 * (kChannels / 2) + channels * 2 + i % 2;
    if (reads && channel < size.channels) {
      of[i] = *reinterpret_cast<const Vector*>(x + group.in_plane(size, channel) + eight * kVector);
    }
  }
  __syncwarp();  // all are on their way, and what lay in shared memory is read
  #pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int place = place_of(eight * kVector, half * 2 + channels / 4);
    #pragma unroll
    for (int at = 0; at < kVector; ++at) {
      const unsigned selected = at % 2 ? 0x7632u : 0x5410u;
      own[place ^ place_of(at, 0)].of[channels % 4] = __byte_perm(of[half * 2].of[at / 2], of[half * 2 + 1].of[at / 2], selected);
    }
  }
}

// The same from any planes: a lane takes a pixel.
__device__ __forceinline__ void take_elements(const Images& size, const Group& group, int first, const Element* x, Vector* own) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Element* from = x + group.in_plane(size, first) + lane;
  const int count = group.live >> lane & 1 ? size.channels - first : 0;
  Element of[kChannels];
  #pragma unroll
  for (int i = 0; i < kChannels; ++i, from += size.plane()) of[i] = i < count ? *from : Element{0};
  __syncwarp();  // as above
  #pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    Vector found;
    #pragma unroll
    for (int i = 0; i < kVector / 2; ++i) found.of[i] = pair(of[piece * kVector + i * 2], of[piece * kVector + i * 2 + 1]);
    own[place_of(lane, piece)] = found;
  }
}

// From planes to pixels with `stored` channels. Those that are not needed get zeros, or stay as they are. The grid's x goes over groups
// of pixels, a warp each, its y over parts of the channels.
__device__ __forceinline__ void copy_planes(const Images& size, const Mask& mask, bool fills, const Element* x, Element* y, Vector* tile) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  Vector* const own = tile + warp * kPixels * kPieces;
  const bool whole = are_whole(x, size.plane());
  for (int number = blockIdx.x * kWarps + warp; number < size.groups(); number += gridDim.x * kWarps) {
    const Group group(size, mask, number);
    if (group.live == 0 && !fills) continue;
    for (int first = blockIdx.y * kChannels; first < size.stored; first += gridDim.y * kChannels) {
      if (group.live != 0) {
        if (whole) take_vectors(size, group, first, x, own);
        else take_elements(size, group, first, x, own);
        __syncwarp();
      }
      const int piece = lane % kPieces, channel = first + piece * kVector;
      #pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const int at = i * kVector + lane / kPieces;
        const bool is_live = group.live >> at & 1;
        if (at >= group.count || channel >= size.stored || !(fills || is_live)) continue;
        Vector found = {};
        if (is_live) found = own[place_of(at, piece)];
        *reinterpret_cast<Vector*>(y + group.pixel(size, size.stored, at) + channel) = found;
      }
    }
  }
}

// The same from pixels with as many channels as the images have, each by some lanes, so that few channels leave none idle.
template <int kLanes>
__device__ __forceinline__ void copy_pixels(const Images& size, const Mask& mask, bool fills, const Element* x, Element* y, Vector*) {
  constexpr int kGroups = kPieces / kLanes;  // of kPixels that a warp takes at once
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int plane = size.plane(), all = size.count * plane, tasks = (all + kPixels * kGroups - 1) / (kPixels * kGroups);
  for (int number = blockIdx.x * kWarps + warp; number < tasks; number += gridDim.x * kWarps) {
    const long long begin = static_cast<long long>(number) * kPixels * kGroups;
    unsigned live[kGroups], any = 0;
    #pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int at = static_cast<int>(min(begin + g * kPixels + lane, all - 1ll));
      const int image = at / plane, of_image = at - image * plane, row = of_image / size.columns;
      const bool is_needed = mask.needs(image, row, of_image - row * size.columns);
      live[g] = __ballot_sync(0xffffffffu, is_needed && begin + g * kPixels + lane < all);
      any |= live[g];
    }
    if (any == 0 && !fills) continue;
    for (int first = blockIdx.y * kLanes * kVector; first < size.stored; first += gridDim.y * kLanes * kVector) {
      const int channel = first + lane % kLanes * kVector;
      const auto in_group = [&](int i) { return i % kLanes * (32 / kLanes) + lane / kLanes; };
      const auto pixel = [&](int i) { return begin + i / kLanes * kPixels + in_group(i); };
      const auto is_live = [&](int i) {
        unsigned own = live[0];
        #pragma unroll
        for (int g = 1; g < kGroups; ++g) own = i / kLanes == g ? live[g] : own;
        return own >> in_group(i) & 1;
      };
      take_pixels(
          reading_of(x, size.channels, begin, begin + kPixels * kGroups, all),
          [&](int i) {
            const int count = is_live(i) ? max(0, min(kVector, size.channels - channel)) : 0;
            return Neighbours{x + pixel(i) * size.channels + channel, count};
          },
          [&](int i, const Vector& found) {
            if (channel >= size.stored || pixel(i) >= all || !(fills || is_live(i))) return;
            *reinterpret_cast<Vector*>(y + pixel(i) * size.stored + channel) = found;
          });
    }
  }
}

// From planes of at most kFew channels: a thread for each pixel, and several at once.
__device__ __forceinline__ void copy_few_planes(const Images& size, const Mask& mask, bool fills, const Element* x, Element* y, Vector*) {
  const int plane = size.plane(), all = size.count * plane, at_once = kThreads * kFewAtOnce;
  for (long long begin = static_cast<long long>(blockIdx.x) * at_once; begin < all; begin += static_cast<long long>(gridDim.x) * at_once) {
    const Element* from[kFewAtOnce];
    bool is_needed[kFewAtOnce];
    #pragma unroll
    for (int i = 0; i < kFewAtOnce; ++i) {
      const int at = static_cast<int>(min(begin + i * kThreads + static_cast<int>(threadIdx.x), all - 1ll));
      const int image = at / plane, of_image = at - image * plane, row = of_image / size.columns;
      is_needed[i] = mask.needs(image, row, of_image - row * size.columns);
      from[i] = x + static_cast<long long>(image) * size.channels * plane + of_image;
    }
    Element found[kFewAtOnce][kFew];
    #pragma unroll
    for (int i = 0; i < kFewAtOnce; ++i) {
      #pragma unroll
      for (int c = 0; c < kFew; ++c) found[i][c] = is_needed[i] && c < size.channels ? from[i][static_cast<long long>(c) * plane] : Element{0};
    }
    #pragma unroll
    for (int i = 0; i < kFewAtOnce; ++i) {
      const long long at = begin + i * kThreads + static_cast<int>(threadIdx.x);
      if (at >= all || !(is_needed[i] || fills)) continue;
      Vector pixel;
      #pragma unroll
      for (int c = 0; c < kFew; c += 2) pixel.of[c / 2] = pair(found[i][c], found[i][c + 1]);
      *reinterpret_cast<Vector*>(y + at * kVector) = pixel;
    }
  }
}

// A part's channels of a warp's pixels from shared memory to planes that are whole vectors.
__device__ __forceinline__ void give_vectors(const Images& size, const Group& group, int first, const Vector* own, Element* y) {
  const int lane = static_cast<int>(threadIdx.x) % 32, eight = lane % kPieces, channels = lane / kPieces;
  #pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int channel = first + half * (kChannels / 2) + channels * 2, place = place_of(eight * kVector, half * 2 + channels / 4);
    Vector low = {}, high = {};
    if (group.live != 0) {
      #pragma unroll
      for (int i = 0; i < kVector / 2; ++i) {
        const unsigned even = own[place ^ place_of(i * 2, 0)].of[channels % 4], odd = own[place ^ place_of(i * 2 + 1, 0)].of[channels % 4];
        low.of[i] = __byte_perm(even, odd, 0x5410);
        high.of[i] = __byte_perm(even, odd, 0x7632);
      }
    }
    if (eight * kVector >= group.count) continue;
    Element* const to = y + group.in_plane(size, channel) + eight * kVector;
    if (channel < size.channels) *reinterpret_cast<Vector*>(to) = low;
    if (channel + 1 < size.channels) *reinterpret_cast<Vector*>(to + size.plane()) = high;
  }
}

// The same to any planes: a lane gives a pixel.
__device__ __forceinline__ void give_elements(const Images& size, const Group& group, int first, const Vector* own, Element* y) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int count = lane < group.count ? size.channels - first : 0;
  Element* to = y + group.in_plane(size, first) + lane;
  #pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    Vector found = {};
    if (group.live != 0) found = own[place_of(lane, piece)];
    #pragma unroll
    for (int i = 0; i < kVector; ++i, to += size.plane()) {
      if (piece * kVector + i < count) *to = static_cast<Element>(found.of[i / 2] >> i % 2 * 16);
    }
  }
}

// From pixels of `stored` channels to planes of the first ones; pixels that are not needed get zeros.
__device__ __forceinline__ void copy_to_planes(const Images& size, const Mask& mask, bool, const Element* x, Element* y, Vector* tile) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  Vector* const own = tile + warp * kPixels * kPieces;
  const bool whole = are_whole(y, size.plane());
  for (int number = blockIdx.x * kWarps + warp; number < size.groups(); number += gridDim.x * kWarps) {
    const Group group(size, mask, number);
    for (int first = blockIdx.y * kChannels; first < size.channels; first += gridDim.y * kChannels) {
      if (group.live != 0) {
        const int piece = lane % kPieces, channel = first + piece * kVector;
        const long long before = group.pixel(size, 1, 0), all = static_cast<long long>(size.count) * size.plane();
        const auto pixel = [&](int i) { return i * kVector + lane / kPieces; };
        take_pixels(
            reading_of(x, size.stored, before, before + kPixels, all),
            [&](int i) {
              const int count = group.live >> pixel(i) & 1 ? max(0, min(kVector, size.channels - channel)) : 0;
              return Neighbours{x + group.pixel(size, size.stored, pixel(i)) + channel, count};
            },
            [&](int i, const Vector& found) { own[place_of(pixel(i), piece)] = found; });
        __syncwarp();
      }
      if (whole) give_vectors(size, group, first, own, y);
      else give_elements(size, group, first, own, y);
    }
  }
}

#define SPARSEGEN_SIZES                                                                                                          \
  int images, int rows, int columns, int channels, int stored, int mask_rows, int row_words, int out_rows, int block_rows,       \
      int first_row, int padding_rows, int stride_rows, int out_columns, int block_columns, int first_column, int padding_columns, \
      int stride_columns, int fills
#define SPARSEGEN_ENTRY(name, copy)                                                                                        \
  extern "C" __global__ void __launch_bounds__(kThreads, kResident) name(SPARSEGEN_SIZES, const Word* words, const Element* x, Element* y) { \
    SPARSEGEN_SHARED(Vector, tile, kWarps * kPixels * kPieces);                                                            \
    wait_for_kernel_before();                                                                                              \
    let_next_kernel_begin();                                                                                               \
    const Images size = {images, rows, columns, channels, stored};                                                         \
    const Mask mask = {words, mask_rows, row_words, {out_rows, block_rows, first_row, padding_rows, stride_rows},          \
                       {out_columns, block_columns, first_column, padding_columns, stride_columns}};                       \
    copy(size, mask, fills != 0, x, y, tile);                                                                              \
  }

SPARSEGEN_ENTRY(planes_to_pixels, copy_planes)
SPARSEGEN_ENTRY(few_planes_to_pixels, copy_few_planes)
SPARSEGEN_ENTRY(pixels_to_pixels_1, copy_pixels<1>)
SPARSEGEN_ENTRY(pixels_to_pixels_2, copy_pixels<2>)
SPARSEGEN_ENTRY(pixels_to_pixels_4, copy_pixels<4>)
SPARSEGEN_ENTRY(pixels_to_planes, copy_to_planes)
