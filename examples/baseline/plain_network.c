// A baseline for sparse networks, in float32 on the host, for `--device emulator`.
//
//   cc -O2 -shared -fPIC -o plain_network.so examples/baseline/plain_network.c
//   sparsegen bench --suite my_networks.json --device emulator --baseline plain=plain_network.so:plain_network

#include <stdio.h>
#include <stdlib.h>

#include "sparsegen_baseline.h"

// Neurons of one input before and behind a layer.
typedef struct {
  const sparsegen_task *task;
  float *before, *behind;
} network;

static int create(const sparsegen_task *task, void **handle, char *message, size_t size) {
  if (task->op != SPARSEGEN_NETWORK || task->dtype != SPARSEGEN_FLOAT32 || task->memory != SPARSEGEN_HOST) {
    snprintf(message, size, "it computes networks in float32 on the host");
    return SPARSEGEN_UNSUPPORTED;
  }
  int64_t neurons = task->k - SPARSEGEN_BIAS_COLUMNS;
  network *made = malloc(sizeof *made);
  made->task = task;
  made->before = malloc(neurons * sizeof(float)), made->behind = malloc(neurons * sizeof(float));
  *handle = made;
  return SPARSEGEN_DONE;
}

static int run(void *handle) {
  const network *self = handle;
  const sparsegen_task *task = self->task;
  const float *values = task->values, clip = *(const float *)task->b;
  const double unit = 0x1p-24;  // of float32: the bias is w0 + unit * (w1 + unit * w2)
  int64_t neurons = task->k - SPARSEGEN_BIAS_COLUMNS, layers = (task->m + neurons - 1) / neurons;
  int64_t outputs = task->m - (layers - 1) * neurons;
  float *before = self->before, *behind = self->behind;
  for (int64_t input = 0; input < task->n; ++input) {
    for (int64_t i = 0; i < neurons; ++i) before[i] = ((const float *)task->a)[input * neurons + i];
    for (int64_t layer = 0; layer < layers; ++layer) {
      int64_t rows = layer + 1 < layers ? neurons : outputs;
      for (int64_t i = 0; i < rows; ++i) {
        double sum = 0;
        for (int32_t e = task->row_offsets[layer * neurons + i]; e < task->row_offsets[layer * neurons + i + 1]; ++e) {
          int64_t part = task->column_indices[e] - neurons;  // of the bias, where it is not below 0
          double factor = part < 0 ? before[part + neurons] : part == 0 ? 1 : part == 1 ? unit : unit * unit;
          sum += values[e] * factor;
        }
        double least = task->activation == SPARSEGEN_NO_ACTIVATION ? -clip : 0;
        behind[i] = (float)(sum < least ? least : sum > clip ? clip : sum);
      }
      float *read = before;
      before = behind, behind = read;
    }
    double total = 0;
    for (int64_t i = 0; i < outputs; ++i) total += before[i];
    if (task->readout == SPARSEGEN_TOTALS) ((float *)task->c)[input] = (float)total;
    for (int64_t i = 0; task->readout == SPARSEGEN_NEURONS && i < outputs; ++i) {
      ((float *)task->c)[input * outputs + i] = before[i];
    }
  }
  return 0;
}

static void destroy(void *handle) {
  network *self = handle;
  free(self->before), free(self->behind), free(self);
}

const sparsegen_baseline *plain_network(void) {
  static const sparsegen_baseline self = {SPARSEGEN_BASELINE_VERSION, "plain C", create, run, destroy};
  return &self;
}
