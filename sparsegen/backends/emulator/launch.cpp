#include "launch.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "block_cluster.h"
#include "entry.h"
#include "kernel_fault.h"

namespace sparsegen::emulator {
namespace {

constexpr unsigned kMaxThreads = 1024;           // in one block
constexpr unsigned kMaxGridYZ = 65535;
constexpr unsigned kMaxCluster = 16;             // 8 on every device with clusters, 16 on those that allow it
constexpr unsigned kMaxFibers = 16 * 1024;       // in one launch: each has two memory mappings of its own

void refuse_impossible(dim3 grid, dim3 block, unsigned cluster, std::size_t dynamic_shared_bytes) {
    const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z;
    if (threads == 0 || threads > kMaxThreads || block.z > 64) {
        throw LaunchRefused("a block of " + std::to_string(threads) + " threads; 1 to 1024 are possible, 64 along z");
    }
    if (grid.x > INT32_MAX || grid.y > kMaxGridYZ || grid.z > kMaxGridYZ) {
        throw LaunchRefused("the grid is over 2147483647 x 65535 x 65535 blocks");
    }
    if (cluster == 0 || cluster > kMaxCluster || grid.x % cluster != 0) {
        throw LaunchRefused("clusters of " + std::to_string(cluster) + " blocks for " + std::to_string(grid.x) +
                            " along x; at most 16 are possible, which divide them");
    }
    if (dynamic_shared_bytes > SharedMemory::kBlockLimit) {
        throw LaunchRefused(std::to_string(dynamic_shared_bytes) + " bytes of dynamic shared memory; at most " +
                            std::to_string(SharedMemory::kBlockLimit) + " are there");
    }
}

void refuse_waiting(dim3 grid, dim3 block, unsigned cluster) {
    if (cluster != 1 || grid.y != 1 || grid.z != 1) {
        throw LaunchRefused("blocks that all wait for one another lie along x, and in no clusters");
    }
    const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z * grid.x;
    if (threads > kMaxFibers) {
        throw LaunchRefused("blocks that all wait for one another have " + std::to_string(threads) + " threads; at most " +
                            std::to_string(kMaxFibers) + " are possible");
    }
}

/// Throws LaunchRefused (the device could not launch it) and KernelFault (what some block did).
void run_blocks(KernelCall kernel, dim3 grid, dim3 block, unsigned cluster, Together together,
                std::size_t dynamic_shared_bytes, unsigned workers) {
    refuse_impossible(grid, block, cluster, dynamic_shared_bytes);
    if (together == Together::grid) {
        refuse_waiting(grid, block, cluster);
        cluster = grid.x;
    }
    const unsigned width = grid.x / cluster;  // of the grid, in clusters
    const std::uint64_t clusters = std::uint64_t{width} * grid.y * grid.z;
    std::atomic<std::uint64_t> next{0};
    std::mutex mutex;
    std::exception_ptr failure;

    const auto work = [&] {
        try {
            Cluster runner(cluster, kernel, grid, block, dynamic_shared_bytes);
            for (std::uint64_t i = next++; i < clusters; i = next++) {
                runner.run({static_cast<unsigned>(i % width) * cluster, static_cast<unsigned>(i / width % grid.y),
                            static_cast<unsigned>(i / (std::uint64_t{width} * grid.y))});
            }
        } catch (...) {
            next = clusters;  // the others stop after theirs
            const std::lock_guard lock(mutex);
            if (!failure) {
                failure = std::current_exception();
            }
        }
    };

    const unsigned most = std::max(1u, kMaxFibers / (block.x * block.y * block.z * cluster));
    const auto helpers =
        static_cast<unsigned>(std::min<std::uint64_t>(std::min(std::max(workers, 1u), most), clusters));
    std::vector<std::jthread> pool;
    for (unsigned i = 1; i < helpers; ++i) {
        pool.emplace_back(work);
    }
    work();
    pool.clear();  // joins
    if (failure) {
        std::rethrow_exception(failure);
    }
}

}  // namespace

int launch(KernelCall kernel, dim3 grid, dim3 block, unsigned cluster, Together together, std::size_t dynamic_shared_bytes,
           unsigned workers, char* error, std::size_t error_size) {
    try {
        run_blocks(kernel, grid, block, cluster, together, dynamic_shared_bytes, workers);
        return kLaunchDone;
    } catch (const KernelFault& reason) {
        std::snprintf(error, error_size, "%s", reason.what());
        return kLaunchFaulted;
    } catch (const std::exception& reason) {
        std::snprintf(error, error_size, "%s", reason.what());
        return kLaunchRefused;
    }
}

}  // namespace sparsegen::emulator
