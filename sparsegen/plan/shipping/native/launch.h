// Launches as a shipped library knows them: all but the addresses of operands, packed arrays and results.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace shipped {

inline constexpr int kMostDimensions = 5;  // of a tensor map
inline constexpr int kMostArguments = 32;
inline constexpr int kMostMaps = 4;
inline constexpr int kResult = -1;  // in the place of an operand's number; further results count down

/// What a parameter of a kernel is.
enum class Source : std::uint8_t {
    operand,  // its address; those of results with the numbers from kResult down
    packed,   // an address so many bytes behind that of the packed arrays
    scratch,  // an address so many bytes behind that of the scratch memory
    size,     // a 32-bit integer
    map,      // the tensor map of this number, by value
};

struct Argument {
    Source source;
    std::int64_t value;
};

/// An operand or the result as TMA sees it: sizes, box and steps in elements, strides in bytes, innermost first.
struct Map {
    int array;  // the operand's number, or a result's
    int type;   // CUtensorMapDataType
    unsigned item_bytes, rank;
    std::uint64_t sizes[kMostDimensions], strides[kMostDimensions];
    std::uint32_t box[kMostDimensions], extents[kMostDimensions], steps[kMostDimensions];
    unsigned swizzle_bytes, l2_bytes;
};

struct Geometry {
    unsigned grid[3], block[3], shared_bytes;
    bool starts_early;            // programmatic dependent launch
    unsigned persistent_cluster;  // blocks of a cluster, of which only resident ones are launched; 0: all of the grid
    bool together;                // cooperative launch
};

/// A cubin, or a shared object for the CPU.
struct Code {
    const char* entry;
    const unsigned char* begin;
    const unsigned char* end;
};

/// How a launch runs on devices of one architecture.
struct Target {
    int capability;  // 10 times the major number plus the minor one; kCpu: this machine's CPU
    const Code* code;
    Geometry geometry;
};
inline constexpr int kCpu = 0;

/// An operand or a result, contiguous; its dtype as PyTorch numbers them.
struct Array {
    const char* name;
    std::int32_t dtype;
    std::span<const std::int64_t> sizes;
};

/// A problem with operands of each call, such as the product of a linear layer.
struct Launch {
    std::span<const Target> targets;
    std::span<const Argument> arguments;
    std::span<const Map> maps;
    std::size_t scratch_bytes, packed_bytes;
    std::span<const Array> operands, results;
};

/// All launches of this library, by number.
std::span<const Launch> launches();

/// Addresses of one call.
struct Addresses {
    std::span<void* const> operands, results;
    void* packed;
};

/// Runs a launch on this machine's CPU, and waits for it.
void run_on_cpu(std::size_t number, const Addresses& addresses);
/// Queues a launch on a stream of the current GPU.
void run_on_gpu(std::size_t number, int device, void* stream, const Addresses& addresses);

/// The target of an architecture; throws where this library has none.
const Target& target_of(const Launch& launch, int capability);

/// The parameters of a kernel: `places` points to each of them.
template <class EncodedMap>
struct Parameters {
    std::uint64_t values[kMostArguments];
    EncodedMap maps[kMostMaps];
    void* places[kMostArguments];

    /// `encode(map, address, place)` writes a tensor map.
    template <class Encode>
    void fill(const Launch& launch, const Addresses& addresses, void* scratch, Encode&& encode) {
        const auto array = [&](std::int64_t number) {
            return number <= kResult ? addresses.results[static_cast<std::size_t>(kResult - number)]
                                     : addresses.operands[static_cast<std::size_t>(number)];
        };
        for (std::size_t i = 0; i < launch.arguments.size(); ++i) {
            const auto& [source, value] = launch.arguments[i];
            places[i] = &values[i];
            switch (source) {
                case Source::operand:
                    values[i] = reinterpret_cast<std::uint64_t>(array(value));
                    break;
                case Source::packed:
                    values[i] = reinterpret_cast<std::uint64_t>(addresses.packed) + static_cast<std::uint64_t>(value);
                    break;
                case Source::scratch:
                    values[i] = reinterpret_cast<std::uint64_t>(scratch) + static_cast<std::uint64_t>(value);
                    break;
                case Source::size:
                    values[i] = static_cast<std::uint32_t>(value);
                    break;
                case Source::map:
                    encode(launch.maps[static_cast<std::size_t>(value)],
                           array(launch.maps[static_cast<std::size_t>(value)].array), &maps[value]);
                    places[i] = &maps[value];
                    break;
            }
        }
    }
};

}  // namespace shipped
