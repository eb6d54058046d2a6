struct Sign {
  unsigned kept, turned;

  __device__ __forceinline__ explicit Sign(float scale)
      : kept(scale == 0.0f ? 0u : 0xffffffffu), turned(scale < 0.0f ? 0x80008000u : 0u) {}
  __device__ __forceinline__ unsigned of(unsigned pair) const { return (pair & kept) ^ turned; }
};
