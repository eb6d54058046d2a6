struct TilePlace {
  int row, column;
};

__device__ __forceinline__ TilePlace place_of_tile(int number, int row_tiles, int column_tiles) {
  if constexpr (kRaster == 1) {
    const int row = number / column_tiles;
    return {row, number - row * column_tiles};
  }
  const int group = number / (kRaster * column_tiles);
  const bool is_last = (group + 1) * kRaster >= row_tiles;
  const int rows_of_group = is_last ? kTail : kRaster, after = number - group * kRaster * column_tiles;
  const int within = after % (rows_of_group * column_tiles);
  const int first_row_tile = group * kRaster + after / (rows_of_group * column_tiles) * rows_of_group;
  const int height = max(1, min(rows_of_group, row_tiles - first_row_tile));
  return {first_row_tile + within % height, within / height};
}
