#include "tensor_core.h"

#include <bit>
#include <cmath>
#include <limits>

#include "checked_memory.h"
#include "fault.h"
#include "place.h"

#if defined(__x86_64__) && defined(__gnu_linux__)
#define SPARSEGEN_WIDE_VECTORS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define SPARSEGEN_WIDE_VECTORS
#endif

// Compiled without the sanitizers, which would take most of a kernel's time here: of the kernel's memory it touches the
// lanes' registers, which they hand out, and what `read_chunk` and `write_chunk` check.
namespace sparsegen::emulator {
namespace {

constexpr unsigned kRows = 16, kTile = 8;           // of a product: its rows, and columns of a tile
constexpr unsigned kStepBytes = 32;                 // of k
constexpr unsigned kDeepest = 32, kMostTiles = 32;  // elements of 8 bits, and 256 columns

/// A half, whose exponent a float counts from 112 lower on.
float of_half(std::uint16_t bits) {
    const std::uint32_t size = bits & 0x7FFFu, sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
    if (size >= 0x7C00u) return std::bit_cast<float>(sign | 0x7F800000u | (size & 0x3FFu) << 13);
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(std::bit_cast<float>(size << 13) * 0x1p112f));
}

/// An 8-bit number with so many bits of exponent; with 4 the largest code is NaN and there is no infinity (e4m3fn).
float of_8bit(std::uint8_t bits, int exponent_bits) {
    const int fraction_bits = 7 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
    const int most_exponent = (1 << exponent_bits) - 1, most_fraction = (1 << fraction_bits) - 1;
    const int exponent = bits >> fraction_bits & most_exponent, fraction = bits & most_fraction;
    const float sign = (bits & 0x80) != 0 ? -1.0f : 1.0f;
    if (exponent == most_exponent && (exponent_bits == 5 || fraction == most_fraction)) {
        constexpr float kInfinity = std::numeric_limits<float>::infinity();
        return sign * (exponent_bits == 5 && fraction == 0 ? kInfinity : std::numeric_limits<float>::quiet_NaN());
    }
    const int size = exponent == 0 ? fraction : fraction + (1 << fraction_bits);
    return sign * std::ldexp(static_cast<float>(size), (exponent == 0 ? 1 : exponent) - bias - fraction_bits);
}

unsigned bytes_of(Element element) {
    return element == Element::tf32 ? 4 : element == Element::half || element == Element::bfloat16 ? 2 : 1;
}

/// Writes the elements of a register; returns how many there are.
unsigned unpack(unsigned word, Element element, double* elements) {
    switch (element) {
        case Element::half:
            elements[0] = of_half(static_cast<std::uint16_t>(word));
            elements[1] = of_half(static_cast<std::uint16_t>(word >> 16));
            return 2;
        case Element::bfloat16:
            elements[0] = std::bit_cast<float>(word << 16);
            elements[1] = std::bit_cast<float>(word & 0xFFFF0000u);
            return 2;
        case Element::tf32: elements[0] = std::bit_cast<float>(word & 0xFFFFE000u); return 1;
        default:
            for (unsigned i = 0; i < 4; ++i) {
                elements[i] = of_8bit(static_cast<std::uint8_t>(word >> 8 * i), element == Element::e4m3 ? 4 : 5);
            }
            return 4;
    }
}

/// The factors of a warp's product, each element converted once.
struct Factors {
    unsigned depth = 0, columns = 0;
    double left[kRows * kDeepest];
    double right[kDeepest * kMostTiles * kTile];

