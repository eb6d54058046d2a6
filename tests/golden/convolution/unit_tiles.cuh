constexpr int kUnit = 8;  // rows and columns of a unit
constexpr int kPixels = kUnit * kUnit;
constexpr int kItemUnits = kTileM / kPixels;
constexpr int kListUnits = 128;  // that are listed at a time
static_assert(kTileM % kPixels == 0 && kListUnits % kItemUnits == 0, "tiles are whole units");
