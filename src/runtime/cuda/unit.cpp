#include "runtime/cuda/unit.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <mutex>

#include "support/hash.h"

namespace heddle::runtime::cuda {
namespace {

/// Loads a shared object from memory. Its file stays open: the loader knows objects by their paths,
/// and the next file would have the same number.
Result<void*> open_object(const std::string& object) {
  const int file = ::memfd_create("heddle-unit", MFD_CLOEXEC);
  if (file < 0) return fail(ErrorCode::missing, "unit: no file in memory");
  std::size_t at = 0;
  while (at < object.size()) {
    const ssize_t n = ::write(file, object.data() + at, object.size() - at);
    if (n <= 0) break;
    at += static_cast<std::size_t>(n);
  }
  void* handle = nullptr;
  if (at == object.size())
    handle = ::dlopen(fmt::format("/proc/self/fd/{}", file).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle != nullptr) return handle;
  const char* why = at == object.size() ? ::dlerror() : nullptr;
  ::close(file);
  return fail(ErrorCode::missing, "unit: {}", why != nullptr ? why : "no memory for its file");
}

}  // namespace

Result<const HeddleUnit*> load_unit(const std::string& object) {
  static std::mutex mutex;
  static std::map<std::pair<std::uint64_t, std::uint64_t>, const HeddleUnit*> loaded;
  const Hash hash = hash_bytes(object);
  const std::lock_guard lock(mutex);
  const auto known = loaded.find({hash.low, hash.high});
  if (known != loaded.end()) return known->second;
  void* handle = HEDDLE_TRY(open_object(object));
  const auto entry = reinterpret_cast<HeddleUnitEntry>(::dlsym(handle, "heddle_unit"));
  const HeddleUnit* unit = entry != nullptr ? entry() : nullptr;
  if (unit == nullptr || unit->interface != HEDDLE_UNIT_INTERFACE)
    return fail(ErrorCode::missing, "unit: found interface {}, want {}",
                unit != nullptr ? unit->interface : 0, HEDDLE_UNIT_INTERFACE);
  return loaded[{hash.low, hash.high}] = unit;
}

Result<std::optional<UnitCall>> UnitCall::prepare(std::shared_ptr<Gpu> gpu, const HeddleUnit* unit,
                                                  const UnitProduct& product,
                                                  std::span<const DevicePtr> args) {
  std::vector<HeddleMatrix> matrices;
  for (const UnitProduct::Matrix& m : product.matrices)
    matrices.push_back(
        {args[static_cast<std::size_t>(m.argument)] + static_cast<DevicePtr>(m.offset), m.batch,
         m.row, m.column});
  const HeddleProduct call{product.batches, product.rows,    product.columns,
                           product.depth,   matrices.data(), static_cast<int>(matrices.size())};
  UnitCall out;
  out.gpu_ = std::move(gpu);
  out.unit_ = unit;
  std::size_t workspace = 0;
  const int code = unit->create(product.name.c_str(), &call, &out.made_, &workspace);
  if (code == HEDDLE_UNIT_REFUSED) return std::optional<UnitCall>();
  if (code != HEDDLE_UNIT_OK) return fail("unit: product {}: {}", product.name, unit->message());
  out.workspace_ = static_cast<std::int64_t>(workspace);
  return std::optional<UnitCall>(std::move(out));
}

UnitCall::UnitCall(UnitCall&& o) noexcept
    : gpu_(std::move(o.gpu_)),
      unit_(o.unit_),
      made_(std::exchange(o.made_, nullptr)),
      workspace_(o.workspace_) {}

UnitCall& UnitCall::operator=(UnitCall&& o) noexcept {
  reset();
  gpu_ = std::move(o.gpu_);
  unit_ = o.unit_;
  made_ = std::exchange(o.made_, nullptr);
  workspace_ = o.workspace_;
  return *this;
}

void UnitCall::reset() {
  if (made_ == nullptr) return;
  const Current current(*gpu_);
  unit_->destroy(std::exchange(made_, nullptr));
}

Status UnitCall::launch(DevicePtr workspace, Handle stream) const {
  if (unit_->launch(made_, workspace, stream) == HEDDLE_UNIT_OK) return Ok{};
  return fail("unit: {}", unit_->message());
}

}  // namespace heddle::runtime::cuda
