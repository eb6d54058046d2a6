// Masks of the blocks with the largest scores of a whole mask; see block_mask.cuh. What is -inf or NaN never lives.
#include "block_mask.cuh"
#include "score_keys.cuh"
#include "radix_cut.cuh"

// Of each mask the blocks with the `live` largest scores; of equal ones the first.
extern "C" __global__ void __launch_bounds__(kThreads)
    largest_of_whole(int rows, int columns, int live, const float* scores, Word* scratch, Word* mask) {
  const Scores source{scores + own_mask() * rows * columns, columns};
  finish_in_scratch(rows, columns, scratch, mask,
                    [&](const Shape& shape, int band, Word* scratch, unsigned* pool) { cut_whole(shape, band, live, source, scratch, pool); });
}
