#pragma once
#include <optional>
#include <span>

#include "runtime/cuda/gpu.h"
#include "support/product_unit.h"
#include "support/unit_product.h"

namespace heddle::runtime::cuda {

/// The functions of a unit of products, loaded from the bytes of its shared object; it stays for
/// the life of the process, as the CUDA runtime inside it must. Errors: missing (it cannot be
/// loaded here, or has another interface).
Result<const HeddleUnit*> load_unit(const std::string& object);

/// A product of a unit, prepared for its sizes and addresses.
class UnitCall {
 public:
  /// `args`: addresses by argument. nullopt where the unit does not take the sizes.
  static Result<std::optional<UnitCall>> prepare(std::shared_ptr<Gpu> gpu, const HeddleUnit* unit,
                                                 const UnitProduct& product,
                                                 std::span<const DevicePtr> args);
  ~UnitCall() { reset(); }
  UnitCall(UnitCall&& o) noexcept;
  UnitCall& operator=(UnitCall&& o) noexcept;
  std::int64_t workspace_bytes() const { return workspace_; }
  Status launch(DevicePtr workspace, Handle stream) const;

 private:
  UnitCall() = default;
  void reset();
  std::shared_ptr<Gpu> gpu_;  ///< before the call's end
  const HeddleUnit* unit_ = nullptr;
  void* made_ = nullptr;
  std::int64_t workspace_ = 0;
};

}  // namespace heddle::runtime::cuda
