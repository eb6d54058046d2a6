// Device functions on numbers that CUDA's headers do not give to a host compiler.
#pragma once

#include <bit>
#include <cmath>
#include <type_traits>

inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }

inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return std::countl_zero(static_cast<unsigned long long>(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>((1ull * a * b) >> 32); }


namespace sparsegen::emulator {

/// prmt.b32: byte i of the result is byte `selector >> 4 i & 7` of the two words, or copies of that byte's sign.
inline unsigned permute_bytes(unsigned low, unsigned high, unsigned selector) {
    const unsigned long long both = static_cast<unsigned long long>(high) << 32 | low;
    unsigned result = 0;
    for (unsigned i = 0; i < 4; ++i) {
        const unsigned nibble = selector >> 4 * i & 15u;
        unsigned byte = static_cast<unsigned>(both >> 8 * (nibble & 7u)) & 0xFFu;
        if (nibble & 8u) {
            byte = byte & 0x80u ? 0xFFu : 0u;
        }
        result |= byte << 8 * i;
    }
    return result;
}

}  // namespace sparsegen::emulator

inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    return sparsegen::emulator::permute_bytes(x, y, selector & 0x7777u);
}

/// The low word of two that are shifted right together.
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) >> (shift & 31u));
}

/// The sum of the products of four pairs of unsigned bytes, and c.
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    for (unsigned shift = 0; shift < 32; shift += 8) {
        c += (a >> shift & 0xFFu) * (b >> shift & 0xFFu);
    }
    return c;
}

inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __log2f(float x) { return std::log2(x); }
inline float __expf(float x) { return std::exp(x); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }

inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
inline unsigned min(int a, unsigned b) { return min(static_cast<unsigned>(a), b); }
inline unsigned max(int a, unsigned b) { return max(static_cast<unsigned>(a), b); }
inline unsigned min(unsigned a, int b) { return min(a, static_cast<unsigned>(b)); }
inline unsigned max(unsigned a, int b) { return max(a, static_cast<unsigned>(b)); }
inline long min(long a, long b) { return a < b ? a : b; }
inline long max(long a, long b) { return a > b ? a : b; }
inline long long min(long long a, long long b) { return a < b ? a : b; }
inline unsigned long long min(unsigned long long a, unsigned long long b) { return a < b ? a : b; }
inline long long max(long long a, long long b) { return a > b ? a : b; }
inline unsigned long long max(unsigned long long a, unsigned long long b) { return a > b ? a : b; }
inline float min(float a, float b) { return std::fmin(a, b); }
inline float max(float a, float b) { return std::fmax(a, b); }
inline double min(double a, double b) { return std::fmin(a, b); }
inline double max(double a, double b) { return std::fmax(a, b); }

// Loads and stores with a cache hint.
template <class T>
T __ldg(const T* address) {
    return *address;
}
template <class T>
T __ldcs(const T* address) {
    return *address;
}
template <class T>
T __ldcg(const T* address) {
    return *address;
}
template <class T>
void __stcs(T* address, std::type_identity_t<T> value) {
    *address = value;
}
template <class T>
void __stcg(T* address, std::type_identity_t<T> value) {
    *address = value;
}
