#include "tensor_map.h"

#include <algorithm>
#include <cstring>

#include "block_cluster.h"
#include "cluster.h"
#include "fault.h"

namespace sparsegen::emulator {

namespace {

constexpr unsigned kBoxAlignment = 128;   // of shared addresses
constexpr unsigned kArrayAlignment = 16;  // of the array's

constexpr unsigned kChunkBytes = 16;      // that stay together whatever the swizzle

/// Calls `visit(shared offset, bytes of the array, how many)` for runs of a box's elements that lie inside the array and
/// together in a chunk.
template <class Visit>
void each_run(const TensorMap& map, const Coordinates& first, Visit visit) {
    std::array<unsigned, kMostDimensions> place{};
    const bool is_dense = map.steps[0] == 1 && map.strides[0] == map.item_bytes;
    for (unsigned offset = 0; offset < map.box_bytes();) {
        unsigned items = 1;
        if (is_dense) {
            const unsigned in_chunk = (kChunkBytes - offset % kChunkBytes) / map.item_bytes;
            items = std::min(std::max(1u, in_chunk), map.box[0] - place[0]);
        }
        char* bytes = map.array;
        bool inside = true;
        for (unsigned d = 0; d < map.rank; ++d) {
            const std::int64_t coordinate = first[d] + static_cast<std::int64_t>(place[d]) * map.steps[d];
            if (d == 0 && coordinate < 0) {  // up to the array's edge, and then on to the other one
                items = static_cast<unsigned>(std::min<std::int64_t>(items, -coordinate));
            } else if (d == 0 && coordinate < map.sizes[0]) {
                items = static_cast<unsigned>(std::min<std::int64_t>(items, map.sizes[0] - coordinate));
            }
            inside = inside && coordinate >= 0 && coordinate < map.sizes[d];
            bytes += coordinate * static_cast<std::int64_t>(map.strides[d]);
        }
        if (inside) {
            visit(offset, bytes, items * map.item_bytes);
        }
        offset += items * map.item_bytes;
        place[0] += items;
        for (unsigned d = 0; place[d] == map.box[d]; ++d) {
            place[d] = 0;
            if (d + 1 == map.rank) {
                break;
            }
            ++place[d + 1];
        }
    }
}

/// Where the byte of that offset lies: 16-byte chunks are exchanged as the bits of the address say.
std::uintptr_t swizzled(const TensorMap& map, const void* shared, unsigned offset) {
    const auto address = reinterpret_cast<std::uintptr_t>(shared) + offset;
    const std::uintptr_t chunks = map.swizzle_bytes / 16;
    return chunks == 0 ? address : address ^ ((address >> 7 & (chunks - 1)) << 4);
}

void refuse_misaligned(const TensorMap& map, const void* shared, int line) {
    if (reinterpret_cast<std::uintptr_t>(shared) % kBoxAlignment != 0 ||
        reinterpret_cast<std::uintptr_t>(map.array) % kArrayAlignment != 0) {
        fault("line %d: a box of the array at %p is copied to or from %p: the first needs a multiple of %u, the other of %u",
              line, map.array, shared, kArrayAlignment, kBoxAlignment);
    }
}

/// The box as it shall lie at `shared`.
std::vector<std::byte> read_box(const TensorMap& map, const Coordinates& first, const void* shared) {
    std::vector<std::byte> data(map.box_bytes());
    each_run(map, first, [&](unsigned offset, const char* run, unsigned bytes) {
        const auto place = swizzled(map, shared, offset) - reinterpret_cast<std::uintptr_t>(shared);
        std::memcpy(data.data() + place, run, bytes);
    });
    return data;
}

}  // namespace

unsigned TensorMap::box_bytes() const {
    unsigned bytes = item_bytes;
    for (unsigned d = 0; d < rank; ++d) {
        bytes *= box[d];
    }
    return bytes;
}

void PendingStore::land() const {
    each_run(map, first, [&](unsigned offset, char* run, unsigned bytes) {
        std::memcpy(run, reinterpret_cast<const char*>(swizzled(map, shared, offset)), bytes);
    });
}

// --- what kernels call ---

void copy_box(void* shared, const TensorMap& map, Coordinates first, void* barrier, int line) {
    refuse_misaligned(map, shared, line);
    receive_copy(PendingCopy(shared, read_box(map, first, shared)), barrier, *running_thread().block, line);
}

void copy_box_to_cluster(void* shared, const TensorMap& map, Coordinates first, void* barrier, unsigned blocks,
                         int line) {
    refuse_misaligned(map, shared, line);
    for (unsigned rank = 0; blocks >> rank != 0; ++rank) {
        if ((blocks >> rank & 1) == 0) {
            continue;
        }
        void* const destination = map_shared(shared, rank, map.box_bytes(), line);
        void* const theirs = map_shared(barrier, rank, sizeof(std::uint64_t), line);
        receive_copy(PendingCopy(destination, read_box(map, first, destination)), theirs,
                     running_thread().block->cluster().block(rank), line);
    }
}

void store_box(const TensorMap& map, Coordinates first, const void* shared, int line) {
    refuse_misaligned(map, shared, line);
    running_thread().stores.issue({map, shared, first});
}

void store_box_commit() { running_thread().stores.commit(); }

void store_box_wait(int pending_groups) { running_thread().stores.wait(pending_groups); }

}  // namespace sparsegen::emulator
