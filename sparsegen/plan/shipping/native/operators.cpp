// The operator of a shipped library, registered with PyTorch by its stable interface.
#include <dlfcn.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <array>
#include <optional>
#include <stdexcept>
#include <string>

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

const Launch& checked(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, std::int64_t number) {
    const Launch& launch = launch_of(number);
    std::int32_t dtype = 0;
    aoti_torch_get_dtype(x.get(), &dtype);
    expect(dtype == launch.dtype, "x: another dtype than the model was shipped for");
    if (x.dim() != 2 || x.size(0) != launch.tokens || x.size(1) != launch.in_features) {
        throw std::runtime_error("x: expected " + std::to_string(launch.tokens) + " tokens of " +
                                 std::to_string(launch.in_features) +
                                 " features, as in the example inputs that the model was shipped with");
    }
    expect(weight.numel() == static_cast<std::int64_t>(launch.weight_bytes), "weight: it belongs to another launch");
    expect(bias.has_value() == launch.has_bias, launch.has_bias ? "bias: expected one" : "bias: expected none");
    if (bias.has_value()) {
        aoti_torch_get_dtype(bias->get(), &dtype);
        expect(dtype == launch.dtype && bias->numel() == launch.out_features, "bias: another size or dtype");
    }
    const int device = x.get_device_index();
    expect(weight.get_device_index() == device && (!bias.has_value() || bias->get_device_index() == device),
           "x, weight and bias are not all on one device");
    return launch;
}

/// Uninitialised memory for a result. No size of X is read: tracing knows some by name alone.
Tensor result_like(const Tensor& x, const Launch& launch) {
    const std::array<std::int64_t, 2> sizes{launch.tokens, launch.out_features}, strides{launch.out_features, 1};
    std::int32_t device_type = 0;
    aoti_torch_get_device_type(x.get(), &device_type);
    AtenTensorHandle made = nullptr;
    expect(aoti_torch_empty_strided(sizes.size(), sizes.data(), strides.data(), launch.dtype, device_type,
                                    x.get_device_index(), &made) == AOTI_TORCH_SUCCESS,
           "no memory for the result");
    return Tensor(made);
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
Tensor computed(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, std::int64_t number,
                Run&& run) {
    const Launch& launch = checked(x, weight, bias, number);
    const Tensor result = result_like(x, launch);
    const Tensor operand = aligned(x);
    const std::optional<Tensor> added = bias.has_value() ? std::optional(aligned(*bias)) : std::nullopt;
    run(Addresses{{operand.data_ptr(), added.has_value() ? added->data_ptr() : nullptr},
                  result.data_ptr(),
                  weight.data_ptr()});
    return result;
}

Tensor linear_on_cpu(Tensor x, Tensor weight, std::optional<Tensor> bias, std::int64_t launch) {
    return computed(x, weight, bias, launch, [&](const Addresses& addresses) {
        run_on_cpu(static_cast<std::size_t>(launch), addresses);
    });
}

Tensor linear_on_gpu(Tensor x, Tensor weight, std::optional<Tensor> bias, std::int64_t launch) {
    const int device = x.get_device_index();
    const torch::stable::accelerator::DeviceGuard guard(device);
    return computed(x, weight, bias, launch, [&](const Addresses& addresses) {
        run_on_gpu(static_cast<std::size_t>(launch), device, current_stream(device), addresses);
    });
}

/// What tensors without data give.
Tensor linear_without_data(Tensor x, Tensor, std::optional<Tensor>, std::int64_t launch) {
    return result_like(x, launch_of(launch));
}

}  // namespace
}  // namespace shipped

STABLE_TORCH_LIBRARY(SHIPPED_NAMESPACE, library) {
    library.def("linear(Tensor x, Tensor weight, Tensor? bias, int launch) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(SHIPPED_NAMESPACE, CPU, library) {
    library.impl("linear", TORCH_BOX(&shipped::linear_on_cpu));
}
STABLE_TORCH_LIBRARY_IMPL(SHIPPED_NAMESPACE, CUDA, library) {
    library.impl("linear", TORCH_BOX(&shipped::linear_on_gpu));
}
STABLE_TORCH_LIBRARY_IMPL(SHIPPED_NAMESPACE, Meta, library) {
    library.impl("linear", TORCH_BOX(&shipped::linear_without_data));
}
