// One kernel for each group of primitives that generated kernels use; the tests compute what each must give.
#include "sparsegen_emulator.h"

__device__ int flat_thread() {
  return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
}

__device__ int flat_block() {
  return (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
}

__device__ void shuffles(int value, int* out) {
  const int lane = threadIdx.x % warpSize;
  int results[] = {
      __shfl_sync(0xffffffffu, value, 5),
      __shfl_sync(0xffffffffu, value, lane + 1, 8),
      __shfl_up_sync(0xffffffffu, value, 3, 16),
      __shfl_down_sync(0xffffffffu, value, 3, 16),
      __shfl_xor_sync(0xffffffffu, value, 6),
      __shfl_xor_sync(0xffffffffu, value, 12, 8),
  };
  for (int i = 0; i < 6; ++i) out[i * blockDim.x + threadIdx.x] = results[i];
}

__device__ void wide_shuffle(int value, int* out) {
  const int4 mine = make_int4(value, value + 1, value + 2, value + 3);
  const int4 other = __shfl_xor_sync(0xffffffffu, mine, 1);
  reinterpret_cast<int4*>(out)[threadIdx.x] = other;
}

__device__ void votes(int value, int* out) {
  out[threadIdx.x] = __ballot_sync(0xffffffffu, value % 3 == 0);
  out[blockDim.x + threadIdx.x] = __any_sync(0xffffffffu, value == 7) * 2 + __all_sync(0xffffffffu, value < 32);
}

// The halves of a warp go through different numbers of steps, each on its own.
__device__ void half_warps(int value, int* out) {
  const bool high = threadIdx.x % 32 >= 16;
  const unsigned mask = high ? 0xffff0000u : 0x0000ffffu;
  const int steps = high ? 3 : 1;
  for (int i = 0; i < steps; ++i) {
    for (int distance = 8; distance > 0; distance /= 2) value += __shfl_xor_sync(mask, value, distance, 16);
    __syncwarp(mask);
  }
  out[threadIdx.x] = value;
}

__device__ void block_sums(int value, int* out) {
  SPARSEGEN_SHARED(int, partial, 4);
  SPARSEGEN_DYNAMIC_SHARED(int, all);
  all[threadIdx.x] = value;
  __syncthreads();
  int sum = all[(threadIdx.x + 37) % blockDim.x];
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_down_sync(0xffffffffu, sum, distance);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) out[blockIdx.x] = partial[0] + partial[1] + partial[2] + partial[3];
}

// Threads that have exited do not count at a barrier.
__device__ void early_exit(int value, int* out) {
  SPARSEGEN_SHARED(int, last, 1);
  if (threadIdx.x >= 40) return;
  if (threadIdx.x == 39) last[0] = value;
  __syncthreads();
  out[threadIdx.x] = last[0];
}

__device__ void atomics(int value, int* out) {
  atomicAdd(&out[0], value);
  atomicAdd(reinterpret_cast<unsigned*>(&out[1]), 1u);
  atomicMax(&out[2], value);
  atomicMin(&out[3], -value);
  atomicAdd(reinterpret_cast<float*>(&out[4]), 0.5f);
  if (atomicCAS(&out[5], 0, 1) == 0) atomicExch(&out[6], 42);
  atomicOr(&out[7], 1 << threadIdx.x % 5);
}

__device__ void halves(int value, float* out) {
  const __half h = __float2half_rn(value * 0.1f);
  const __nv_bfloat16 b = __float2bfloat16_rn(value * 0.1f);
  const __half2 h2 = __hfma2(__halves2half2(h, h), __floats2half2_rn(3.0f, -2.0f), __float2half2_rn(0.25f));
  const __nv_bfloat162 b2 = __hfma2(__halves2bfloat162(b, b), __floats2bfloat162_rn(3.0f, -2.0f), __float2bfloat162_rn(0.25f));
  const float results[] = {
      __half2float(__hfma(h, h, h)), __bfloat162float(__hfma(b, b, b)), __low2float(h2), __high2float(h2),
      __low2float(b2),               __high2float(b2),                  __half2float(h + h), __bfloat162float(b * b),
  };
  for (int i = 0; i < 8; ++i) out[i * blockDim.x + threadIdx.x] = results[i];
}

