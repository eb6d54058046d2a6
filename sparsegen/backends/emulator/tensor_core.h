// Tensor-core instructions of a warp: ldmatrix, stmatrix, mma.sync and wgmma, with PTX's distribution of fragments over
// lanes. All of it happens in tensor_core.cpp, which is compiled once for all kernels.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "warp_exchange.h"

namespace sparsegen::emulator {

enum class Element : unsigned char { half, bfloat16, tf32, e4m3, e5m2 };

struct e4m3 {
    static constexpr Element kElement = Element::e4m3;
};
struct e5m2 {
    static constexpr Element kElement = Element::e5m2;
};

template <class T>
inline constexpr Element kElement = T::kElement;
template <>
inline constexpr Element kElement<__half> = Element::half;
template <>
inline constexpr Element kElement<__nv_bfloat16> = Element::bfloat16;

/// A lane's part of ldmatrix and stmatrix: its row's address, and its fragments.
template <class Row, class Fragment>
struct LaneOfMatrices {
    Row* row;
    Fragment* fragments;
};
using LaneOfLoad = LaneOfMatrices<const void, unsigned>;
using LaneOfStore = LaneOfMatrices<void, const unsigned>;

/// Moves so many 8 × 8 matrices of 16-bit elements. Lane i brings row i % 8 (16 bytes) of matrix i / 8, and has as fragments
/// two elements of each matrix: of row i / 4, or of column i / 4 if it is transposed.
void load_matrices(const LaneOfLoad* lanes, unsigned matrices, bool transposed);
void store_matrices(const LaneOfStore* lanes, unsigned matrices, bool transposed);

/// ldmatrix.
template <unsigned kMatrices>
void load_matrices(unsigned (&fragments)[kMatrices], const void* row, bool transposed, int line = __builtin_LINE()) {
    together(LaneOfLoad{row, fragments}, line,
             [&](const LaneOfLoad* lanes) { load_matrices(lanes, kMatrices, transposed); });
}

/// stmatrix.
template <unsigned kMatrices>
void store_matrices(void* row, const unsigned (&fragments)[kMatrices], bool transposed = false,
                    int line = __builtin_LINE()) {
    together(LaneOfStore{row, fragments}, line,
             [&](const LaneOfStore* lanes) { store_matrices(lanes, kMatrices, transposed); });
}

/// What a lane brings to a product of its warp: fragments of the factors, where they are in registers, and its sums, of
/// each 8 columns those of rows lane / 4 and lane / 4 + 8 and of columns lane % 4 · 2 and the next. Of a left matrix with
/// two elements of every four also the metadata that say which columns these are.
struct LaneOfProduct {
    const unsigned* a;
    const unsigned* b;
    float (*sums)[4];
    unsigned metadata = 0;
};

/// Adds the product of 16 rows and 8 columns over 32 bytes of k, both factors being fragments.
void multiply_fragments(const LaneOfProduct* lanes, Element element);

/// The same over 64 bytes of k, with two elements of the left matrix in every four.
void multiply_sparse_fragments(const LaneOfProduct* lanes, Element element, unsigned selector, int line);

/// mma.sync.m16n8k16 of half or bfloat16 elements, added up in float.
template <class T>
void mma_16bit(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2], int line = __builtin_LINE()) {
    together(LaneOfProduct{a, b, &sum}, line,
             [](const LaneOfProduct* lanes) { multiply_fragments(lanes, kElement<T>); });
}

/// mma.sync.m16n8k8 of TF32 elements.
inline void mma_tf32(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2], int line = __builtin_LINE()) {
    together(LaneOfProduct{a, b, &sum}, line,
             [](const LaneOfProduct* lanes) { multiply_fragments(lanes, Element::tf32); });
}

/// mma.sp::ordered_metadata.m16n8k32 of half or bfloat16 elements, added up in float. Metadata come from lanes 2 · selector
/// and the next of each quad: of 16 columns two bits for each element, of row lane / 4 in the low half, of row lane / 4 + 8 in
/// the high one; the two numbers of four columns rise.
template <class T>
void mma_sparse_16bit(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[4], unsigned metadata,
                      unsigned selector, int line = __builtin_LINE()) {
    together(LaneOfProduct{a, b, &sum, metadata}, line, [&](const LaneOfProduct* lanes) {
        multiply_sparse_fragments(lanes, kElement<T>, selector, line);
    });
}

