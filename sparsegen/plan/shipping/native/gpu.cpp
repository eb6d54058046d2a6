// Launches on GPUs, through the driver's interface.
#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "driver.h"
#include "launch.h"

namespace shipped {
namespace {

constexpr int kMostDevices = 64;
constexpr unsigned kPortableCluster = 8;  // blocks of a cluster that every device with clusters can launch

/// A launch on one device: its kernel, loaded, and of a persistent grid what is resident at once.
struct Bound {
    void* function;
    Geometry geometry;
};

/// Makes the context that PyTorch shares current in a thread that has none yet.
void enter(int device) {
    void* context = nullptr;
    require(driver().ctx_get_current(&context), "cuCtxGetCurrent");
    if (context == nullptr) {
        int handle = 0;
        require(driver().device_get(&handle, device), "cuDeviceGet");
        require(driver().device_primary_ctx_retain(&context, handle), "cuDevicePrimaryCtxRetain");
        require(driver().ctx_set_current(context), "cuCtxSetCurrent");
    }
}

int capability_of(int device) {
    int handle = 0, major = 0, minor = 0;
    require(driver().device_get(&handle, device), "cuDeviceGet");
    require(driver().device_get_attribute(&major, kCapabilityMajor, handle), "cuDeviceGetAttribute");
    require(driver().device_get_attribute(&minor, kCapabilityMinor, handle), "cuDeviceGetAttribute");
    return 10 * major + minor;
}

CuLaunch configured(const Geometry& geometry, void* stream, CuAttribute* attributes, unsigned count) {
    CuLaunch made{};
    std::copy_n(geometry.grid, 3, made.grid);
    std::copy_n(geometry.block, 3, made.block);
    made.shared_bytes = geometry.shared_bytes;
    made.stream = stream;
    made.attributes = attributes;
    made.attribute_count = count;
    return made;
}

/// The kernel of a binary on a device, which stays loaded, with leave for so much shared memory.
void* function_of(const Code& code, int device, unsigned shared_bytes) {
    struct Loaded {
        void* function = nullptr;
        unsigned shared_bytes = 0;
    };
    static std::map<std::pair<const Code*, int>, Loaded> functions;  // under the lock of `bound`
    Loaded& found = functions[{&code, device}];
    if (found.function == nullptr) {
        void* module = nullptr;
        require(driver().module_load_data(&module, code.begin), "cuModuleLoadData");
        require(driver().module_get_function(&found.function, module, code.entry), code.entry);
    }
    if (shared_bytes > found.shared_bytes) {
        require(driver().func_set_attribute(found.function, kMaxDynamicSharedBytes, static_cast<int>(shared_bytes)),
                "dynamic shared memory");
        found.shared_bytes = shared_bytes;
    }
    return found.function;
}

/// Of a grid whose clusters share all work, as many as are resident at once.
void keep_resident(Bound& bound) {
    Geometry& geometry = bound.geometry;
    const unsigned cluster = geometry.persistent_cluster;
    if (cluster == 0) {
        return;
    }
    if (cluster > kPortableCluster) {
        require(driver().func_set_attribute(bound.function, kNonPortableClusterAllowed, 1), "large clusters");
    }
    CuAttribute attribute{kClusterDimension, 0, {cluster | std::uint64_t{1} << 32, 1}};  // x, y and z
    const CuLaunch launch = configured(geometry, nullptr, &attribute, 1);
    int clusters = 0;
    require(driver().occupancy_max_active_clusters(&clusters, bound.function, &launch),
            "cuOccupancyMaxActiveClusters");
    if (clusters < 1) {
        throw std::runtime_error("no cluster of " + std::to_string(cluster) + " blocks fits on this GPU");
    }
    geometry.grid[0] = std::min(geometry.grid[0], cluster * static_cast<unsigned>(clusters));
}

const Bound& bound(std::size_t number, int device) {
    using OfDevices = std::array<std::atomic<const Bound*>, kMostDevices>;
    static std::vector<OfDevices> known(launches().size());
    std::atomic<const Bound*>& place = known[number].at(static_cast<std::size_t>(device));
    if (const Bound* found = place.load(std::memory_order_acquire); found != nullptr) {
        return *found;
    }
    static std::mutex turn;
    const std::lock_guard lock(turn);
    if (place.load(std::memory_order_acquire) == nullptr) {
        const Target& target = target_of(launches()[number], capability_of(device));
        auto made = new Bound{nullptr, target.geometry};  // stays as long as the process
        made->function = function_of(*target.code, device, target.geometry.shared_bytes);
        keep_resident(*made);
        place.store(made, std::memory_order_release);
    }
    return *place.load(std::memory_order_acquire);
}

/// Zero before the first launch of each thread. It stays as long as the process: a captured graph may launch any time.
void* scratch_of(std::size_t number, int device, void* stream, std::size_t bytes) {
    if (bytes == 0) {
        return nullptr;
    }
    thread_local std::map<std::pair<std::size_t, int>, std::uint64_t> mine;
    std::uint64_t& found = mine[{number, device}];
    if (found == 0) {
        int captures = 0;
        require(driver().stream_is_capturing(stream, &captures), "cuStreamIsCapturing");
        if (captures != 0) {
            throw std::runtime_error("call the program once before a CUDA graph captures it");
        }
        require(driver().mem_alloc(&found, bytes), "scratch memory");
        require(driver().memset_d8(found, 0, bytes), "scratch memory");
        require(driver().ctx_synchronize(), "scratch memory");  // the first launch may be on another stream
    }
    return reinterpret_cast<void*>(found);
}

void encode(const Map& map, void* address, CuTensorMap* place) {
    const int swizzle = map.swizzle_bytes == 128 ? 3 : static_cast<int>(map.swizzle_bytes / 32);  // CUtensorMapSwizzle
    const bool is_wide = map.swizzle_bytes == 128 && map.l2_bytes == 256;
    require(driver().tensor_map_encode_tiled(place, map.type, map.rank, address, map.sizes, map.strides, map.extents,
                                             map.steps, 0, swizzle, is_wide ? 3 : 2, 0),
            "cuTensorMapEncodeTiled");
}

}  // namespace

void run_on_gpu(std::size_t number, int device, void* stream, const Addresses& addresses) {
    const Launch& launch = launches()[number];
    enter(device);
    const Bound& found = bound(number, device);
    Parameters<CuTensorMap> parameters;
    parameters.fill(launch, addresses, scratch_of(number, device, stream, launch.scratch_bytes), encode);
    CuAttribute attributes[2];
    unsigned count = 0;
    if (found.geometry.starts_early) {
        attributes[count++] = {kProgrammaticStreamSerialization, 0, {1}};
    }
    if (found.geometry.together) {
        attributes[count++] = {kCooperative, 0, {1}};
    }
    const CuLaunch configuration = configured(found.geometry, stream, attributes, count);
    require(driver().launch_kernel_ex(&configuration, found.function, parameters.places, nullptr), "cuLaunchKernelEx");
}

}  // namespace shipped
