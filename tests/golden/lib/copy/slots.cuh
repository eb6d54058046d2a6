template <int kBit, int kShift>
__device__ __forceinline__ unsigned take_slot(unsigned bits, SharedAddress& slot) {
#if defined(SPARSEGEN_EMULATOR)
  if ((bits >> kBit & 1) == 0) return 0;
  const unsigned taken = *reinterpret_cast<const unsigned short*>(slot);
  slot += 1 << kShift;
  return taken;
#else
  unsigned taken;
  SharedAddress next;
  if constexpr (kBit <= kShift) {
    asm volatile(
        "{ .reg .pred set; .reg .b32 bit; and.b32 bit, %3, %4; setp.ne.u32 set, bit, 0; mov.b32 %0, 0;\n"
        "@set ld.shared.u16 %0, [%2]; shl.b32 bit, bit, %5; add.u32 %1, %2, bit; }\n"
        : "=&r"(taken), "=r"(next)
        : "r"(slot), "r"(bits), "n"(1u << kBit), "n"(kShift - kBit));
  }
  if constexpr (kBit > kShift) {
    asm volatile(
        "{ .reg .pred set; .reg .b32 bit; and.b32 bit, %3, %4; setp.ne.u32 set, bit, 0; mov.b32 %0, 0;\n"
        "@set ld.shared.u16 %0, [%2]; shr.u32 bit, bit, %5; add.u32 %1, %2, bit; }\n"
        : "=&r"(taken), "=r"(next)
        : "r"(slot), "r"(bits), "n"(1u << kBit), "n"(kBit - kShift));
  }
  slot = next;
  return taken;
#endif
}
