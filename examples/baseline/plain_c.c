// The smallest baseline: SpMM in float32 on the host, for `--device emulator`.
//
//   cc -O2 -shared -fPIC -o plain_c.so examples/baseline/plain_c.c
//   sparsegen bench --matrix examples/pruned_mlp_layer.npz -n 64 --device emulator --baseline plain_c=plain_c.so:plain_c
//
// A baseline for CUDA looks the same, but launches on task->stream and checks for SPARSEGEN_CUDA.

#include <stdio.h>

#include "sparsegen_baseline.h"

static int create(const sparsegen_task *task, void **handle, char *message, size_t size) {
  if (task->op != SPARSEGEN_SPMM || task->dtype != SPARSEGEN_FLOAT32 || task->memory != SPARSEGEN_HOST) {
    snprintf(message, size, "it computes spmm in float32 on the host");
    return SPARSEGEN_UNSUPPORTED;
  }
  *handle = (void *)task;  // nothing to prepare
  return SPARSEGEN_DONE;
}

static int run(void *handle) {
  const sparsegen_task *task = handle;
  const float *values = task->values, *b = task->b;
  float *c = task->c;
  int by_rows = task->layout == SPARSEGEN_ROW;
  for (int64_t row = 0; row < task->m; ++row) {
    for (int64_t column = 0; column < task->n; ++column) {
      float sum = 0;
      for (int32_t i = task->row_offsets[row]; i < task->row_offsets[row + 1]; ++i) {
        int64_t inner = task->column_indices[i];
        sum += values[i] * b[by_rows ? inner * task->n + column : column * task->k + inner];
      }
      c[by_rows ? row * task->n + column : column * task->m + row] = sum;
    }
  }
  return 0;
}

static void destroy(void *handle) { (void)handle; }

const sparsegen_baseline *plain_c(void) {
  static const sparsegen_baseline self = {SPARSEGEN_BASELINE_VERSION, "plain C", create, run, destroy};
  return &self;
}
