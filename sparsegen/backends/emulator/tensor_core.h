// Tensor-core instructions of a warp: ldmatrix, stmatrix and mma.sync, with PTX's distribution of fragments over lanes.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "block.h"
#include "warp_exchange.h"

namespace sparsegen::emulator {

/// A lane's part of ldmatrix and stmatrix: its row's address, and its fragments.
template <class Row, class Fragment>
struct LaneOfMatrices {
    Row* row;
    Fragment* fragments;
};

/// Calls `move(element of a row, element of a fragment)` for all 16-bit elements of 8 × 8 matrices. Lane i brings row i % 8
/// of matrix i / 8, and has as fragments two elements of each matrix: of row i / 4, or of column i / 4 if it is transposed.
template <int kMatrices, class Row, class Fragment, class Move>
void each_pair(const LaneOfMatrices<Row, Fragment>* lanes, bool transposed, Move move) {
    using Bytes = std::conditional_t<std::is_const_v<Fragment>, const std::byte, std::byte>;
    for (unsigned lane = 0; lane < kWarpSize; ++lane) {
        const unsigned group = lane / 4, pair = lane % 4 * 2;
        for (int matrix = 0; matrix < kMatrices; ++matrix) {
            auto* const elements = reinterpret_cast<Bytes*>(lanes[lane].fragments + matrix);
            for (unsigned i = 0; i < 2; ++i) {
                const unsigned down = transposed ? pair + i : group, across = transposed ? group : pair + i;
                move(lanes[matrix * 8 + down].row + across, elements + 2 * i);
            }
        }
    }
}

/// ldmatrix: lane i holds the address of row i % 8 (16 bytes) of 8 × 8 matrix i / 8; 16-bit elements.
template <int kMatrices>
void load_matrices(unsigned (&fragments)[kMatrices], const void* row, bool transposed, int line = __builtin_LINE()) {
    using Lane = LaneOfMatrices<const std::uint16_t, unsigned>;
    together(Lane{static_cast<const std::uint16_t*>(row), fragments}, line, [&](const Lane* lanes) {
        each_pair<kMatrices>(lanes, transposed, [](const std::uint16_t* from, std::byte* to) {
            const std::uint16_t element = *from;
            std::memcpy(to, &element, sizeof element);
        });
    });
}

/// stmatrix: lane i holds the address of row i % 8 (16 bytes) of 8 × 8 matrix i / 8; 16-bit elements.
template <int kMatrices>
void store_matrices(void* row, const unsigned (&fragments)[kMatrices], bool transposed = false,
                    int line = __builtin_LINE()) {
    using Lane = LaneOfMatrices<std::uint16_t, const unsigned>;
    together(Lane{static_cast<std::uint16_t*>(row), fragments}, line, [&](const Lane* lanes) {
        each_pair<kMatrices>(lanes, transposed, [](std::uint16_t* to, const std::byte* from) {
            std::uint16_t element;
            std::memcpy(&element, from, sizeof element);
            *to = element;
        });
    });
}

/// What a lane brings to a product of its warp: fragments of the factors, where they are in registers, and its sums, of
/// each 8 columns those of rows lane / 4 and lane / 4 + 8 and of columns lane % 4 · 2 and the next.
struct LaneOfProduct {
    const unsigned* a;
    const unsigned* b;
    float (*sums)[4];
};

/// Adds left × right to the lanes' sums: 16 rows by `tiles` times 8 columns, over `depth` elements of k, in their order.
void add_product(const LaneOfProduct* lanes, const double* left, const double* right, unsigned depth, unsigned tiles);

/// The factors of a warp's product, each element converted once.
template <unsigned kDepth, unsigned kTiles>
struct WarpFactors {
    double left[16][kDepth];
    double right[kDepth][kTiles * 8];

    /// Multiplies for the whole warp, whose lanes have come: `left_at(row, k)` and `right_at(k, column)` give the elements.
    template <class LeftAt, class RightAt>
    static void multiply(const LaneOfProduct* lanes, LeftAt left_at, RightAt right_at) {
        static thread_local WarpFactors factors;  // too large for a thread's stack
        for (unsigned row = 0; row < 16; ++row) {
            for (unsigned k = 0; k < kDepth; ++k) factors.left[row][k] = left_at(row, k);
        }
        for (unsigned k = 0; k < kDepth; ++k) {
            for (unsigned column = 0; column < kTiles * 8; ++column) factors.right[k][column] = right_at(k, column);
        }
        add_product(lanes, factors.left[0], factors.right[0], kDepth, kTiles);
    }
};

/// One of the two 16-bit elements of a register.
template <class T>
double element_of(unsigned word, unsigned i) {
    T pair[2];
    std::memcpy(pair, &word, sizeof pair);
    return static_cast<double>(static_cast<float>(pair[i]));
}

/// An element of 16 rows of 16-bit elements that lie in the lanes' registers, as mma.sync has its left matrix.
template <class T>
double fragment_element(const LaneOfProduct* lanes, unsigned row, unsigned k) {
    return element_of<T>(lanes[row % 8 * 4 + k % 8 / 2].a[k / 8 * 2 + row / 8], k % 2);
}

/// mma.sync.m16n8k16 of half or bfloat16 elements, added up in float.
template <class T>
void mma_16bit(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2], int line = __builtin_LINE()) {
    together(LaneOfProduct{a, b, &sum}, line, [](const LaneOfProduct* lanes) {
        WarpFactors<16, 1>::multiply(
            lanes, [&](unsigned row, unsigned k) { return fragment_element<T>(lanes, row, k); },
            [&](unsigned k, unsigned column) {
                return element_of<T>(lanes[column * 4 + k % 8 / 2].b[k / 8], k % 2);
            });
    });
}

