// Counts the warps of a block that wrote a part together, and tells each of their threads whether they are the last of `parts`:
// then they see all that was written, and the counter is zero again. The result of adding up in the parts' order does not depend
// on who that is, and no block waits for another one. `meet` is a barrier of these warps, `came` lies in shared memory, and
// `thread` counts from their first one.
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
