constexpr int kTileM = 64;
constexpr int kTileN = 64;
constexpr int kStep = 32;
constexpr int kWarpsM = 2, kWarpsN = 2;
constexpr int kStages = 3;

constexpr int kTaps = 27;
constexpr int kVectorA = 4, kVectorB = 4;

// lib/tile/warp_tiles.cuh.j2
// lib/tile/stage_tiles.cuh.j2 (1)

// lib/copy/vector.cuh.j2

// lib/copy/async_copy.cuh.j2

// lib/copy/element_copy.cuh.j2

// lib/mma/tensor_core.cuh.j2 (3)

// lib/mma/tile_fragments.cuh.j2 (1)

// lib/mma/tile_products.cuh.j2 (1)

template <int kRows, int kRow, int kPitch, int kVector, class From>
__device__ __forceinline__ void load_rows(Element* shared, const Element* any, int valid, From from) {
  constexpr int kAcross = kRow / kVector;
  load_all<kVector, kRows * kAcross>([&](int number) {
    const int row = number / kAcross, along = number % kAcross * kVector;
    const Element* const begin = from(row);
    const bool is_there = begin != nullptr && along < valid;
    return Piece{shared + row * kPitch + along, is_there ? begin + along : any, is_there};
  });
}

template <class Load>
__device__ __forceinline__ void multiply_steps(Element* stages, int steps, int first_row, int first_column, Sums& sums, Load load) {
  #pragma unroll
  for (int step = 0; step < kStages - 1; ++step) {
    if (step < steps) load(step, stages + step * kStageElements);
    copy_async_commit();
  }
  for (int step = 0; step < steps; ++step) {
    copy_async_wait<kStages - 2>();
    __syncthreads();
    const int next = step + kStages - 1;
    if (next < steps) load(next, stages + next % kStages * kStageElements);
    copy_async_commit();
    multiply_add(stages + step % kStages * kStageElements, first_row, first_column, sums);
  }
  __syncthreads();
}
(2) from (1):
@@
-2 23f535
+constexpr int kTaps = 15;
+constexpr int kVectorA = 8, kVectorB = 8;
@@
-1 54de51
+// lib/mma/tensor_core.cuh.j2 (1)
@@
-1 03ebd3
+// lib/mma/tile_products.cuh.j2 (2)
(3) from (2):
@@
-1 9bb04d
+constexpr int kTaps = 27;
@@
-1 764bdf
+// lib/tile/stage_tiles.cuh.j2 (2)
@@
-1 a1a041
+// lib/mma/tensor_core.cuh.j2 (2)
@@
-1 e735ac
+// lib/mma/tile_fragments.cuh.j2 (2)
