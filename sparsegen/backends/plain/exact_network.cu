// Float64 neurons of some inputs through layers of a sparse network in one launch, until it is known of each input whether
// it lives. All blocks share each layer and wait for one another behind it. Rows that share their columns are groups of up
// to kRows (sparsegen/networks/exact/row_groups.py), which a warp computes for a chunk of 32 inputs, or of two for each lane: a
// weight is read once for both. Each row's sum has the order of its weights. Neurons stand chunk by chunk, neurons × inputs.

#if !defined(SPARSEGEN_EMULATOR)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define SPARSEGEN_SHARED(type, name, count) __shared__ __align__(16) type name[count]
#endif
#include "grid.cuh"

constexpr int kWarp = 32;
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kRows = 16;
constexpr int kColumns = 32;  // whose weights a warp has in shared memory
constexpr int kMostWords = 32;  // of 32 inputs
constexpr unsigned kAll = 0xffffffffu;
static_assert(kWarp % kRows == 0 && kRows % 2 == 0 && kColumns == kWarp);
static_assert(kMostWords <= kWarp, "a lane for each word");

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

// Element i of inputs of a type: float32, float16, bfloat16.
__device__ double element(const unsigned char* y, long long i, int type) {
  if (type == 1) return __half2float(reinterpret_cast<const __half*>(y)[i]);
  if (type == 2) return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(y)[i]);
  return reinterpret_cast<const float*>(y)[i];
}

// Neurons of a lane's inputs, past the L1, which does not know what other multiprocessors wrote.
template <int kPerLane>
__device__ void load_inputs(double (&to)[kPerLane], const double* from) {
#if defined(SPARSEGEN_EMULATOR)
  for (int i = 0; i < kPerLane; ++i) to[i] = from[i];
#else
  if constexpr (kPerLane == 2) {
    const double2 two = __ldcg(reinterpret_cast<const double2*>(from));
    to[0] = two.x, to[1] = two.y;
  } else {
    to[0] = __ldcg(from);
  }
#endif
}

// The inputs of these numbers, as neurons before the first layer.
template <int kPerLane>
__device__ void read_inputs(int count, int width, int given, int stride, int type, const int* numbers, const unsigned char* y,
                            double* neurons) {
  constexpr int kSome = 8;  // neurons of an input that a lane reads
  const int lane = threadIdx.x % kWarp, warps = static_cast<int>(gridDim.x) * kWarps;
  constexpr int kChunk = kWarp * kPerLane;
  const int words = (count + kChunk - 1) / kChunk * kPerLane, parts = (given + kSome - 1) / kSome;
  for (int task = threadIdx.x / kWarp * gridDim.x + blockIdx.x; task < words * parts; task += warps) {
    const int first = task % parts * kSome, input = task / parts * kWarp + lane;
    const long long from = input < count ? static_cast<long long>(numbers[input]) * stride : 0;
    double some[kSome];
    #pragma unroll
    for (int i = 0; i < kSome; ++i) {
      some[i] = input < count && first + i < given ? element(y, from + first + i, type) : 0.0;
    }
    double* const to = neurons + (static_cast<long long>(input / kChunk) * width + first) * kChunk + input % kChunk;
    #pragma unroll
    for (int i = 0; i < kSome; ++i) {
      if (first + i < given) to[i * kChunk] = some[i];
    }
  }
}

// Layers as groups, see sparsegen/networks/exact/row_groups.py.
struct Layers {
  const Group* groups;
  const int* rows;
  const float* biases;
  const int* columns;
  const float* values;
};

// Some columns of a group, a lane each, and their weights, of which lane l has those at l, l + 32 and so on, column by column;
// of row l % kRows the number and the bias.
struct Part {
  static constexpr int kValues = kColumns * kRows / kWarp;

  Group group;
  int column, row;
  float bias, values[kValues];

  __device__ void load(const Layers& layers, int number, int first) {
    const int lane = threadIdx.x % kWarp, left = min(kColumns, group.columns - first);
    const float* const own = layers.values + group.first_value + static_cast<long long>(first) * group.rows;
    column = lane < left ? layers.columns[group.first_column + first + lane] : 0;
    row = layers.rows[number * kRows + lane % kRows], bias = layers.biases[number * kRows + lane % kRows];
    #pragma unroll
    for (int i = 0; i < kValues; ++i) {
      const int place = i * kWarp + lane, c = place / kRows, r = place % kRows;
      values[i] = c < left && r < group.rows ? own[c * group.rows + r] : 0.0f;
    }
  }
};

// What a warp computes with: the weights are in shared memory.
struct Staged {
  Group group;
  int number, column, row;
  float bias;
  double* weights;

  __device__ void take(const Part& part) {
    const int lane = threadIdx.x % kWarp;
    group = part.group, column = part.column, row = part.row, bias = part.bias;
    __syncwarp();  // all lanes are through with what was there
    #pragma unroll
    for (int i = 0; i < Part::kValues; ++i) weights[i * kWarp + lane] = part.values[i];
    __syncwarp();
  }

