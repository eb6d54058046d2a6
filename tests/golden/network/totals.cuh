template <class Eight, class Put>
__device__ __forceinline__ void add_up(int rows, int chunks, const Eight& eight, const Put& put) {
  const int lane = threadIdx.x % 32;
  for (int chunk = threadIdx.x / 32; chunk < chunks; chunk += kWarps) {
    float totals[8] = {};
    for (int row = lane; row < rows; row += 32) {
      const Vector<Element, 8> neurons = eight(row, chunk);
      #pragma unroll
      for (int i = 0; i < 8; ++i) totals[i] += to_float(neurons.element[i]);
    }
    #pragma unroll
    for (int i = 0; i < 8; ++i) {
      #pragma unroll
      for (int step = 16; step > 0; step /= 2) totals[i] += __shfl_xor_sync(kAll, totals[i], step);
      if (lane == 0) put(chunk * 8 + i, totals[i]);
    }
  }
}
