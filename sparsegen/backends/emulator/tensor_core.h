// Tensor-core instructions of a warp: ldmatrix, stmatrix and mma.sync, with PTX's distribution of fragments over lanes.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "block.h"
#include "warp_exchange.h"

namespace sparsegen::emulator {

/// ldmatrix: lane i holds the address of row i % 8 (16 bytes) of 8 × 8 matrix i / 8; 16-bit elements.
template <int kMatrices>
void load_matrices(unsigned (&fragments)[kMatrices], const void* row, bool transposed, int line = __builtin_LINE()) {
    exchange(row, line, [&](const void* const* rows) {
        const unsigned group = lane() / 4, pair = lane() % 4 * 2;
        for (int matrix = 0; matrix < kMatrices; ++matrix) {
            std::uint16_t elements[2];
            for (unsigned i = 0; i < 2; ++i) {
                const unsigned r = transposed ? pair + i : group, c = transposed ? group : pair + i;
                elements[i] = static_cast<const std::uint16_t*>(rows[matrix * 8 + r])[c];
            }
            std::memcpy(&fragments[matrix], elements, sizeof elements);
        }
    });
}

/// stmatrix: lane i holds the address of row i % 8 (16 bytes) of 8 × 8 matrix i / 8; 16-bit elements.
template <int kMatrices>
void store_matrices(void* row, const unsigned (&fragments)[kMatrices], bool transposed = false,
                    int line = __builtin_LINE()) {
    exchange(row, line, [&](void* const* rows) {
        const unsigned group = lane() / 4, pair = lane() % 4 * 2;
        for (int matrix = 0; matrix < kMatrices; ++matrix) {
            std::uint16_t elements[2];
            std::memcpy(elements, &fragments[matrix], sizeof elements);
            for (unsigned i = 0; i < 2; ++i) {
                const unsigned down = transposed ? pair + i : group, across = transposed ? group : pair + i;
                static_cast<std::uint16_t*>(rows[matrix * 8 + down])[across] = elements[i];
            }
        }
    });
}

/// A lane's share of a product: rows r and r + 8 of the left matrix, two neighbouring columns of the right one, each along
/// k. Each element is converted once; the kernel's memory is not touched here.
template <unsigned kDepth>
struct LaneProduct {
    double left[2][kDepth], right[2][kDepth];

    __attribute__((no_sanitize("address", "undefined"))) void add_to(float (&sum)[4]) const {
        for (unsigned i = 0; i < 4; ++i) {
            double total = static_cast<double>(sum[i]);
            for (unsigned k = 0; k < kDepth; ++k) total += left[i / 2][k] * right[i % 2][k];
            sum[i] = static_cast<float>(total);
        }
    }
};

struct MmaFragments {
    unsigned a[4];
    unsigned b[2];
};

/// mma.sync.m16n8k16 of half or bfloat16 elements, added up in float.
template <class T>
void mma_16bit(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2], int line = __builtin_LINE()) {
    MmaFragments mine;
    std::memcpy(mine.a, a, sizeof a);
    std::memcpy(mine.b, b, sizeof b);
    exchange(mine, line, [&](const MmaFragments* lanes) {
        LaneProduct<16> product;
        const auto convert = [](double (&elements)[16], unsigned k, unsigned word) {
            T pair[2];
            std::memcpy(pair, &word, sizeof pair);
            for (unsigned i = 0; i < 2; ++i) elements[k + i] = static_cast<double>(static_cast<float>(pair[i]));
        };
        const unsigned group = lane() / 4, pair = lane() % 4 * 2;
        for (unsigned k = 0; k < 16; k += 2) {
            const unsigned upper = k / 8, from = k % 8 / 2;
            for (unsigned i = 0; i < 2; ++i) {
                convert(product.left[i], k, lanes[group * 4 + from].a[upper * 2 + i]);
                convert(product.right[i], k, lanes[(pair + i) * 4 + from].b[upper]);
            }
        }
        product.add_to(sum);
    });
}

/// A TF32 element: a float whose 13 lowest bits are dropped.
struct Tf32 {
    unsigned bits;
    explicit operator float() const { return std::bit_cast<float>(bits & 0xFFFFE000u); }
};

/// mma.sync.m16n8k8 of TF32 elements.
inline void mma_tf32(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2], int line = __builtin_LINE()) {
    MmaFragments mine;
    std::memcpy(mine.a, a, sizeof a);
    std::memcpy(mine.b, b, sizeof b);
    exchange(mine, line, [&](const MmaFragments* lanes) {
        LaneProduct<8> product;
        const auto element = [](unsigned word) { return static_cast<double>(static_cast<float>(Tf32{word})); };
        const unsigned group = lane() / 4, pair = lane() % 4 * 2;
        for (unsigned k = 0; k < 8; ++k) {
            for (unsigned i = 0; i < 2; ++i) {
                product.left[i][k] = element(lanes[group * 4 + k % 4].a[k / 4 * 2 + i]);
                product.right[i][k] = element(lanes[(pair + i) * 4 + k % 4].b[k / 4]);
            }
        }
        product.add_to(sum);
    });
}

/// A matrix in shared memory as wgmma's descriptors see it: rows of 128 bytes in groups of 8, their 16-byte chunks
/// swizzled by the address, whose bits 4 to 6 are exchanged with bits 7 to 9.
struct SwizzledMatrix {
    const void* start;
    bool k_is_contiguous;
    unsigned block_stride = 0;  // bytes from 64 elements of the contiguous direction to the next, where k is not it

