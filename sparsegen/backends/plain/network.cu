// Float64 neurons of a sparse network, layer by layer, and how far results in float32 may be from them; a warp for 32
// inputs of a neuron. See SparseNetworkProblem's reference on the host (sparsegen/operators/sparse_network.py).

#if !defined(SPARSEGEN_EMULATOR)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

constexpr int kWarp = 32;
constexpr int kBiasColumns = 3;
constexpr double kUnit = 0x1p-24;  // roundoff of float32

// What a type of elements holds of a number: float32, float16, bfloat16.
__device__ double held(double x, int type) {
  if (type == 1) return __half2float(__double2half(x));
  if (type == 2) return __bfloat162float(__double2bfloat16(x));
  return static_cast<float>(x);
}

// All rows for 32 inputs, then for the next ones: what they read of a layer stays in the L2.
__device__ bool place(int rows, int inputs, int& row, int& input) {
  const long long number = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  row = static_cast<int>(number / kWarp % rows);
  const long long at = number / kWarp / rows * kWarp + number % kWarp;
  input = static_cast<int>(at);
  return at < inputs;
}

// Inputs first to first + inputs of y (all × neurons), as neurons × inputs; no error yet.
extern "C" __global__ void start(int neurons, int inputs, int first, const float* y, double* neuron, double* error) {
  int row, input;
  if (!place(neurons, inputs, row, input)) return;
  neuron[static_cast<long long>(row) * inputs + input] = y[static_cast<long long>(first + input) * neurons + row];
  error[static_cast<long long>(row) * inputs + input] = 0;
}

// Rows begin to begin + rows of the matrix are a layer. least: -1 where sums end at -limit, else 0; dying: biases count
// where they are negative.
extern "C" __global__ void layer(int rows, int inputs, int begin, int neurons, int type, int least, int dying,
                                 const int* offsets, const int* columns, const float* values, const double* limit,
                                 const double* from, const double* from_error, double* to, double* to_error) {
  int row, input;
  if (!place(rows, inputs, row, input)) return;
  const double step = type == 1 ? 0x1p-11 : type == 2 ? 0x1p-8 : 0x1p-24;
  const double factors[kBiasColumns] = {1, step, step * step};
  double sum = 0, size = 0, carried = 0, bias = 0;
  int terms = kBiasColumns;
  #pragma unroll 4
  for (int i = offsets[begin + row]; i < offsets[begin + row + 1]; ++i) {
    const int column = columns[i];
    const bool is_weight = column < neurons;
    const double value = values[i], weight = is_weight ? value : 0;
    // No branch, so that some neurons are on their way at a time.
    const long long at = static_cast<long long>(is_weight ? column : 0) * inputs + input;
    sum += weight * from[at];
    size += fabs(weight * from[at]);
    carried += fabs(weight) * from_error[at];
    terms += is_weight;
    bias += is_weight ? 0 : value * factors[column - neurons];
  }
  if (dying) bias = fmin(bias, 0.0);
  sum += bias;
  const double off = carried + 4 * sqrt(terms + 2.0) * kUnit * (size + carried + fabs(bias));
  const double most = *limit, bottom = least * most;
  const double neuron = fmin(fmax(sum, bottom), most);
  const double highest = held(fmin(fmax(sum + off, bottom), most), type);
  const double lowest = held(fmin(fmax(sum - off, bottom), most), type);
  const long long at = static_cast<long long>(row) * inputs + input;
  to[at] = neuron;
  to_error[at] = fmax(fmax(highest - neuron, neuron - lowest), 0.0);
}

// The last layer's neurons as results, inputs first and after. terms: of each output.
extern "C" __global__ void outputs(int rows, int inputs, int first, const float* terms, const double* neuron,
                                   const double* error, double* exact, float* magnitude) {
  int row, input;
  if (!place(rows, inputs, row, input)) return;
  const long long at = static_cast<long long>(row) * inputs + input, to = static_cast<long long>(first + input) * rows + row;
  exact[to] = neuron[at];
  magnitude[to] = static_cast<float>(error[at] / (4 * sqrt(terms[row] + 2.0) * kUnit));
}

// Their sums.
extern "C" __global__ void totals(int rows, int inputs, int first, const float* terms, const double* neuron,
                                  const double* error, double* exact, float* magnitude) {
  int row, input;
  if (!place(1, inputs, row, input)) return;
  double sum = 0, size = 0, off = 0;
  for (int i = 0; i < rows; ++i) {
    const long long at = static_cast<long long>(i) * inputs + input;
    sum += neuron[at], size += fabs(neuron[at]), off += error[at];
  }
  exact[first + input] = sum;
  magnitude[first + input] = static_cast<float>(size + off + off / (4 * sqrt(terms[0] + 2.0) * kUnit));
}
