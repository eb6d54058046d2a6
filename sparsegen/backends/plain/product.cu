// Float64 products of dense matrices, one thread for each element: slow, plain, and unlike what is measured.

// C = scale[0] · A · B with A rows × inner and B inner × columns, row-major; the magnitude is |scale[0]| · widening[row] ·
// |A| · |B|. An element (row, column) of C is at row * c_row + column * c_column.
extern "C" __global__ void product(int rows, int columns, int inner, const float* a, const float* b, const float* scale,
                                   const float* widening, int c_row, int c_column, double* exact, float* magnitude) {
  long long element = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (element >= static_cast<long long>(rows) * columns) {
    return;
  }
  long long row = element / columns, column = element % columns;
  double sum = 0, size = 0;
  for (int i = 0; i < inner; ++i) {
    double term = static_cast<double>(a[row * inner + i]) *
                  static_cast<double>(b[static_cast<long long>(i) * columns + column]);
    sum += term;
    size += term < 0 ? -term : term;
  }
  long long place = row * c_row + column * c_column;
  exact[place] = scale[0] * sum;
  magnitude[place] = static_cast<float>(fabs(static_cast<double>(scale[0])) * widening[row] * size);
}

// Where `keep`, a byte for each element as stored, is 0: zeros, or NaN where the result is left as it was.
extern "C" __global__ void fill_unless(int count, int is_left, const unsigned char* keep, double* exact, float* magnitude) {
  long long element = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (element >= count || keep[element] != 0) {
    return;
  }
  exact[element] = is_left ? nan("") : 0;
  magnitude[element] = 0;
}
