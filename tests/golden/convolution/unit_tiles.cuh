constexpr int kUnit = 8;  // rows and columns of a unit
constexpr int kPixels = kUnit * kUnit;
constexpr int kRoundUnits = kTileM / kPixels;
constexpr int kListUnits = 128;  // that are listed at a time
static_assert(kTileM % kPixels == 0 && kListUnits % kRoundUnits == 0, "tiles are whole units");