/// What a lane brings to a product whose left matrix has two elements of every four: of 32 columns four registers of `a`,
/// the metadata that says which columns these are, and four registers of `b`.
struct LaneOfSparseProduct {
  LaneOfProduct product;  // the first member: lanes of it are found by their stride
  unsigned metadata;
};

/// mma.sp::ordered_metadata.m16n8k32 of half or bfloat16 elements, added up in float. Metadata come from lanes 2 · selector
/// and the next of each quad: of 16 columns two bits for each element, of row lane / 4 in the low half, of row lane / 4 + 8 in
/// the high one; the two numbers of four columns rise.
template <class T>
void mma_sparse_16bit(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[4], unsigned metadata,
                      unsigned selector, int line = __builtin_LINE()) {
    together(LaneOfSparseProduct{{a, b, &sum}, metadata}, line, [&](const LaneOfSparseProduct* lanes) {
        LaneOfProduct plain[kWarpSize];
        for (unsigned lane = 0; lane < kWarpSize; ++lane) plain[lane] = lanes[lane].product;
        const auto left = [&](unsigned row, unsigned k) {
            const unsigned half = k / 16, four = k % 16 / 4, first = row % 8 * 4;
            const unsigned places = lanes[first + selector * 2 + half].metadata >> (row / 8 * 16 + four * 4) & 0xFu;
            if ((places & 3u) >= places >> 2) fault("line %d: mma.sp: the metadata of four columns do not rise", line);
            const unsigned word = lanes[first + four].product.a[half * 2 + row / 8];
            if ((places & 3u) == k % 4) return element_of<T>(word, 0);
            return places >> 2 == k % 4 ? element_of<T>(word, 1) : 0.0;
        };
        const auto right = [&](unsigned k, unsigned column) {
            return element_of<T>(lanes[column * 4 + k % 8 / 2].product.b[k / 8], k % 2);
        };
        WarpFactors<32, 1>::multiply(plain, left, right);
    });
}

/// A TF32 element: a float whose 13 lowest bits are dropped.
struct Tf32 {
    unsigned bits;
    explicit operator float() const { return std::bit_cast<float>(bits & 0xFFFFE000u); }
};

/// mma.sync.m16n8k8 of TF32 elements.
inline void mma_tf32(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2], int line = __builtin_LINE()) {
    together(LaneOfProduct{a, b, &sum}, line, [](const LaneOfProduct* lanes) {
        const auto element = [](unsigned word) { return static_cast<double>(static_cast<float>(Tf32{word})); };
        WarpFactors<8, 1>::multiply(
            lanes,
            [&](unsigned row, unsigned k) { return element(lanes[row % 8 * 4 + k % 4].a[k / 4 * 2 + row / 8]); },
            [&](unsigned k, unsigned column) { return element(lanes[column * 4 + k % 4].b[k / 4]); });
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

/// The product of a warpgroup, whose matrices are of any kind, over 32 bytes of k; each warp has 16 of its rows.
template <class T, int kColumnTiles, class Matrix, class OfB = T>
void wgmma_of(float (&sums)[kColumnTiles][4], const Matrix& a, const Matrix& b, int line) {
    together(LaneOfProduct{nullptr, nullptr, sums}, line, [&](const LaneOfProduct* lanes) {
        const unsigned first_row = running_thread->number / kWarpSize % 4 * 16;
        WarpFactors<32 / sizeof(T), kColumnTiles>::multiply(
            lanes, [&](unsigned row, unsigned k) { return a.template element<T>(first_row + row, k); },
            [&](unsigned k, unsigned column) { return b.template element<OfB>(column, k); });
    });
}

/// wgmma.mma_async.m64nNk16 with both matrices in shared memory, done at once: a missing wait is not seen here.
template <class T, int kColumnTiles>
void wgmma_16bit(float (&sums)[kColumnTiles][4], SwizzledMatrix a, SwizzledMatrix b, int line = __builtin_LINE()) {
    wgmma_of<T>(sums, a, b, line);
}

template <class T, int kColumnTiles>
void wgmma_16bit(float (&sums)[kColumnTiles][4], SwizzledRows a, SwizzledRows b, int line = __builtin_LINE()) {
    wgmma_of<T>(sums, a, b, line);
}

/// wgmma.mma_async.m64nNk8 of TF32 elements, which must lie along k in both matrices.
template <int kColumnTiles>
void wgmma_tf32(float (&sums)[kColumnTiles][4], SwizzledMatrix a, SwizzledMatrix b, int line = __builtin_LINE()) {
    wgmma_of<Tf32>(sums, a, b, line);
}

/// wgmma.mma_async.m64nNk32 of 8-bit elements, which must lie along k in both matrices.
template <class A, class B, int kColumnTiles>
void wgmma_8bit(float (&sums)[kColumnTiles][4], SwizzledMatrix a, SwizzledMatrix b, int line = __builtin_LINE()) {
    wgmma_of<A, kColumnTiles, SwizzledMatrix, B>(sums, a, b, line);
}

/// The same with A in registers: of each warp 16 rows, as fragments of mma.sync.
template <class T, int kColumnTiles, class Matrix>
void wgmma_16bit(float (&sums)[kColumnTiles][4], const unsigned (&a)[4], Matrix b, int line = __builtin_LINE()) {
    together(LaneOfProduct{a, nullptr, sums}, line, [&](const LaneOfProduct* lanes) {
        WarpFactors<16, kColumnTiles>::multiply(
            lanes, [&](unsigned row, unsigned k) { return fragment_element<T>(lanes, row, k); },
            [&](unsigned k, unsigned column) { return b.template element<T>(column, k); });
    });
}

}  // namespace sparsegen::emulator
