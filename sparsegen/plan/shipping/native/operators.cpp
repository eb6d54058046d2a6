// The operators of a shipped library, registered with PyTorch by its stable interface.
#include <dlfcn.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <array>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "launch.h"

#if !defined(SHIPPED_NAMESPACE)
#error "the compiler's command line says under which name operators are registered"
#endif

namespace shipped {

const Target& target_of(const Launch& launch, int capability) {
    std::string known;
    for (const Target& target : launch.targets) {
        if (target.capability == capability) {
            return target;
        }
        known += (known.empty() ? "" : ", ") +
                 (target.capability == kCpu ? "the CPU" : "sm_" + std::to_string(target.capability));
    }
    throw std::runtime_error("this library has kernels for " + known + ", and none for " +
                             (capability == kCpu ? "the CPU" : "sm_" + std::to_string(capability)) +
                             ": ship the model for this architecture too");
}

namespace {

using torch::stable::Tensor;

constexpr std::uintptr_t kVectorBytes = 16;  // the widest load

void expect(bool holds, const char* what) {
    if (!holds) {
        throw std::runtime_error(what);
    }
}

const Launch& launch_of(std::int64_t number) {
    expect(number >= 0 && static_cast<std::size_t>(number) < launches().size(), "launch: there is none of this number");
    return launches()[static_cast<std::size_t>(number)];
}

std::string sizes_of(const Array& array) {
    std::string found;
    for (const std::int64_t size : array.sizes) {
        found += (found.empty() ? "" : " × ") + std::to_string(size);
    }
    return found;
}

/// Holds a tensor against what the kernel was compiled for.
void check(const Tensor& tensor, const Array& array, int device) {
    std::int32_t dtype = 0;
    aoti_torch_get_dtype(tensor.get(), &dtype);
    bool fits = tensor.dim() == static_cast<std::int64_t>(array.sizes.size());
    for (std::size_t i = 0; fits && i < array.sizes.size(); ++i) {
        fits = tensor.size(static_cast<std::int64_t>(i)) == array.sizes[i];
    }
    if (!fits || dtype != array.dtype) {
        throw std::runtime_error(std::string(array.name) + ": expected " + (fits ? "the dtype" : sizes_of(array)) +
                                 ", as in the example inputs that the model was shipped with");
    }
    if (tensor.get_device_index() != device) {
        throw std::runtime_error(std::string(array.name) + ": it is on another device than the packed arrays");
    }
}

/// Uninitialised memory for a result. No size of an operand is read: tracing knows some by name alone.
Tensor made(const Array& array, const Tensor& like) {
    std::array<std::int64_t, kMostDimensions> strides{};
    const std::size_t dimensions = array.sizes.size();
    expect(dimensions <= strides.size(), "a result of too many dimensions");
    for (std::size_t i = dimensions; i-- > 0;) {
        strides[i] = i + 1 == dimensions ? 1 : strides[i + 1] * array.sizes[i + 1];
    }
    std::int32_t device_type = 0;
    aoti_torch_get_device_type(like.get(), &device_type);
    AtenTensorHandle found = nullptr;
    expect(aoti_torch_empty_strided(static_cast<std::int64_t>(dimensions), array.sizes.data(), strides.data(),
                                    array.dtype, device_type, like.get_device_index(), &found) == AOTI_TORCH_SUCCESS,
           "no memory for the result");
    return Tensor(found);
}

std::vector<Tensor> results_of(const Launch& launch, const Tensor& like) {
    std::vector<Tensor> found;
    for (const Array& array : launch.results) {
        found.push_back(made(array, like));
    }
    return found;
}

/// A tensor as kernels read it: contiguous, at an address that vectors divide.
Tensor aligned(const Tensor& tensor) {
    const Tensor found = tensor.is_contiguous() ? tensor : torch::stable::contiguous(tensor);
    const bool fits = reinterpret_cast<std::uintptr_t>(found.data_ptr()) % kVectorBytes == 0;
    return fits ? found : torch::stable::clone(found);
}

void* current_stream(int device) {
    using Function = AOTITorchError (*)(std::int32_t, void**);
    static const Function function = [] {
        void* library = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD);  // there are tensors of CUDA, so it is
        void* found = library == nullptr ? nullptr : dlsym(library, "aoti_torch_get_current_cuda_stream");
        expect(found != nullptr, "this PyTorch has no CUDA");
        return reinterpret_cast<Function>(found);
    }();
    void* stream = nullptr;
    expect(function(device, &stream) == AOTI_TORCH_SUCCESS, "cannot tell the current stream");
    return stream;
}

template <class Run>
std::vector<Tensor> computed(const std::vector<Tensor>& operands, const Tensor& packed, std::int64_t number, Run&& run) {
    const Launch& launch = launch_of(number);
    expect(packed.numel() == static_cast<std::int64_t>(launch.packed_bytes),
           "the packed arrays belong to another launch");
    expect(operands.size() == launch.operands.size() && operands.size() <= kMostArguments,
           "another number of operands than the launch takes");
    std::vector<Tensor> held, results = results_of(launch, packed);
    std::array<void*, kMostArguments> read{}, written{};
    for (std::size_t i = 0; i < operands.size(); ++i) {
        check(operands[i], launch.operands[i], packed.get_device_index());
        held.push_back(aligned(operands[i]));
        read[i] = held.back().data_ptr();
    }
    for (std::size_t i = 0; i < results.size(); ++i) {
        written[i] = results[i].data_ptr();
    }
    run(Addresses{{read.data(), operands.size()}, {written.data(), results.size()}, packed.data_ptr()});
    return results;
}

std::vector<Tensor> launch_on_cpu(std::vector<Tensor> operands, Tensor packed, std::int64_t launch) {
    return computed(operands, packed, launch, [&](const Addresses& addresses) {
        run_on_cpu(static_cast<std::size_t>(launch), addresses);
    });
}

std::vector<Tensor> launch_on_gpu(std::vector<Tensor> operands, Tensor packed, std::int64_t launch) {
    const int device = packed.get_device_index();
    const torch::stable::accelerator::DeviceGuard guard(device);
    return computed(operands, packed, launch, [&](const Addresses& addresses) {
        run_on_gpu(static_cast<std::size_t>(launch), device, current_stream(device), addresses);
    });
}

/// What tensors without data give.
std::vector<Tensor> launch_without_data(std::vector<Tensor>, Tensor packed, std::int64_t launch) {
    return results_of(launch_of(launch), packed);
}

using Launcher = std::vector<Tensor>(std::vector<Tensor>, Tensor, std::int64_t);

/// The product of a linear layer: a launch with X, a bias or none, and one result.
template <Launcher* kLauncher>
Tensor linear(Tensor x, Tensor packed, std::optional<Tensor> bias, std::int64_t launch) {
    std::vector<Tensor> operands{std::move(x)};
    if (bias.has_value()) {
        operands.push_back(*std::move(bias));
    }
    return kLauncher(std::move(operands), std::move(packed), launch).front();
}

}  // namespace
}  // namespace shipped

STABLE_TORCH_LIBRARY(SHIPPED_NAMESPACE, library) {
    library.def("launch(Tensor[] operands, Tensor packed, int launch) -> Tensor[]");
    library.def("linear(Tensor x, Tensor packed, Tensor? bias, int launch) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(SHIPPED_NAMESPACE, CPU, library) {
    library.impl("launch", TORCH_BOX(&shipped::launch_on_cpu));
    library.impl("linear", TORCH_BOX(&shipped::linear<shipped::launch_on_cpu>));
}
STABLE_TORCH_LIBRARY_IMPL(SHIPPED_NAMESPACE, CUDA, library) {
    library.impl("launch", TORCH_BOX(&shipped::launch_on_gpu));
    library.impl("linear", TORCH_BOX(&shipped::linear<shipped::launch_on_gpu>));
}
STABLE_TORCH_LIBRARY_IMPL(SHIPPED_NAMESPACE, Meta, library) {
    library.impl("launch", TORCH_BOX(&shipped::launch_without_data));
    library.impl("linear", TORCH_BOX(&shipped::linear<shipped::launch_without_data>));
}
