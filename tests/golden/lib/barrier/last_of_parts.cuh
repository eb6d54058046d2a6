template <class Meet>
__device__ __forceinline__ bool is_last_of(unsigned parts, unsigned* counter, unsigned* came, unsigned thread, const Meet& meet) {
  meet();
  if (thread / 32 == 0) {
    const unsigned before = count_arrival(counter, thread % 32);
    if (thread == 0) *came = before;
  }
  meet();
  if (*came + 1 != parts) return false;
  if (thread == 0) *counter = 0;
  return true;
}