  // The sums of the group's rows for a lane's inputs.
  template <int kPerLane>
  __device__ void compute(const Layers& layers, const double* from, double (&sums)[kRows][kPerLane]) {
    constexpr int kBatch = kColumns / kPerLane;  // columns whose neurons are on their way at a time
    #pragma unroll
    for (int r = 0; r < kRows; ++r) {
      #pragma unroll
      for (int j = 0; j < kPerLane; ++j) sums[r][j] = 0;
    }
    for (int begin = 0; begin < group.columns; begin += kColumns) {
      if (group.columns > kColumns) {  // not all of them were staged
        Part part;
        part.group = group;
        part.load(layers, number, begin);
        take(part);
      }
      #pragma unroll 1
      for (int batch = 0; batch < kColumns; batch += kBatch) {
        double neuron[kBatch][kPerLane];
        #pragma unroll
        for (int c = 0; c < kBatch; ++c) {
          // Behind the last column it is the first neuron, times zero.
          load_inputs(neuron[c], from + static_cast<long long>(__shfl_sync(kAll, column, batch + c)) * (kWarp * kPerLane));
        }
        #pragma unroll
        for (int c = 0; c < kBatch; ++c) {
          #pragma unroll
          for (int r = 0; r < kRows; r += 2) {
            const Two two = *reinterpret_cast<const Two*>(weights + (batch + c) * kRows + r);
            #pragma unroll
            for (int j = 0; j < kPerLane; ++j) {
              sums[r][j] += two.first * neuron[c][j], sums[r + 1][j] += two.second * neuron[c][j];
            }
          }
        }
      }
    }
  }
};

// The groups that a warp computes, layer by layer: assigned to warps, or where there are fewer than half of these, to teams of
// warps, which share the chunks of inputs.
struct Walk {
  const int* groups_before;
  int begin, end;  // layers
  int own, all;    // the warp, and how many there are
  int layer, group;
  int before, groups, teams, team;  // of the layer

  __device__ int number() const { return before + group; }
  __device__ bool has_ended() const { return layer >= end; }

  __device__ void enter(int wanted) {
    for (layer = wanted; layer < end; ++layer) {
      before = groups_before[layer - begin];
      groups = groups_before[layer - begin + 1] - before;
      teams = max(1, all / max(1, groups));
      team = teams > 1 && groups > 0 ? own / groups : 0;  // a layer without neurons has none
      group = own - team * groups;
      if (group < groups) break;
    }
  }

  __device__ void advance() {
    group += all;
    if (group >= groups) enter(layer + 1);
  }
};

