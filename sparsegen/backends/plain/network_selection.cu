// Which inputs of a sparse network go on, decided on the device: lists whose lengths stay there, and rows by such lists.

#if !defined(SPARSEGEN_EMULATOR)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define SPARSEGEN_SHARED(type, name, count) __shared__ __align__(16) type name[count]
#endif

constexpr int kWarp = 32;
constexpr int kThreads = 256;  // of a block
constexpr unsigned kAll = 0xffffffffu;

__device__ long long thread_number() { return static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; }

// Sets words to zero.
extern "C" __global__ void clear_words(int count, int* words) {
  if (thread_number() < count) words[thread_number()] = 0;
}

struct alignas(16) Sixteen {
  unsigned word[4];
};

// The numbers of inputs with a total that is not zero, in any order; how many is added to the first of counts. As far as
// there is room, rows of `length` words are copied to those of `to` in the same order, by the block that found them.
template <class Word>
__device__ void take_living(int count, int capacity, int length, const float* totals, int* counts, int* numbers,
                            const Word* from, Word* to) {
  SPARSEGEN_SHARED(int, found, kThreads);
  SPARSEGEN_SHARED(int, found_by, kThreads / kWarp);
  SPARSEGEN_SHARED(int, first, 1);
  const long long input = thread_number();
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const bool is_found = input < count && totals[input] != 0;
  const unsigned lanes = __ballot_sync(kAll, is_found);
  if (lane == 0) found_by[warp] = __popc(lanes);
  __syncthreads();
  int before = 0, all = 0;
  for (int i = 0; i < kThreads / kWarp; ++i) {
    before += i < warp ? found_by[i] : 0;
    all += found_by[i];
  }
  if (threadIdx.x == 0 && all > 0) first[0] = atomicAdd(counts, all);
  const int place = before + __popc(lanes & (1u << lane) - 1);
  if (is_found) found[place] = static_cast<int>(input);
  __syncthreads();
  if (all == 0) return;
  const int begin = first[0];
  if (is_found) numbers[begin + place] = static_cast<int>(input);
  for (int row = warp; row < all && begin + row < capacity; row += kThreads / kWarp) {
    const Word* const own = from + static_cast<long long>(found[row]) * length;
    Word* const there = to + static_cast<long long>(begin + row) * length;
    #pragma unroll 4
    for (int i = lane; i < length; i += kWarp) there[i] = own[i];
  }
}

extern "C" __global__ void take_living_2(int count, int capacity, int length, const float* totals, int* counts, int* numbers,
                                         const unsigned short* from, unsigned short* to) {
  take_living(count, capacity, length, totals, counts, numbers, from, to);
}

extern "C" __global__ void take_living_4(int count, int capacity, int length, const float* totals, int* counts, int* numbers,
                                         const unsigned* from, unsigned* to) {
  take_living(count, capacity, length, totals, counts, numbers, from, to);
}

extern "C" __global__ void take_living_16(int count, int capacity, int length, const float* totals, int* counts,
                                          int* numbers, const int* from, int* to) {
  take_living(count, capacity, length, totals, counts, numbers, reinterpret_cast<const Sixteen*>(from),
              reinterpret_cast<Sixteen*>(to));
}

__device__ float element(const unsigned char* neurons, long long i, int type) {
  if (type == 1) return __half2float(reinterpret_cast<const __half*>(neurons)[i]);
  if (type == 2) return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(neurons)[i]);
  return reinterpret_cast<const float*>(neurons)[i];
}

// Of the selected inputs, whose neurons by a network below this one are the rows: those that live for certain get their
// bit of `lives`, the numbers of the others are listed, and counted in the second of counts. An input lives if all its
// neurons are at least level[0], or where the network has ended if any is above zero. A warp takes a row, and the row that
// the input was copied to, of so many bytes, becomes zero for the next one.
extern "C" __global__ void decide(int capacity, int width, int type, int has_ended, int row_bytes, const double* level,
                                  int* counts, const int* numbers, const unsigned char* neurons, unsigned char* copied,
                                  int* undecided, unsigned* lives) {
  const long long row = thread_number() / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (row >= min(capacity, counts[0])) return;
  unsigned char* const own = copied + row * row_bytes;
  if (row_bytes % 16 == 0) {
    for (int i = lane; i < row_bytes / 16; i += kWarp) reinterpret_cast<Sixteen*>(own)[i] = {};
  } else {
    for (int i = lane; i < row_bytes; i += kWarp) own[i] = 0;
  }
  float least = INFINITY, most = 0;
  #pragma unroll 8
  for (int i = lane; i < width; i += kWarp) {
    const float neuron = element(neurons, row * width + i, type);
    least = fminf(least, neuron), most = fmaxf(most, neuron);
  }
  const bool is_short = has_ended ? !(most > 0) : !(least >= *level);
  const unsigned is_live = has_ended ? ~__ballot_sync(kAll, is_short) : __ballot_sync(kAll, is_short) == 0;
  if (lane) return;
  const int number = numbers[row];
  if (is_live) {
    atomicOr(lives + number / 32, 1u << number % 32);
  } else {
    undecided[atomicAdd(counts + 1, 1)] = number;
  }
}
