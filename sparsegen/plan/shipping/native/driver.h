// The part of NVIDIA's driver interface (CUDA driver API reference) that launches need, found when it is first used:
// a shipped library is compiled without CUDA's headers, and loads on machines without the driver.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shipped {

struct alignas(64) CuTensorMap {
    std::uint64_t opaque[16];
};

/// CUlaunchAttribute: a number, and a union of 64 bytes aligned to 8.
struct CuAttribute {
    std::int32_t id, padding;
    std::uint64_t value[8];
};

/// CUlaunchConfig.
struct CuLaunch {
    unsigned grid[3], block[3], shared_bytes;
    void* stream;
    CuAttribute* attributes;
    unsigned attribute_count;
};

// CUlaunchAttributeID, CUfunction_attribute, CUdevice_attribute
inline constexpr int kCooperative = 2, kClusterDimension = 4, kProgrammaticStreamSerialization = 6;
inline constexpr int kMaxDynamicSharedBytes = 8, kNonPortableClusterAllowed = 14;
inline constexpr int kCapabilityMajor = 75, kCapabilityMinor = 76;

/// Functions of the driver; each returns a CUresult, 0 for success.
struct Driver {
    int (*get_error_name)(int status, const char** name);
    int (*device_get)(int* device, int ordinal);
    int (*device_get_attribute)(int* value, int attribute, int device);
    int (*module_load_data)(void** module, const void* image);
    int (*module_get_function)(void** function, void* module, const char* name);
    int (*func_set_attribute)(void* function, int attribute, int value);
    int (*occupancy_max_active_clusters)(int* clusters, void* function, const CuLaunch* launch);
    int (*launch_kernel_ex)(const CuLaunch* launch, void* function, void** parameters, void** extra);
    int (*tensor_map_encode_tiled)(CuTensorMap* map, int type, std::uint32_t rank, void* address,
                                   const std::uint64_t* sizes, const std::uint64_t* strides, const std::uint32_t* box,
                                   const std::uint32_t* steps, int interleave, int swizzle, int promotion, int fill);
    int (*mem_alloc)(std::uint64_t* address, std::size_t bytes);
    int (*memset_d8)(std::uint64_t address, unsigned char byte, std::size_t bytes);
    int (*ctx_synchronize)();
    int (*ctx_get_current)(void** context);
    int (*ctx_set_current)(void* context);
    int (*device_primary_ctx_retain)(void** context, int device);
    int (*stream_is_capturing)(void* stream, int* status);
};

/// Throws std::runtime_error where there is no driver, or one that is too old.
const Driver& driver();

/// Throws std::runtime_error with the driver's own word where a status is no success.
void require(int status, const char* what);

}  // namespace shipped
