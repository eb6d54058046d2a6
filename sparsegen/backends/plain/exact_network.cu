// Float64 neurons of some inputs through layers of a sparse network in one launch, until it is known of each input whether
// it lives. All blocks share each layer and wait for one another behind it. Rows that share their columns are groups of up
// to kGroup (sparsegen/networks/row_groups.py); a warp computes kRows of them for 32 inputs, each row's sum in the order of
// its weights. Neurons stand as chunks of 32 inputs × neurons × 32.

#if !defined(SPARSEGEN_EMULATOR)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define SPARSEGEN_SHARED(type, name, count) __shared__ __align__(16) type name[count]
#endif
#define SPARSEGEN_GRID_TOGETHER

constexpr int kWarp = 32;
constexpr int kThreads = 384;
constexpr int kWarps = kThreads / kWarp;
constexpr int kGroup = 16;
constexpr int kRows = 8;
constexpr int kParts = kGroup / kRows;
constexpr int kColumns = 32;  // whose weights a warp has in shared memory
constexpr int kMostChunks = 32;
constexpr unsigned kAll = 0xffffffffu;
static_assert(kGroup % kRows == 0 && kRows % 2 == 0 && kColumns == kWarp && kRows * kColumns % kWarp == 0);
static_assert(kMostChunks <= kWarp, "a lane for each chunk");

struct Group {
  int first_column, columns, first_value, rows;
};

struct alignas(16) Two {
  double first, second;
};

// Words of inputs: whether one has a neuron too small to live for certain, and one too large to die. Those of
// the layer that is computed, of the one before and of the next one take turns.
struct Open {
  int* words;
  int capacity;

  __device__ int* too_small(int layer) const { return words + layer % 3 * 2 * capacity; }
  __device__ int* too_large(int layer) const { return too_small(layer) + capacity; }
};

// Waits for all threads of the grid. The top bit of the counter, whose other bits are zero between kernels, turns when the
// last block has come.
__device__ void wait_for_grid(unsigned* counter) {
#if defined(SPARSEGEN_EMULATOR)
  sparsegen::emulator::cluster_sync();
#else
  constexpr unsigned kTop = 0x80000000u;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    const unsigned before = atomicAdd(counter, blockIdx.x == 0 ? kTop - (gridDim.x - 1) : 1u);
    while (((*reinterpret_cast<volatile unsigned*>(counter) ^ before) & kTop) == 0) {
    }
    __threadfence();
  }
  __syncthreads();
#endif
}

// Element i of inputs of a type: float32, float16, bfloat16.
__device__ double element(const unsigned char* y, long long i, int type) {
  if (type == 1) return __half2float(reinterpret_cast<const __half*>(y)[i]);
  if (type == 2) return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(y)[i]);
  return reinterpret_cast<const float*>(y)[i];
}

// The inputs of these numbers, as neurons before the first layer.
__device__ void read_inputs(int count, int width, int given, int stride, int type, const int* numbers, const unsigned char* y,
                            double* neurons) {
  constexpr int kSome = 8;  // neurons of an input that a lane reads
  const int lane = threadIdx.x % kWarp, warps = static_cast<int>(gridDim.x) * kWarps;
  const int chunks = (count + kWarp - 1) / kWarp, parts = (given + kSome - 1) / kSome;
  for (int task = threadIdx.x / kWarp * gridDim.x + blockIdx.x; task < chunks * parts; task += warps) {
    const int chunk = task / parts, first = task % parts * kSome, input = chunk * kWarp + lane;
    const long long from = input < count ? static_cast<long long>(numbers[input]) * stride : 0;
    double some[kSome];
    #pragma unroll
    for (int i = 0; i < kSome; ++i) {
      some[i] = input < count && first + i < given ? element(y, from + first + i, type) : 0.0;
    }
    double* const to = neurons + (static_cast<long long>(chunk) * width + first) * kWarp + lane;
    #pragma unroll
    for (int i = 0; i < kSome; ++i) {
      if (first + i < given) to[i * kWarp] = some[i];
    }
  }
}

// Layers as groups, see sparsegen/networks/row_groups.py.
struct Layers {
  const Group* groups;
  const int* rows;
  const float* biases;
  const int* columns;
  const float* values;
};

