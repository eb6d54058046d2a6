constexpr int kThreads = 32 * kWarpsM * kWarpsN;
constexpr int kChunk = 16 / sizeof(Element);
constexpr int kWarpTileM = kTileM / kWarpsM, kWarpTileN = kTileN / kWarpsN;
constexpr int kRowTiles = kWarpTileM / 16, kColumnTiles = kWarpTileN / 8;
constexpr int kProductStep = 2 * kChunk;
static_assert(kWarpTileM % 16 == 0 && kWarpTileN % 16 == 0, "warps take whole tiles of the instruction");
using Sums = float[kRowTiles][kColumnTiles][4];
