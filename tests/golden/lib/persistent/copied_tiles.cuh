// lib/copy/vector.cuh.j2

// lib/barrier/barrier.cuh.j2

// lib/barrier/bulk_barrier.cuh.j2

// lib/cluster/cluster.cuh.j2 (2)

// lib/barrier/elected.cuh.j2

// lib/cluster/cluster_copy.cuh.j2

// lib/cluster/cluster_store.cuh.j2

// lib/copy/tensor_map.cuh.j2 (7)

// lib/barrier/early_start.cuh.j2

// lib/barrier/named_barrier.cuh.j2

// lib/barrier/register_budget.cuh.j2

// lib/copy/store_matrices.cuh.j2

// lib/copy/pair.cuh.j2 (1)

// lib/mma/swizzle.cuh.j2

// lib/persistent/tile_ring.cuh.j2 (1)

[[maybe_unused]] constexpr int kBBlockBytes = kPieceBytes;

// lib/mma/warpgroup.cuh.j2 (1)

// lib/persistent/tile_scheduler.cuh.j2 (1)

struct Memory {
  Ring ring;
  TileQueue queue;
};

__device__ __forceinline__ auto box_of([[maybe_unused]] int batch_index, int inner, int outer) { return box_at(inner, outer); }

// lib/epilogue/tile_output.cuh.j2 (1)
(2) from (1):
@@
-1 c36c8e
+// lib/copy/pair.cuh.j2 (2)
@@
-1 0b5dc9
+// lib/mma/warpgroup.cuh.j2 (2)
@@
-1 61dab7
+// lib/epilogue/tile_output.cuh.j2 (2)
(3) from (2):
@@
-1 74fd08
+// lib/epilogue/tile_output.cuh.j2 (3)
(4) from (2):
@@
-1 e2a30a
+// lib/persistent/tile_ring.cuh.j2 (2)
@@
-1 4fbd4a
+// lib/mma/warpgroup.cuh.j2 (4)
+
+// lib/reduce/stage_sums.cuh.j2
@@
-1 74fd08
+// lib/epilogue/tile_output.cuh.j2 (4)
(5) from (1):
@@
-1 a7b7a8
+// lib/copy/tensor_map.cuh.j2 (8)
@@
-4 0e4abc
@@
-1 0b5dc9
+// lib/mma/warpgroup.cuh.j2 (5)
@@
-1 771bc8
+__device__ __forceinline__ auto box_of([[maybe_unused]] int batch_index, int inner, int outer) { return box_at(inner, outer, batch_index); }
@@
-1 61dab7
+// lib/epilogue/tile_output.cuh.j2 (5)
(6) from (1):
@@
-1 0b5dc9
+// lib/mma/warpgroup.cuh.j2 (6)
@@
-1 61dab7
+// lib/epilogue/tile_output.cuh.j2 (4)
(7) from (2):
@@
-1 4fbd4a
+// lib/mma/warpgroup.cuh.j2 (7)
@@
-1 74fd08
+// lib/epilogue/tile_output.cuh.j2 (4)
(8) from (4):
@@
-4 6a0226
@@
-1 5598fc
+// lib/mma/warpgroup.cuh.j2 (8)
@@
-1 3c831c
+// lib/epilogue/tile_output.cuh.j2 (6)
(9) from (5):
@@
-1 d4d98d
+// lib/mma/warpgroup.cuh.j2 (9)
@@
-1 2cfc2e
+// lib/epilogue/tile_output.cuh.j2 (6)
(10) from (6):
@@
-1 663cb0
+// lib/mma/warpgroup.cuh.j2 (10)
(11) from (1):
@@
-1 8716ed
+// lib/cluster/cluster.cuh.j2 (1)
@@
-1 a7b7a8
+// lib/copy/tensor_map.cuh.j2 (1)
@@
-1 0b5dc9
+// lib/mma/warpgroup.cuh.j2 (11)
@@
-1 66495f
+// lib/persistent/tile_scheduler.cuh.j2 (2)
@@
-1 61dab7
+// lib/epilogue/tile_output.cuh.j2 (7)
(12) from (11):
@@
-1 8b617f
+// lib/mma/warpgroup.cuh.j2 (6)
@@
+  unsigned came[kConsumers];
@@
-1 d5e8de
+// lib/epilogue/tile_output.cuh.j2 (4)
