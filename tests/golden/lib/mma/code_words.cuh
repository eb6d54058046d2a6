__device__ __forceinline__ unsigned shift_right(unsigned low, unsigned high, unsigned bits) {
#if defined(SPARSEGEN_EMULATOR)
  return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) >> bits % 32);
#else
  return __funnelshift_r(low, high, bits);
#endif
}

__device__ __forceinline__ unsigned shift_right_clamped(unsigned low, unsigned high, unsigned bits) {
#if defined(SPARSEGEN_EMULATOR)
  return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) >> (bits < 32 ? bits : 32));
#else
  return __funnelshift_rc(low, high, bits);
#endif
}

__device__ __forceinline__ unsigned permute(unsigned low, unsigned high, unsigned selectors) {
#if defined(SPARSEGEN_EMULATOR)
  return sparsegen::emulator::permute_bytes(low, high, selectors);
#else
  unsigned word;
  asm("prmt.b32 %0, %1, %2, %3;\n" : "=r"(word) : "r"(low), "r"(high), "r"(selectors));
  return word;
#endif
}

__device__ __forceinline__ unsigned multiply_add_pair(unsigned x, unsigned factor, unsigned term) {
#if defined(SPARSEGEN_EMULATOR)
  unsigned result = 0;
  for (unsigned shift = 0; shift < 32; shift += 16) {
    const auto number = [shift](unsigned word) {
      const unsigned short bits = static_cast<unsigned short>(word >> shift);
      Element element;
      memcpy(&element, &bits, sizeof bits);
      return to_float(element);
    };
    const Element rounded = to_element(number(x) * number(factor) + number(term));
    unsigned short stored;
    memcpy(&stored, &rounded, sizeof stored);
    result |= static_cast<unsigned>(stored) << shift;
  }
  return result;
#else
  unsigned result;
  asm("fma.rn.f16x2 %0, %1, %2, %3;\n" : "=r"(result) : "r"(x), "r"(factor), "r"(term));
  return result;
#endif
}

__device__ __forceinline__ unsigned byte_of(unsigned pair) { return pair; }

// lib/mma/and_or.cuh.j2

[[maybe_unused]] constexpr unsigned kNoCodes = 0x88888888;

struct Magic {
  unsigned fraction;

  __device__ __forceinline__ void keep() { fraction = kept(0x64006400u); }

  __device__ __forceinline__ void to_fragment(unsigned pairs, unsigned (&fragment)[4]) const {
    #pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const unsigned codes = pairs >> 4 * i;
      fragment[i] = multiply_add_pair(and_or<0x000f000fu>(codes, fraction), 0x3c003c00u, 0xe408e408u);
      fragment[i + 1] = multiply_add_pair(and_or<0x00f000f0u>(codes, fraction), 0x2c002c00u, 0xd480d480u);
    }
  }
};
(2) from (1):
@@
-1 329fbd
+  asm("fma.rn.bf16x2 %0, %1, %2, %3;\n" : "=r"(result) : "r"(x), "r"(factor), "r"(term));
@@
-1 620acf
+__device__ __forceinline__ unsigned byte_of(unsigned weight) { return weight % 2 * 2 + weight / 2; }
@@
-3 50e1da
+[[maybe_unused]] constexpr unsigned kNoCodes = 0x80808080;
@@
-1 2bc780
+  __device__ __forceinline__ void keep() { fraction = kept(0x43004300u); }
@@
-7 b43a44
+  __device__ __forceinline__ unsigned to_pair(unsigned codes) const {
+    const unsigned high = multiply_add_pair((codes >> 4 & 0x000f000fu) | fraction, 0x41804180u, 0xc510c510u);
+    return multiply_add_pair(high, 0x3f803f80u, (codes & 0x000f000fu) | fraction);
+  }
+
+  __device__ __forceinline__ void to_elements(unsigned codes, unsigned& first, unsigned& second) const {
+    first = to_pair(codes);
+    second = to_pair(codes >> 8);
(3) from (1):
@@
-1 5c5a8c
+[[maybe_unused]] constexpr unsigned kNoCodes = 0;
+
+__device__ __forceinline__ unsigned byte_of(unsigned weight) { return weight; }
+
+template <int kHalf>
+__device__ __forceinline__ unsigned to_pair(unsigned codes) {
@@
-8 741cb8
+  for (int i = 0; i < 2; ++i) {
+    const unsigned code = codes >> (16 * kHalf + 8 * i) & 0xffu;
+    const unsigned short bits = static_cast<unsigned short>((code & 0x80u) << 8 | (code & 0x7fu) << 7);
+    __half number;
+    memcpy(&number, &bits, sizeof bits);
+    number = to_element(to_float(number) * 256.0f);
@@
-2 6e108a
+    memcpy(&stored, &number, sizeof stored);
+    result |= static_cast<unsigned>(stored) << 16 * i;
@@
-1 329fbd
+  if constexpr (kHalf == 0) {
+    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.rn.f16x2.e4m3x2 %0, low; }\n" : "=r"(result) : "r"(codes));
+  } else {
+    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.rn.f16x2.e4m3x2 %0, high; }\n" : "=r"(result) : "r"(codes));
+  }
@@
-1 620acf
+struct Magic {
+  __device__ __forceinline__ void keep() {}
@@
-16 36f8ab
+  __device__ __forceinline__ void to_elements(unsigned codes, unsigned& first, unsigned& second) const {
+    first = to_pair<0>(codes);
+    second = to_pair<1>(codes);
(4) from (2):
@@
-1 cad866
+[[maybe_unused]] constexpr unsigned kNoCodes = 0;
@@
-8 f64238
+  __device__ __forceinline__ void keep() {}
@@
-2 8bc0f5
+    first = multiply_add_pair((codes << 8 & 0x80008000u) | (codes << 4 & 0x07f007f0u), 0x7b807b80u, 0x80008000u);
+    second = multiply_add_pair((codes & 0x80008000u) | (codes >> 4 & 0x07f007f0u), 0x7b807b80u, 0x80008000u);
