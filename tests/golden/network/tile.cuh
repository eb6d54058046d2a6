template <int kTiles>
__device__ __forceinline__ void load_block(unsigned (&block)[kTiles][2], const unsigned char* from) {
  #pragma unroll
  for (int j = 0; j + 1 < kTiles; j += 2) {
    unsigned pair[4];
    load_matrices_transposed(pair, from + j * 16);
    block[j][0] = pair[0], block[j][1] = pair[1], block[j + 1][0] = pair[2], block[j + 1][1] = pair[3];
  }
  if constexpr (kTiles % 2 == 1) load_matrices_transposed(block[kTiles - 1], from + (kTiles - 1) * 16);
}

template <int kTiles>
__device__ __forceinline__ void store_neurons(unsigned char* to, const float (&sums)[kTiles][4], unsigned limit) {
  unsigned neurons[kTiles][2];
  #pragma unroll
  for (int j = 0; j < kTiles; ++j) {
    neurons[j][0] = clipped_pair(sums[j][0], sums[j][1], limit);
    neurons[j][1] = clipped_pair(sums[j][2], sums[j][3], limit);
  }
  #pragma unroll
  for (int j = 0; j + 1 < kTiles; j += 2) {
    const unsigned four[4] = {neurons[j][0], neurons[j][1], neurons[j + 1][0], neurons[j + 1][1]};
    store_matrices(to + j * 16, four);
  }
  if constexpr (kTiles % 2 == 1) store_matrices(to + (kTiles - 1) * 16, neurons[kTiles - 1]);
}

struct Neurons {
  unsigned char* first;

  __device__ __forceinline__ Neurons(unsigned char* first) : first(first) {}
  __device__ __forceinline__ unsigned char* at(int row, int chunk) const { return first + row * kPitch + chunk * 16; }
};

constexpr int kSome = 4;
template <bool kAligned, typename Put>
__device__ __forceinline__ void read_tile(const Element* inputs, int stride, int positions, int count, int chunks, int warp,
                                          int warps, Put put) {
  const int lanes = (positions + 32 * kSome - 1) / (32 * kSome);
  #pragma unroll 2
  for (int unit = warp; unit < lanes * chunks; unit += warps) {
    const int chunk = unit / lanes, neuron = (unit - chunk * lanes) * 32 * kSome + threadIdx.x % 32 * kSome;
    if (neuron >= positions) continue;
    const Element* from = inputs + static_cast<long long>(chunk * 8) * stride + neuron;
    Vector<unsigned, kSome / 2> rows[8];
    #pragma unroll
    for (int i = 0; i < 8; ++i, from += stride) {
      const int input = chunk * 8 + i;
      rows[i] = {};
      if (kAligned) {
        if (input < count && neuron < stride) rows[i] = load_vector<kSome / 2>(reinterpret_cast<const unsigned*>(from));
      } else if (input < count) {
        #pragma unroll
        for (int e = 0; e < kSome; ++e) {
          if (neuron + e < stride) rows[i].element[e / 2] |= static_cast<unsigned>(__half_as_ushort(from[e])) << 16 * (e % 2);
        }
      }
    }
    Vector<unsigned, 4> some[kSome];
    #pragma unroll
    for (int e = 0; e < kSome; ++e) {
      #pragma unroll
      for (int i = 0; i < 4; ++i) {
        const unsigned low = rows[2 * i].element[e / 2], high = rows[2 * i + 1].element[e / 2];
        some[e].element[i] = e % 2 ? low >> 16 | (high & 0xffff0000u) : (low & 0xffffu) | high << 16;
      }
    }
    put(neuron, chunk, some);
  }
}

__device__ __forceinline__ void write_neurons(const Neurons& neurons, int rows, int outputs, int chunks, int count,
                                              const int* ids, Element* result) {
  constexpr int kSome = 2;
  const int lanes = (rows + 32 * kSome - 1) / (32 * kSome);
  #pragma unroll 2
  for (int unit = threadIdx.x / 32; unit < lanes * chunks; unit += kWarps) {
    const int row = unit % lanes * 32 * kSome + threadIdx.x % 32 * kSome, chunk = unit / lanes;
    if (row >= rows) continue;
    Vector<Element, 8> neuron[kSome];
    #pragma unroll
    for (int e = 0; e < kSome; ++e) {
      neuron[e] = load_vector<8>(reinterpret_cast<const Element*>(neurons.at(row + e, chunk)));
    }
    #pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int input = chunk * 8 + i;
      Vector<Element, kSome> some;
      #pragma unroll
      for (int e = 0; e < kSome; ++e) some.element[e] = neuron[e].element[i];
      if (input < count) store_vector(result + static_cast<long long>(ids[input]) * outputs + row, some);
    }
  }
}
(2) from (1):
@@
+
+__device__ __forceinline__ unsigned long long alive_inputs(const Neurons& neurons, int rows, int chunks, int count,
+                                                           Control& control) {
+  const int lane = threadIdx.x % 32;
+  for (int unit = threadIdx.x / 32; unit < 2 * chunks; unit += kWarps) {
+    unsigned any[4] = {};
+    for (int row = lane + 32 * (unit % 2); row < rows; row += 64) {
+      const auto words = load_vector<4>(reinterpret_cast<const unsigned*>(neurons.at(row, unit / 2)));
+      #pragma unroll
+      for (int i = 0; i < 4; ++i) any[i] |= words.element[i];
+    }
+    unsigned found = 0;
+    #pragma unroll
+    for (int i = 0; i < 4; ++i) {
+      #pragma unroll
+      for (int step = 16; step > 0; step /= 2) any[i] |= __shfl_xor_sync(kAll, any[i], step);
+      found |= (any[i] & 0x7fffu ? 1u : 0u) << 2 * i | (any[i] & 0x7fff0000u ? 2u : 0u) << 2 * i;
+    }
+    if (lane == 0) control.alive[unit] = found;
+  }
+  __syncthreads();
+  unsigned long long alive = 0;
+  for (int unit = 0; unit < 2 * chunks; ++unit) {
+    alive |= static_cast<unsigned long long>(control.alive[unit]) << unit / 2 * 8;
+  }
+  __syncthreads();
+  return count < 64 ? alive & (1ull << count) - 1 : alive;
+}
@@
-22 9d54bc
+// network/totals.cuh.j2
+
+template <class Put>
+__device__ __forceinline__ void add_up(const Neurons& neurons, int rows, int chunks, const Put& put) {
+  const auto eight = [&](int row, int chunk) { return load_vector<8>(reinterpret_cast<const Element*>(neurons.at(row, chunk))); };
+  add_up(rows, chunks, eight, put);
