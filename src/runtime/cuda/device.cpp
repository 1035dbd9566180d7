#include "runtime/cuda/device.h"

#include <dlfcn.h>

namespace heddle::runtime::cuda {
namespace {

// Values of CUdevice_attribute (cuda.h).
enum Attribute {
  kMultiprocessors = 16,
  kL2Bytes = 38,
  kThreadsPerMultiprocessor = 39,
  kMajor = 75,
  kMinor = 76,
  kSharedPerMultiprocessor = 81,
  kRegistersPerMultiprocessor = 82,
  kCooperative = 95,
  kSharedPerBlock = 97,
};

/// The entry points that describe devices.
struct Queries {
  int (*init)(unsigned flags) = nullptr;
  int (*error_text)(int code, const char** text) = nullptr;
  int (*count)(int* devices) = nullptr;
  int (*get)(int* device, int ordinal) = nullptr;
  int (*name)(char* text, int bytes, int device) = nullptr;
  int (*memory)(std::size_t* bytes, int device) = nullptr;
  int (*attribute)(int* value, int attribute, int device) = nullptr;
};

/// The driver stays loaded: it keeps threads and state.
Result<Queries> load(const std::string& path) {
  void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return fail(ErrorCode::missing, "CUDA driver {}: {}", path, ::dlerror());
  Queries q;
  const char* absent = nullptr;
  const auto bind = [&](auto& field, const char* symbol) {
    field = reinterpret_cast<std::decay_t<decltype(field)>>(::dlsym(handle, symbol));
    if (field == nullptr) absent = symbol;
  };
  bind(q.init, "cuInit");
  bind(q.error_text, "cuGetErrorString");
  bind(q.count, "cuDeviceGetCount");
  bind(q.get, "cuDeviceGet");
  bind(q.name, "cuDeviceGetName");
  bind(q.memory, "cuDeviceTotalMem_v2");
  bind(q.attribute, "cuDeviceGetAttribute");
  if (absent != nullptr)
    return fail(ErrorCode::missing, "CUDA driver {}: entry point {} is not there", path, absent);
  return q;
}

Status check(const Queries& q, int code, const char* what) {
  if (code == 0) return Ok{};
  const char* text = nullptr;
  if (q.error_text(code, &text) != 0 || text == nullptr) text = "unknown error";
  return fail(ErrorCode::missing, "CUDA driver: {}: {} ({})", what, text, code);
}

Result<Device> describe(const Queries& q, int ordinal) {
  int device = 0;
  HEDDLE_TRY(check(q, q.get(&device, ordinal), "cuDeviceGet"));
  Device out;
  char name[256] = {};
  HEDDLE_TRY(check(q, q.name(name, sizeof name - 1, device), "cuDeviceGetName"));
  out.name = name;
  std::size_t memory = 0;
  HEDDLE_TRY(check(q, q.memory(&memory, device), "cuDeviceTotalMem"));
  out.memory_bytes = static_cast<std::int64_t>(memory);
  int l2 = 0, cooperative = 0;
  const std::pair<Attribute, int*> rows[] = {
      {kMultiprocessors, &out.multiprocessors},
      {kL2Bytes, &l2},
      {kThreadsPerMultiprocessor, &out.threads_per_multiprocessor},
      {kMajor, &out.major},
      {kMinor, &out.minor},
      {kSharedPerMultiprocessor, &out.shared_per_multiprocessor},
      {kRegistersPerMultiprocessor, &out.registers_per_multiprocessor},
      {kCooperative, &cooperative},
      {kSharedPerBlock, &out.shared_per_block}};
  for (const auto& [attribute, value] : rows)
    HEDDLE_TRY(check(q, q.attribute(value, attribute, device), "cuDeviceGetAttribute"));
  out.l2_bytes = l2;
  out.cooperative = cooperative != 0;
  return out;
}

}  // namespace

std::string Device::arch() const {
  return fmt::format("sm_{}{}{}", major, minor, major >= 9 ? "a" : "");
}

Result<std::vector<Device>> devices(const std::string& path) {
  const Queries q = HEDDLE_TRY(load(path.empty() ? "libcuda.so.1" : path));
  HEDDLE_TRY(check(q, q.init(0), "cuInit"));
  int count = 0;
  HEDDLE_TRY(check(q, q.count(&count), "cuDeviceGetCount"));
  if (count < 1) return fail(ErrorCode::missing, "CUDA driver: found no GPU");
  std::vector<Device> out;
  for (int i = 0; i < count; ++i) out.push_back(HEDDLE_TRY(describe(q, i)));
  return out;
}

}  // namespace heddle::runtime::cuda
