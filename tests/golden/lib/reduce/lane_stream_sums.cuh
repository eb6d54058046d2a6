__device__ __forceinline__ float (&sums_of(Sums& sums, int i))[4] { return sums[i / kColumnTiles][i % kColumnTiles]; }

__device__ __forceinline__ bool add_up_parts(Sums& sums, float* parts, unsigned* counters, unsigned group, unsigned strip,
                                             unsigned lane, unsigned steps, unsigned total) {
  const unsigned first = block_of(group * steps, total), last = block_of((group + 1) * steps - 1, total);
  const unsigned count = last - first + 1;
  if (count == 1) return true;
  const auto part_of = [&](unsigned block) {
    return reinterpret_cast<float4*>(parts + (static_cast<long long>(block + group) * kWarpsM + strip) * kPartFloats) + lane;
  };
  float4* const mine = part_of(blockIdx.x);
  #pragma unroll
  for (int i = 0; i < 2 * kColumnTiles; ++i) __stcg(mine + i * 32, together(sums_of(sums, i)));
  unsigned* const counter = counters + group * kWarpsM + strip;
  if (count_arrival(counter, lane) + 1 != count) return false;
  if (lane == 0) *counter = 0;
  #pragma unroll
  for (int i = 0; i < 2 * kColumnTiles; ++i) {
    float(&sum)[4] = sums_of(sums, i);
    sum[0] = sum[1] = sum[2] = sum[3] = 0.0f;
  }
  constexpr unsigned kAtOnce = kColumnTiles < 4 ? 4 / kColumnTiles : 1;
  for (unsigned block = first; block <= last; block += kAtOnce) {
    float4 theirs[kAtOnce][2 * kColumnTiles];
    #pragma unroll
    for (unsigned j = 0; j < kAtOnce; ++j) {
      if (block + j > last) continue;
      #pragma unroll
      for (int i = 0; i < 2 * kColumnTiles; ++i) theirs[j][i] = __ldcg(part_of(block + j) + i * 32);
    }
    #pragma unroll
    for (unsigned j = 0; j < kAtOnce; ++j) {
      if (block + j > last) continue;
      #pragma unroll
      for (int i = 0; i < 2 * kColumnTiles; ++i) add_to(sums_of(sums, i), theirs[j][i]);
    }
  }
  return true;
}
