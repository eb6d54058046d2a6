// What a generated kernel includes in place of CUDA's device headers when it is compiled for the CPU.
#pragma once

#include <cuda_runtime.h>

#include "async_copy.h"
#include "barriers.h"
#include "cluster.h"
#include "cuda_atomics.h"
#include "cuda_builtins.h"
#include "cuda_half.h"
#include "cuda_math.h"
#include "fault.h"
#include "launch.h"
#include "shared_memory.h"
#include "tensor_core.h"
#include "tensor_map.h"
#include "warp.h"
#include "warp_exchange.h"
