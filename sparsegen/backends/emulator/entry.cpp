// The translation unit of a compiled variant: the generated source as it is, and one C function to launch it.
// The compiler's command line gives SPARSEGEN_EMULATOR_SOURCE, a file, and SPARSEGEN_EMULATOR_ENTRY, a kernel's name.
#include SPARSEGEN_EMULATOR_SOURCE

#include "entry.h"

#if !defined(SPARSEGEN_CLUSTER_BLOCKS)  // which a source with clusters defines
#define SPARSEGEN_CLUSTER_BLOCKS 1
#endif
#if defined(SPARSEGEN_GRID_TOGETHER)  // by a source whose blocks all wait for one another
constexpr auto kTogether = sparsegen::emulator::Together::grid;
#else
constexpr auto kTogether = sparsegen::emulator::Together::cluster;
#endif

int sparsegen_emulator_launch(const unsigned grid[3], const unsigned block[3], std::size_t shared_bytes,
                              void** arguments, int workers, char* error, std::size_t error_size) {
    using namespace sparsegen::emulator;
    return launch({&call_with<&SPARSEGEN_EMULATOR_ENTRY>, arguments}, {grid[0], grid[1], grid[2]},
                  {block[0], block[1], block[2]}, SPARSEGEN_CLUSTER_BLOCKS, kTogether, shared_bytes,
                  static_cast<unsigned>(workers), error, error_size);
}