// Layers first to first + layers for inputs begin and after of the undecided ones, as many as there are, at most
// `capacity`. Where an input lives its bit of `lives` is set.
//
// is_last: the network ends with these layers. width: neurons of the widest layer. given: neurons of an input, of which
// rows have `stride`. groups_before: of each layer the groups before it, and of all. levels: of each layer two numbers: an
// input whose neurons behind it are all at least the first lives, one whose are all at most the second dies. decided: of
// each input behind which layer that was known, counted from 1. counts: how many are undecided comes second; how many of
// these remain so behind the layers becomes the third; the fourth counts what blocks wait.
template <int kPerLane>
__device__ __forceinline__ void infer(int first, int layers, int is_last, int width, int given, int stride, int type,
                                      int begin, int capacity, int* counts, const int* undecided, const unsigned char* y,
                                      const int* groups_before, const int* groups, const int* rows, const float* biases,
                                      const int* columns, const float* values, const double* levels, const double* clip,
                                      double* neurons, int* open_words, int* decided, unsigned* lives) {
  constexpr int kChunk = kWarp * kPerLane, kMostChunks = kMostWords / kPerLane;
  SPARSEGEN_SHARED(double, weights, kWarps * kColumns * kRows);
  SPARSEGEN_SHARED(unsigned, open_of, kMostWords);
  SPARSEGEN_SHARED(int, chunk_list, kMostChunks + 1);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int count = min(capacity, max(0, counts[1] - begin));
  const Open open = {open_words, capacity};
  Grid grid(reinterpret_cast<unsigned*>(counts + 3));
  const double limit = *clip;
  const long long buffer = static_cast<long long>(capacity) * width;  // one is read while the other is written
  const int* const numbers = undecided + begin;
  const Layers net = {reinterpret_cast<const Group*>(groups), rows, biases, columns, values};
  Staged staged;
  staged.weights = weights + warp * kColumns * kRows;
  // What a warp computes next is on its way while it computes, and of what follows where that is.
  const auto group_of = [&](const Walk& walk) { return walk.has_ended() ? Group{} : net.groups[walk.number()]; };
  Walk now = {groups_before, first, first + layers, warp * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x),
              static_cast<int>(gridDim.x) * kWarps, 0, 0, 0, 0, 1, 0};
  now.enter(first);
  Walk next = now;
  Part part;
  Group following;
  const auto fetch = [&](const Walk& walk) {
    part.group = following;
    if (!walk.has_ended()) part.load(net, walk.number(), 0);
  };
  if (count > 0) {
    following = group_of(next);
    fetch(next);
    next.advance();
    following = group_of(next);
  }
  // What is known behind a layer: puts chunks with undecided inputs into chunk_list, their number first.
  unsigned told = 0;  // of the lane's inputs a bit each: what is known of them was told
  const auto look = [&](int layer, bool is_end) {
    for (int word = warp; word < kMostWords; word += kWarps) {
      const int input = word * kWarp + lane;
      const unsigned bit = 1u << word / kWarps;
      bool is_open = false;
      if (input < count) {
        const bool small = __ldcg(open.too_small(layer) + input), large = __ldcg(open.too_large(layer) + input);
        is_open = small && large && !is_end;
        // Of a chunk that was not computed any more both are false, and all is told.
        if (blockIdx.x == 0 && !is_open && !(told & bit)) {
          told |= bit;
          decided[input] = layer + 1;
          if (is_end ? large : !small) atomicOr(lives + numbers[input] / 32, 1u << numbers[input] % 32);
        }
      }
      const unsigned found = __ballot_sync(kAll, is_open);
      if (lane == 0) open_of[word] = found;
    }
    __syncthreads();
    if (warp == 0) {
      bool is_open = false;
      for (int i = 0; i < kPerLane; ++i) is_open |= lane < kMostChunks && open_of[lane * kPerLane + i] != 0;
      const unsigned found = __ballot_sync(kAll, is_open);
      if (found >> lane & 1) chunk_list[1 + __popc(found & (1u << lane) - 1)] = lane;
      if (lane == 0) chunk_list[0] = __popc(found);
    }
    __syncthreads();
  };

  if (first == 0 && count > 0) {
    read_inputs<kPerLane>(count, width, given, stride, type, numbers, y, neurons);
    for (int i = blockIdx.x * kThreads + threadIdx.x; i < capacity; i += gridDim.x * kThreads) {
      open.too_small(0)[i] = open.too_large(0)[i] = 0;
      decided[i] = 0;
    }
    grid.wait();
  } else {
    for (int i = warp; i < kMostWords; i += kWarps) {
      if (i * kWarp + lane < count && decided[i * kWarp + lane] != 0) told |= 1u << i / kWarps;
    }
  }
  int layer = first;
  for (; count > 0 && layer < first + layers; ++layer) {
    if (layer == 0) {
      if (threadIdx.x < kMostChunks) chunk_list[1 + threadIdx.x] = threadIdx.x;
      if (threadIdx.x == 0) chunk_list[0] = (count + kChunk - 1) / kChunk;
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
    for (; now.layer == layer; now = next, next.advance(), following = group_of(next)) {
      staged.take(part);
      staged.number = now.number();
      fetch(next);
      for (int i = now.team; now.team < now.teams && i < chunks; i += now.teams) {
        const int chunk = chunk_list[1 + i];
        const long long of_chunk = static_cast<long long>(chunk) * width * kChunk + lane * kPerLane;
        double sums[kRows][kPerLane];
        staged.compute<kPerLane>(net, neurons + layer % 2 * buffer + of_chunk, sums);
        double* const to = neurons + (layer + 1) % 2 * buffer + of_chunk;
        bool small[kPerLane] = {}, large[kPerLane] = {};
        #pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const int row = __shfl_sync(kAll, staged.row, r);
          const double bias = __shfl_sync(kAll, staged.bias, r);
          #pragma unroll
          for (int j = 0; j < kPerLane; ++j) {
            const double neuron = fmin(fmax(sums[r][j] + bias, 0.0), limit);
            if (r < staged.group.rows) {
              to[static_cast<long long>(row) * kChunk + j] = neuron;
              small[j] |= neuron < enough, large[j] |= neuron > little;
            }
          }
        }
        #pragma unroll
        for (int j = 0; j < kPerLane; ++j) {
          if (small[j]) open.too_small(layer)[chunk * kChunk + lane * kPerLane + j] = 1;
          if (large[j]) open.too_large(layer)[chunk * kChunk + lane * kPerLane + j] = 1;
        }
      }
    }
    grid.wait();
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

#define SPARSEGEN_EXACT_NETWORK(name, per_lane)                                                                             \
  extern "C" __global__ void __launch_bounds__(kThreads, 1)                                                                 \
  name(int first, int layers, int is_last, int width, int given, int stride, int type, int begin, int capacity,             \
       int* counts, const int* undecided, const unsigned char* y, const int* groups_before, const int* groups,              \
       const int* rows, const float* biases, const int* columns, const float* values, const double* levels,                 \
       const double* clip, double* neurons, int* open_words, int* decided, unsigned* lives) {                               \
    infer<per_lane>(first, layers, is_last, width, given, stride, type, begin, capacity, counts, undecided, y,              \
                    groups_before, groups, rows, biases, columns, values, levels, clip, neurons, open_words, decided, lives);\
  }

SPARSEGEN_EXACT_NETWORK(exact_network_1, 1)
SPARSEGEN_EXACT_NETWORK(exact_network_2, 2)
