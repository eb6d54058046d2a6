// Float64 results of what goes row by row over a pattern, with their magnitudes: a warp for each row. See the problems'
// references on the host (sparsegen/operators) for where the magnitudes come from.

constexpr int kWarp = 32;

__device__ long long warp_number() { return (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) / kWarp; }

__device__ double sum_of_warp(double x) {
  for (int step = kWarp / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

__device__ double largest_of_warp(double x) {
  for (int step = kWarp / 2; step > 0; step /= 2) x = fmax(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}

// Y = exp(s · X) over the row's sum of it.
extern "C" __global__ void sparse_softmax(int m, const int* offsets, const float* x, const float* scale, double* exact,
                                          float* magnitude) {
  const long long row = warp_number();
  if (row >= m) return;
  const int begin = offsets[row], end = offsets[row + 1], lane = threadIdx.x % kWarp;
  const double factor = *scale;
  double top = -INFINITY, sum = 0, below = 0;
  for (int i = begin + lane; i < end; i += kWarp) top = fmax(top, factor * x[i]);
  top = largest_of_warp(top);
  for (int i = begin + lane; i < end; i += kWarp) {
    const double power = exp(factor * x[i] - top);
    sum += power, below += power * (top - factor * x[i]);
  }
  sum = sum_of_warp(sum), below = sum_of_warp(below) / sum;
  const double length = end - begin;
  for (int i = begin + lane; i < end; i += kWarp) {
    const double value = exp(factor * x[i] - top) / sum;
    const double roundings = 16 + 16 * (top - factor * x[i] + below) + 4 * sqrt(length);
    exact[i] = value;
    magnitude[i] = static_cast<float>(value * roundings / (4 * sqrt(length + 2)));
  }
}

// dX = s · Y · (dY - the row's sum of Y · dY).
extern "C" __global__ void sparse_softmax_backward(int m, const int* offsets, const float* y, const float* dy,
                                                   const float* scale, double* exact, float* magnitude) {
  const long long row = warp_number();
  if (row >= m) return;
  const int begin = offsets[row], end = offsets[row + 1], lane = threadIdx.x % kWarp;
  double sum = 0, size = 0;
  for (int i = begin + lane; i < end; i += kWarp) {
    const double product = static_cast<double>(y[i]) * dy[i];
    sum += product;
    size += fabs(product);
  }
  sum = sum_of_warp(sum), size = sum_of_warp(size);
  for (int i = begin + lane; i < end; i += kWarp) {
    const double factor = static_cast<double>(*scale) * y[i];
    exact[i] = factor * (dy[i] - sum);
    magnitude[i] = static_cast<float>(fabs(factor) * (fabs(static_cast<double>(dy[i])) + size));
  }
}

// O = softmax(s · Q · Kᵀ at the mask) · V, with Q, K, V of `width` columns in a dtype of so many significant `bits`;
// `weights` has room for each nonzero.
extern "C" __global__ void sparse_attention(int m, int width, int bits, const int* offsets, const int* columns,
                                            const float* q, const float* k, const float* v, const float* scale,
                                            double* weights, double* exact, float* magnitude) {
  const long long row = warp_number();
  if (row >= m) return;
  const int begin = offsets[row], end = offsets[row + 1], lane = threadIdx.x % kWarp;
  const double factor = *scale;
  double of_query = 0, of_keys = 0, top = -INFINITY, largest = 0, sum = 0;
  for (int c = lane; c < width; c += kWarp) of_query += static_cast<double>(q[row * width + c]) * q[row * width + c];
  of_query = sqrt(sum_of_warp(of_query));
  for (int i = begin + lane; i < end; i += kWarp) {
    const float* const key = k + static_cast<long long>(columns[i]) * width;
    double score = 0, of_key = 0;
    for (int c = 0; c < width; ++c) {
      score += static_cast<double>(q[row * width + c]) * key[c];
      of_key += static_cast<double>(key[c]) * key[c];
    }
    weights[i] = score * factor;
    top = fmax(top, weights[i]), largest = fmax(largest, fabs(weights[i])), of_keys = fmax(of_keys, of_key);
  }
  top = largest_of_warp(top), largest = largest_of_warp(largest), of_keys = sqrt(largest_of_warp(of_keys));
  for (int i = begin + lane; i < end; i += kWarp) {
    weights[i] = exp(weights[i] - top);
    sum += weights[i];
  }
  sum = sum_of_warp(sum);
  __syncwarp();
  const double of_scores = 4 * sqrt(width + 2.0) * fabs(factor) * of_query * of_keys;
  const double growth = 4 * sqrt(end - begin + 2.0);
  const double of_mean = 2 * (of_scores + 16 + 16 * largest + growth) + ldexp(1.0, 24 - bits);
  for (int c = lane; c < width; c += kWarp) {
    double value = 0, mean = 0, all = 0;
    for (int i = begin; i < end; ++i) {
      const double term = v[static_cast<long long>(columns[i]) * width + c];
      value += weights[i] * term;
      mean += weights[i] * fabs(term);
      all += fabs(term);
    }
    if (end > begin) value /= sum, mean /= sum;
    double error = of_mean * mean;
    if (bits == 11) error += all / 2;  // half of float16's smallest number, in units of float32's last place
    exact[row * width + c] = value;
    magnitude[row * width + c] = static_cast<float>(error / growth);
  }
}
