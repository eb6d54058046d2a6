// A CUDA driver whose device memory is the host's, for tests of what is called through ctypes (CUDA driver API).
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

namespace {
constexpr int kInvalid = 1, kOutOfMemory = 2;
constexpr std::size_t kMemory = 1 << 26;
using Clock = std::chrono::steady_clock;
struct Event { Clock::time_point when; };
thread_local int contexts = 0;  // that the calling thread is in
int blocks = 0;
thread_local int capture_mode = 0;
constexpr int kRelaxed = 2;
bool captures = false, was_ended = false;
void take_or_free() { was_ended |= captures && capture_mode != kRelaxed; }
}  // namespace

extern "C" {
int cuInit(unsigned) {
  static std::once_flag begun;  // others wait for the first call
  std::call_once(begun, [] {
    if (const char* ms = std::getenv("FAKE_CUDA_INIT_MS")) {
      std::this_thread::sleep_for(std::chrono::milliseconds(std::atoi(ms)));
      std::fputs("the driver is up\n", stderr);
    }
  });
  return std::getenv("FAKE_CUDA_BROKEN") ? 100 : 0;
}
int cuDeviceGetCount(int* count) { *count = 2; return 0; }
int cuDeviceGet(int* device, int index) { *device = index; return index < 2 ? 0 : kInvalid; }
int cuDeviceGetName(char* name, int, int) { std::strcpy(name, "Fake GPU"); return 0; }
int cuDeviceGetUuid_v2(char* uuid, int device) { std::memset(uuid, 0x11 * (device + 1), 16); return 0; }
int cuDeviceGetPCIBusId(char* name, int, int) { std::strcpy(name, "0000:00:00.0"); return 0; }
int cuDeviceGetAttribute(int* value, int attribute, int) {
  switch (attribute) {
    case 13: *value = 1500000; return 0;   // clock rate
    case 16: {                             // multiprocessors
      const char* given = std::getenv("FAKE_CUDA_MULTIPROCESSORS");
      *value = given ? std::atoi(given) : 4;
      return 0;
    }
    case 36: *value = 1000000; return 0;   // memory clock
    case 37: *value = 512; return 0;       // bus width
    case 38: *value = 1 << 20; return 0;   // L2
    case 75: *value = 9; return 0;
    case 76: *value = 0; return 0;
    case 81: *value = 233472; return 0;
    case 97: *value = 232448; return 0;
    default: return kInvalid;
  }
}
int cuDevicePrimaryCtxRetain(void** context, int) { *context = &contexts; return 0; }
int cuDevicePrimaryCtxRelease_v2(int) { return 0; }
int cuCtxPushCurrent_v2(void*) { ++contexts; return 0; }
int cuCtxPopCurrent_v2(void**) { return contexts-- > 0 ? 0 : kInvalid; }
int cuCtxGetCurrent(void** context) { *context = contexts ? &contexts : nullptr; return 0; }
int cuCtxSetCurrent(void*) { return 0; }
int cuCtxSynchronize() { return 0; }
int cuThreadExchangeStreamCaptureMode(int* mode) { std::swap(*mode, capture_mode); return 0; }
void fake_begin_capture() { captures = true; was_ended = false; }
int fake_end_capture() { captures = false; return was_ended; }
int cuMemAlloc_v2(std::uint64_t* address, std::size_t nbytes) {
  take_or_free();
  if (nbytes > kMemory) return kOutOfMemory;
  *address = reinterpret_cast<std::uint64_t>(std::malloc(nbytes));
  ++blocks;
  return 0;
}
int cuMemFree_v2(std::uint64_t address) {
  take_or_free();
  if (!contexts) return kInvalid;
  std::free(reinterpret_cast<void*>(address));
  --blocks;
  return 0;
}
int fake_blocks() { return blocks; }
int cuMemcpyHtoD_v2(std::uint64_t to, const void* from, std::size_t nbytes) {
  std::memcpy(reinterpret_cast<void*>(to), from, nbytes);
  return 0;
}
int cuMemcpyDtoH_v2(void* to, std::uint64_t from, std::size_t nbytes) {
  std::memcpy(to, reinterpret_cast<void*>(from), nbytes);
  return 0;
}
int cuMemsetD8_v2(std::uint64_t to, unsigned char byte, std::size_t count) {
  std::memset(reinterpret_cast<void*>(to), byte, count);
  return 0;
}
int cuMemsetD8Async(std::uint64_t to, unsigned char byte, std::size_t count, void*) {
  return cuMemsetD8_v2(to, byte, count);
}
int cuEventCreate(void** event, unsigned) { *event = new Event{}; return 0; }
int cuEventRecord(void* event, void*) { static_cast<Event*>(event)->when = Clock::now(); return 0; }
int cuEventQuery(void* event) { return static_cast<Event*>(event)->when == Clock::time_point{} ? 600 : 0; }
int cuEventElapsedTime(float* ms, void* start, void* end) {
  auto since = static_cast<Event*>(end)->when - static_cast<Event*>(start)->when;
  *ms = std::chrono::duration<float, std::milli>(since).count();
  return 0;
}
int cuEventSynchronize(void*) { return 0; }
int cuMemGetInfo_v2(std::size_t* free, std::size_t* total) { *free = kMemory / 2; *total = kMemory; return 0; }
int cuMemHostAlloc(void** memory, std::size_t nbytes, unsigned flags) {
  take_or_free();
  if (flags != 1) return kInvalid;  // portable
  if (nbytes > kMemory) return kOutOfMemory;
  *memory = std::malloc(nbytes);
  ++blocks;
  return 0;
}
int cuMemFreeHost(void* memory) {
  take_or_free();
  if (!contexts) return kInvalid;
  std::free(memory);
  --blocks;
  return 0;
}
int cuStreamCreate(void** stream, unsigned flags) { *stream = new int; return flags == 1 ? 0 : kInvalid; }
int cuStreamDestroy_v2(void* stream) { delete static_cast<int*>(stream); return 0; }
int cuStreamWaitEvent(void*, void* event, unsigned) { return event ? 0 : kInvalid; }
int cuMemcpyHtoDAsync_v2(std::uint64_t to, const void* from, std::size_t nbytes, void* stream) {
  return stream ? cuMemcpyHtoD_v2(to, from, nbytes) : kInvalid;
}
int cuMemcpyDtoHAsync_v2(void* to, std::uint64_t from, std::size_t nbytes, void* stream) {
  return stream ? cuMemcpyDtoH_v2(to, from, nbytes) : kInvalid;
}
int cuEventDestroy_v2(void* event) { delete static_cast<Event*>(event); return 0; }
int cuModuleLoadData(void** module, const char* image) { *module = &contexts; return std::strcmp(image, "binary") ? 200 : 0; }
int cuModuleGetFunction(void** function, void*, const char* name) {
  *function = &blocks;
  return std::strcmp(name, "add") ? 500 : 0;
}
int cuModuleUnload(void*) { return 0; }
int cuFuncSetAttribute(void*, int, int) { return 0; }
int cuOccupancyMaxActiveClusters(int*, void*, const void*) { return kInvalid; }
// A map is the address that it is of.
int cuTensorMapEncodeTiled(void* map, int, unsigned, void* address, const void*, const void*, const void*, const void*,
                           int, int, int, int) {
  *static_cast<void**>(map) = address;
  return 0;
}
// The one kernel that there is: adds a number to the first elements of an array.
int cuLaunchKernelEx(const void*, void*, void** p, void**) {
  auto count = *static_cast<std::int32_t*>(p[0]), number = *static_cast<std::int32_t*>(p[1]);
  auto* array = *static_cast<std::int32_t**>(p[2]);
  for (std::int32_t i = 0; i < count; ++i) array[i] += number;
  return 0;
}
int cuGetErrorString(int status, const char** text) { *text = status == kOutOfMemory ? "out of memory" : "refused"; return 0; }
}
