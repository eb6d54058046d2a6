constexpr int kARow = kStep, kARows = kTileM, kAPitch = kARow + kChunk;
constexpr int kBRow = kStep, kBRows = kTileN, kBPitch = kBRow + kChunk;
constexpr int kAElements = kARows * kAPitch, kStageElements = kAElements + kBRows * kBPitch;
static_assert(kStep % kProductStep == 0, "steps are whole products");
(2) from (1):
@@
-2 147959
+constexpr int kARow = kTileM, kARows = kStep, kAPitch = kARow + kChunk;
+constexpr int kBRow = kTileN, kBRows = kStep, kBPitch = kBRow + kChunk;
(3) from (1):
@@
-1 734886
+constexpr int kARow = kTileM, kARows = kStep, kAPitch = kARow + kChunk;
(4) from (1):
@@
-1 db4ccf
+constexpr int kBRow = kTileN, kBRows = kStep, kBPitch = kBRow + kChunk;
