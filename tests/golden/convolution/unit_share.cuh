struct Share {
  int total, parts, own;

  __device__ __forceinline__ int rounds() const { return total / (kRoundUnits * parts); }

  __device__ __forceinline__ int rest_begin(int part) const {
    const int rest = total - rounds() * kRoundUnits * parts;
    return rest * part / parts;
  }

  __device__ __forceinline__ int count() const { return rounds() * kRoundUnits + rest_begin(own + 1) - rest_begin(own); }

  __device__ __forceinline__ int number(int i) const {
    const int round = i / kRoundUnits;
    return round < rounds() ? (round * parts + own) * kRoundUnits + i % kRoundUnits
                            : rounds() * parts * kRoundUnits + rest_begin(own) + i - rounds() * kRoundUnits;
  }
};
