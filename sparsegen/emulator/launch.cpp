#include "launch.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "fault.h"

namespace sparsegen::emulator {
namespace {

constexpr unsigned kMaxThreads = 1024;           // in one block
constexpr unsigned kMaxGridYZ = 65535;
constexpr unsigned kMaxFibers = 16 * 1024;       // in one launch: each has two memory mappings of its own

void refuse_impossible(dim3 grid, dim3 block, std::size_t dynamic_shared_bytes) {
    const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z;
    if (threads == 0 || threads > kMaxThreads || block.z > 64) {
        throw LaunchRefused("a block of " + std::to_string(threads) + " threads; 1 to 1024 are possible, 64 along z");
    }
    if (grid.x > INT32_MAX || grid.y > kMaxGridYZ || grid.z > kMaxGridYZ) {
        throw LaunchRefused("the grid is over 2147483647 x 65535 x 65535 blocks");
    }
    if (dynamic_shared_bytes > SharedMemory::kBlockLimit) {
        throw LaunchRefused(std::to_string(dynamic_shared_bytes) + " bytes of dynamic shared memory; at most " +
                            std::to_string(SharedMemory::kBlockLimit) + " are there");
    }
}

}  // namespace

void launch(KernelCall kernel, dim3 grid, dim3 block, std::size_t dynamic_shared_bytes, unsigned workers) {
    refuse_impossible(grid, block, dynamic_shared_bytes);
    const std::uint64_t blocks = std::uint64_t{grid.x} * grid.y * grid.z;
    std::atomic<std::uint64_t> next{0};
    std::mutex mutex;
    std::exception_ptr failure;

    const auto work = [&] {
        try {
            Block runner(kernel, grid, block, dynamic_shared_bytes);
            for (std::uint64_t i = next++; i < blocks; i = next++) {
                runner.run({static_cast<unsigned>(i % grid.x), static_cast<unsigned>(i / grid.x % grid.y),
                            static_cast<unsigned>(i / (std::uint64_t{grid.x} * grid.y))});
            }
        } catch (...) {
            next = blocks;  // the others stop after their block
            const std::lock_guard lock(mutex);
            if (!failure) {
                failure = std::current_exception();
            }
        }
    };

    const unsigned most = std::max(1u, kMaxFibers / (block.x * block.y * block.z));
    const auto helpers = static_cast<unsigned>(std::min<std::uint64_t>(std::min(std::max(workers, 1u), most), blocks));
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

}  // namespace sparsegen::emulator
