template <bool kIsKMajor>
struct SharedOperand {
#if defined(SPARSEGEN_EMULATOR)
  sparsegen::emulator::SwizzledMatrix matrix;
#else
  unsigned low;
#endif

  __device__ __forceinline__ explicit SharedOperand(const unsigned char* start, [[maybe_unused]] unsigned block_stride = 16) {
#if defined(SPARSEGEN_EMULATOR)
    matrix = {start, kIsKMajor, block_stride};
#else
    low = (static_cast<unsigned>(__cvta_generic_to_shared(start)) & 0x3ffff) >> 4 | block_stride >> 4 << 16;
#endif
  }

  __device__ __forceinline__ SharedOperand moved(unsigned bytes) const {
    SharedOperand found = *this;
#if defined(SPARSEGEN_EMULATOR)
    found.matrix.start = static_cast<const unsigned char*>(matrix.start) + bytes;
#else
    found.low += bytes >> 4;
#endif
    return found;
  }
#if !defined(SPARSEGEN_EMULATOR)

  __device__ __forceinline__ unsigned long long descriptor() const {
    constexpr unsigned kGroupStride = 8 * 128, kSwizzle128 = 1u << 30;
    unsigned long long both;
    asm("mov.b64 %0, { %1, %2 };\n" : "=l"(both) : "r"(low), "n"(kSwizzle128 | kGroupStride >> 4));
    return both;
  }
#endif
};
using KMajor = SharedOperand<true>;
using MnMajor = SharedOperand<false>;

__device__ __forceinline__ void warpgroup_mma(float (&sums)[8][4], KMajor a, KMajor b, bool add = true) {
#if defined(SPARSEGEN_EMULATOR)
  if (!add) {
    for (auto& tile : sums) tile[0] = tile[1] = tile[2] = tile[3] = 0.0f;
  }
  sparsegen::emulator::wgmma_16bit<Element, 8>(sums, a.matrix, b.matrix);
#else
  asm volatile(
      "{ .reg .pred add; setp.ne.b32 add, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 { "
      "%0, %1, %2, %3, "
      "%4, %5, %6, %7, "
      "%8, %9, %10, %11, "
      "%12, %13, %14, %15, "
      "%16, %17, %18, %19, "
      "%20, %21, %22, %23, "
      "%24, %25, %26, %27, "
      "%28, %29, %30, %31 "
      "}, %32, %33, add, 1, 1, 0, 0;\n"
      "}\n"
      : "+f"(sums[0][0]), "+f"(sums[0][1]), "+f"(sums[0][2]), "+f"(sums[0][3]),
        "+f"(sums[1][0]), "+f"(sums[1][1]), "+f"(sums[1][2]), "+f"(sums[1][3]),
        "+f"(sums[2][0]), "+f"(sums[2][1]), "+f"(sums[2][2]), "+f"(sums[2][3]),
        "+f"(sums[3][0]), "+f"(sums[3][1]), "+f"(sums[3][2]), "+f"(sums[3][3]),
        "+f"(sums[4][0]), "+f"(sums[4][1]), "+f"(sums[4][2]), "+f"(sums[4][3]),
        "+f"(sums[5][0]), "+f"(sums[5][1]), "+f"(sums[5][2]), "+f"(sums[5][3]),
        "+f"(sums[6][0]), "+f"(sums[6][1]), "+f"(sums[6][2]), "+f"(sums[6][3]),
        "+f"(sums[7][0]), "+f"(sums[7][1]), "+f"(sums[7][2]), "+f"(sums[7][3])
      : "l"(a.descriptor()), "l"(b.descriptor()), "r"(static_cast<unsigned>(add)));
#endif
}

__device__ __forceinline__ void warpgroup_mma(float (&sums)[16][4], const unsigned (&a)[4], MnMajor b, bool add = true) {
#if defined(SPARSEGEN_EMULATOR)
  if (!add) {
    for (auto& tile : sums) tile[0] = tile[1] = tile[2] = tile[3] = 0.0f;
  }
  sparsegen::emulator::wgmma_16bit<Element, 16>(sums, a, b.matrix);
#else
  asm volatile(
      "{ .reg .pred add; setp.ne.b32 add, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 { "
      "%0, %1, %2, %3, "
      "%4, %5, %6, %7, "
      "%8, %9, %10, %11, "
      "%12, %13, %14, %15, "
      "%16, %17, %18, %19, "
      "%20, %21, %22, %23, "
      "%24, %25, %26, %27, "
      "%28, %29, %30, %31, "
      "%32, %33, %34, %35, "
      "%36, %37, %38, %39, "
      "%40, %41, %42, %43, "
      "%44, %45, %46, %47, "
      "%48, %49, %50, %51, "
      "%52, %53, %54, %55, "
      "%56, %57, %58, %59, "
      "%60, %61, %62, %63 "
      "}, { %64, %65, %66, %67}, %68, add, 1, 1, 1;\n"
      "}\n"
      : "+f"(sums[0][0]), "+f"(sums[0][1]), "+f"(sums[0][2]), "+f"(sums[0][3]),
        "+f"(sums[1][0]), "+f"(sums[1][1]), "+f"(sums[1][2]), "+f"(sums[1][3]),
        "+f"(sums[2][0]), "+f"(sums[2][1]), "+f"(sums[2][2]), "+f"(sums[2][3]),
        "+f"(sums[3][0]), "+f"(sums[3][1]), "+f"(sums[3][2]), "+f"(sums[3][3]),
        "+f"(sums[4][0]), "+f"(sums[4][1]), "+f"(sums[4][2]), "+f"(sums[4][3]),
        "+f"(sums[5][0]), "+f"(sums[5][1]), "+f"(sums[5][2]), "+f"(sums[5][3]),
        "+f"(sums[6][0]), "+f"(sums[6][1]), "+f"(sums[6][2]), "+f"(sums[6][3]),
        "+f"(sums[7][0]), "+f"(sums[7][1]), "+f"(sums[7][2]), "+f"(sums[7][3]),
        "+f"(sums[8][0]), "+f"(sums[8][1]), "+f"(sums[8][2]), "+f"(sums[8][3]),
        "+f"(sums[9][0]), "+f"(sums[9][1]), "+f"(sums[9][2]), "+f"(sums[9][3]),
        "+f"(sums[10][0]), "+f"(sums[10][1]), "+f"(sums[10][2]), "+f"(sums[10][3]),
        "+f"(sums[11][0]), "+f"(sums[11][1]), "+f"(sums[11][2]), "+f"(sums[11][3]),
        "+f"(sums[12][0]), "+f"(sums[12][1]), "+f"(sums[12][2]), "+f"(sums[12][3]),
        "+f"(sums[13][0]), "+f"(sums[13][1]), "+f"(sums[13][2]), "+f"(sums[13][3]),
        "+f"(sums[14][0]), "+f"(sums[14][1]), "+f"(sums[14][2]), "+f"(sums[14][3]),
        "+f"(sums[15][0]), "+f"(sums[15][1]), "+f"(sums[15][2]), "+f"(sums[15][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor()), "r"(static_cast<unsigned>(add)));
#endif
}
