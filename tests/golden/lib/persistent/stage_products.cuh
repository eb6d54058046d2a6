template <int kRingStages, class Sums, class Multiply>
__device__ __forceinline__ void multiply_stages(Ring& ring, Stage& stage, Sums& sums, unsigned flags, const Multiply& multiply) {
  multiply(false);
  int held = stage.number;
  stage.advance(kRingStages);
  while ((flags & kLast) == 0) {
    flags = ring.wait_full(stage);
    multiply(true);
    warpgroup_wait<1>();
    ring.release(held);
    held = stage.number;
    stage.advance(kRingStages);
  }
  warpgroup_wait<0>();
  warpgroup_settle(sums);
  ring.release(held);
}
