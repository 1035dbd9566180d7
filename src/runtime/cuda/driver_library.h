#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "support/result.h"

namespace heddle::runtime::cuda {

using DevicePtr = unsigned long long;
using Handle = void*;  ///< contexts, modules, functions, streams, events, graphs

/// Values of cuda.h: of CUresult, CUdevice_attribute, CUfunction_attribute, CUstream_flags.
constexpr int kNoDevice = 100;
constexpr int kMultiprocessors = 16;
constexpr int kMaxDynamicShared = 8;  ///< bytes
constexpr unsigned kNonBlocking = 1;

/// CUlaunchAttribute and CUlaunchConfig of cuda.h.
struct LaunchAttribute {
  enum Id : int { cooperative = 2, cluster = 4 };
  int id = 0;
  int padding = 0;
  unsigned value[16] = {};
};
struct LaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  Handle stream;
  const LaunchAttribute* attributes;
  unsigned attribute_count;
};
static_assert(sizeof(LaunchAttribute) == 72 && sizeof(LaunchConfig) == 56);
/// CUtensorMap.
struct alignas(64) EncodedMap {
  std::uint64_t opaque[16] = {};
};

/// The driver's entry points, loaded at run time; names are those of cuda.h without "cu".
struct Driver {
  int (*GetErrorString)(int code, const char** text);
  int (*Init)(unsigned flags);
  int (*DeviceGet)(int* device, int ordinal);
  int (*DeviceGetAttribute)(int* value, int attribute, int device);
  int (*DevicePrimaryCtxRetain)(Handle* context, int device);
  int (*DevicePrimaryCtxRelease)(int device);
  int (*CtxPushCurrent)(Handle context);
  int (*CtxPopCurrent)(Handle* context);
  int (*ModuleLoadData)(Handle* module, const void* image);
  int (*ModuleUnload)(Handle module);
  int (*ModuleGetFunction)(Handle* function, Handle module, const char* name);
  int (*FuncSetAttribute)(Handle function, int attribute, int value);
  int (*OccupancyMaxActiveBlocksPerMultiprocessor)(int* blocks, Handle function, int threads,
                                                   std::size_t shared_bytes);
  int (*MemAlloc)(DevicePtr* memory, std::size_t bytes);
  int (*MemFree)(DevicePtr memory);
  int (*MemAllocHost)(void** memory, std::size_t bytes);
  int (*MemFreeHost)(void* memory);
  int (*MemcpyHtoD)(DevicePtr to, const void* from, std::size_t bytes);
  int (*MemcpyHtoDAsync)(DevicePtr to, const void* from, std::size_t bytes, Handle stream);
  int (*MemcpyDtoHAsync)(void* to, DevicePtr from, std::size_t bytes, Handle stream);
  int (*MemsetD8Async)(DevicePtr memory, unsigned char value, std::size_t bytes, Handle stream);
  int (*StreamCreate)(Handle* stream, unsigned flags);
  int (*StreamDestroy)(Handle stream);
  int (*StreamSynchronize)(Handle stream);
  int (*StreamWaitEvent)(Handle stream, Handle event, unsigned flags);
  int (*StreamBeginCapture)(Handle stream, int mode);
  int (*StreamEndCapture)(Handle stream, Handle* graph);
  int (*GraphInstantiate)(Handle* executable, Handle graph, unsigned long long flags);
  int (*GraphLaunch)(Handle executable, Handle stream);
  int (*GraphExecDestroy)(Handle executable);
  int (*GraphDestroy)(Handle graph);
  int (*EventCreate)(Handle* event, unsigned flags);
  int (*EventDestroy)(Handle event);
  int (*EventRecord)(Handle event, Handle stream);
  int (*EventElapsedTime)(float* milliseconds, Handle begin, Handle end);
  int (*LaunchKernelEx)(const LaunchConfig* config, Handle function, void** parameters,
                        void** extra);
  int (*TensorMapEncodeTiled)(EncodedMap* map, int type, unsigned rank, void* base,
                              const std::uint64_t* extents, const std::uint64_t* strides,
                              const unsigned* box, const unsigned* element_strides, int interleave,
                              int swizzle, int promotion, int fill);
  std::string path;

  /// Ok for code 0; else an error "CUDA: `what`: …" of the class that the code belongs to.
  Status check(int code, std::string_view what) const;
};

/// The driver at `path` (empty: the system's libcuda.so.1), initialised; it stays loaded, for it
/// keeps threads and state. Errors of code missing: no driver, an old one.
Result<std::shared_ptr<const Driver>> load_driver(const std::string& path);

}  // namespace heddle::runtime::cuda
