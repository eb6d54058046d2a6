#if defined(SPARSEGEN_EMULATOR)
#include "sparsegen_emulator.h"
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define SPARSEGEN_SHARED(type, name, count) __shared__ __align__(16) type name[count]
#define SPARSEGEN_DYNAMIC_SHARED(type, name) extern __shared__ __align__(1024) type name[]
#endif
