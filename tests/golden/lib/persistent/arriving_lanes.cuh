#if defined(SPARSEGEN_EVERY_LANE_ARRIVES)
constexpr unsigned kArrivingLanes = 32;
#else
constexpr unsigned kArrivingLanes = 1;
#endif
