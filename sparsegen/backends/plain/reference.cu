// Float64 results of whole products, one thread for each element: slow, plain, and unlike what is measured.

// C = A · B with A in compressed sparse rows. An element (row, column) of B is at row * b_row + column * b_column,
// of C likewise.
extern "C" __global__ void spmm_reference(int m, int n, const int* offsets, const int* columns, const float* values,
                                          const float* b, int b_row, int b_column, int c_row, int c_column,
                                          double* exact, float* magnitude) {
  long long element = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (element >= static_cast<long long>(m) * n) {
    return;
  }
  long long row = element / n, column = element % n;
  double sum = 0, size = 0;
  for (int i = offsets[row]; i < offsets[row + 1]; ++i) {
    double product = static_cast<double>(values[i]) *
                     static_cast<double>(b[static_cast<long long>(columns[i]) * b_row + column * b_column]);
    sum += product;
    size += product < 0 ? -product : product;
  }
  long long place = row * c_row + column * c_column;
  exact[place] = sum;
  magnitude[place] = static_cast<float>(size);
}

// The elements of A · Bᵀ at given places; A is m × k and B is n × k, row-major.
extern "C" __global__ void sddmm_reference(int count, int k, const int* rows, const int* columns, const float* a,
                                           const float* b, double* exact, float* magnitude) {
  long long element = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (element >= count) {
    return;
  }
  const float* left = a + static_cast<long long>(rows[element]) * k;
  const float* right = b + static_cast<long long>(columns[element]) * k;
  double sum = 0, size = 0;
  for (int i = 0; i < k; ++i) {
    double product = static_cast<double>(left[i]) * static_cast<double>(right[i]);
    sum += product;
    size += product < 0 ? -product : product;
  }
  exact[element] = sum;
  magnitude[element] = static_cast<float>(size);
}

// What the product does not know: adds the bias and a residual, and applies ReLU or GELU. An element (row, column) is at
// row * c_row + column * c_column.
extern "C" __global__ void spmm_epilogue(int m, int n, int c_row, int c_column, int has_residual, int has_relu, int has_gelu,
                                         const float* bias, const float* residual, double* exact, float* magnitude) {
  long long element = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (element >= static_cast<long long>(m) * n) {
    return;
  }
  long long row = element / n, column = element % n;
  long long place = row * c_row + column * c_column;
  double value = exact[place] + bias[row];
  double size = magnitude[place] + fabs(static_cast<double>(bias[row]));
  if (has_residual) {
    value += residual[place];
    size += fabs(static_cast<double>(residual[place]));
  }
  if (has_relu && value < 0) value = 0;
  if (has_gelu) {
    value = 0.5 * value * (1 + erf(value * 0.70710678118654752440));
    size *= 1.5;
  }
  exact[place] = value;
  magnitude[place] = static_cast<float>(size);
}

// Sampled dot products times the pattern's own values.
extern "C" __global__ void sddmm_scale(int count, const float* values, double* exact, float* magnitude) {
  long long element = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (element >= count) {
    return;
  }
  exact[element] *= values[element];
  magnitude[element] = static_cast<float>(magnitude[element] * fabs(static_cast<double>(values[element])));
}
