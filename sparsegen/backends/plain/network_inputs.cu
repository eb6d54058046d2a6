// Inputs of sparse networks between launches: neurons from bits, which inputs live, and the rows of those that do. Elements
// have 16 or 32 bits. A warp takes a row, or a part of kPart elements of one.
constexpr int kWarp = 32;
constexpr int kPart = 1024;

__device__ long long warp_number() { return (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) / kWarp; }

// 16 bytes of elements that are stored at once.
struct alignas(16) Sixteen {
  unsigned words[4];
};

// Row i of `bits` has neuron j in bit j % 8 of byte j / 8. Neurons from `given` on are zero.
template <class Word>
__device__ void unpack(int count, int given, int neurons, int row_bytes, int one, const unsigned char* bits, Word* y) {
  const int parts = (neurons + kPart - 1) / kPart;
  const long long row = warp_number() / parts;
  if (row >= count) return;
  const int begin = static_cast<int>(warp_number() % parts) * kPart;
  const unsigned char* const from = bits + row * row_bytes;
  Word* const to = y + row * neurons;
  constexpr int kEach = 16 / sizeof(Word);  // elements of a store
  if (neurons % kEach == 0 && given % 8 == 0) {
    for (int j = begin + threadIdx.x % kWarp * kEach; j < begin + kPart && j < neurons; j += kWarp * kEach) {
      const unsigned byte = j < given ? from[j / 8] >> j % 8 : 0;
      Sixteen stored;
      for (int i = 0; i < 4; ++i) {
        if constexpr (sizeof(Word) == 2) {
          stored.words[i] = (byte >> 2 * i & 1) * one | (byte >> (2 * i + 1) & 1) * one << 16;
        } else {
          stored.words[i] = (byte >> i & 1) * one;
        }
      }
      *reinterpret_cast<Sixteen*>(to + j) = stored;
    }
    return;
  }
  for (int j = begin + threadIdx.x % kWarp; j < begin + kPart && j < neurons; j += kWarp) {
    to[j] = j < given && (from[j / 8] >> j % 8 & 1) ? static_cast<Word>(one) : Word{0};
  }
}

// alive[i]: whether a neuron of row i is not zero, whichever sign zero has.
template <class Word>
__device__ void find_alive(int count, int neurons, const Word* y, int* alive) {
  const long long row = warp_number();
  if (row >= count) return;
  const Word sign = static_cast<Word>(Word{1} << (8 * sizeof(Word) - 1));
  bool any = false;
  for (int begin = 0; begin < neurons && !any; begin += kPart) {
    for (int j = begin + threadIdx.x % kWarp; j < begin + kPart && j < neurons; j += kWarp) {
      any |= static_cast<Word>(y[row * neurons + j] & static_cast<Word>(~sign)) != 0;
    }
    any = __any_sync(0xffffffffu, any);
  }
  if (threadIdx.x % kWarp == 0) alive[row] = any;
}

// Row i becomes row rows[i] of `from`.
template <class Word>
__device__ void gather(int count, int neurons, const int* rows, const Word* from, Word* to) {
  const int parts = (neurons + kPart - 1) / kPart;
  const long long row = warp_number() / parts;
  if (row >= count) return;
  const int begin = static_cast<int>(warp_number() % parts) * kPart;
  const long long of = rows[row];
  for (int j = begin + threadIdx.x % kWarp; j < begin + kPart && j < neurons; j += kWarp) {
    to[row * neurons + j] = from[of * neurons + j];
  }
}

extern "C" __global__ void unpack_16(int count, int given, int neurons, int row_bytes, int one, const unsigned char* bits,
                                     unsigned short* y) {
  unpack(count, given, neurons, row_bytes, one, bits, y);
}

extern "C" __global__ void unpack_32(int count, int given, int neurons, int row_bytes, int one, const unsigned char* bits,
                                     unsigned* y) {
  unpack(count, given, neurons, row_bytes, one, bits, y);
}

extern "C" __global__ void find_alive_16(int count, int neurons, const unsigned short* y, int* alive) {
  find_alive(count, neurons, y, alive);
}

extern "C" __global__ void find_alive_32(int count, int neurons, const unsigned* y, int* alive) {
  find_alive(count, neurons, y, alive);
}

extern "C" __global__ void gather_16(int count, int neurons, const int* rows, const unsigned short* from,
                                     unsigned short* to) {
  gather(count, neurons, rows, from, to);
}

extern "C" __global__ void gather_32(int count, int neurons, const int* rows, const unsigned* from, unsigned* to) {
  gather(count, neurons, rows, from, to);
}
