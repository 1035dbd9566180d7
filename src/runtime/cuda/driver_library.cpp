#include "runtime/cuda/driver_library.h"

#include <dlfcn.h>

namespace heddle::runtime::cuda {
namespace {

// Values of CUresult.
constexpr int kOutOfMemory = 2, kInvalidDevice = 101, kNoBinary = 209;

struct Binding {
  void** field;
  const char* symbol;
};

template <class F>
Binding bind(F*& field, const char* symbol) {
  return {reinterpret_cast<void**>(&field), symbol};
}

}  // namespace

Status Driver::check(int code, std::string_view what) const {
  if (code == 0) return Ok{};
  const char* text = nullptr;
  if (GetErrorString(code, &text) != 0 || text == nullptr) text = "unknown error";
  const ErrorCode kind = code == kOutOfMemory ? ErrorCode::out_of_memory
                         : code == kNoDevice || code == kInvalidDevice || code == kNoBinary
                             ? ErrorCode::missing
                             : ErrorCode::failed;
  return fail(kind, "CUDA: {}: {} ({})", what, text, code);
}

Result<std::shared_ptr<const Driver>> load_driver(const std::string& wanted) {
  const std::string path = wanted.empty() ? "libcuda.so.1" : wanted;
  void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return fail(ErrorCode::missing, "CUDA driver {}: {}", path, ::dlerror());
  auto d = std::make_shared<Driver>();
  const Binding rows[] = {
      bind(d->GetErrorString, "cuGetErrorString"),
      bind(d->Init, "cuInit"),
      bind(d->DeviceGet, "cuDeviceGet"),
      bind(d->DeviceGetAttribute, "cuDeviceGetAttribute"),
      bind(d->DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain"),
      bind(d->DevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2"),
      bind(d->CtxPushCurrent, "cuCtxPushCurrent_v2"),
      bind(d->CtxPopCurrent, "cuCtxPopCurrent_v2"),
      bind(d->ModuleLoadData, "cuModuleLoadData"),
      bind(d->ModuleUnload, "cuModuleUnload"),
      bind(d->ModuleGetFunction, "cuModuleGetFunction"),
      bind(d->FuncSetAttribute, "cuFuncSetAttribute"),
      bind(d->OccupancyMaxActiveBlocksPerMultiprocessor,
           "cuOccupancyMaxActiveBlocksPerMultiprocessor"),
      bind(d->MemAlloc, "cuMemAlloc_v2"),
      bind(d->MemFree, "cuMemFree_v2"),
      bind(d->MemAllocHost, "cuMemAllocHost_v2"),
      bind(d->MemFreeHost, "cuMemFreeHost"),
      bind(d->MemcpyHtoD, "cuMemcpyHtoD_v2"),
      bind(d->MemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2"),
      bind(d->MemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2"),
      bind(d->MemsetD8Async, "cuMemsetD8Async"),
      bind(d->StreamCreate, "cuStreamCreate"),
      bind(d->StreamDestroy, "cuStreamDestroy_v2"),
      bind(d->StreamSynchronize, "cuStreamSynchronize"),
      bind(d->StreamWaitEvent, "cuStreamWaitEvent"),
      bind(d->StreamBeginCapture, "cuStreamBeginCapture_v2"),
      bind(d->StreamEndCapture, "cuStreamEndCapture"),
      bind(d->GraphInstantiate, "cuGraphInstantiateWithFlags"),
      bind(d->GraphLaunch, "cuGraphLaunch"),
      bind(d->GraphExecDestroy, "cuGraphExecDestroy"),
      bind(d->GraphDestroy, "cuGraphDestroy"),
      bind(d->EventCreate, "cuEventCreate"),
      bind(d->EventDestroy, "cuEventDestroy_v2"),
      bind(d->EventRecord, "cuEventRecord"),
      bind(d->EventElapsedTime, "cuEventElapsedTime"),
      bind(d->LaunchKernelEx, "cuLaunchKernelEx"),
      bind(d->TensorMapEncodeTiled, "cuTensorMapEncodeTiled"),
  };
  for (const Binding& row : rows) {
    *row.field = ::dlsym(handle, row.symbol);
    if (*row.field == nullptr)
      return fail(ErrorCode::missing, "CUDA driver {}: found no {}, want CUDA 12.0 or newer", path,
                  row.symbol);
  }
  d->path = path;
  HEDDLE_TRY(d->check(d->Init(0), "cuInit"));
  return std::shared_ptr<const Driver>(std::move(d));
}

}  // namespace heddle::runtime::cuda
