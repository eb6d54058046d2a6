// The main program of a sanitized variant: reads one launch from a file, runs it, writes the buffers to another.
// sanitized.py writes the request and reads the reply. All numbers are little-endian:
//   request: grid[3], block[3] (uint32), shared bytes (uint64), arguments (uint32), then for each argument
//            kind (uint32: 0 integer, 1 buffer, 2 tensor map), integer, size in bytes or the number of the argument
//            whose map it is (int64), and a buffer's or a map's bytes
//   reply:   the bytes of all buffers in order
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <vector>

#include "entry.h"
#include "tensor_map.h"

namespace {

using sparsegen::emulator::TensorMap;

constexpr std::uint32_t kBuffer = 1, kTensorMap = 2;
constexpr std::size_t kDeviceAlignment = 256;  // of what cuMemAlloc returns
constexpr int kExitFaulted = 3;
constexpr int kExitRefused = 4;
constexpr int kExitBadFile = 5;

template <class T>
T read(std::istream& file) {
    T value;
    file.read(reinterpret_cast<char*>(&value), sizeof value);
    return value;
}

struct Argument {
    std::uint32_t kind;
    std::int32_t integer;  // of a map: which argument is its array
    std::size_t bytes;
    std::unique_ptr<char, decltype(&std::free)> buffer{nullptr, &std::free};
    void* address;
    TensorMap map;

    void* parameter() {
        return kind == kBuffer ? static_cast<void*>(&address) : kind == kTensorMap ? static_cast<void*>(&map) : &integer;
    }
};

Argument read_argument(std::istream& file) {
    Argument argument{};
    argument.kind = read<std::uint32_t>(file);
    const auto number = read<std::int64_t>(file);
    if (argument.kind != kBuffer) {
        argument.integer = static_cast<std::int32_t>(number);
        if (argument.kind == kTensorMap) {
            argument.map = read<TensorMap>(file);
        }
        return argument;
    }
    argument.bytes = static_cast<std::size_t>(number);
    // Of the exact size: one byte past the end is in AddressSanitizer's redzone.
    if (posix_memalign(&argument.address, kDeviceAlignment, argument.bytes) != 0) {
        std::fprintf(stderr, "sparsegen emulator: no memory for a buffer of %zu bytes\n", argument.bytes);
        std::exit(kExitRefused);
    }
    argument.buffer.reset(static_cast<char*>(argument.address));
    file.read(argument.buffer.get(), static_cast<std::streamsize>(argument.bytes));
    return argument;
}

}  // namespace

int main(int count, char** words) {
    if (count != 3) {
        std::fprintf(stderr, "usage: %s REQUEST REPLY\n", words[0]);
        return kExitBadFile;
    }
    std::ifstream request(words[1], std::ios::binary);
    unsigned grid[3], block[3];
    for (unsigned& size : grid) {
        size = read<std::uint32_t>(request);
    }
    for (unsigned& size : block) {
        size = read<std::uint32_t>(request);
    }
    const auto shared_bytes = read<std::uint64_t>(request);
    std::vector<Argument> arguments(read<std::uint32_t>(request));
    for (Argument& argument : arguments) {
        argument = read_argument(request);
    }
    if (!request) {
        std::fprintf(stderr, "sparsegen emulator: %s is cut short\n", words[1]);
        return kExitBadFile;
    }
    std::vector<void*> parameters;
    for (Argument& argument : arguments) {
        if (argument.kind == kTensorMap) {
            argument.map.array = static_cast<char*>(arguments[static_cast<std::size_t>(argument.integer)].address);
        }
        parameters.push_back(argument.parameter());
    }

    char error[1024];
    const int outcome =
        sparsegen_emulator_launch(grid, block, shared_bytes, parameters.data(), 1, error, sizeof error);
    if (outcome != kLaunchDone) {
        std::fprintf(stderr, "sparsegen emulator: %s\n", error);
        return outcome == kLaunchFaulted ? kExitFaulted : kExitRefused;
    }
    std::ofstream reply(words[2], std::ios::binary);
    for (const Argument& argument : arguments) {
        if (argument.kind == kBuffer) {
            reply.write(argument.buffer.get(), static_cast<std::streamsize>(argument.bytes));
        }
    }
    return reply.flush() ? 0 : kExitBadFile;
}
