// Numbers that codes of weights stand for, and 16-bit elements of numbers.
// kOfUnit: codes that a bit of a stream's mask stands for.

struct Int4 {
  static constexpr int kBits = 4, kOfUnit = 1;
  static __device__ __forceinline__ float number(unsigned code) { return static_cast<float>(code) - 8.0f; }
};

struct Int4Pairs : Int4 {
  static constexpr int kOfUnit = 2;
};

struct Int8 {
  static constexpr int kBits = 8, kOfUnit = 1;
  static __device__ __forceinline__ float number(unsigned code) { return static_cast<float>(code) - 128.0f; }
};

struct E4m3 {
  static constexpr int kBits = 8, kOfUnit = 1;

  // Exponent and fraction at a float's places make a number that is 2^120 times too small.
  static __device__ __forceinline__ float number(unsigned code) {
    const float size = __uint_as_float((code & 0x7fu) << 20) * 0x1p120f;
    return code & 0x80u ? -size : size;
  }
};

struct Float16 {
  static __device__ __forceinline__ unsigned bits(float x) { return __half_as_ushort(__float2half_rn(x)); }
};

struct Bfloat16 {
  static __device__ __forceinline__ unsigned bits(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }
};
