// As much of CUDA's runtime as standalone programs use, over host memory and the emulator: a launch goes to the shared
// object that SPARSEGEN_KERNEL names.
#pragma once

#include <dlfcn.h>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

enum cudaError_t { cudaSuccess, cudaErrorUnknown };
inline const char* cudaGetErrorString(cudaError_t) { return "failed"; }

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };
inline cudaError_t cudaMalloc(void** found, std::size_t bytes) {
  *found = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  return *found ? cudaSuccess : cudaErrorUnknown;
}
inline cudaError_t cudaMemset(void* to, int byte, std::size_t bytes) { return std::memset(to, byte, bytes), cudaSuccess; }
inline cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  if (bytes) std::memcpy(to, from, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
enum cudaDeviceAttr { cudaDevAttrL2CacheSize, cudaDevAttrMultiProcessorCount };
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  return *value = attribute == cudaDevAttrL2CacheSize ? 1 << 20 : 2, cudaSuccess;
}

using cudaEvent_t = double*;
using cudaStream_t = void*;
inline double milliseconds() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
inline cudaError_t cudaEventCreate(cudaEvent_t* event) { return *event = new double(0.0), cudaSuccess; }
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) { return *event = milliseconds(), cudaSuccess; }
inline cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaEventElapsedTime(float* time, cudaEvent_t start, cudaEvent_t stop) {
  return *time = static_cast<float>(*stop - *start), cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* to, int byte, std::size_t bytes, cudaStream_t) { return cudaMemset(to, byte, bytes); }

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize, cudaFuncAttributeNonPortableClusterSizeAllowed };
inline cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }

enum cudaLaunchAttributeID {
  cudaLaunchAttributeProgrammaticStreamSerialization,
  cudaLaunchAttributeCooperative,
  cudaLaunchAttributeClusterDimension
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    int programmaticStreamSerializationAllowed, cooperative;
    struct {
      unsigned x, y, z;
    } clusterDim;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  std::size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

inline cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void*, const cudaLaunchConfig_t*) {
  return *clusters = 1, cudaSuccess;
}

inline cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void*, void** arguments) {
  using Launch = int (*)(const unsigned*, const unsigned*, std::size_t, void**, int, char*, std::size_t);
  void* library = dlopen(std::getenv("SPARSEGEN_KERNEL"), RTLD_NOW);
  if (library == nullptr) return std::fprintf(stderr, "%s\n", dlerror()), cudaErrorUnknown;
  const auto launch = reinterpret_cast<Launch>(dlsym(library, "sparsegen_emulator_launch"));
  const unsigned grid[3] = {config->gridDim.x, config->gridDim.y, config->gridDim.z};
  const unsigned block[3] = {config->blockDim.x, config->blockDim.y, config->blockDim.z};
  char error[1024] = "";
  const int status = launch(grid, block, config->dynamicSmemBytes, arguments, 2, error, sizeof(error));
  if (status != 0) std::fprintf(stderr, "%s\n", error);
  return status == 0 ? cudaSuccess : cudaErrorUnknown;
}
