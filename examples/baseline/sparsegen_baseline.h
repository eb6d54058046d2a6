// The interface of `sparsegen bench --baseline name=path.so:symbol`, version 1. Plain C.
//
// The symbol is a function without parameters that returns a `const sparsegen_baseline *`. For every row of the
// benchmark `create` is called once (its time is reported as preparation), `run` many times, `destroy` once.

#ifndef SPARSEGEN_BASELINE_H
#define SPARSEGEN_BASELINE_H

#include <stddef.h>
#include <stdint.h>

#define SPARSEGEN_BASELINE_VERSION 1

enum { SPARSEGEN_SPMM = 0, SPARSEGEN_SDDMM = 1, SPARSEGEN_NETWORK = 2 };
enum { SPARSEGEN_FLOAT32 = 0, SPARSEGEN_FLOAT16 = 1, SPARSEGEN_BFLOAT16 = 2 };
enum { SPARSEGEN_ROW = 0, SPARSEGEN_COLUMN = 1 };
enum { SPARSEGEN_HOST = 0, SPARSEGEN_CUDA = 1 };
enum { SPARSEGEN_RELU = 0, SPARSEGEN_DYING_RELU = 1, SPARSEGEN_NO_ACTIVATION = 2 };
enum { SPARSEGEN_NEURONS = 0, SPARSEGEN_TOTALS = 1 };
enum { SPARSEGEN_BIAS_COLUMNS = 3 };
enum { SPARSEGEN_DONE = 0, SPARSEGEN_UNSUPPORTED = 1, SPARSEGEN_FAILED = 2 };

// What is to be computed, and where its arrays are.
//
// spmm: C[m, n] = A[m, k] * B[k, n]. A is sparse, m x k. `layout` is the memory order of B and C.
// sddmm: the products A[m, k] * B[n, k]^T at the nonzeros of a pattern m x n; A and B are row-major, and C is the nnz
//        results in the pattern's order. The pattern's values are to be ignored.
// network: all layers of a network, whose neurons are k - 3, for n inputs. The sparse matrix has the layers' weights below
//        each other, k - 3 rows each, the last one perhaps fewer; its last three columns w are the bias, which is
//        w0 + u * w1 + u * u * w2 with the dtype's unit roundoff u. A are the inputs, n x (k - 3), row-major; B is one
//        float32, the clip. `activation` is clipped at it; with a dying ReLU no bias is above 0, and an input whose
//        neurons are all 0 may be left. C are the last layer's neurons, n rows, or the sum of each input's, n float32.
//
// The sparse matrix comes as compressed sparse rows with sorted columns, in the memory of the device (`memory`) and
// once more on the host, so that a format of your own can be made from either. All of it stays until `destroy`.
typedef struct {
  int32_t op, dtype, layout, memory;
  int32_t device;  // ordinal of the CUDA device, whose primary context is current
  uint16_t activation, readout;  // network only, else 0
  int64_t m, k, n, nnz;
  const int32_t *row_offsets, *column_indices;
  const void *values;
  const int32_t *host_row_offsets, *host_column_indices;
  const void *host_values;
  const void *a;  // sddmm and network only
  const void *b;
  void *c;
  void *stream;  // launch here; NULL is the default stream
} sparsegen_task;

typedef struct {
  int32_t version;      // SPARSEGEN_BASELINE_VERSION
  const char *library;  // name and version of what is behind it
  // Makes a handle; returns SPARSEGEN_DONE, SPARSEGEN_UNSUPPORTED or SPARSEGEN_FAILED, with the reason in `message`.
  int (*create)(const sparsegen_task *task, void **handle, char *message, size_t size);
  // Queues one computation; returns 0, or anything else if that failed.
  int (*run)(void *handle);
  void (*destroy)(void *handle);
} sparsegen_baseline;

#endif
