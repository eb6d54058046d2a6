#include "driver.h"

#include <dlfcn.h>

#include <stdexcept>
#include <string>

namespace shipped {
namespace {

template <class Function>
void find(void* library, const char* name, Function*& function) {
    function = reinterpret_cast<Function*>(dlsym(library, name));
    if (function == nullptr) {
        throw std::runtime_error(std::string("NVIDIA's driver is too old: it has no ") + name);
    }
}

Driver found() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        throw std::runtime_error("there is no NVIDIA driver (libcuda.so.1)");
    }
    Driver made;
    find(library, "cuGetErrorName", made.get_error_name);
    find(library, "cuDeviceGet", made.device_get);
    find(library, "cuDeviceGetAttribute", made.device_get_attribute);
    find(library, "cuModuleLoadData", made.module_load_data);
    find(library, "cuModuleGetFunction", made.module_get_function);
    find(library, "cuFuncSetAttribute", made.func_set_attribute);
    find(library, "cuOccupancyMaxActiveClusters", made.occupancy_max_active_clusters);
    find(library, "cuLaunchKernelEx", made.launch_kernel_ex);
    find(library, "cuTensorMapEncodeTiled", made.tensor_map_encode_tiled);
    find(library, "cuMemAlloc_v2", made.mem_alloc);
    find(library, "cuMemsetD8_v2", made.memset_d8);
    find(library, "cuCtxSynchronize", made.ctx_synchronize);
    find(library, "cuCtxGetCurrent", made.ctx_get_current);
    find(library, "cuCtxSetCurrent", made.ctx_set_current);
    find(library, "cuDevicePrimaryCtxRetain", made.device_primary_ctx_retain);
    find(library, "cuStreamIsCapturing", made.stream_is_capturing);
    return made;
}

}  // namespace

const Driver& driver() {
    static const Driver made = found();
    return made;
}

void require(int status, const char* what) {
    if (status != 0) {
        const char* name = nullptr;
        driver().get_error_name(status, &name);
        throw std::runtime_error(std::string(what) + ": " + (name == nullptr ? "unknown error" : name));
    }
}

}  // namespace shipped
