#include "runtime/cuda/gpu.h"

#include <algorithm>

#include "runtime/cuda/device.h"
#include "runtime/cuda/driver_library.h"
#include "runtime/cuda/unit.h"
#include "support/log.h"

namespace heddle::runtime::cuda {
namespace {

constexpr int kNotFound = 500;  // CUDA_ERROR_NOT_FOUND
constexpr std::int64_t kAlignment = 256;

/// CUtensorMapDataType.
std::optional<int> map_type(DType type) {
  switch (type) {
    case DType::u8:
    case DType::i8:
      return 0;
    case DType::i32:
      return 3;
    case DType::i64:
      return 5;
    case DType::f16:
      return 6;
    case DType::f32:
      return 7;
    case DType::f64:
      return 8;
    case DType::bf16:
      return 9;
    default:
      return std::nullopt;
  }
}

/// True if code for `arch` runs on `device`: of the same chip family; "a" is one chip only.
bool runs_on(const std::string& arch, const Device& device) {
  if (arch == device.arch()) return true;
  const std::string family = fmt::format("sm_{}", device.major);
  return arch.size() == family.size() + 1 && arch.starts_with(family) && arch.back() >= '0' &&
         arch.back() - '0' <= device.minor;
}

}  // namespace

Result<std::shared_ptr<Gpu>> Gpu::open(const std::string& path, int ordinal) {
  std::shared_ptr<const Driver> driver = HEDDLE_TRY(load_driver(path));
  int device = 0;
  HEDDLE_TRY(driver->check(driver->DeviceGet(&device, ordinal), fmt::format("GPU {}", ordinal)));
  std::shared_ptr<Gpu> gpu(new Gpu(std::move(driver), device));
  HEDDLE_TRY(gpu->check(gpu->driver().DevicePrimaryCtxRetain(&gpu->context_, device),
                        "cuDevicePrimaryCtxRetain"));
  return gpu;
}

Gpu::~Gpu() {
  if (context_ != nullptr) driver_->DevicePrimaryCtxRelease(device_);
}

Result<Memory> allocate(const std::shared_ptr<Gpu>& gpu, std::int64_t bytes,
                        std::string_view what) {
  const auto size = static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1));
  return Memory::make(gpu, fmt::format("{} bytes of GPU memory for {}", bytes, what),
                      gpu->driver().MemFree,
                      [&](DevicePtr* p) { return gpu->driver().MemAlloc(p, size); });
}

Status Code::load(const Program& program) {
  const Current current(*gpu_);
  const Driver& driver = gpu_->driver();
  load_units(program);
  for (std::size_t o = 0; o < program.objects.size(); ++o) {
    if (units_.contains(static_cast<int>(o))) continue;
    modules_.push_back(HEDDLE_TRY(Owned<Handle>::make(
        gpu_, "cuModuleLoadData", driver.ModuleUnload,
        [&](Handle* module) { return driver.ModuleLoadData(module, program.objects[o].data()); })));
  }
  if (program.persistent) return bind(program.persistent->symbol);
  for (const Launch& launch : program.launches)
    for (const Phase& phase : launch.phases) HEDDLE_TRY(bind(phase.symbol));
  return Ok{};
}

Status Code::bind(const std::string& symbol) {
  for (const Owned<Handle>& module : modules_) {
    Handle function = nullptr;
    if (functions_.contains(symbol)) break;
    const int code = gpu_->driver().ModuleGetFunction(&function, module.get(), symbol.c_str());
    if (code == kNotFound) continue;
    HEDDLE_TRY(gpu_->check(code, "cuModuleGetFunction"));
    functions_[symbol] = function;
  }
  return Ok{};
}

void Code::load_units(const Program& program) {
  for (const Launch& launch : program.launches) {
    if (!launch.unit || units_.contains(launch.unit->object)) continue;
    const auto unit = load_unit(program.objects[static_cast<std::size_t>(launch.unit->object)]);
    if (!unit) log(LogLevel::warning, "{}; kernels of our own instead", unit.error().message);
    units_[launch.unit->object] = unit ? *unit : nullptr;
  }
}

const HeddleUnit* Code::unit(int object) const {
  const auto found = units_.find(object);
  return found != units_.end() ? found->second : nullptr;
}

Handle Code::find(const std::string& symbol) const {
  const auto found = functions_.find(symbol);
  return found != functions_.end() ? found->second : nullptr;
}

Result<std::shared_ptr<Code>> load_code(const std::string& driver, int ordinal,
                                        const Program& program) {
  const std::vector<Device> all = HEDDLE_TRY(devices(driver));
  if (ordinal < 0 || static_cast<std::size_t>(ordinal) >= all.size())
    return fail(ErrorCode::missing, "GPU {}: found {} GPUs", ordinal, all.size());
  const Device& device = all[static_cast<std::size_t>(ordinal)];
  const std::string arch = program.device.substr(program.device.find(' ') + 1);
  if (!program.device.starts_with("cuda ") || !runs_on(arch, device))
    return fail(ErrorCode::missing, "program: made for '{}', found GPU {}: {} ({})", program.device,
                ordinal, device.name, device.arch());
  auto code = std::make_shared<Code>(HEDDLE_TRY(Gpu::open(driver, ordinal)));
  HEDDLE_TRY(code->load(program));
  return code;
}

std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

Result<Resident> resident_blocks(const Gpu& gpu, Handle function, int threads,
                                 std::int64_t shared_bytes, std::string_view what) {
  Resident found;
  HEDDLE_TRY(gpu.check(
      gpu.driver().DeviceGetAttribute(&found.multiprocessors, kMultiprocessors, gpu.device()),
      "cuDeviceGetAttribute"));
  HEDDLE_TRY(gpu.check(gpu.driver().OccupancyMaxActiveBlocksPerMultiprocessor(
                           &found.each, function, threads, static_cast<std::size_t>(shared_bytes)),
                       "cuOccupancyMaxActiveBlocksPerMultiprocessor"));
  if (found.each < 1)
    return fail("{}: no block of {} threads with {} bytes of shared memory fits", what, threads,
                shared_bytes);
  return found;
}

Result<EncodedMap> encode(const Gpu& gpu, const TensorMap& map, DevicePtr base) {
  const std::optional<int> type = map_type(map.dtype);
  if (!type) return fail("tensor map: found elements of {}", name_of(map.dtype));
  const std::vector<std::uint64_t> extents(map.extents.begin(), map.extents.end());
  const std::vector<std::uint64_t> strides(map.strides.begin(), map.strides.end());
  const std::vector<unsigned> box(map.box.begin(), map.box.end());
  const std::vector<unsigned> steps(map.extents.size(), 1);
  const int swizzle = map.swizzle_bytes == 128 ? 3 : map.swizzle_bytes / 32;
  constexpr int kPromote128Bytes = 2, kNoInterleave = 0, kZeroFill = 0;
  EncodedMap out;
  HEDDLE_TRY(gpu.check(
      gpu.driver().TensorMapEncodeTiled(&out, *type, static_cast<unsigned>(map.extents.size()),
                                        reinterpret_cast<void*>(base), extents.data(),
                                        strides.data(), box.data(), steps.data(), kNoInterleave,
                                        swizzle, kPromote128Bytes, kZeroFill),
      fmt::format("tensor map of {} with boxes of {}",
                  to_string(Shape(map.extents.begin(), map.extents.end())),
                  to_string(Shape(map.box.begin(), map.box.end())))));
  return out;
}

}  // namespace heddle::runtime::cuda
