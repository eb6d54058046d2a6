// Blocks of queries × keys that live as a whole, in part or not at all: of documents, and of bools for each place. A partial
// block gets its own number and its bits, one for each place (sparsegen/matrix/partial_blocks.py), a full one -1.
#if !defined(SPARSEGEN_EMULATOR)
#define SPARSEGEN_SHARED(type, name, count) __shared__ __align__(16) type name[count]
#endif

#include "early_start.cuh"

constexpr int kWarp = 32, kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kColumns = 32;  // of blocks that a thread block looks at
constexpr unsigned kWholeWarp = 0xffffffffu;
constexpr int kFull = -1;

using Id = long long;
constexpr Id kNone = 0x7fffffffffffffffll;

// The ids of a block of tokens. Those below 0 are padding.
struct Ends {
  Id least, least_document, greatest;
  __device__ __forceinline__ bool is_one() const { return least == greatest && least >= 0; }
};

// Of the tokens of a block, by a warp.
template <class Given>
__device__ __forceinline__ Ends ends_of(const Given* ids, int first, int last) {
  Ends found{kNone, kNone, -1};
  #pragma unroll 4
  for (int token = first + threadIdx.x % kWarp; token < last; token += kWarp) {
    const Id id = ids[token];
    found.least = min(found.least, id), found.greatest = max(found.greatest, id);
    if (id >= 0) found.least_document = min(found.least_document, id);
  }
  #pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    found.least = min(found.least, __shfl_xor_sync(kWholeWarp, found.least, step));
    found.greatest = max(found.greatest, __shfl_xor_sync(kWholeWarp, found.greatest, step));
    found.least_document = min(found.least_document, __shfl_xor_sync(kWholeWarp, found.least_document, step));
  }
  return found;
}

// The grid's x goes over 32 columns of blocks each, its y over rows, its z over items, each with ids of its own. `live` has a bit
// for each block, rows of 64-bit words. Blocks live where their ids' ranges overlap. Dead ones share the number behind all
// others, whose bits are zeros, so that masks that let them live hide their places all the same.
template <class Given>
__device__ void mark_documents(int queries, int keys, int block_rows, int block_columns, const Given* query_ids, const Given* key_ids,
                               unsigned* live, int* numbers, unsigned* bits, Ends* ends, unsigned* told) {
  wait_for_kernel_before();
  let_next_kernel_begin();
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, row = blockIdx.y, first_column = blockIdx.x * kColumns;
  const int columns = (keys + block_columns - 1) / block_columns;
  query_ids += static_cast<long long>(blockIdx.z) * queries, key_ids += static_cast<long long>(blockIdx.z) * keys;
  const int first_query = row * block_rows, last_query = first_query + min(block_rows, queries - first_query);
  const int here = min(kColumns, columns - first_column);
  for (int i = warp; i <= here; i += kWarps) {
    const int first_key = (first_column + i) * block_columns;
    const Ends found = i == here ? ends_of(query_ids, first_query, last_query)
                                 : ends_of(key_ids, first_key, first_key + min(block_columns, keys - first_key));
    if (lane == 0) ends[i == here ? kColumns : i] = found;
  }
  __syncthreads();
  const long long line = static_cast<long long>(blockIdx.z) * gridDim.y + row;
  const long long dead = static_cast<long long>(gridDim.z) * gridDim.y * columns;
  const int places = block_rows * block_columns;
  if (line == 0 && blockIdx.x == 0) {
    for (int word = threadIdx.x; word < places / 32; word += kThreads) bits[dead * (places / 32) + word] = 0;
  }
  if (warp == 0) {
    bool lives = false, is_partial = false;
    if (lane < here) {
      const Ends own = ends[kColumns], other = ends[lane];
      lives = own.least_document <= other.greatest && other.least_document <= own.greatest;
      is_partial = lives && !(own.is_one() && other.is_one());
      const long long number = line * columns + first_column + lane;
      numbers[number] = is_partial ? static_cast<int>(number) : lives ? kFull : static_cast<int>(dead);
    }
    const unsigned alive = __ballot_sync(kWholeWarp, lives), partial = __ballot_sync(kWholeWarp, is_partial);
    if (lane == 0) live[line * gridDim.x + blockIdx.x] = alive, *told = partial;
  }
  __syncthreads();
  const int rows_on = kThreads / block_columns, columns_on = kThreads % block_columns;
  for (unsigned left = *told; left != 0; left &= left - 1) {
    const int column = first_column + __ffs(left) - 1;
    unsigned* const own = bits + (line * columns + column) * (places / 32);
    int query = first_query + threadIdx.x / block_columns, in_block = threadIdx.x % block_columns;
    #pragma unroll 4
    for (int place = threadIdx.x; place < places; place += kThreads) {
      const int key = column * block_columns + in_block;
      bool sees = false;
      if (query < last_query && key < keys) {
        const Id id = query_ids[query];
        sees = id >= 0 && id == key_ids[key];
      }
      const unsigned word = __ballot_sync(kWholeWarp, sees);
      if (lane == 0) own[place / 32] = word;
      query += rows_on, in_block += columns_on;
      if (in_block >= block_columns) in_block -= block_columns, ++query;
    }
  }
}