// What a warp has at hand of a part of a group: up to kColumns columns, a lane each, and their weights in shared memory; of
// row lane % kRows the number and the bias.
struct Staged {
  Group group;
  int number = -1, part, first, column, row;
  float bias;
  double* weights;

  __device__ void stage(const Layers& layers, int wanted, int wanted_part, int wanted_first) {
    if (wanted == number && wanted_part == part && wanted_first == first) return;
    const int lane = threadIdx.x % kWarp;
    if (wanted != number) group = layers.groups[wanted];
    number = wanted, part = wanted_part, first = wanted_first;
    const int left = min(kColumns, group.columns - first), at = number * kGroup + part * kRows + lane % kRows;
    const float* const own = layers.values + group.first_value + static_cast<long long>(first) * group.rows;
    column = lane < left ? layers.columns[group.first_column + first + lane] : 0;
    row = layers.rows[at], bias = layers.biases[at];
    __syncwarp();  // all lanes are through with what was there
    #pragma unroll
    for (int i = 0; i < kColumns * kRows / kWarp; ++i) {
      const int place = i * kWarp + lane, c = place / kRows, r = part * kRows + place % kRows;
      weights[place] = c < left && r < group.rows ? own[c * group.rows + r] : 0.0f;
    }
    __syncwarp();
  }

  // The part's sums for a lane's input.
  __device__ void compute(const Layers& layers, const double* from, double (&sums)[kRows]) {
    #pragma unroll
    for (int r = 0; r < kRows; ++r) sums[r] = 0;
    for (int begin = 0; begin < group.columns; begin += kColumns) {
      stage(layers, number, part, begin);
      double neuron[kColumns];
      #pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        // Behind the last column it is the first neuron, times zero.
        neuron[c] = __ldcg(from + static_cast<long long>(__shfl_sync(kAll, column, c)) * kWarp);
      }
      #pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        #pragma unroll
        for (int r = 0; r < kRows; r += 2) {
          const Two two = *reinterpret_cast<const Two*>(weights + c * kRows + r);
          sums[r] += two.first * neuron[c], sums[r + 1] += two.second * neuron[c];
        }
      }
    }
  }
};

