#if defined(SPARSEGEN_EMULATOR)
using TensorMap = sparsegen::emulator::TensorMap;
#else
struct alignas(64) TensorMap {
  unsigned long long opaque[16];
};
#endif

template <int kRank>
struct BoxStart {
  int at[kRank];
};
template <class... Coordinates>
__device__ __forceinline__ BoxStart<sizeof...(Coordinates)> box_at(Coordinates... at) { return { {at...} }; }
#if defined(SPARSEGEN_EMULATOR)
template <int kRank>
sparsegen::emulator::Coordinates all_coordinates(const BoxStart<kRank>& first) {
  sparsegen::emulator::Coordinates found{};
  for (int d = 0; d < kRank; ++d) found[d] = first.at[d];
  return found;
}
#endif

__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
#if !defined(SPARSEGEN_EMULATOR)
  asm volatile("prefetch.tensormap [%0];\n" ::"l"(&map) : "memory");
#endif
}

__device__ __forceinline__ void copy_box(void* shared, const TensorMap& map, BoxStart<2> first, Barrier* barrier) {
#if defined(SPARSEGEN_EMULATOR)
  sparsegen::emulator::copy_box(shared, map, all_coordinates(first), barrier);
#else
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, { %3, %4 }], [%2];\n" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(shared))),
               "l"(&map), "r"(static_cast<unsigned>(__cvta_generic_to_shared(barrier))), "r"(first.at[0]), "r"(first.at[1])
               : "memory");
#endif
}

__device__ __forceinline__ void store_box(const TensorMap& map, BoxStart<2> first, const void* shared) {
#if defined(SPARSEGEN_EMULATOR)
  sparsegen::emulator::store_box(map, all_coordinates(first), shared);
#else
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, { %2, %3 }], [%1];\n" ::"l"(&map),
               "r"(static_cast<unsigned>(__cvta_generic_to_shared(shared))), "r"(first.at[0]), "r"(first.at[1])
               : "memory");
#endif
}

__device__ __forceinline__ void store_box_commit() {
#if defined(SPARSEGEN_EMULATOR)
  sparsegen::emulator::store_box_commit();
#else
  asm volatile("cp.async.bulk.commit_group;\n" ::: "memory");
#endif
}

template <int kPending>
__device__ __forceinline__ void store_box_wait() {
#if defined(SPARSEGEN_EMULATOR)
  sparsegen::emulator::store_box_wait(kPending);
#else
  asm volatile("cp.async.bulk.wait_group.read %0;\n" ::"n"(kPending) : "memory");
#endif
}
(2) from (1):
@@
-1 73f42d
+__device__ __forceinline__ void copy_box(void* shared, const TensorMap& map, BoxStart<3> first, Barrier* barrier) {
@@
-1 e79851
+  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, { %3, %4, %5 }], [%2];\n" ::"r"(
@@
-1 47b586
+               "l"(&map), "r"(static_cast<unsigned>(__cvta_generic_to_shared(barrier))), "r"(first.at[0]), "r"(first.at[1]), "r"(first.at[2])
@@
-1 a6c52b
+__device__ __forceinline__ void copy_box(void* shared, const TensorMap& map, BoxStart<4> first, Barrier* barrier) {
@@
-1 4485d5
+  sparsegen::emulator::copy_box(shared, map, all_coordinates(first), barrier);
@@
-2 482753
+  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, { %3, %4, %5, %6 }], [%2];\n" ::"r"(
+                   static_cast<unsigned>(__cvta_generic_to_shared(shared))),
+               "l"(&map), "r"(static_cast<unsigned>(__cvta_generic_to_shared(barrier))), "r"(first.at[0]), "r"(first.at[1]), "r"(first.at[2]), "r"(first.at[3])
@@
-17 7c977b
(3) from (2):
@@
-11 76230f
(4) from (1):
@@
-1 73f42d
+__device__ __forceinline__ void copy_box(void* shared, const TensorMap& map, BoxStart<4> first, Barrier* barrier) {
@@
-1 e79851
+  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, { %3, %4, %5, %6 }], [%2];\n" ::"r"(
@@
-1 47b586
+               "l"(&map), "r"(static_cast<unsigned>(__cvta_generic_to_shared(barrier))), "r"(first.at[0]), "r"(first.at[1]), "r"(first.at[2]), "r"(first.at[3])
@@
-1 a6c52b
+__device__ __forceinline__ void store_box(const TensorMap& map, BoxStart<4> first, const void* shared) {
@@
-2 482753
+  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, { %2, %3, %4, %5 }], [%1];\n" ::"l"(&map),
+               "r"(static_cast<unsigned>(__cvta_generic_to_shared(shared))), "r"(first.at[0]), "r"(first.at[1]), "r"(first.at[2]), "r"(first.at[3])
(5) from (1):
@@
-27 6b1105
(6) from (2):
@@
-11 a626e3
(7) from (1):
@@
+__device__ __forceinline__ void copy_box_to_cluster(void* shared, const TensorMap& map, BoxStart<2> first, Barrier* barrier,
+                                                    unsigned short blocks) {
+#if defined(SPARSEGEN_EMULATOR)
+  sparsegen::emulator::copy_box_to_cluster(shared, map, all_coordinates(first), barrier, blocks);
+#else
+  asm volatile(
+      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, { %3, %4 }], [%2], "
+      "%5;\n" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(shared))),
+      "l"(&map), "r"(static_cast<unsigned>(__cvta_generic_to_shared(barrier))), "r"(first.at[0]), "r"(first.at[1]), "h"(blocks)
+      : "memory");
+#endif
+}
+
(8) from (7):
@@
-1 73f42d
+__device__ __forceinline__ void copy_box(void* shared, const TensorMap& map, BoxStart<3> first, Barrier* barrier) {
@@
-1 e79851
+  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, { %3, %4, %5 }], [%2];\n" ::"r"(
@@
-1 47b586
+               "l"(&map), "r"(static_cast<unsigned>(__cvta_generic_to_shared(barrier))), "r"(first.at[0]), "r"(first.at[1]), "r"(first.at[2])
@@
-1 4a3e2e
+__device__ __forceinline__ void copy_box_to_cluster(void* shared, const TensorMap& map, BoxStart<3> first, Barrier* barrier,
@@
-3 2be88e
+      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, { %3, %4, %5 }], [%2], "
+      "%6;\n" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(shared))),
+      "l"(&map), "r"(static_cast<unsigned>(__cvta_generic_to_shared(barrier))), "r"(first.at[0]), "r"(first.at[1]), "r"(first.at[2]), "h"(blocks)
@@
-1 a6c52b
+__device__ __forceinline__ void store_box(const TensorMap& map, BoxStart<3> first, const void* shared) {
@@
-2 482753
+  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, { %2, %3, %4 }], [%1];\n" ::"l"(&map),
+               "r"(static_cast<unsigned>(__cvta_generic_to_shared(shared))), "r"(first.at[0]), "r"(first.at[1]), "r"(first.at[2])
