constexpr int kUnit = 8;
constexpr int kPixels = kUnit * kUnit;
constexpr int kRoundUnits = kTileM / kPixels;
constexpr int kListUnits = 128;
static_assert(kTileM % kPixels == 0 && kListUnits % kRoundUnits == 0, "tiles are whole units");