    double* left_at(unsigned row, unsigned k) { return left + row * depth + k; }
    double* right_at(unsigned k, unsigned column) { return right + k * columns + column; }
};

Factors& factors_of(unsigned depth, unsigned columns) {
    static thread_local Factors factors;  // too large for a thread's stack
    factors.depth = depth;
    factors.columns = columns;
    return factors;
}

/// Adds left × right to the lanes' sums, over the elements of k in their order. It takes a third of a kernel's time, so that
/// wide vectors are used where there are some; the sums are the same bits, as products of such elements are exact in double.
SPARSEGEN_WIDE_VECTORS void add_product(const LaneOfProduct* lanes, const Factors& f) {
    for (unsigned tile = 0; tile < f.columns / kTile; ++tile) {
        for (unsigned row = 0; row < kRows; ++row) {
            double totals[kTile];
            for (unsigned i = 0; i < kTile; ++i) {
                totals[i] = static_cast<double>(lanes[row % 8 * 4 + i / 2].sums[tile][row / 8 * 2 + i % 2]);
            }
            for (unsigned k = 0; k < f.depth; ++k) {
                const double factor = f.left[row * f.depth + k];
                const double* const others = f.right + k * f.columns + tile * kTile;
                for (unsigned i = 0; i < kTile; ++i) totals[i] += factor * others[i];
            }
            for (unsigned i = 0; i < kTile; ++i) {
                lanes[row % 8 * 4 + i / 2].sums[tile][row / 8 * 2 + i % 2] = static_cast<float>(totals[i]);
            }
        }
    }
}

/// 16 rows of elements that lie in the lanes' registers, as mma.sync has its left matrix.
void take_left(Factors& f, const LaneOfProduct* lanes, Element element) {
    for (unsigned lane = 0; lane < kWarpSize; ++lane) {
        for (unsigned i = 0; i < 4; ++i) {
            const unsigned of_word = 4 / bytes_of(element);
            unpack(lanes[lane].a[i], element, f.left_at(lane / 4 + i % 2 * 8, (i / 2 * 4 + lane % 4) * of_word));
        }
    }
}

/// 8 columns of elements that lie in the lanes' registers.
void take_right(Factors& f, const LaneOfProduct* lanes, Element element) {
    for (unsigned lane = 0; lane < kWarpSize; ++lane) {
        for (unsigned i = 0; i < f.depth * bytes_of(element) / 16; ++i) {
            double some[4];
            const unsigned count = unpack(lanes[lane].b[i], element, some);
            for (unsigned j = 0; j < count; ++j) *f.right_at((i * 4 + lane % 4) * count + j, lane / 4) = some[j];
        }
    }
}

/// Writes the elements of 16 bytes of a row, `byte` of which is a multiple of 16.
void take_chunk(const SharedFactor& matrix, unsigned row, unsigned byte, double* elements) {
    auto address = reinterpret_cast<std::uintptr_t>(matrix.start) + byte / matrix.row_bytes * matrix.block_stride +
                   row / 8 * matrix.group_stride + row % 8 * matrix.row_bytes + byte % matrix.row_bytes;
    address ^= (address >> 7 & (matrix.row_bytes / 16 - 1)) << 4;
    const Chunk chunk = read_chunk(reinterpret_cast<const void*>(address));
    for (unsigned i = 0; i < 8; i += 2) {
        elements += unpack(chunk.halves[i] | static_cast<unsigned>(chunk.halves[i + 1]) << 16, matrix.element, elements);
    }
}

/// Calls `take(outer, k, value)` for the elements of a matrix: `count` from `first` on in its outer direction.
template <class Take>
void each_element(const SharedFactor& matrix, unsigned first, unsigned count, unsigned depth, Take take) {
    const unsigned of_chunk = 16 / bytes_of(matrix.element);
    double some[16];
    const unsigned rows = matrix.k_is_contiguous ? count : depth, columns = matrix.k_is_contiguous ? depth : count;
    for (unsigned row = 0; row < rows; ++row) {
        for (unsigned column = 0; column < columns; column += of_chunk) {
            if (matrix.k_is_contiguous) {
                take_chunk(matrix, first + row, column * bytes_of(matrix.element), some);
                for (unsigned i = 0; i < of_chunk; ++i) take(row, column + i, some[i]);
            } else {
                take_chunk(matrix, row, (first + column) * bytes_of(matrix.element), some);
                for (unsigned i = 0; i < of_chunk; ++i) take(column + i, row, some[i]);
            }
        }
    }
}

void add_shared(const LaneOfProduct* lanes, const SharedFactor& b, Factors& f) {
    each_element(b, 0, f.columns, f.depth,
                 [&](unsigned column, unsigned k, double value) { *f.right_at(k, column) = value; });
    add_product(lanes, f);
}

}  // namespace

