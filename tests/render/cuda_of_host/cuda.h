// Tensor maps as the emulator's copy engine reads them, by the names of CUDA's driver.
#pragma once

#include "cuda_runtime.h"

#include <cstdint>

using cuuint64_t = std::uint64_t;
using cuuint32_t = std::uint32_t;
enum CUresult { CUDA_SUCCESS };
enum CUtensorMapDataType {
  CU_TENSOR_MAP_DATA_TYPE_FLOAT16 = 2,
  CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 = 3,
  CU_TENSOR_MAP_DATA_TYPE_FLOAT32 = 4
};
enum CUtensorMapSwizzle {
  CU_TENSOR_MAP_SWIZZLE_NONE = 0,
  CU_TENSOR_MAP_SWIZZLE_32B = 32,
  CU_TENSOR_MAP_SWIZZLE_64B = 64,
  CU_TENSOR_MAP_SWIZZLE_128B = 128
};
enum CUtensorMapL2promotion { CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B };
enum CUtensorMapInterleave { CU_TENSOR_MAP_INTERLEAVE_NONE };
enum CUtensorMapFloatOOBfill { CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE };

struct alignas(64) CUtensorMap {  // as backends/emulator/tensor_maps.py lays it out
  std::uint64_t address, strides[5];
  std::uint32_t sizes[5], box[5], steps[5], rank, itemsize, swizzle;
  char padding[8];
};
static_assert(sizeof(CUtensorMap) == 128, "as the driver's");

inline CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* array,
                                       const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                                       const cuuint32_t* steps, CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                                       CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  *map = {};
  map->address = reinterpret_cast<std::uint64_t>(array);
  map->rank = rank, map->swizzle = swizzle;
  map->itemsize = type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 ? 4 : 2;
  for (unsigned d = 0; d < 5; ++d) {
    map->sizes[d] = d < rank ? static_cast<std::uint32_t>(sizes[d]) : 1;
    map->steps[d] = d < rank ? steps[d] : 1;
    map->box[d] = d < rank ? (box[d] + steps[d] - 1) / steps[d] : 1;
    map->strides[d] = d == 0 ? map->itemsize : d < rank ? strides[d - 1] : 1;
  }
  return CUDA_SUCCESS;
}

enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess };
constexpr int cudaEnableDefault = 0;
inline cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** entry, unsigned, int,
                                                    cudaDriverEntryPointQueryResult* found) {
  *found = cudaDriverEntryPointSuccess;
  *entry = reinterpret_cast<void*>(&cuTensorMapEncodeTiled);
  return cudaSuccess;
}
