#include "runtime/cuda/device.h"

#include <dlfcn.h>

#include <algorithm>

#include "runtime/cuda/driver_library.h"

namespace heddle::runtime::cuda {
namespace {

// Values of CUdevice_attribute (cuda.h).
enum Attribute {
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
  return fail(code == kNoDevice ? ErrorCode::missing : ErrorCode::failed,
              "CUDA driver: {}: {} ({})", what, text, code);
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
  const std::pair<int, int*> rows[] = {
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

Occupancy occupancy(const Device& d, int threads, int registers, std::int64_t shared_bytes) {
  constexpr std::int64_t kWarp = 32, kRegisterUnit = 256, kSharedUnit = 128, kReserved = 1024;
  const auto up = [](std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; };
  const std::int64_t warps = std::max<std::int64_t>(1, up(threads, kWarp) / kWarp);
  const std::int64_t of_warp = up(std::max(1, registers) * kWarp, kRegisterUnit);
  const std::pair<std::int64_t, std::string_view> limits[] = {
      {d.major == 8 && d.minor > 0 ? 24 : 32, "blocks"},
      {d.threads_per_multiprocessor / (warps * kWarp), "threads"},
      {d.registers_per_multiprocessor / of_warp / warps, "registers"},
      {d.shared_per_multiprocessor / (up(shared_bytes, kSharedUnit) + kReserved), "shared memory"}};
  const auto& least = *std::min_element(std::begin(limits), std::end(limits));
  Occupancy out{static_cast<int>(least.first), 0, least.second};
  if (d.threads_per_multiprocessor > 0)
    out.share = static_cast<double>(least.first * warps * kWarp) / d.threads_per_multiprocessor;
  return out;
}

std::optional<Device> assumed_device(const std::string& arch) {
  const std::int64_t gb = std::int64_t{1} << 30, mb = 1 << 20;
  const Device known[] = {
      {"A100 (assumed)", 8, 0, 108, 80 * gb, 40 * mb, 2048, 65536, 163 << 10, 164 << 10, true},
      {"L40S (assumed)", 8, 9, 142, 48 * gb, 96 * mb, 1536, 65536, 99 << 10, 100 << 10, true},
      {"H200 (assumed)", 9, 0, 132, 141 * gb, 60 * mb, 2048, 65536, 227 << 10, 228 << 10, true}};
  for (const Device& d : known)
    if (d.arch() == arch) return d;
  return std::nullopt;
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
