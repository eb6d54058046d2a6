constexpr int kThreads = 32 * kWarpsM * kWarpsN;
constexpr int kChunk = 16 / sizeof(Element);  // elements of 16 bytes
constexpr int kWarpTileM = kTileM / kWarpsM, kWarpTileN = kTileN / kWarpsN;
constexpr int kRowTiles = kWarpTileM / 16, kColumnTiles = kWarpTileN / 8;  // of a warp
constexpr int kProductStep = 2 * kChunk;  // of the contraction, by one instruction
static_assert(kWarpTileM % 16 == 0 && kWarpTileN % 16 == 0, "warps take whole tiles of the instruction");
using Sums = float[kRowTiles][kColumnTiles][4];  // of a thread
