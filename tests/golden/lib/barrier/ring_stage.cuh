template <int kStages>
struct Stage {
  int number = 0;
  unsigned parity = 0;

  __device__ __forceinline__ void advance() {
    if (++number == kStages) number = 0, parity ^= 1;
  }
  __device__ __forceinline__ Stage next() const {
    Stage found = *this;
    found.advance();
    return found;
  }
};
