// Which inputs of a sparse network go on, decided on the device: lists whose lengths stay there, and rows by such lists.

#if !defined(SPARSEGEN_EMULATOR)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

constexpr int kWarp = 32;
constexpr int kPart = 1024;  // elements of a row that a warp copies
constexpr unsigned kAll = 0xffffffffu;

__device__ long long thread_number() { return static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; }

// Sets words to zero.
extern "C" __global__ void clear_words(int count, int* words) {
  if (thread_number() < count) words[thread_number()] = 0;
}

// The numbers of inputs with a total that is not zero, in any order; how many is added to the first of counts.
extern "C" __global__ void list_nonzero(int count, const float* totals, int* counts, int* numbers) {
  const long long input = thread_number();
  const int lane = threadIdx.x % kWarp;
  const bool is_selected = input < count && totals[input] != 0;
  const unsigned selected = __ballot_sync(kAll, is_selected);
  int begin = 0;
  if (lane == 0 && selected) begin = atomicAdd(counts, __popc(selected));
  begin = __shfl_sync(kAll, begin, 0);
  if (is_selected) numbers[begin + __popc(selected & (1u << lane) - 1)] = static_cast<int>(input);
}

struct alignas(16) Sixteen {
  unsigned word[4];
};

// Row i of `to`, of `length` words, becomes row numbers[i] of `from`, and zeros from the first of counts on.
template <class Word>
__device__ void gather(int capacity, int length, const int* counts, const int* numbers, const Word* from, Word* to) {
  const int parts = (length + kPart - 1) / kPart, lane = threadIdx.x % kWarp;
  const long long row = thread_number() / kWarp / parts;
  if (row >= capacity) return;
  const bool is_there = row < counts[0];
  const long long of = is_there ? numbers[row] : 0;
  const int begin = static_cast<int>(thread_number() / kWarp % parts) * kPart;
  #pragma unroll 4
  for (int i = begin + lane; i < begin + kPart && i < length; i += kWarp) {
    to[row * length + i] = is_there ? from[of * length + i] : Word{};
  }
}

extern "C" __global__ void gather_2(int capacity, int length, const int* counts, const int* numbers,
                                    const unsigned short* from, unsigned short* to) {
  gather(capacity, length, counts, numbers, from, to);
}

extern "C" __global__ void gather_4(int capacity, int length, const int* counts, const int* numbers, const unsigned* from,
                                    unsigned* to) {
  gather(capacity, length, counts, numbers, from, to);
}

extern "C" __global__ void gather_16(int capacity, int length, const int* counts, const int* numbers, const int* from,
                                     int* to) {
  gather(capacity, length, counts, numbers, reinterpret_cast<const Sixteen*>(from), reinterpret_cast<Sixteen*>(to));
}

__device__ float element(const unsigned char* neurons, long long i, int type) {
  if (type == 1) return __half2float(reinterpret_cast<const __half*>(neurons)[i]);
  if (type == 2) return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(neurons)[i]);
  return reinterpret_cast<const float*>(neurons)[i];
}

// Of the selected inputs, whose neurons by a network below this one are the rows: those that live for certain get their
// bit of `lives`, the numbers of the others are listed, and counted in the second of counts. An input lives if all its
// neurons are at least level[0], or where the network has ended if any is above zero. A warp takes a row.
extern "C" __global__ void decide(int capacity, int width, int type, int has_ended, const double* level, int* counts,
                                  const int* numbers, const unsigned char* neurons, int* undecided, unsigned* lives) {
  const long long row = thread_number() / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (row >= min(capacity, counts[0])) return;
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
