// Kernel maps of submanifold convolutions, from the coordinates of points: a hash table of the points, a look-up for each tap,
// and a stable counting sort of the points by the rows of the filter that have a live tap. sparsegen/matrix/kernel_map.py says
// what a map is; both make the same bits. A chunk is the points of a block of those kernels that sort.
#if !defined(SPARSEGEN_EMULATOR)
#define SPARSEGEN_SHARED(type, name, count) __shared__ __align__(16) type name[count]
#endif

constexpr int kNone = -1;
constexpr int kBins = 512, kBinBits = 9;  // as in kernel_map.py
constexpr int kThreads = 256, kChunk = 1024;  // threads of a block, of kernels that sort the latter

struct Cell {
  int batch, z, y, x;
};

__device__ __forceinline__ bool are_equal(const Cell& a, const Cell& b) {
  return a.batch == b.batch && a.z == b.z && a.y == b.y && a.x == b.x;
}

// Spreads cells over a table of 2^n slots; the last mixing steps are MurmurHash3's.
__device__ __forceinline__ unsigned slot_of(const Cell& cell, int last_slot) {
  unsigned hash = static_cast<unsigned>(cell.batch) * 0x8da6b343u ^ static_cast<unsigned>(cell.z) * 0xd8163841u ^
                  static_cast<unsigned>(cell.y) * 0xcb1ab31fu ^ static_cast<unsigned>(cell.x) * 0x165667b1u;
  hash ^= hash >> 16;
  hash *= 0x85ebca6bu;
  hash ^= hash >> 13;
  hash *= 0xc2b2ae35u;
  hash ^= hash >> 16;
  return hash & static_cast<unsigned>(last_slot);
}

// Empties the table.
extern "C" __global__ void clear_slots(int slots, int* table) {
  const int slot = blockIdx.x * kThreads + threadIdx.x;
  if (slot < slots) table[slot] = kNone;
}

// Puts each point into the first free slot from its own on; of equal cells the first one stays. Rows with a negative batch
// are no points.
extern "C" __global__ void insert_points(int points, int last_slot, const Cell* cells, int* table) {
  const int point = blockIdx.x * kThreads + threadIdx.x;
  if (point >= points || cells[point].batch < 0) return;
  const Cell cell = cells[point];
  for (unsigned slot = slot_of(cell, last_slot);; slot = (slot + 1) & static_cast<unsigned>(last_slot)) {
    const int there = atomicCAS(table + slot, kNone, point);
    if (there == kNone) return;
    if (are_equal(cells[there], cell)) {  // a slot's cell never changes, only which of the equal points names it
      atomicMin(table + slot, point);
      return;
    }
  }
}

// Finds what the taps of one row of the filter read, for each point; blockIdx.y is the row. Writes `found`, taps x points, and
// whether there is anything, rows x points.
extern "C" __global__ void look_up(int points, int last_slot, int depth, int rows, int columns, int step_z, int step_y, int step_x,
                                   const Cell* cells, const int* table, int* found, unsigned char* is_live) {
  const int point = blockIdx.x * kThreads + threadIdx.x;
  if (point >= points) return;
  const Cell cell = cells[point];
  const int filter_row = static_cast<int>(blockIdx.y);
  const long long z = cell.z + static_cast<long long>(filter_row / rows - depth / 2) * step_z;
  const long long y = cell.y + static_cast<long long>(filter_row % rows - rows / 2) * step_y;
  bool any = false;
  for (int column = 0; column < columns; ++column) {
    const long long x = cell.x + static_cast<long long>(column - columns / 2) * step_x;
    const Cell wanted{cell.batch, static_cast<int>(z), static_cast<int>(y), static_cast<int>(x)};
    int read = kNone;
    if (cell.batch >= 0 && wanted.z == z && wanted.y == y && wanted.x == x) {
      for (unsigned slot = slot_of(wanted, last_slot);; slot = (slot + 1) & static_cast<unsigned>(last_slot)) {
        const int there = table[slot];
        if (there == kNone) break;
        if (are_equal(cells[there], wanted)) {
          read = there;
          break;
        }
      }
    }
    any = any || read != kNone;
    found[static_cast<long long>(filter_row * columns + column) * points + point] = read;
  }
  is_live[static_cast<long long>(filter_row) * points + point] = any;
}

// The place of a point's bin: more rows first, as far as the highest ones say.
__device__ __forceinline__ int bin_of(int points, int filter_rows, int point, const unsigned char* is_live) {
  int bin = 0;
  for (int row = 0; row < filter_rows; ++row) {
    if (is_live[static_cast<long long>(row) * points + point]) bin |= 1 << row % kBinBits;
  }
  return kBins - 1 - bin;
}

// Counts the points of each bin in each chunk: bins x chunks.
extern "C" __global__ void count_bins(int points, int filter_rows, const unsigned char* is_live, int* counts) {
  SPARSEGEN_SHARED(int, of_bin, kBins);
  for (int bin = threadIdx.x; bin < kBins; bin += kChunk) of_bin[bin] = 0;
  __syncthreads();
  const int point = blockIdx.x * kChunk + threadIdx.x;
  if (point < points) atomicAdd(of_bin + bin_of(points, filter_rows, point, is_live), 1);
  __syncthreads();
  for (int bin = threadIdx.x; bin < kBins; bin += kChunk) {
    counts[static_cast<long long>(bin) * gridDim.x + blockIdx.x] = of_bin[bin];
  }
}

// Makes counts the sums of those before, by one block.
extern "C" __global__ void scan_counts(int chunks, int* counts) {
  SPARSEGEN_SHARED(long long, sums, kChunk);
  const long long number = static_cast<long long>(kBins) * chunks, share = (number + kChunk - 1) / kChunk;
  const long long begin = threadIdx.x * share, end = begin + share < number ? begin + share : number;
  long long own = 0;
  for (long long i = begin; i < end; ++i) own += counts[i];
  sums[threadIdx.x] = own;
  __syncthreads();
  for (int distance = 1; distance < kChunk; distance *= 2) {
    const long long before = static_cast<int>(threadIdx.x) >= distance ? sums[threadIdx.x - distance] : 0;
    __syncthreads();
    sums[threadIdx.x] += before;
    __syncthreads();
  }
  long long sum = sums[threadIdx.x] - own;
  for (long long i = begin; i < end; ++i) {
    const int count = counts[i];
    counts[i] = static_cast<int>(sum);
    sum += count;
  }
}

// Writes the map: each point at the place that the sums and its rank among the chunk's points of its bin say.
extern "C" __global__ void place_points(int points, int filter_rows, int taps, const unsigned char* is_live, const int* counts,
                                        const int* found, int* map) {
  SPARSEGEN_SHARED(int, bins, kChunk);
  const int point = blockIdx.x * kChunk + threadIdx.x;
  const int bin = point < points ? bin_of(points, filter_rows, point, is_live) : kNone;
  bins[threadIdx.x] = bin;
  __syncthreads();
  if (point >= points) return;
  int rank = 0;
  for (int i = 0; i < static_cast<int>(threadIdx.x); ++i) rank += bins[i] == bin;
  const int place = counts[static_cast<long long>(bin) * gridDim.x + blockIdx.x] + rank;
  map[place] = point;
  for (int tap = 0; tap < taps; ++tap) {
    map[static_cast<long long>(1 + tap) * points + place] = found[static_cast<long long>(tap) * points + point];
  }
}