    template <class T>
    double element(unsigned outer, unsigned k) const {
        const unsigned row = k_is_contiguous ? outer : k;
        const unsigned column = k_is_contiguous ? k : outer;
        auto address = reinterpret_cast<std::uintptr_t>(start) + column / 64 * block_stride + row * 128 +
                       column % 64 * sizeof(T);
        address ^= address >> 3 & 0x70;
        return static_cast<double>(static_cast<float>(*reinterpret_cast<const T*>(address)));
    }
};

/// A matrix in shared memory whose rows run along k, as wgmma's descriptors see it: groups of 8 rows of so many bytes, whose
/// 16-byte chunks are swizzled by the address.
struct SwizzledRows {
    const unsigned char* start;
    unsigned row_bytes;
    unsigned group_stride;  // bytes from 8 rows to the next 8

    template <class T>
    double element(unsigned row, unsigned k) const {
        auto address = reinterpret_cast<std::uintptr_t>(start) + row / 8 * group_stride + row % 8 * row_bytes + k * sizeof(T);
        address ^= (address >> 7 & (row_bytes / 16 - 1)) << 4;
        return static_cast<double>(static_cast<float>(*reinterpret_cast<const T*>(address)));
    }
};

/// An 8-bit number with so many bits of exponent; with 4 the largest code is NaN and there is no infinity (e4m3fn).
template <int kExponentBits>
struct Float8 {
    std::uint8_t bits;
    explicit operator float() const {
        constexpr int kFractionBits = 7 - kExponentBits, kBias = (1 << (kExponentBits - 1)) - 1;
        constexpr int kMostExponent = (1 << kExponentBits) - 1, kMostFraction = (1 << kFractionBits) - 1;
        const int exponent = bits >> kFractionBits & kMostExponent, fraction = bits & kMostFraction;
        const float sign = (bits & 0x80) != 0 ? -1.0f : 1.0f;
        if (exponent == kMostExponent && (kExponentBits == 5 || fraction == kMostFraction)) {
            return sign * (kExponentBits == 5 && fraction == 0 ? __builtin_inff() : __builtin_nanf(""));
        }
        const int size = exponent == 0 ? fraction : fraction + (1 << kFractionBits);
        return sign * std::ldexp(static_cast<float>(size), (exponent == 0 ? 1 : exponent) - kBias - kFractionBits);
    }
};
using e4m3 = Float8<4>;
using e5m2 = Float8<5>;

/// The product of a warpgroup, whose matrices are of any kind, over 32 bytes of k.
template <class T, int kColumnTiles, class Matrix, class OfB = T>
void wgmma_of(float (&sums)[kColumnTiles][4], const Matrix& a, const Matrix& b) {
    constexpr unsigned kDepth = 32 / sizeof(T);
    const unsigned first_row = running_thread->number / kWarpSize % 4 * 16 + lane() / 4;
    LaneProduct<kDepth> product;
    for (unsigned i = 0; i < 2; ++i) {
        for (unsigned k = 0; k < kDepth; ++k) product.left[i][k] = a.template element<T>(first_row + i * 8, k);
    }
    for (unsigned tile = 0; tile < kColumnTiles; ++tile) {
        const unsigned first_column = tile * 8 + lane() % 4 * 2;
        for (unsigned i = 0; i < 2; ++i) {
            for (unsigned k = 0; k < kDepth; ++k) product.right[i][k] = b.template element<OfB>(first_column + i, k);
        }
        product.add_to(sums[tile]);
    }
}

/// wgmma.mma_async.m64nNk16 with both matrices in shared memory, done at once: a missing wait is not seen here.
template <class T, int kColumnTiles>
void wgmma_16bit(float (&sums)[kColumnTiles][4], SwizzledMatrix a, SwizzledMatrix b) {
    wgmma_of<T>(sums, a, b);
}

/// wgmma.mma_async.m64nNk8 of TF32 elements, which must lie along k in both matrices.
template <int kColumnTiles>
void wgmma_tf32(float (&sums)[kColumnTiles][4], SwizzledMatrix a, SwizzledMatrix b) {
    wgmma_of<Tf32>(sums, a, b);
}

/// wgmma.mma_async.m64nNk32 of 8-bit elements, which must lie along k in both matrices.
template <class A, class B, int kColumnTiles>
void wgmma_8bit(float (&sums)[kColumnTiles][4], SwizzledMatrix a, SwizzledMatrix b) {
    wgmma_of<A, kColumnTiles, SwizzledMatrix, B>(sums, a, b);
}

template <class T, int kColumnTiles>
void wgmma_16bit(float (&sums)[kColumnTiles][4], SwizzledRows a, SwizzledRows b) {
    wgmma_of<T>(sums, a, b);
}

/// The same with A in registers: of each warp 16 rows, as fragments of mma.sync.
template <class T, int kColumnTiles>
void wgmma_16bit(float (&sums)[kColumnTiles][4], const unsigned (&a)[4], SwizzledMatrix b, int line = __builtin_LINE()) {
    struct Fragment {
        unsigned words[4];
    };
    Fragment mine;
    std::memcpy(mine.words, a, sizeof a);
    exchange(mine, line, [&](const Fragment* lanes) {
        for (unsigned tile = 0; tile < kColumnTiles; ++tile) {
            for (unsigned i = 0; i < 4; ++i) {
                const unsigned column = tile * 8 + lane() % 4 * 2 + i % 2;
                double total = static_cast<double>(sums[tile][i]);
                for (unsigned k = 0; k < 16; ++k) {
                    T pair[2];
                    std::memcpy(pair, &lanes[lane() / 4 * 4 + k % 8 / 2].words[k / 8 * 2 + i / 2], sizeof pair);
                    total += static_cast<double>(static_cast<float>(pair[k % 2])) * b.element<T>(column, k);
                }
                sums[tile][i] = static_cast<float>(total);
            }
        }
    });
}

}  // namespace sparsegen::emulator