extern "C" __global__ void __launch_bounds__(kThreads)
    documents_int32(int queries, int keys, int block_rows, int block_columns, const int* query_ids, const int* key_ids, unsigned* live,
                    int* numbers, unsigned* bits) {
  SPARSEGEN_SHARED(Ends, ends, kColumns + 1);
  SPARSEGEN_SHARED(unsigned, told, 1);
  mark_documents(queries, keys, block_rows, block_columns, query_ids, key_ids, live, numbers, bits, ends, told);
}

extern "C" __global__ void __launch_bounds__(kThreads)
    documents_int64(int queries, int keys, int block_rows, int block_columns, const Id* query_ids, const Id* key_ids, unsigned* live,
                    int* numbers, unsigned* bits) {
  SPARSEGEN_SHARED(Ends, ends, kColumns + 1);
  SPARSEGEN_SHARED(unsigned, told, 1);
  mark_documents(queries, keys, block_rows, block_columns, query_ids, key_ids, live, numbers, bits, ends, told);
}

// Eight bools, bytes of 0 or 1, as a byte of bits: the first one is the lowest.
__device__ __forceinline__ unsigned eight_bits(Id bools) {
  return static_cast<unsigned>((static_cast<unsigned long long>(bools) & 0x0101010101010101ull) * 0x0102040810204080ull >> 56);
}

// A thread block for each block of places; the grid's x goes over columns, its y over rows, its z over items. Bits, if any are
// asked for, are written of all blocks.
extern "C" __global__ void __launch_bounds__(kThreads)
    mark_places(int queries, int keys, int block_rows, int block_columns, const unsigned char* places, unsigned char* live, int* numbers,
                unsigned char* bits) {
  SPARSEGEN_SHARED(unsigned, found, 2);  // whether some place lives, and whether some is dead
  wait_for_kernel_before();
  let_next_kernel_begin();
  const int first_query = blockIdx.y * block_rows, first_key = blockIdx.x * block_columns, across = (block_columns + 7) / 8;
  const long long number = (static_cast<long long>(blockIdx.z) * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  places += static_cast<long long>(blockIdx.z) * queries * keys;
  if (threadIdx.x < 2) found[threadIdx.x] = 0;
  __syncthreads();
  bool lives = false, has_dead = false;
  for (int i = threadIdx.x; i < block_rows * across; i += kThreads) {
    const int row = i / across, in_block = i % across * 8, query = first_query + row, key = first_key + in_block;
    const int here = query < queries ? min(min(8, block_columns - in_block), keys - key) : 0;
    unsigned own = 0;
    if (here == 8 && keys % 8 == 0 && key % 8 == 0) {
      own = eight_bits(*reinterpret_cast<const Id*>(places + static_cast<long long>(query) * keys + key));
    } else {
      for (int j = 0; j < here; ++j) own |= static_cast<unsigned>(places[static_cast<long long>(query) * keys + key + j] != 0) << j;
    }
    lives |= own != 0;
    has_dead |= here > 0 && own != (1u << here) - 1;
    if (bits != nullptr) bits[number * (block_rows * block_columns / 8) + i] = static_cast<unsigned char>(own);
  }
  if (__any_sync(kWholeWarp, lives) && threadIdx.x % kWarp == 0) found[0] = 1;
  if (__any_sync(kWholeWarp, has_dead) && threadIdx.x % kWarp == 0) found[1] = 1;
  __syncthreads();
  if (threadIdx.x == 0) {
    live[number] = static_cast<unsigned char>(found[0]);
    if (numbers != nullptr) numbers[number] = found[1] ? static_cast<int>(number) : kFull;
  }
}

// Bools of drafted tokens × (context + drafted tokens): each sees the context, itself and those before it on its branch. A thread
// block for each token of each item.
extern "C" __global__ void __launch_bounds__(kThreads)
    mark_branches(int tokens, int context, const Id* parents, unsigned char* places) {
  wait_for_kernel_before();
  let_next_kernel_begin();
  const int token = blockIdx.x, keys = context + tokens;
  parents += static_cast<long long>(blockIdx.y) * tokens;
  unsigned char* const own = places + (static_cast<long long>(blockIdx.y) * tokens + token) * keys;
  for (int key = threadIdx.x; key < keys; key += kThreads) own[key] = key < context;
  __syncthreads();
  if (threadIdx.x > 0) return;
  Id at = token;
  for (int length = 0; length < tokens && at >= 0 && at < tokens; ++length) {  // even if parents go round in a circle
    own[context + at] = 1;
    at = parents[at];
  }
}
