#include "tensor_core.h"

namespace sparsegen::emulator {

// Of the kernel's memory it touches the lanes' sums alone, which they hand out; to check each access would take most of the
// time of a kernel.
__attribute__((no_sanitize("address", "undefined"))) void add_product(const LaneOfProduct* lanes, const double* left,
                                                                      const double* right, unsigned depth,
                                                                      unsigned tiles) {
    for (unsigned tile = 0; tile < tiles; ++tile) {
        for (unsigned row = 0; row < 16; ++row) {
            double totals[8];
            for (unsigned i = 0; i < 8; ++i) {
                totals[i] = static_cast<double>(lanes[row % 8 * 4 + i / 2].sums[tile][row / 8 * 2 + i % 2]);
            }
            for (unsigned k = 0; k < depth; ++k) {
                const double factor = left[row * depth + k];
                const double* const others = right + (k * tiles + tile) * 8;
                for (unsigned i = 0; i < 8; ++i) totals[i] += factor * others[i];
            }
            for (unsigned i = 0; i < 8; ++i) {
                lanes[row % 8 * 4 + i / 2].sums[tile][row / 8 * 2 + i % 2] = static_cast<float>(totals[i]);
            }
        }
    }
}

}  // namespace sparsegen::emulator