/// A matrix in shared memory: rows of swizzled bytes in groups of 8, whose 16-byte chunks are exchanged as the address says.
struct SharedFactor {
    const unsigned char* start;
    bool k_is_contiguous;
    unsigned row_bytes;
    unsigned group_stride;  // bytes from 8 rows to the next 8
    unsigned block_stride;  // bytes from row_bytes of the contiguous direction to the next
    Element element = Element::half;
};

/// A matrix in shared memory as wgmma's descriptors see it: rows of 128 swizzled bytes, 8 of which follow one another.
struct SwizzledMatrix {
    const void* start;
    bool k_is_contiguous;
    unsigned block_stride = 0;  // bytes from 64 elements of the contiguous direction to the next, where k is not it

    SharedFactor of(Element element) const {
        return {static_cast<const unsigned char*>(start), k_is_contiguous, 128, 8 * 128, block_stride, element};
    }
};

/// A matrix in shared memory whose rows run along k, as wgmma's descriptors see it: groups of 8 rows of so many bytes.
struct SwizzledRows {
    const unsigned char* start;
    unsigned row_bytes;
    unsigned group_stride;  // bytes from 8 rows to the next 8

    SharedFactor of(Element element) const { return {start, true, row_bytes, group_stride, 0, element}; }
};

/// Adds a warp's part of a warpgroup's product over 32 bytes of k: 16 rows by ``tiles`` times 8 columns. Its rows of A lie in
/// shared memory, or are fragments of type ``b.element``.
void multiply_shared(const LaneOfProduct* lanes, const SharedFactor& a, const SharedFactor& b, unsigned tiles);
void multiply_shared(const LaneOfProduct* lanes, const SharedFactor& b, unsigned tiles);

/// The product of a warpgroup with both matrices in shared memory, done at once: a missing wait is not seen here.
template <unsigned kTiles>
void wgmma_of(float (&sums)[kTiles][4], const SharedFactor& a, const SharedFactor& b, int line) {
    together(LaneOfProduct{nullptr, nullptr, sums}, line,
             [&](const LaneOfProduct* lanes) { multiply_shared(lanes, a, b, kTiles); });
}

/// wgmma.mma_async.m64nNk16.
template <class T, unsigned kTiles, class Matrix = SwizzledMatrix>
void wgmma_16bit(float (&sums)[kTiles][4], Matrix a, Matrix b, int line = __builtin_LINE()) {
    wgmma_of(sums, a.of(kElement<T>), b.of(kElement<T>), line);
}

/// wgmma.mma_async.m64nNk8 of TF32 elements, which must lie along k in both matrices.
template <unsigned kTiles>
void wgmma_tf32(float (&sums)[kTiles][4], SwizzledMatrix a, SwizzledMatrix b, int line = __builtin_LINE()) {
    wgmma_of(sums, a.of(Element::tf32), b.of(Element::tf32), line);
}

/// The same with A in registers: of each warp 16 rows, as fragments of mma.sync.
template <unsigned kTiles>
void wgmma_tf32(float (&sums)[kTiles][4], const unsigned (&a)[4], SwizzledMatrix b, int line = __builtin_LINE()) {
    together(LaneOfProduct{a, nullptr, sums}, line,
             [&](const LaneOfProduct* lanes) { multiply_shared(lanes, b.of(Element::tf32), kTiles); });
}

/// wgmma.mma_async.m64nNk32 of 8-bit elements, which must lie along k in both matrices.
template <class A, class B, unsigned kTiles>
void wgmma_8bit(float (&sums)[kTiles][4], SwizzledMatrix a, SwizzledMatrix b, int line = __builtin_LINE()) {
    wgmma_of(sums, a.of(kElement<A>), b.of(kElement<B>), line);
}

/// The same with A in registers: of each warp 16 rows, as fragments of mma.sync.
template <class T, unsigned kTiles, class Matrix = SwizzledMatrix>
void wgmma_16bit(float (&sums)[kTiles][4], const unsigned (&a)[4], Matrix b, int line = __builtin_LINE()) {
    together(LaneOfProduct{a, nullptr, sums}, line,
             [&](const LaneOfProduct* lanes) { multiply_shared(lanes, b.of(kElement<T>), kTiles); });
}

}  // namespace sparsegen::emulator
