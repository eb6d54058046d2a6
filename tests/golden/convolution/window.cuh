constexpr int kWindowRows = (kUnit - 1) * kStrideRows + (kRows - 1) * kDilationRows + 1;
constexpr int kWindowColumns = (kUnit - 1) * kStrideColumns + (kColumns - 1) * kDilationColumns + 1;
constexpr int kWindowPixels = kWindowRows * kWindowColumns;
constexpr int kPixelPitch = kChannels + kChunk;
constexpr int kWindowElements = kWindowPixels * kPixelPitch;

__device__ constexpr int window_pixel(int output) {
  return output / kUnit * kStrideRows * kWindowColumns + output % kUnit * kStrideColumns;
}

__device__ constexpr int tap_pixel(int tap) {
  return tap / kColumns * kDilationRows * kWindowColumns + tap % kColumns * kDilationColumns;
}

struct Windows {
  const Element* x;
  int height, width, channels, group_channels, first_channel;

  __device__ __forceinline__ void load_window(Element* window, const Unit& unit, int channel) const {
    constexpr int kPixelVectors = kChannels / kVectorX, kVectors = kWindowPixels * kPixelVectors;
    const int top = unit.row * kUnit * kStrideRows - kPaddingRows, left = unit.column * kUnit * kStrideColumns - kPaddingColumns;
    const Element* const image = x + static_cast<long long>(unit.image) * height * width * channels + first_channel;
    load_all<kVectorX, kVectors>([&](int i) {
      const int pixel = i / kPixelVectors, own = i % kPixelVectors * kVectorX;
      const int row = top + pixel / kWindowColumns, column = left + pixel % kWindowColumns;
      bool is_there = static_cast<unsigned>(row) < static_cast<unsigned>(height) &&
                      static_cast<unsigned>(column) < static_cast<unsigned>(width) && channel + own < group_channels;
      const Element* const from = image + (static_cast<long long>(row) * width + column) * channels + channel + own;
      return Piece{window + pixel * kPixelPitch + own, is_there ? from : x, is_there};
    });
  }
};
(2) from (1):
@@
-1 47fbd6
+  __device__ __forceinline__ void load_window(Element* window, const Unit& unit, int channel, const UnitMask& mask) const {
@@
+      is_there = is_there && mask.mask.has_live(unit.image, row / kBlockRows, column / kBlockColumns, column / kBlockColumns);
