__device__ __forceinline__ void sort_by_taps(UnitList& list, int count) {
  constexpr int kOwn = (kListUnits + kThreads - 1) / kThreads;
  Unit units[kOwn];
  TapWord taps[kOwn];
  int places[kOwn];
  #pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int number = threadIdx.x + i * kThreads;
    places[i] = -1;
    if (number >= count) continue;
    units[i] = list.units[number], taps[i] = list.taps[number], places[i] = 0;
    for (int other = 0; other < count; ++other) {
      const TapWord theirs = list.taps[other];
      places[i] += theirs < taps[i] || (theirs == taps[i] && other < number);
    }
  }
  __syncthreads();
  #pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    if (places[i] >= 0) list.units[places[i]] = units[i], list.taps[places[i]] = taps[i];
  }
}
