__device__ __forceinline__ float4 together(const float (&sums)[4]) { return make_float4(sums[0], sums[1], sums[2], sums[3]); }

__device__ __forceinline__ void add_to(float (&sums)[4], float4 more) {
  sums[0] += more.x, sums[1] += more.y, sums[2] += more.z, sums[3] += more.w;
}
