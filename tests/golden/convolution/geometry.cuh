constexpr int kRows = 3, kColumns = 3;
constexpr int kStrideRows = 1, kStrideColumns = 1;
constexpr int kPaddingRows = 1, kPaddingColumns = 1;
constexpr int kDilationRows = 1, kDilationColumns = 1;
constexpr int kGroups = 1;
constexpr int kBlockRows = 16, kBlockColumns = 16;
(2) from (1):
@@
-1 5d252e
+constexpr int kBlockRows = 8, kBlockColumns = 8;
(3) from (1):
@@
-1 5d252e
+constexpr int kBlockRows = 5, kBlockColumns = 7;
