struct Share {
  int total, parts, own;

  __device__ __forceinline__ int rounds() const { return total / (kItemUnits * parts); }

  __device__ __forceinline__ int rest_begin(int part) const {
    const int rest = total - rounds() * kItemUnits * parts;
    return rest * part / parts;
  }

  __device__ __forceinline__ int count() const { return rounds() * kItemUnits + rest_begin(own + 1) - rest_begin(own); }

  __device__ __forceinline__ int number(int i) const {
    const int round = i / kItemUnits;
    return round < rounds() ? (round * parts + own) * kItemUnits + i % kItemUnits
                            : rounds() * parts * kItemUnits + rest_begin(own) + i - rounds() * kItemUnits;
  }
};
