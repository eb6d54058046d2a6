// What the protocol needs of the device beside the baselines.

// Keeps the device busy, so that what the host queues meanwhile starts at once when its turn comes.
extern "C" __global__ void spin(int cycles) {
  long long start = clock64();
  while (clock64() - start < cycles) {
  }
}

// Copies 16 bytes for each step of a thread; the bandwidth that everything is held against.
extern "C" __global__ void __launch_bounds__(1024) copy(int count, const float4* __restrict__ from, float4* __restrict__ to) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    to[i] = from[i];
  }
}

// Reads 16 bytes for each step of a thread and writes nothing, which the compiler cannot know: all of it is zero.
extern "C" __global__ void __launch_bounds__(1024) read(int count, const float4* __restrict__ from, float4* __restrict__ to) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    const float4 four = from[i];
    if (four.x != 0.0f || four.y != 0.0f || four.z != 0.0f || four.w != 0.0f) *to = four;
  }
}
