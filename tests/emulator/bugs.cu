// A bug of each kind that the emulator must catch. Blocks of 64 threads; in, out and the shared memory hold 64 floats.
#include "sparsegen_emulator.h"

enum Bug {
  kNone,
  kReadOutOfBounds,
  kWriteOutOfBounds,
  kStaticSharedOverflow,
  kDynamicSharedOverflow,
  kUninitialisedShared,
  kMissingBarrier,
  kMissingBarrierBackward,
  kMissingWait,
  kOverwrittenTooSoon,
  kDivergentBarrier,
  kBarrierAgainstShuffle,
  kShuffleFromExited,
  kShuffleDiverged,
  kShuffleFromOutsideMask,
  kProductWithoutALane,
  kWarpgroupProductOverflow,
  kMatricesOverflow,
  kMisalignedMatrixRow,
  kMisalignedVector,
  kMisalignedCopy,
  kEndlessLoop,
  kSignedOverflow,
  kBarrierWrongParity,
  kBarrierNotAwaited,
  kBarrierBytesMissing,
  kBarrierUninitialised,
  kMisalignedBulkCopy,
};

extern "C" __global__ void __launch_bounds__(64) bugs(int bug, const float* __restrict__ in, float* __restrict__ out) {
  SPARSEGEN_SHARED(float, shared, 64);
  SPARSEGEN_DYNAMIC_SHARED(float, dynamic);
  SPARSEGEN_SHARED(unsigned long long, barrier, 1);
  namespace e = sparsegen::emulator;
  const int t = threadIdx.x;
  float x = in[t];
  if (t == 0 && bug >= kBarrierWrongParity && bug != kBarrierUninitialised) {
    e::barrier_init(barrier, 1);
    e::barrier_arrive(barrier, bug == kBarrierBytesMissing ? 512 : 256);
    e::copy_bulk(shared, bug == kMisalignedBulkCopy ? in + 1 : in, 256, barrier);
  }
  __syncthreads();
  switch (bug) {
    case kNone:
      break;
    case kReadOutOfBounds:
      x += in[t + 1];
      break;
    case kWriteOutOfBounds:
      out[t + 1] = x;
      break;
    case kStaticSharedOverflow: {
      float* pointer = shared;
      pointer[t + 1] = x;
      break;
    }
    case kDynamicSharedOverflow:
      dynamic[t + 1] = x;
      break;
    case kUninitialisedShared:
      if (t < 63) shared[t] = x;
      __syncthreads();
      x = shared[t];
      break;
    case kMissingBarrier:
      shared[t] = x;
      x = shared[63 - t];
      break;
    case kMissingBarrierBackward:  // hidden while threads run in their order
      shared[t] = x;
      x = shared[t / 2];
      break;
    case kMissingWait:
      sparsegen::emulator::copy_async(shared + t, in + t, 4, true);
      sparsegen::emulator::copy_async_commit();
      __syncthreads();
      x = shared[t];
      break;
    case kOverwrittenTooSoon:
      shared[t] = x;
      __syncthreads();
      x = shared[63 - t];  // another barrier is missing here
      sparsegen::emulator::copy_async(shared + t, in + t, 4, true);
      sparsegen::emulator::copy_async_commit();
      __syncthreads();
      sparsegen::emulator::copy_async_wait(0);
      break;
    case kDivergentBarrier:
      if (t < 32) {
        __syncthreads();
      } else {
        __syncthreads();
      }
      break;
    case kBarrierAgainstShuffle:
      if (t < 16) {
        __syncthreads();
      } else {
        x = __shfl_xor_sync(0xffffffffu, x, 1);
      }
      break;
    case kShuffleFromExited:
      if (t == 3) return;
      x = __shfl_xor_sync(0xffffffffu, x, 1);
      break;
    case kShuffleDiverged:
      if (t % 32 < 16) {
        x = __shfl_xor_sync(0xffffffffu, x, 1);
      } else {
        x = __shfl_xor_sync(0xffffffffu, x, 2);
      }
      break;
    case kShuffleFromOutsideMask:
      if (t < 16) x = __shfl_sync(0x0000ffffu, x, 20);
      break;
    case kProductWithoutALane: {
      float sum[4] = {};
      const unsigned a[4] = {}, b[2] = {};
      if (t != 40) e::mma_16bit<__half>(sum, a, b);
      x = sum[0];
      break;
    }
    case kWarpgroupProductOverflow: {
      float sums[1][4] = {};
      const unsigned a[4] = {};
      e::wgmma_16bit<__half, 1>(sums, a, e::SwizzledMatrix{dynamic, true});
      x = sums[0][0];
      break;
    }
    case kMatricesOverflow:
    case kMisalignedMatrixRow: {
      unsigned words[2];
      const float* const row = dynamic + (bug == kMatricesOverflow ? 4 * (t % 32 + 1) : 4 * (t % 16) + 1);
      e::load_matrices(words, row, false);
      x = static_cast<float>(words[0]);
      break;
    }
    case kMisalignedVector:
      if (t == 0) x = reinterpret_cast<const float4*>(in + 1)->x;
      break;
    case kMisalignedCopy:
      if (t == 0) sparsegen::emulator::copy_async(shared, in + 1, 8, true);
      break;
    case kEndlessLoop:
      while (*static_cast<volatile float*>(out) != 1.0f) {
      }
      break;
    case kSignedOverflow:
      x = static_cast<float>((0x7fffffff - 10) + t);
      break;
    case kBarrierWrongParity:
      e::barrier_wait(barrier, 1);
      x = shared[t];
      break;
    case kBarrierNotAwaited:
      x = shared[t];
      break;
    case kBarrierBytesMissing:
    case kBarrierUninitialised:
    case kMisalignedBulkCopy:
      e::barrier_wait(barrier, 0);
      x = shared[t];
      break;
  }
  out[t] = x;
}
