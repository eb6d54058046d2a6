// Half and bfloat16: CUDA's own host functions, and those that its headers keep for the device.
#pragma once

#include <cmath>
#include <concepts>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace sparsegen::emulator {

template <class T>
concept Half = std::same_as<T, __half> || std::same_as<T, __nv_bfloat16>;

template <class T>
concept HalfPair = std::same_as<T, __half2> || std::same_as<T, __nv_bfloat162>;

/// Rounded once, to nearest even.
template <Half T>
T rounded(double x) {
    if constexpr (std::same_as<T, __half>) {
        return __double2half(x);
    } else {
        return __double2bfloat16(x);
    }
}

template <Half T>
float widened(T x) {
    return static_cast<float>(x);
}

}  // namespace sparsegen::emulator

// Templates, so that CUDA headers that come to have these functions for the host win by overload resolution.

template <sparsegen::emulator::Half T>
T __hfma(T a, T b, T c) {
    using namespace sparsegen::emulator;
    // The product is exact in double.
    return rounded<T>(static_cast<double>(widened(a)) * widened(b) + widened(c));
}

template <sparsegen::emulator::HalfPair T>
T __hfma2(T a, T b, T c) {
    T result;
    result.x = __hfma(a.x, b.x, c.x);
    result.y = __hfma(a.y, b.y, c.y);
    return result;
}

template <sparsegen::emulator::Half T>
T hsqrt(T x) {
    return sparsegen::emulator::rounded<T>(std::sqrt(static_cast<double>(sparsegen::emulator::widened(x))));
}

template <sparsegen::emulator::Half T>
T hexp(T x) {
    return sparsegen::emulator::rounded<T>(std::exp(static_cast<double>(sparsegen::emulator::widened(x))));
}
