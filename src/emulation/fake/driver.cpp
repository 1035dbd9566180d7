// libcuda: devices, contexts, memory, modules.
#include <cstdio>
#include <cstring>

#include "emulation/fake/state.h"

using namespace heddle::emulation;
using fake::Call;
using fake::Function;
using fake::LoadedModule;
using fake::state;

HEDDLE_FAKE int cuInit(unsigned flags) {
  const Call call("cuInit", Call::nothing);
  return flags != 0 || !state().settings.problem.empty() ? fake::kInvalidValue : call.code;
}
HEDDLE_FAKE int cuGetErrorString(int code, const char** text) {
  switch (code) {
    case fake::kInvalidValue:
      *text =
          state().settings.problem.empty() ? "invalid argument" : state().settings.problem.c_str();
      break;
    case fake::kOutOfMemory:
      *text = "out of memory";
      break;
    case fake::kInvalidDevice:
      *text = "invalid device ordinal";
      break;
    case fake::kNoBinary:
      *text = "no kernel image is available for execution on the device";
      break;
    case fake::kLaunchFailed:
      *text = state().message.empty() ? "unspecified launch failure" : state().message.c_str();
      break;
    default:
      *text = "CUDA error";
  }
  return 0;
}
HEDDLE_FAKE int cuDeviceGetCount(int* count) {
  const Call call("cuDeviceGetCount", Call::nothing);
  return *count = state().settings.devices, call.code;
}
HEDDLE_FAKE int cuDeviceGet(int* device, int ordinal) {
  const Call call("cuDeviceGet", Call::nothing);
  if (ordinal < 0 || ordinal >= state().settings.devices) return fake::kInvalidDevice;
  return *device = ordinal, call.code;
}
HEDDLE_FAKE int cuDeviceGetName(char* text, int bytes, int) {
  return std::snprintf(text, static_cast<std::size_t>(bytes), "emulated GPU"), 0;
}
HEDDLE_FAKE int cuDeviceTotalMem_v2(std::size_t* bytes, int) {
  return *bytes = static_cast<std::size_t>(state().settings.memory), 0;
}
HEDDLE_FAKE int cuDeviceGetAttribute(int* value, int attribute, int) {
  const Call call("cuDeviceGetAttribute", Call::nothing);
  if (call.code != 0) return call.code;
  const fake::Settings& s = state().settings;
  const int shared = s.capability >= 90 ? 227 << 10 : s.capability == 80 ? 163 << 10 : 99 << 10;
  switch (attribute) {
    case 16:  // multiprocessors
      return *value = s.multiprocessors, 0;
    case 38:  // L2
      return *value = 32 << 20, 0;
    case 39:  // threads of a multiprocessor
      return *value = 2048, 0;
    case 75:
      return *value = s.capability / 10, 0;
    case 76:
      return *value = s.capability % 10, 0;
    case 81:  // shared memory of a multiprocessor
      return *value = shared + 1024, 0;
    case 82:  // registers
      return *value = 65536, 0;
    case 95:  // cooperative launches
      return *value = 1, 0;
    case 97:  // shared memory of a block, on request
      return *value = shared, 0;
    default:
      return fake::kInvalidValue;
  }
}

HEDDLE_FAKE int cuDevicePrimaryCtxRetain(void** context, int device) {
  const Call call("cuDevicePrimaryCtxRetain", Call::nothing);
  if (call.code != 0) return call.code;
  ++state().contexts;
  return *context = reinterpret_cast<void*>(static_cast<std::uintptr_t>(device + 1)), 0;
}
HEDDLE_FAKE int cuDevicePrimaryCtxRelease_v2(int) {
  const Call call("cuDevicePrimaryCtxRelease", Call::nothing);
  if (state().contexts == 0) return fake::kInvalidContext;
  return --state().contexts, 0;
}
HEDDLE_FAKE int cuCtxPushCurrent_v2(void* context) { return fake::current().push_back(context), 0; }
HEDDLE_FAKE int cuCtxPopCurrent_v2(void** context) {
  if (fake::current().empty()) return fake::kInvalidContext;
  *context = fake::current().back();
  return fake::current().pop_back(), 0;
}