void load_matrices(const LaneOfLoad* lanes, unsigned matrices, bool transposed) {
    for (unsigned matrix = 0; matrix < matrices; ++matrix) {
        Chunk rows[8];
        for (unsigned row = 0; row < 8; ++row) rows[row] = read_chunk(lanes[matrix * 8 + row].row);
        for (unsigned lane = 0; lane < kWarpSize; ++lane) {
            const unsigned group = lane / 4, pair = lane % 4 * 2;
            const unsigned low = transposed ? rows[pair].halves[group] : rows[group].halves[pair];
            const unsigned high = transposed ? rows[pair + 1].halves[group] : rows[group].halves[pair + 1];
            lanes[lane].fragments[matrix] = low | high << 16;
        }
    }
}

void store_matrices(const LaneOfStore* lanes, unsigned matrices, bool transposed) {
    for (unsigned matrix = 0; matrix < matrices; ++matrix) {
        Chunk rows[8];
        for (unsigned lane = 0; lane < kWarpSize; ++lane) {
            const unsigned group = lane / 4, pair = lane % 4 * 2, word = lanes[lane].fragments[matrix];
            for (unsigned i = 0; i < 2; ++i) {
                const auto half = static_cast<std::uint16_t>(word >> 16 * i);
                (transposed ? rows[pair + i].halves[group] : rows[group].halves[pair + i]) = half;
            }
        }
        for (unsigned row = 0; row < 8; ++row) write_chunk(lanes[matrix * 8 + row].row, rows[row]);
    }
}

void multiply_fragments(const LaneOfProduct* lanes, Element element) {
    Factors& f = factors_of(kStepBytes / bytes_of(element), kTile);
    take_left(f, lanes, element);
    take_right(f, lanes, element);
    add_product(lanes, f);
}

void multiply_sparse_fragments(const LaneOfProduct* lanes, Element element, unsigned selector, int line) {
    Factors& f = factors_of(2 * kStepBytes / bytes_of(element), kTile);
    for (unsigned row = 0; row < kRows; ++row) {
        for (unsigned four = 0; four < f.depth / 4; ++four) {
            const unsigned half = four / 4, first = row % 8 * 4;
            const unsigned metadata = lanes[first + selector * 2 + half].metadata;
            const unsigned places = metadata >> (row / 8 * 16 + four % 4 * 4) & 0xFu, low = places & 3u, high = places >> 2;
            if (low >= high) fault("line %d: mma.sp: the metadata of four columns do not rise", line);
            double two[2], *const to = f.left_at(row, four * 4);
            unpack(lanes[first + four % 4].a[half * 2 + row / 8], element, two);
            to[0] = to[1] = to[2] = to[3] = 0.0;
            to[low] = two[0];
            to[high] = two[1];
        }
    }
    take_right(f, lanes, element);
    add_product(lanes, f);
}

void multiply_shared(const LaneOfProduct* lanes, const SharedFactor& a, const SharedFactor& b, unsigned tiles) {
    Factors& f = factors_of(kStepBytes / bytes_of(b.element), tiles * kTile);
    const unsigned first_row = running_place->number / kWarpSize % 4 * kRows;
    each_element(a, first_row, kRows, f.depth,
                 [&](unsigned row, unsigned k, double value) { *f.left_at(row, k) = value; });
    add_shared(lanes, b, f);
}

void multiply_shared(const LaneOfProduct* lanes, const SharedFactor& b, unsigned tiles) {
    Factors& f = factors_of(kStepBytes / bytes_of(b.element), tiles * kTile);
    take_left(f, lanes, b.element);
    add_shared(lanes, b, f);
}

}  // namespace sparsegen::emulator