// Layers first to first + layers for inputs begin and after of the undecided ones, as many as there are, at most
// `capacity`. Where an input lives its bit of `lives` is set.
//
// is_last: the network ends with these layers. width: neurons of the widest layer. given: neurons of an input, of which
// rows have `stride`. groups_before: of each layer the groups before it, and of all. levels: of each layer two numbers: an
// input whose neurons behind it are all at least the first lives, one whose are all at most the second dies. decided: of
// each input behind which layer that was known, counted from 1. counts: how many are undecided comes second; how many of
// these remain so behind the layers becomes the third.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
exact_network(int first, int layers, int is_last, int width, int given, int stride, int type, int begin, int capacity,
              int* counts, const int* undecided, const unsigned char* y, const int* groups_before, const int* groups,
              const int* rows, const float* biases, const int* columns, const float* values, const double* levels,
              const double* clip, double* neurons, int* open_words, int* decided, unsigned* lives, unsigned* counter) {
  SPARSEGEN_SHARED(double, weights, kWarps * kColumns * kRows);
  SPARSEGEN_SHARED(unsigned, open_of, kMostChunks);
  SPARSEGEN_SHARED(int, chunk_list, kMostChunks + 1);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int count = min(capacity, max(0, counts[1] - begin));
  const Open open = {open_words, capacity};
  const double limit = *clip;
  const long long buffer = static_cast<long long>(capacity) * width;  // one is read while the other is written
  const int* const numbers = undecided + begin;
  const Layers net = {reinterpret_cast<const Group*>(groups), rows, biases, columns, values};
  Staged staged;
  staged.weights = weights + warp * kColumns * kRows;
  // Parts of groups are dealt to warps; where there are fewer, teams of warps share the chunks of inputs.
  const int own = warp * gridDim.x + blockIdx.x, all = gridDim.x * kWarps;
  const auto parts_of = [&](int layer) { return (groups_before[layer - first + 1] - groups_before[layer - first]) * kParts; };
  // What is known behind a layer: puts chunks with undecided inputs into chunk_list, their number first.
  const auto look = [&](int layer, bool is_end) {
    for (int chunk = warp; chunk < kMostChunks; chunk += kWarps) {
      const int input = chunk * kWarp + lane;
      bool is_open = false;
      if (input < count) {
        const bool small = __ldcg(open.too_small(layer) + input), large = __ldcg(open.too_large(layer) + input);
        is_open = small && large && !is_end;
        // Of a chunk that was not computed any more both are false, and all is told.
        if (blockIdx.x == 0 && !is_open && decided[input] == 0) {
          decided[input] = layer + 1;
          if (is_end ? large : !small) atomicOr(lives + numbers[input] / 32, 1u << numbers[input] % 32);
        }
      }
      const unsigned found = __ballot_sync(kAll, is_open);
      if (lane == 0) open_of[chunk] = found;
    }
    __syncthreads();
    if (warp == 0) {
      const unsigned found = __ballot_sync(kAll, open_of[lane] != 0);
      if (found >> lane & 1) chunk_list[1 + __popc(found & (1u << lane) - 1)] = lane;
      if (lane == 0) chunk_list[0] = __popc(found);
    }
    __syncthreads();
  };

  if (first == 0 && count > 0) {
    read_inputs(count, width, given, stride, type, numbers, y, neurons);
    for (int i = blockIdx.x * kThreads + threadIdx.x; i < capacity; i += gridDim.x * kThreads) {
      open.too_small(0)[i] = open.too_large(0)[i] = 0;
      decided[i] = 0;
    }
    wait_for_grid(counter);
  }
  int layer = first;
  for (; count > 0 && layer < first + layers; ++layer) {
    if (layer == 0) {
      if (threadIdx.x < kMostChunks) chunk_list[1 + threadIdx.x] = threadIdx.x;
      if (threadIdx.x == 0) chunk_list[0] = (count + kWarp - 1) / kWarp;
      __syncthreads();
    } else {
      look(layer - 1, false);
    }
    const int chunks = chunk_list[0];
    if (chunks == 0) break;
    for (int i = blockIdx.x * kThreads + threadIdx.x; i < capacity; i += gridDim.x * kThreads) {
      open.too_small(layer + 1)[i] = open.too_large(layer + 1)[i] = 0;
    }
    const double enough = levels[2 * layer], little = levels[2 * layer + 1];
    const int before = groups_before[layer - first], parts = parts_of(layer);
    const int teams = max(1, all / max(1, parts));
    for (int part = teams > 1 ? own % parts : own; part < parts && own < parts * teams; part += all) {
      staged.stage(net, before + part / kParts, part % kParts, 0);
      const int left = staged.group.rows - staged.part * kRows;  // rows
      if (left <= 0) continue;
      for (int i = teams > 1 ? own / parts : 0; i < chunks; i += teams) {
        const int chunk = chunk_list[1 + i];
        const long long of_chunk = static_cast<long long>(chunk) * width * kWarp + lane;
        double sums[kRows];
        staged.compute(net, neurons + layer % 2 * buffer + of_chunk, sums);
        double* const to = neurons + (layer + 1) % 2 * buffer + of_chunk;
        bool small = false, large = false;
        #pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const int row = __shfl_sync(kAll, staged.row, r);
          const double bias = __shfl_sync(kAll, staged.bias, r);
          const double neuron = fmin(fmax(sums[r] + bias, 0.0), limit);
          if (r < left) {
            to[static_cast<long long>(row) * kWarp] = neuron;
            small |= neuron < enough, large |= neuron > little;
          }
        }
        if (small) open.too_small(layer)[chunk * kWarp + lane] = 1;
        if (large) open.too_large(layer)[chunk * kWarp + lane] = 1;
      }
    }
    if (layer + 1 < first + layers) {  // what needs no neurons, while others end
      const int following = parts_of(layer + 1), part = following < all ? own % max(1, following) : own;
      if (part < following) staged.stage(net, groups_before[layer + 1 - first] + part / kParts, part % kParts, 0);
    }
    wait_for_grid(counter);
  }
  if (count > 0 && layer == first + layers) look(layer - 1, is_last);
  if (blockIdx.x == 0 && warp == 0) {
    const unsigned found = count > 0 ? open_of[lane] : 0;
    int remaining = __popc(found);
    #pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2) remaining += __shfl_xor_sync(kAll, remaining, step);
    if (lane == 0) counts[2] = remaining;
  }
}