__device__ void async_copies(const int* in, int* out) {
  SPARSEGEN_DYNAMIC_SHARED(int, staged);
  namespace e = sparsegen::emulator;
  const int t = threadIdx.x;
  int4* vectors = reinterpret_cast<int4*>(staged);
  e::copy_async(vectors + t, in + 4 * t, 16, true);
  e::copy_async_commit();
  e::copy_async(vectors + blockDim.x + t, nullptr, 16, false);
  e::copy_async_commit();
  e::copy_async_wait(1);
  const bool first_is_there = staged[4 * t] == in[4 * t];
  const bool second_is_not = staged[4 * (blockDim.x + t)] == -1;
  e::copy_async_wait(0);
  __syncthreads();
  out[t] = first_is_there && second_is_not;
  out[blockDim.x + t] = staged[4 * ((t + 1) % blockDim.x) + 1];
  out[2 * blockDim.x + t] = staged[4 * (blockDim.x + t) + 3];
}

// A producer warp and a consumer warp pass kRounds tiles of 64 words through two slots, by both kinds of copies.
__device__ void barriers(const int* in, int* out) {
  constexpr int kRounds = 7, kSlots = 2;
  SPARSEGEN_SHARED(unsigned long long, memory, 2 * kSlots);
  SPARSEGEN_SHARED(int, slots, 64 * kSlots);
  namespace e = sparsegen::emulator;
  unsigned long long* const full = memory;
  unsigned long long* const empty = memory + kSlots;
  const int t = threadIdx.x, lane = t % 32;
  if (t == 0) {
    for (int slot = 0; slot < kSlots; ++slot) {
      e::barrier_init(full + slot, 33);
      e::barrier_init(empty + slot, 1);
    }
  }
  __syncthreads();
  for (int round = 0; round < kRounds; ++round) {
    const int slot = round % kSlots;
    const unsigned parity = round / kSlots % 2;
    int* const words = slots + 64 * slot;
    if (t < 32) {
      e::barrier_wait(empty + slot, parity ^ 1);
      if (lane == 0) {
        e::barrier_arrive(full + slot, 32 * 4);
        e::copy_bulk(words, in + 64 * round, 32 * 4, full + slot);
      }
      e::copy_async(words + 32 + lane, in + 64 * round + 32 + lane, 4, true);
      e::copy_async_arrive(full + slot);
    } else {
      e::barrier_wait(full + slot, parity);
      out[64 * round + lane] = words[lane];
      out[64 * round + 32 + lane] = words[32 + (lane + 1) % 32];
      __syncwarp();
      if (lane == 0) e::barrier_arrive(empty + slot);
    }
  }
}

__device__ void bytes(const unsigned* in, unsigned* out) {
  const unsigned a = in[threadIdx.x], b = in[(threadIdx.x + 1) % blockDim.x];
  const unsigned results[] = {
      __byte_perm(a, b, 0x5432), __byte_perm(a, b, 0x0706), sparsegen::emulator::permute_bytes(a, b, 0xCC88),
      sparsegen::emulator::permute_bytes(a, b, 0xFF31), __dp4a(a, b, 7u),
  };
  for (int i = 0; i < 5; ++i) out[i * blockDim.x + threadIdx.x] = results[i];
}

__device__ void reductions(const int* in, int* out) {
  out[threadIdx.x] = __reduce_max_sync(0xffffffffu, in[threadIdx.x]);
  out[blockDim.x + threadIdx.x] = __reduce_min_sync(0xffffffffu, in[threadIdx.x]);
}

__device__ void numbers(int value, int* out) {
  const float x = __int_as_float(__float_as_int(1.5f) + value);
  const int results[] = {
      __float_as_int(x), __popc(value), __clz(value), __ffs(value), min(value, 5), static_cast<int>(max(3u, value)),
      static_cast<int>(fmaf(2.0f, static_cast<float>(value), 1.0f)), __ldg(&value),
  };
  for (int i = 0; i < 8; ++i) out[i * blockDim.x + threadIdx.x] = results[i];
}

extern "C" __global__ void __launch_bounds__(128) primitives(int test, const int* __restrict__ in, int* __restrict__ out) {
  const int value = threadIdx.x;
  switch (test) {
    case 0: out[flat_block() * blockDim.x * blockDim.y * blockDim.z + flat_thread()] = in[flat_thread()] + flat_block(); break;
    case 1: shuffles(value, out); break;
    case 2: wide_shuffle(value, out); break;
    case 3: votes(value, out); break;
    case 4: half_warps(value, out); break;
    case 5: block_sums(in[threadIdx.x] + blockIdx.x, out); break;
    case 6: early_exit(value, out); break;
    case 7: atomics(value, out); break;
    case 8: halves(value, reinterpret_cast<float*>(out)); break;
    case 9: async_copies(in, out); break;
    case 10: numbers(value, out); break;
    case 11: barriers(in, out); break;
    case 12: bytes(reinterpret_cast<const unsigned*>(in), reinterpret_cast<unsigned*>(out)); break;
    case 13: reductions(in, out); break;
  }
}