HEDDLE_FAKE int cuMemAlloc_v2(std::uint64_t* memory, std::size_t bytes) {
  const Call call("cuMemAlloc");
  fake::State& s = state();
  if (call.code != 0) return call.code;
  if (fake::capturing() > 0) return fake::kCaptureUnsupported;
  if (bytes == 0) return fake::kInvalidValue;
  const auto size = static_cast<std::int64_t>(bytes);
  if (size > s.settings.memory - s.device_bytes) return fake::kOutOfMemory;
  *memory = reinterpret_cast<std::uint64_t>(allocate(size));
  s.device[*memory] = size;
  s.device_bytes += size;
  return 0;
}
HEDDLE_FAKE int cuMemFree_v2(std::uint64_t memory) {
  const Call call("cuMemFree", Call::nothing);
  fake::State& s = state();
  const auto found = s.device.find(memory);
  if (found == s.device.end()) return fake::kInvalidValue;
  for (fake::Stream* stream : s.streams) s.drain(*stream);  // it waits for the device
  s.device_bytes -= found->second;
  s.device.erase(found);
  release(reinterpret_cast<std::byte*>(memory));
  return 0;
}
HEDDLE_FAKE int cuMemAllocHost_v2(void** memory, std::size_t bytes) {
  const Call call("cuMemAllocHost");
  if (call.code != 0) return call.code;
  if (bytes == 0) return fake::kInvalidValue;
  *memory = allocate(static_cast<std::int64_t>(bytes));  // kernels see it, too
  state().pinned[*memory] = bytes;
  return 0;
}
HEDDLE_FAKE int cuMemFreeHost(void* memory) {
  const Call call("cuMemFreeHost", Call::nothing);
  if (state().pinned.erase(memory) == 0) return fake::kInvalidValue;
  for (fake::Stream* stream : state().streams) state().drain(*stream);
  release(static_cast<std::byte*>(memory));
  return 0;
}
HEDDLE_FAKE int cuMemcpyHtoD_v2(std::uint64_t to, const void* from, std::size_t bytes) {
  const Call call("cuMemcpyHtoD");
  if (call.code != 0) return call.code;
  if (fake::capturing() > 0) return fake::kCaptureUnsupported;
  if (!state().holds(to, bytes)) return fake::kInvalidValue;
  return std::memcpy(reinterpret_cast<void*>(to), from, bytes), 0;
}

HEDDLE_FAKE int cuModuleLoadData(LoadedModule** module, const void* image) {
  const Call call("cuModuleLoadData");
  if (call.code != 0) return call.code;
  if (fake::capturing() > 0) return fake::kCaptureUnsupported;
  const auto cubin = fake::unpack_cubin(image);
  if (!cubin) return fake::kInvalidImage;
  const int made_for = std::atoi(cubin->arch.c_str() + 3), here = state().settings.capability;
  const bool exact = cubin->arch.back() == 'a';
  if (exact ? made_for != here : made_for / 10 != here / 10 || made_for > here)
    return fake::kNoBinary;
  const auto compiled = compile(cubin->text, fake::compile_options());
  if (!compiled) return fake::kInvalidImage;
  *module = new LoadedModule{*compiled, {}};
  state().modules.insert(*module);
  return 0;
}
HEDDLE_FAKE int cuModuleUnload(LoadedModule* module) {
  const Call call("cuModuleUnload", Call::nothing);
  if (state().modules.erase(module) == 0) return fake::kInvalidHandle;
  for (auto& [name, function] : module->functions) state().functions.erase(&function);
  delete module;
  return 0;
}
HEDDLE_FAKE int cuModuleGetFunction(Function** function, LoadedModule* module, const char* name) {
  const Call call("cuModuleGetFunction");
  if (call.code != 0) return call.code;
  if (!state().modules.contains(module)) return fake::kInvalidHandle;
  const Kernel* kernel = module->module.find(name);
  if (kernel == nullptr) return fake::kNotFound;
  Function& f = module->functions[name];
  f.name = name;
  f.kernel = kernel;
  f.module = &module->module;
  state().functions.insert(&f);
  return *function = &f, 0;
}
HEDDLE_FAKE int cuFuncSetAttribute(Function* function, int attribute, int value) {
  const Call call("cuFuncSetAttribute");
  if (call.code != 0) return call.code;
  if (!state().functions.contains(function)) return fake::kInvalidHandle;
  constexpr int kMaxDynamicShared = 8, kNonPortableCluster = 14;
  int most = 0;
  cuDeviceGetAttribute(&most, 97, 0);
  if (attribute == kMaxDynamicShared) {
    if (value < 0 || value > most) return fake::kInvalidValue;
    function->dynamic_shared = value;
  }
  if (attribute == kNonPortableCluster) function->large_clusters = value != 0;
  return 0;
}
