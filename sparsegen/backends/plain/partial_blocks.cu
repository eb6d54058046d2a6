// Blocks of queries × keys that live as a whole, in part or not at all: of documents, and of bools for each place. A partial
// block gets its own number and its bits, one for each place (sparsegen/matrix/partial_blocks.py), any other live one -1.
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
// for each block, rows of 64-bit words. Blocks live where their ids' ranges overlap.
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
  if (warp == 0) {
    bool lives = false, is_partial = false;
    if (lane < here) {
      const Ends own = ends[kColumns], other = ends[lane];
      lives = own.least_document <= other.greatest && other.least_document <= own.greatest;
      is_partial = lives && !(own.is_one() && other.is_one());
      const long long number = line * columns + first_column + lane;
      numbers[number] = is_partial ? static_cast<int>(number) : kFull;
    }
    const unsigned alive = __ballot_sync(kWholeWarp, lives), partial = __ballot_sync(kWholeWarp, is_partial);
    if (lane == 0) live[line * gridDim.x + blockIdx.x] = alive, *told = partial;
  }
  __syncthreads();
  const int places = block_rows * block_columns, rows_on = kThreads / block_columns, columns_on = kThreads % block_columns;
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
