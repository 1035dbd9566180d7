#pragma once
#include <functional>
#include <map>
#include <vector>

#include "runtime/cuda/driver_library.h"
#include "runtime/cuda/session.h"
#include "support/product_unit.h"

namespace heddle::runtime::cuda {

/// One GPU's primary context, which other libraries of the process may use too.
class Gpu {
 public:
  static Result<std::shared_ptr<Gpu>> open(const std::string& driver, int ordinal);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;
  const Driver& driver() const { return *driver_; }
  Status check(int code, std::string_view what) const { return driver_->check(code, what); }
  Handle context() const { return context_; }
  int device() const { return device_; }

 private:
  Gpu(std::shared_ptr<const Driver> driver, int device)
      : driver_(std::move(driver)), device_(device) {}
  std::shared_ptr<const Driver> driver_;
  int device_;
  Handle context_ = nullptr;
};

/// Makes a GPU's context the calling thread's, and what was current before again at the end.
class Current {
 public:
  explicit Current(const Gpu& gpu) : gpu_(gpu) { gpu.driver().CtxPushCurrent(gpu.context()); }
  ~Current() {
    Handle ours = nullptr;
    gpu_.driver().CtxPopCurrent(&ours);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  const Gpu& gpu_;
};

/// Something of the driver's that is given back at the end.
template <class T>
class Owned {
 public:
  using Destroy = int (*)(T);
  Owned() = default;
  /// Made by `make(&value)`; `gpu`'s context must be current then, and need not be at the end.
  template <class Make>
  static Result<Owned> make(std::shared_ptr<Gpu> gpu, std::string_view what, Destroy destroy,
                            Make&& make) {
    T value{};
    HEDDLE_TRY(gpu->check(make(&value), what));
    return Owned(std::move(gpu), value, destroy);
  }
  ~Owned() { reset(); }
  Owned(Owned&& o) noexcept
      : gpu_(std::move(o.gpu_)), value_(std::exchange(o.value_, T{})), destroy_(o.destroy_) {}
  Owned& operator=(Owned&& o) noexcept {
    reset();
    gpu_ = std::move(o.gpu_);
    value_ = std::exchange(o.value_, T{});
    destroy_ = o.destroy_;
    return *this;
  }
  T get() const { return value_; }

 private:
  Owned(std::shared_ptr<Gpu> gpu, T value, Destroy destroy)
      : gpu_(std::move(gpu)), value_(value), destroy_(destroy) {}
  void reset() {
    if (!gpu_) return;
    {
      const Current current(*gpu_);
      destroy_(value_);
    }
    gpu_.reset();
  }
  std::shared_ptr<Gpu> gpu_;
  T value_{};
  Destroy destroy_ = nullptr;
};

using Memory = Owned<DevicePtr>;
/// Device memory of at least one byte.
Result<Memory> allocate(const std::shared_ptr<Gpu>& gpu, std::int64_t bytes, std::string_view what);

/// Where the next of several parts of an allocation may begin.
std::int64_t aligned(std::int64_t bytes);

/// What a GPU holds at once of a kernel's blocks.
struct Resident {
  int multiprocessors = 0;
  int each = 0;  ///< on a multiprocessor, at least one
  std::int64_t all() const { return std::int64_t{multiprocessors} * each; }
};
/// `what` has the blocks, for errors.
Result<Resident> resident_blocks(const Gpu& gpu, Handle function, int threads,
                                 std::int64_t shared_bytes, std::string_view what);

class Code {
 public:
  Code(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {}
  Status load(const Program& program);
  const std::shared_ptr<Gpu>& gpu() const { return gpu_; }
  /// Null if no cubin has it.
  Handle find(const std::string& symbol) const;
  /// The unit that is this object of the program; null if it could not be loaded.
  const HeddleUnit* unit(int object) const;

 private:
  void load_units(const Program& program);
  Status bind(const std::string& symbol);
  std::shared_ptr<Gpu> gpu_;
  std::vector<Owned<Handle>> modules_;
  std::map<std::string, Handle> functions_;
  std::map<int, const HeddleUnit*> units_;  ///< by object
};

/// The tensor map of a phase for a tensor at `base`.
Result<EncodedMap> encode(const Gpu& gpu, const TensorMap& map, DevicePtr base);

}  // namespace heddle::runtime::cuda
