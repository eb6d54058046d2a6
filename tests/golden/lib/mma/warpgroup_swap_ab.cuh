// Rows of 64 bytes in shared memory, 8 of which follow one another, as the tensor cores take them.
#if defined(SPARSEGEN_EMULATOR)
using NarrowRows = sparsegen::emulator::SwizzledRows;
#else
using NarrowRows = unsigned long long;
#endif

__device__ __forceinline__ NarrowRows narrow_rows(const unsigned char* start) {
#if defined(SPARSEGEN_EMULATOR)
  return {start, 64, 8 * 64};
#else
  constexpr unsigned long long kSwizzle64 = 2ull << 62, kGroupStride = 8 * 64;
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(start));
  return kSwizzle64 | (kGroupStride >> 4) << 32 | 1u << 16 | address >> 4;
#endif
}

// The rows that begin so many bytes further, a multiple of 16.
__device__ __forceinline__ NarrowRows moved(NarrowRows rows, unsigned bytes) {
#if defined(SPARSEGEN_EMULATOR)
  return {rows.start + bytes, rows.row_bytes, rows.group_stride};
#else
  return rows + (bytes >> 4);
#endif
}

// Starts adding the product of 64 columns and 32 rows, 16 places of k, to sums that lie over the warpgroup as those of mma do over
// a warp: 16 of the columns for each warp.
__device__ __forceinline__ void warpgroup_mma_swap_ab(float (&sums)[4][4], const unsigned (&a)[4], NarrowRows b) {
#if defined(SPARSEGEN_EMULATOR)
  sparsegen::emulator::wgmma_16bit<Element, 4>(sums, a, b);
#else
  asm volatile(
      "{ .reg .pred add; setp.ne.b32 add, 1, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 { "
      "%0, %1, %2, %3, "
      "%4, %5, %6, %7, "
      "%8, %9, %10, %11, "
      "%12, %13, %14, %15 "
      "}, { %16, %17, %18, %19}, %20, add, 1, 1, 0;\n"
      "}\n"
      : "+f"(sums[0][0]), "+f"(sums[0][1]), "+f"(sums[0][2]), "+f"(sums[0][3]),
        "+f"(sums[1][0]), "+f"(sums[1][1]), "+f"(sums[1][2]), "+f"(sums[1][3]),
        "+f"(sums[2][0]), "+f"(sums[2][1]), "+f"(sums[2][2]), "+f"(sums[2][3]),
        "+f"(sums[3][0]), "+f"(sums[3][1]), "+f"(sums[3][2]), "+f"(sums[3][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#endif
}
