// Launches on the CPU: kernels that the emulator's compiler made, loaded from this library's own bytes.
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>

#include "entry.h"
#include "launch.h"
#include "tensor_map.h"

namespace shipped {
namespace {

using Function = decltype(&sparsegen_emulator_launch);
using sparsegen::emulator::TensorMap;

constexpr std::size_t kAlignment = 256;  // that of device memory

Function loaded(const Code& code) {
    static std::mutex turn;
    static std::map<const Code*, Function> functions;
    const std::lock_guard lock(turn);
    if (const auto found = functions.find(&code); found != functions.end()) {
        return found->second;
    }
    const int file = memfd_create("kernel", MFD_CLOEXEC);  // stays open: the linker takes equal paths for one object
    const auto bytes = code.end - code.begin;
    if (file < 0 || write(file, code.begin, static_cast<std::size_t>(bytes)) != bytes) {
        throw std::runtime_error("cannot hold a kernel in memory");
    }
    void* object = dlopen(("/proc/self/fd/" + std::to_string(file)).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (object == nullptr) {
        throw std::runtime_error(std::string("cannot load a kernel: ") + dlerror());
    }
    const auto function = reinterpret_cast<Function>(dlsym(object, "sparsegen_emulator_launch"));
    return functions[&code] = function;
}

/// Zero before the first launch of each thread; stays as long as the process.
void* scratch_of(std::size_t number, std::size_t bytes) {
    thread_local std::map<std::size_t, void*> mine;
    void*& found = mine[number];
    if (found == nullptr && bytes > 0) {
        const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
        found = std::aligned_alloc(kAlignment, rounded);
        std::memset(found, 0, rounded);
    }
    return found;
}

void encode(const Map& map, void* address, TensorMap* place) {
    TensorMap made{};
    made.array = static_cast<char*>(address);
    for (unsigned i = 0; i < kMostDimensions; ++i) {
        const bool is_there = i < map.rank;
        made.strides[i] = i == 0 ? map.item_bytes : is_there ? map.strides[i - 1] : 1;
        made.sizes[i] = is_there ? static_cast<std::uint32_t>(map.sizes[i]) : 1;
        made.box[i] = is_there ? map.box[i] : 1;
        made.steps[i] = is_there ? map.steps[i] : 1;
    }
    made.rank = map.rank;
    made.item_bytes = map.item_bytes;
    made.swizzle_bytes = map.swizzle_bytes;
    *place = made;
}

}  // namespace

void run_on_cpu(std::size_t number, const Addresses& addresses) {
    const Launch& launch = launches()[number];
    const Target& target = target_of(launch, kCpu);
    const Function function = loaded(*target.code);
    Parameters<TensorMap> parameters;
    parameters.fill(launch, addresses, scratch_of(number, launch.scratch_bytes), encode);
    const Geometry& geometry = target.geometry;
    char error[1024] = "";
    const int workers = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    if (function(geometry.grid, geometry.block, geometry.shared_bytes, parameters.places, workers, error,
                 sizeof(error)) != kLaunchDone) {
        throw std::runtime_error(std::string(target.code->entry) + ": " + error);
    }
}

}  // namespace shipped
