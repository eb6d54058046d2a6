constexpr int kInputs = 24;  // of a tile, which goes through all layers together
constexpr int kWarps = 16;
constexpr int kRun = 4;  // groups of 16 neurons that a warp takes one after another
constexpr int kParts = 1;  // of a tile, each with its own barrier: one is computed while the other's warps meet

constexpr bool kDying = false;  // an input without a live neuron stays so
constexpr bool kAlignedRows = true;  // inputs start at multiples of 16 bytes

constexpr int kThreads = 32 * kWarps;
constexpr int kChunks = 3;  // of 8 inputs, 16 bytes, in a row
constexpr int kPitch = 16 * kChunks;  // bytes of a neuron's row: an odd number of chunks, so that rows meet other banks
constexpr int kBlockBytes = 16 * kPitch;
constexpr int kPassGroups = kWarps * kRun;
constexpr int kBiases = (kRun + 1) / 2;  // that a lane holds
static_assert(kChunks % 2 == 1, "rows of an odd number of chunks need no swizzle");
static_assert(kParts == 1 || kChunks > 1, "two parts have a chunk each");
static_assert(2 * kChunks <= 32, "what warps find alive has room");
(2) from (1):
@@
+constexpr int kFirstCheck = 5;  // layer after which dead inputs are dropped for the first time, or 0
+constexpr int kChecks = 3;  // how often they are
@@
-constexpr bool kDying = false;  // an input without a live neuron stays so
+constexpr bool kDying = true;  // an input without a live neuron stays so
(3) from (1):
@@
-constexpr int kInputs = 24;  // of a tile, which goes through all layers together
+constexpr int kInputs = 56;  // of a tile, which goes through all layers together
@@
-constexpr int kParts = 1;  // of a tile, each with its own barrier: one is computed while the other's warps meet
+constexpr int kParts = 2;  // of a tile, each with its own barrier: one is computed while the other's warps meet
@@
-constexpr int kChunks = 3;  // of 8 inputs, 16 bytes, in a row
+constexpr int kChunks = 7;  // of 8 inputs, 16 bytes, in a row
(4) from (3):
@@
+constexpr int kFirstCheck = 5;  // layer after which dead inputs are dropped for the first time, or 0
+constexpr int kChecks = 3;  // how often they are
@@
-constexpr bool kDying = false;  // an input without a live neuron stays so
+constexpr bool kDying = true;  // an input without a live neuron stays so
