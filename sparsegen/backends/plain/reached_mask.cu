// The blocks of a layer's images that read a live block of the layer before (sparsegen/matrix/axis_reach.py): bools, and their
// bits, 64 of a row in a word. A warp makes a word, a lane two of its blocks.
#include "early_start.cuh"

struct Axis {
  int pixels, block, out_pixels, out_block, steps, per, before, after;

  __device__ __forceinline__ int blocks() const { return (pixels + block - 1) / block; }
  __device__ __forceinline__ int out_blocks() const { return (out_pixels + out_block - 1) / out_block; }
};

// The blocks from `first` to `last` that an output block reads; none if `first` is above.
struct Blocks {
  int first, last;

  __device__ __forceinline__ Blocks(const Axis& axis, int out) {
    const long long begin = static_cast<long long>(out) * axis.out_block;
    const long long end = begin + axis.out_block < axis.out_pixels ? begin + axis.out_block : axis.out_pixels;
    const long long from = begin * axis.steps / axis.per - axis.before, to = (end * axis.steps + axis.per - 1) / axis.per - 1 + axis.after;
    const long long top = from > 0 ? from : 0, bottom = to < axis.pixels - 1 ? to : axis.pixels - 1;
    first = top > bottom ? 1 : static_cast<int>(top / axis.block), last = top > bottom ? 0 : static_cast<int>(bottom / axis.block);
  }
};

extern "C" __global__ void reached_mask(int images, int row_pixels, int row_block, int row_out_pixels, int row_out_block, int row_steps,
                                        int row_per, int row_before, int row_after, int pixels, int block, int out_pixels, int out_block,
                                        int steps, int per, int before, int after, const unsigned char* live, unsigned char* out,
                                        unsigned long long* words) {
  wait_for_kernel_before();
  let_next_kernel_begin();
  const Axis down{row_pixels, row_block, row_out_pixels, row_out_block, row_steps, row_per, row_before, row_after};
  const Axis across{pixels, block, out_pixels, out_block, steps, per, before, after};
  const int rows = down.out_blocks(), columns = across.out_blocks(), row_words = (columns + 63) / 64, lane = threadIdx.x % 32;
  const long long word = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  if (word >= static_cast<long long>(images) * rows * row_words) return;
  const long long row = word / row_words;
  const Blocks own(down, static_cast<int>(row % rows));
  const unsigned char* const image = live + row / rows * down.blocks() * across.blocks();
  unsigned long long bits = 0;
  for (int half = 0; half < 2; ++half) {
    const int column = static_cast<int>(word % row_words) * 64 + half * 32 + lane;
    bool is_live = false;
    if (column < columns) {
      const Blocks read(across, column);
      for (int r = own.first; r <= own.last; ++r) {
        for (int s = read.first; s <= read.last; ++s) is_live = is_live || image[static_cast<long long>(r) * across.blocks() + s] != 0;
      }
      out[row * columns + column] = is_live;
    }
    bits |= static_cast<unsigned long long>(__ballot_sync(0xffffffffu, is_live)) << half * 32;
  }
  if (lane == 0) words[word] = bits;
}
