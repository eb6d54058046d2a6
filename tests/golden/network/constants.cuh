constexpr int kInputs = 24;
constexpr int kWarps = 16;
constexpr int kRun = 4;
constexpr int kParts = 1;

constexpr bool kDying = false;
constexpr bool kAlignedRows = true;

constexpr int kThreads = 32 * kWarps;
constexpr int kChunks = 3;
constexpr int kPitch = 16 * kChunks;
constexpr int kBlockBytes = 16 * kPitch;
constexpr int kPassGroups = kWarps * kRun;
constexpr int kBiases = (kRun + 1) / 2;
static_assert(kChunks % 2 == 1, "rows of an odd number of chunks need no swizzle");
static_assert(kParts == 1 || kChunks > 1, "two parts have a chunk each");
static_assert(2 * kChunks <= 32, "what warps find alive has room");
(2) from (1):
@@
+constexpr int kFirstCheck = 5;
+constexpr int kChecks = 3;
@@
-1 1ad456
+constexpr bool kDying = true;
(3) from (1):
@@
-1 2c4c45
+constexpr int kInputs = 56;
@@
-1 890c5b
+constexpr int kParts = 2;
@@
-1 0d2a37
+constexpr int kChunks = 7;
(4) from (3):
@@
+constexpr int kFirstCheck = 5;
+constexpr int kChecks = 3;
@@
-1 1ad456
+constexpr bool kDying = true;
