  SPARSEGEN_DYNAMIC_SHARED(unsigned char, memory);
  Barrier* const full = reinterpret_cast<Barrier*>(memory);
  Barrier* const empty = full + kSlots;
  unsigned char* const slots = memory + kBarrierBytes;
  const unsigned warp = threadIdx.x / 32;
  const unsigned lane = threadIdx.x % 32;
  const unsigned total = static_cast<unsigned>(groups) * steps;
  const unsigned begin = first_step_of(blockIdx.x, total), end = first_step_of(blockIdx.x + 1, total);
  if (threadIdx.x == 0) {
    #pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      barrier_init(full + i, kArrivalsFull);
      barrier_init(empty + i, 32 * kWarps);
    }
  }
  __syncthreads();
  int slot = 0;
  unsigned parity = 0;
  unsigned group = begin / steps;
  unsigned step_of_group = begin % steps;

  const CachePolicy policy = evict_first();
  if (warp == kWarps) {
    for (unsigned step = begin; step < end; ++step) {
      barrier_wait(empty + slot, parity ^ 1);
      copy_step(slots + slot * kSlotBytes, full + slot, lane, masks + static_cast<long long>(step) * (kMaskBytes / 16),
                orders + static_cast<long long>(step) * (kOrderBytes / 16), b,
                static_cast<int>(step_of_group) * (kWarpsK * kStepK), k, n, policy);
      if (++step_of_group == static_cast<unsigned>(steps)) step_of_group = 0;
      if (++slot == kSlots) slot = 0, parity ^= 1;
    }
    return;
  }

  const unsigned mask_offset = kept_lane((warp * 32 + lane) * (kMaskWords * 4));
  const unsigned order_offset = kept_lane(kMaskBytes + kActivationBytes + warp * 4);
  const auto masks_of = [&](int of_slot) {
    return load_vector<kMaskWords>(reinterpret_cast<const unsigned*>(slots + of_slot * kSlotBytes + mask_offset));
  };
  const auto order_of = [&](int of_slot) {
    return load_shared_4(shared_address(slots) + of_slot * kSlotBytes + order_offset);
  };
  const auto next_slot = [&](bool comes) {
    if (++slot == kSlots) slot = 0, parity ^= 1;
    if (comes) barrier_wait(full + slot, parity);
  };
