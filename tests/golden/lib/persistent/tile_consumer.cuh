// lib/persistent/stage_products.cuh.j2

struct Consumer {
  const unsigned char* tiles;
  Ring& ring;
  unsigned warpgroup;
  Stage stage;

  __device__ __forceinline__ void multiply(Sums& sums, bool add) const {
    const unsigned char* const a = tiles + stage.number * kStageBytes + warpgroup * kPieceBytes;
    const unsigned char* const b = tiles + stage.number * kStageBytes + kConsumers * kPieceBytes;
    warpgroup_begin();
    #pragma unroll
    for (int step = 0; step < kProducts; ++step) {
      warpgroup_mma(sums, a + step * (kAByInner ? 32 : 2048), b + step * (kBByInner ? 32 : 2048), add || step > 0);
    }
    warpgroup_commit();
  }

  __device__ __forceinline__ void multiply_all(Sums& sums, unsigned flags) {
    multiply_stages<kStages>(ring, stage, sums, flags, [&](bool add) { multiply(sums, add); });
  }

  __device__ __forceinline__ void multiply_some(Sums& sums, unsigned flags) {
    #pragma unroll
    for (auto& tile : sums) tile[0] = tile[1] = tile[2] = tile[3] = 0.0f;
    for (;;) {
      if ((flags >> warpgroup & 1) == 0) {
        ring.release(stage.number);
        stage.advance(kStages);
        if ((flags & kLast) != 0) return;
        flags = ring.wait_full(stage);
        continue;
      }
      multiply(sums, true);
      int held = stage.number;
      stage.advance(kStages);
      bool last = (flags & kLast) != 0;
      while (!last) {
        flags = ring.wait_full(stage);
        if ((flags >> warpgroup & 1) == 0) break;
        last = (flags & kLast) != 0;
        multiply(sums, true);
        warpgroup_wait<1>();
        ring.release(held);
        held = stage.number;
        stage.advance(kStages);
      }
      warpgroup_wait<0>();
      warpgroup_settle(sums);
      ring.release(held);
      if (last) return;
    }
  }

  __device__ __forceinline__ void compute_all(const Output& output) {
    for (;;) {
      const unsigned flags = ring.wait_full(stage);
      if ((flags & kEnd) != 0) return;
      const auto descriptor = load_vector<4>(ring.descriptors[stage.number].element);
      const int row = static_cast<int>(descriptor.element[1] >> 16 * warpgroup & 0xffff), column = static_cast<int>(descriptor.element[2]);
      Sums sums;
      if ((flags & 3) != 0) {
        multiply_all(sums, flags);
      } else {
        multiply_some(sums, flags);
      }
      const int batch_index = 0;
      if (row != kNoRows) output.store(sums, batch_index, row * 64, [&](int piece) { return column + piece * kRowElements; });
    }
  }
};
(2) from (1):
@@
-2 5af09e
@@
-15 c586e9
@@
-2 717980
+    clear(sums);
@@
-6 9a65c6
+      if ((flags >> warpgroup & 1) != 0) {
+        const unsigned char* const at = tiles + stage.number * kStageBytes;
+        add_stage(sums, at + warpgroup * kPieceBytes, at + kConsumers * kPieceBytes);
@@
-2 493da8
+      ring.release(stage.number);
@@
-15 4ea703
+      if ((flags & kLast) != 0) return;
+      flags = ring.wait_full(stage);
@@
-5 0b6d47
+      multiply_some(sums, flags);
(3) from (1):
@@
-1 3b0126
+      const int batch_index = static_cast<int>(flags >> 16);
(4) from (1):
@@
+  const Parts& whole;
@@
+      if (row == kNoRows || !whole.add_up(sums, static_cast<int>(descriptor.element[3]))) continue;
