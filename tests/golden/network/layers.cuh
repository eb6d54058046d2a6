struct Run {
  unsigned weights[kRun][2][4];
  float bias[kBiases];
  unsigned place[kRun];
};

struct Cursor {
  const Element* values;
  const unsigned* places;

  __device__ __forceinline__ Cursor(const Network& net, int group)
      : values(net.values + static_cast<long long>(group) * kPair), places(net.places + static_cast<long long>(group) * 16) {}

  __device__ __forceinline__ void advance() { values += kPassGroups * kPair, places += kPassGroups * 16; }
};

__device__ __forceinline__ void load_weights(Run& run, int i, const Cursor& at, unsigned lane) {
  load_fragment(run.weights[i][0], at.values + i * kPair, lane);
  load_fragment(run.weights[i][1], at.values + i * kPair + kTile, lane);
}

template <int kTiles, int kKind, bool kLast>
__device__ __forceinline__ void run_part(const unsigned char* from, const Rows& rows, Run& run, const Cursor& next) {
  const unsigned lane = threadIdx.x % 32;
  const unsigned* const places = next.places - kPassGroups * 16;
  unsigned left[kTiles][2], right[kTiles][2];
  from += lane % 16 * kPitch + lane / 16 * 16;
  load_block(left, from + (run.place[0] >> 16 & 0xffu) * kBlockBytes);
  load_block(right, from + (run.place[0] >> 24) * kBlockBytes);
  #pragma unroll
  for (int i = 0; i < kRun; ++i) {
    float sums[kTiles][4];
    start_sums(sums, run.bias[i / 2], i % 2 * 16);
    #pragma unroll
    for (int j = 0; j < kTiles; ++j) mma(sums[j], run.weights[i][0], left[j]);
    #pragma unroll
    for (int j = 0; j < kTiles; ++j) mma(sums[j], run.weights[i][1], right[j]);
    if (kLast) load_weights(run, i, next, lane);
    if (i + 1 < kRun) {
      if (kKind == kPairs || (kKind == kChains && i % 2 == 0) || (kKind == kTwins && i % 2 == 1)) {
        load_block(left, from + (run.place[i + 1] >> 16 & 0xffu) * kBlockBytes);
      }
      if (kKind == kPairs || (kKind == kChains && i % 2 == 1) || (kKind == kTwins && i % 2 == 1)) {
        load_block(right, from + (run.place[i + 1] >> 24) * kBlockBytes);
      }
    }
    rows.store(run.place[i] & 0xffffu, places + i * 16, sums);
  }
}

struct Ahead {
  Vector<unsigned, 2> bias[kBiases];
  unsigned place[kRun];

  __device__ __forceinline__ void load(const Cursor& at, unsigned lane) {
    #pragma unroll
    for (int i = 0; i < kBiases; ++i) {
      const int mine = kRun == 1 ? 0 : 2 * i + static_cast<int>(lane / 16);
      const Element* const biases = at.values + mine * kPair + 2 * kTile;
      bias[i] = load_once<2>(reinterpret_cast<const unsigned*>(biases) + 2 * (lane % 16));
    }
    #pragma unroll
    for (int i = 0; i < kRun; ++i) place[i] = __ldcg(at.places + i * 16 + lane % 16);
  }

  __device__ __forceinline__ void become(Run& run) const {
    #pragma unroll
    for (int i = 0; i < kBiases; ++i) run.bias[i] = joined_bias(bias[i]);
    #pragma unroll
    for (int i = 0; i < kRun; ++i) run.place[i] = place[i];
  }
};

__device__ __forceinline__ void load_run(Run& run, const Cursor& at, unsigned lane) {
  Ahead beside;
  beside.load(at, lane);
  beside.become(run);
  #pragma unroll
  for (int i = 0; i < kRun; ++i) {
    load_weights(run, i, at, lane);
  }
}

template <int kTiles>
constexpr int kFirstPart = kParts == 1 || kTiles == 1 ? kTiles : (kTiles + 1) / 2;

template <int kTiles, int kKind>
__device__ __forceinline__ void pairs_layer(const unsigned char* from, const Rows& rows, int passes, Run& run, Cursor& next,
                                            Rounds& rounds) {
  constexpr int kFirst = kFirstPart<kTiles>, kSecond = kTiles - kFirst;
  const unsigned lane = threadIdx.x % 32;
  for (int pass = 0; pass < passes; ++pass) {
    const bool is_last = pass + 1 == passes;
    next.advance();
    Ahead ahead;
    if (pass == 0) rounds.wait(0);
    ahead.load(next, lane);
    run_part<kFirst, kKind, kSecond == 0>(from, rows, run, next);
    if (is_last) rounds.arrive(0);
    if constexpr (kSecond > 0) {
      if (pass == 0) rounds.wait(1);
      run_part<kSecond, kKind, true>(from + kFirst * 16, rows.part(1, kFirst * 16), run, next);
      if (is_last) rounds.arrive(1);
    }
    ahead.become(run);
  }
}

