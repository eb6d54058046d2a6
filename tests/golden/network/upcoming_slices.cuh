struct Upcoming {
  int slice, chunks, place;
  Chunk chunk;

  __device__ __forceinline__ Upcoming(const Network& net, int part)
      : slice(net.first_slices[part]), chunks(net.chunks[slice]), place(net.first_chunks[part]), chunk(load_chunk(net, place)) {}
};
