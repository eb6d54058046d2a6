// Numbers that codes of weights stand for, and 16-bit elements of numbers.
// kOfUnit: codes that a bit of a stream's mask stands for. kZero is the code of zero, and kZeros a word of units of zeros;
// kHasZeros: there may be zero points. `numbers` makes floats of four bytes with a code each: kAbove above the numbers that these
// stand for, 1 / kFactor times as large.

// Codes that count from kZero: in the lowest bits of the fraction of 2^23 they are numbers.
template <unsigned kZeroCode>
struct Counted {
  static constexpr unsigned kZero = kZeroCode;
  static constexpr float kAbove = static_cast<float>(0x1p23 + kZero), kFactor = 1.0f;

  static __device__ __forceinline__ float number(unsigned code) { return static_cast<float>(code) - static_cast<float>(kZero); }
  static __device__ __forceinline__ void numbers(unsigned bytes, float (&found)[4]) {
    #pragma unroll
    for (int i = 0; i < 4; ++i) found[i] = __uint_as_float(__byte_perm(bytes, 0x4b000000u, 0x7440u + i));
  }
};

struct Int4 : Counted<8> {
  static constexpr int kBits = 4, kOfUnit = 1;
  static constexpr unsigned kZeros = 0x08080808u;
  static constexpr bool kHasZeros = true;
};

struct Int4Pairs : Int4 {
  static constexpr int kOfUnit = 2;
  static constexpr unsigned kZeros = 0x88888888u;
  static constexpr bool kHasZeros = false;
};

struct Int8 : Counted<128> {
  static constexpr int kBits = 8, kOfUnit = 1;
  static constexpr unsigned kZeros = 0x80808080u;
  static constexpr bool kHasZeros = true;
};

struct E4m3 {
  static constexpr int kBits = 8, kOfUnit = 1;
  static constexpr unsigned kZero = 0, kZeros = 0;
  static constexpr bool kHasZeros = false;
  static constexpr float kAbove = 0.0f, kFactor = 256.0f;

  // Exponent and fraction at a float's places make a number that is 2^120 times too small.
  static __device__ __forceinline__ float number(unsigned code) {
    const float size = __uint_as_float((code & 0x7fu) << 20) * 0x1p120f;
    return code & 0x80u ? -size : size;
  }
  // At a half's places they make one that is 2^8 times too small: of bytes 0 and 2, and of bytes 1 and 3.
  static __device__ __forceinline__ void numbers(unsigned bytes, float (&found)[4]) {
    const unsigned signs = 0x80008000u, sizes = 0x3f803f80u;
    const unsigned halves[2] = {(bytes << 8 & signs) | (bytes << 7 & sizes), (bytes & signs) | (bytes >> 1 & sizes)};
    #pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2 both = __half22float2(reinterpret_cast<const __half2&>(halves[i]));
      found[i] = both.x, found[i + 2] = both.y;
    }
  }
};

struct Float16 {
  static __device__ __forceinline__ unsigned bits(float x) { return __half_as_ushort(__float2half_rn(x)); }
  static __device__ __forceinline__ unsigned pair(float low, float high) { return bits(low) | bits(high) << 16; }
};

struct Bfloat16 {
  static __device__ __forceinline__ unsigned bits(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }
  static __device__ __forceinline__ unsigned pair(float low, float high) { return bits(low) | bits(high) << 16; }
};
