// A sparse network layer by layer in float32: a thread computes one neuron for one input, from rows of CSR.

constexpr int kWarp = 32;

// to[input, row] = min(max(weights[row] · from[input] + bias[row], limits[0]), limits[1]); rows above the layer's own, up to
// width, are zero. alive tells which inputs have a neuron that is not zero: others stay zero if they cannot come back
// (dying). A block has rows of one input.
extern "C" __global__ void csr_layer(int rows, int neurons, int width, int dying, const int* offsets, const int* columns,
                                     const float* values, const float* biases, const float* limits, const float* from,
                                     const int* alive, float* to, int* lives) {
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row >= width) return;
  const long long input = static_cast<long long>(blockIdx.y) + static_cast<long long>(gridDim.y) * blockIdx.z;
  const float* before = from + input * neurons;
  float neuron = 0;
  if (row < rows && !(dying && alive[input] == 0)) {
    for (int i = offsets[row]; i < offsets[row + 1]; ++i) neuron = fmaf(values[i], before[columns[i]], neuron);
    neuron = fminf(fmaxf(neuron + biases[row], limits[0]), limits[1]);
  }
  to[input * width + row] = neuron;
  if (neuron != 0) lives[input] = 1;
}

// totals[input] = the sum of its neurons; a warp for an input.
extern "C" __global__ void csr_totals(int neurons, const float* from, float* totals) {
  const long long input = static_cast<long long>(blockIdx.y) + static_cast<long long>(gridDim.y) * blockIdx.z;
  float sum = 0;
  for (int row = static_cast<int>(threadIdx.x); row < neurons; row += kWarp) sum += from[input * neurons + row];
  #pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (threadIdx.x == 0) totals[input] = sum;
}
