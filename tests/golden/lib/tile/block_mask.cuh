struct MaskRows {
  const unsigned long long* bits;
  const int* order;
  int rows, words;
  long long element_words;

  __device__ __forceinline__ MaskRows(const unsigned long long* mask, int row_count, int column_count, bool by_columns) {
    const int row_words = (column_count + 63) / 64, column_words = (row_count + 63) / 64;
    const unsigned long long* const half =
        by_columns ? mask + static_cast<long long>(row_count) * row_words + (row_count + 1) / 2 : mask;
    rows = by_columns ? column_count : row_count;
    words = by_columns ? column_words : row_words;
    bits = half;
    order = reinterpret_cast<const int*>(half + static_cast<long long>(rows) * words);
    element_words = static_cast<long long>(row_count) * row_words + (row_count + 1) / 2 + static_cast<long long>(column_count) * column_words +
                 (column_count + 1) / 2;
  }

  __device__ __forceinline__ MaskRows of_element(int batch_index) const {
    MaskRows found = *this;
    found.bits += batch_index * element_words, found.order += 2 * batch_index * element_words;
    return found;
  }

  __device__ __forceinline__ unsigned long long word(int rank, int number) const {
    return rank < rows ? bits[static_cast<long long>(rank) * words + number] : 0;
  }

  __device__ __forceinline__ bool is_live(int rank, int block) const { return word(rank, block / 64) >> (block % 64) & 1; }
};
