// One lane is enough behind __syncwarp. compute-sanitizer's racecheck follows arrivals lane by lane, and reports races unless all arrive.
#if defined(SPARSEGEN_EVERY_LANE_ARRIVES)
constexpr unsigned kArrivingLanes = 32;
#else
constexpr unsigned kArrivingLanes = 1;
#endif
