constexpr int kOutputs = 2;
constexpr int kOutputBytes = kConsumers * kOutputs * kPieceBytes;
constexpr int kNowhere = -1;

struct Output {
  const TensorMap& map;
  unsigned char* pieces;
  int barrier;
  float scale;
  const Element* bias;
  int m, n;

  template <int kTiles, class ColumnOf>
  __device__ __forceinline__ void store(const float (&sums)[kTiles][4], int batch_index, int first_row, ColumnOf column_of) const {
    constexpr int kPieces = kTiles * 8 / kRowElements, kAtOnce = kPieces < kOutputs ? kPieces : kOutputs;
    #pragma unroll
    for (int piece = 0; piece < kPieces; piece += kAtOnce) {
      by_one_thread([] { store_box_wait<0>(); });
      meet_at<128>(barrier);
      #pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int column = column_of(piece + i);
        if (column != kNowhere) stage_piece(sums, (piece + i) * (kRowElements / 8), pieces + i * kPieceBytes, batch_index, first_row, column);
      }
      fence_shared_for_tensor_cores();
      meet_at<128>(barrier);
      by_one_thread([&] {
        #pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int column = column_of(piece + i);
          if (column != kNowhere) store_box(map, box_of(batch_index, column, first_row), pieces + i * kPieceBytes);
        }
        store_box_commit();
      });
    }
  }

  __device__ __forceinline__ void finish() const {
    by_one_thread([] { store_box_wait<0>(); });
  }

 private:
  template <class Do>
  __device__ __forceinline__ static void by_one_thread(const Do& act) {
    if (threadIdx.x / 32 % 4 == 0) {
      if (is_elected()) act();
    }
  }

  __device__ __forceinline__ float finished(float x, [[maybe_unused]] int batch_index, [[maybe_unused]] int row, [[maybe_unused]] int column) const {
    x *= scale;
    x += (row < m ? to_float(bias[row]) : 0.0f);
    x = fmaxf(x, 0.0f);
    return x;
  }

  template <int kTiles>
  __device__ __forceinline__ void stage_piece(const float (&sums)[kTiles][4], int first_tile, unsigned char* place, int batch_index, int first_row, int first_column) const {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    #pragma unroll
    for (int j = 0; j < 4; ++j) {
      unsigned fragments[4];
      #pragma unroll
      for (int q = 0; q < 4; ++q) {
        float pair[2];
        #pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int row = first_row + static_cast<int>(warp * 16 + q % 2 * 8 + lane / 4);
          const int column = first_column + j * 16 + q / 2 * 8 + static_cast<int>(lane % 4) * 2 + e;
          pair[e] = finished(sums[first_tile + j * 2 + q / 2][q % 2 * 2 + e], batch_index, row, column);
        }
        fragments[q] = to_pair(pair[0], pair[1]);
      }
      const unsigned row_there = warp * 16 + lane % 16, chunk = j * 2 + lane / 16;
      store_matrices(place + row_there * 128 + (chunk ^ swizzle<128>(row_there)) * 16, fragments);
    }
  }
};
(2) from (1):
@@
-1 ec2689
+          if (column != kNowhere) store_box(map, box_of(batch_index, first_row, column), pieces + i * kPieceBytes);
@@
-1 e53e6d
@@
-2 ea3b04
+      const unsigned row_there = j * 16 + lane / 16 * 8 + lane % 8, chunk = warp * 2 + lane / 8 % 2;
+      store_matrices_transposed(place + row_there * 128 + (chunk ^ swizzle<128>(row_there)) * 16, fragments);
(3) from (1):
@@
+  const Element* residual;
@@
-2 22333e
+    x += (column < n ? to_float(bias[column]) : 0.0f);
+    if (row < m && column < n) x += to_float(residual[static_cast<long long>(row) * n + column]);
(4) from (1):
@@
-2 71062c
@@
-2 22333e
(5) from (3):
@@
-1 db6081
+    if (row < m && column < n) x += to_float(residual[(static_cast<long long>(batch_index) * m + row) * n + column]);
@@
-2 698acb
+    for (int j = 0; j < kRowElements / 8; ++j) {
@@
-2 03b88a
+      for (int half = 0; half < 2; ++half) {
+        const unsigned row_there = warp * 16 + half * 8 + lane / 4, chunk = j * 2 + lane % 4 / 2;
+        Vector<float, 2> pair;
@@
-3 689e4b
+          const int column = first_column + j * 8 + static_cast<int>(lane % 4) * 2 + e;
+          pair.element[e] = finished(sums[first_tile + j][half * 2 + e], batch_index, first_row + static_cast<int>(row_there), column);
@@
-1 1af66c
+        store_vector(reinterpret_cast<float*>(place + row_there * 128 + (chunk ^ swizzle<128>(row_there)) * 16 + lane % 2 * 8), pair);
@@
-2 ea3b04
(6) from (5):
@@
-3 492103
@@
-2 876929
(7) from (2):
@@
-1 8b759a
+    x += (column < n ? to_float(bias[column]) : 0.0f);
+    x = fmaxf(x, 0.0f);
