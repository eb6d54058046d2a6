constexpr int kUnit = 8;
constexpr int kPixels = kUnit * kUnit;
constexpr int kItemUnits = kTileM / kPixels;
constexpr int kListUnits = 128;
static_assert(kTileM % kPixels == 0 && kListUnits % kItemUnits == 0, "tiles are whole units");
