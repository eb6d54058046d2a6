// Float64 convolutions, one thread for each element: slow, plain, and unlike what is measured.

// Y = epilogue(conv(X, W)) of an image with channels innermost; with `planes` X, the residual and Y have them outermost. W is
// rows x columns x channels x filters. `computed` has a byte for each output pixel; where it is 0 the product counts as zero
// (`masks_output`), and the exact result is NaN if what lies there is kept. The epilogue's number: 0 none, 1 bias, 2 and ReLU,
// 3 and SiLU, 4 bias and residual.
extern "C" __global__ void convolution(int height, int width, int channels, int filters, int out_height, int out_width,
                                       int rows, int columns, int stride_rows, int stride_columns, int padding_rows,
                                       int padding_columns, int dilation_rows, int dilation_columns, int groups,
                                       int masks_output, int keeps, int epilogue, int planes, const float* x,
                                       const float* w, const float* bias, const float* residual, const unsigned char* computed,
                                       double* exact, float* magnitude) {
  long long element = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (element >= static_cast<long long>(out_height) * out_width * filters) {
    return;
  }
  long long outputs = static_cast<long long>(out_height) * out_width, pixels = static_cast<long long>(height) * width;
  long long pixel = planes ? element % outputs : element / filters;
  int filter = static_cast<int>(planes ? element / outputs : element % filters);
  int out_row = static_cast<int>(pixel / out_width), out_column = static_cast<int>(pixel % out_width);
  int of_group = channels / groups, first = filter / (filters / groups) * of_group;
  bool is_computed = computed[pixel] != 0;
  double sum = 0, size = 0;
  for (int r = 0; r < rows && is_computed; ++r) {
    int row = out_row * stride_rows - padding_rows + r * dilation_rows;
    for (int s = 0; s < columns; ++s) {
      int column = out_column * stride_columns - padding_columns + s * dilation_columns;
      if (row < 0 || row >= height || column < 0 || column >= width) {
        continue;
      }
      long long at = static_cast<long long>(row) * width + column;
      const float* from = planes ? x + first * pixels + at : x + at * channels + first;
      const float* weights = w + (static_cast<long long>(r) * columns + s) * of_group * filters + filter;
      for (int c = 0; c < of_group; ++c) {
        double term = static_cast<double>(from[planes ? c * pixels : c]) * static_cast<double>(weights[static_cast<long long>(c) * filters]);
        sum += term;
        size += term < 0 ? -term : term;
      }
    }
  }
  if (epilogue > 0) {
    sum += bias[filter];
    size += fabs(static_cast<double>(bias[filter]));
  }
  if (epilogue == 2 && sum < 0) sum = 0;
  if (epilogue == 3) {
    sum /= 1 + exp(-sum);
    size *= 1.5;
  }
  if (masks_output && !is_computed) {
    sum = 0;
    size = 0;
  }
  if (epilogue == 4) {
    sum += residual[element];
    size += fabs(static_cast<double>(residual[element]));
  }
  exact[element] = keeps && !is_computed ? nan("") : sum;
  magnitude[element] = static_cast<float>(size);
}