template <int kTiles>
__device__ __forceinline__ void general_layer(const unsigned char* from, const Rows& rows, int first, int groups,
                                              const Network& net, Rounds& rounds) {
  constexpr int kFirst = kFirstPart<kTiles>;
  const unsigned lane = threadIdx.x % 32;
  rounds.wait(0);
  if constexpr (kFirst < kTiles) rounds.wait(1);
  rounds.meet();
  for (int i = threadIdx.x / 32; i < groups; i += kWarps) {
    const Vector<int, 4> group = net.general[first + i];
    const Element* tile = net.values + static_cast<long long>(group.element[0]) * kUnit;
    const Element* const biases = tile + static_cast<long long>(group.element[2]) * kTile;
    float sums[kTiles][4];
    start_sums(sums, joined_bias(load_once<2>(reinterpret_cast<const unsigned*>(biases) + 2 * (lane % 16))), 0);
    for (int t = 0; t < group.element[2]; ++t, tile += kTile) {
      unsigned weights[4], block[kTiles][2];
      load_fragment(weights, tile, lane);
      load_general_block(block, from, net.blocks[group.element[1] + t], rows);
      #pragma unroll
      for (int j = 0; j < kTiles; ++j) mma(sums[j], weights, block[j]);
    }
    const unsigned* const places = net.places + static_cast<long long>(group.element[3]) * 16;
    rows.store_parts(places[lane % 16], places, sums);
  }
  rounds.arrive(0);
  if constexpr (kFirst < kTiles) rounds.arrive(1);
}

template <int kTiles>
__device__ __forceinline__ unsigned char* all_layers(unsigned char* from, unsigned char* to, int begin, int end,
                                                     const Network& net, Rounds& rounds, unsigned limit) {
  constexpr int kFirst = kFirstPart<kTiles>;
  const unsigned lane = threadIdx.x % 32;
  int layer = begin;
  while (layer < end && net.layers[layer].element[0] == kGeneral) ++layer;
  Cursor next(net, (layer < end ? net.layers[layer].element[1] : 0) + static_cast<int>(threadIdx.x / 32) * kRun);
  Run run;
  load_run(run, next, lane);
  for (int l = begin; l < end; ++l) {
    const Vector<int, 4> about = net.layers[l];
    const int kind = about.element[0];
    const Rows rows(to, limit, net, rounds);
    rounds.begin(about.element[3], kFirst, kTiles - kFirst);
    if (kind == kChains) {
      pairs_layer<kTiles, kChains>(from, rows, about.element[2], run, next, rounds);
    } else if (kind == kTwins) {
      pairs_layer<kTiles, kTwins>(from, rows, about.element[2], run, next, rounds);
    } else if (kind == kPairs) {
      pairs_layer<kTiles, kPairs>(from, rows, about.element[2], run, next, rounds);
    } else {
      general_layer<kTiles>(from, rows, about.element[1], about.element[2], net, rounds);
    }
    if constexpr (kParts == 2 && kFirst == kTiles) rounds.arrive(1);
    unsigned char* const read = from;
    from = to, to = read;
    ++rounds.number;
  }
  rounds.wait(0);
  if constexpr (kParts == 2) rounds.wait(1);
  __syncthreads();
  return from;
}
(2) from (1):
@@
-1 b2d1fe
+      : values(net.values + static_cast<long long>(group) * kPair), places(net.places + static_cast<long long>(group) * 32) {}
@@
-1 da3fe5
+  __device__ __forceinline__ void advance() { values += kPassGroups * kPair, places += kPassGroups * 32; }
@@
-1 8303ec
+  const unsigned* const places = next.places - kPassGroups * 32;
@@
-1 841afe
+    rows.store(run.place[i] & 0xffffu, places + i * 32, sums);
@@
-1 6a7ac2
+    for (int i = 0; i < kRun; ++i) place[i] = __ldcg(at.places + i * 32 + lane);
@@
-2 92ba8c
+    const unsigned* const places = net.places + static_cast<long long>(group.element[3]) * 32;
+    rows.store_parts(places[lane], places, sums);
(3) from (1):
@@
-1 bb4702
+  unsigned bias[kBiases][2];
@@
+  unsigned parts[2] = {bias_parts(0), bias_parts(1)};
@@
+__device__ __forceinline__ void load_beside(Run& run, int i, const Cursor& at, unsigned lane) {
+  run.place[i] = __ldcg(at.places + i * 16 + lane % 16);
+  if (i % 2 == 0 && kRun > 1) return;
+  const int mine = kRun == 1 ? 0 : i - 1 + static_cast<int>(lane % 4 / 2);
+  const unsigned* const biases = reinterpret_cast<const unsigned*>(at.values + mine * kPair + 2 * kTile) + lane % 2;
+  run.bias[i / 2][0] = load_once<1>(biases + 2 * (lane / 4)).element[0];
+  run.bias[i / 2][1] = load_once<1>(biases + 2 * (lane / 4 + 8)).element[0];
+}
+
@@
-1 04fa41
+    start_sums(sums, run.bias[i / 2], run.parts[i % 2]);
@@
+    if (kLast) load_beside(run, i, next, lane);
@@
-23 dcd77c
@@
-3 be1852
@@
+    load_beside(run, i, at, lane);
@@
-1 1f217d
@@
-1 eed3d7
@@
-1 b69bee
@@
-1 ed4592
