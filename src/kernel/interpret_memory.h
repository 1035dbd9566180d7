#pragma once
#include <limits>

#include "kernel/kernel.h"
#include "kernel/scalar.h"
#include "support/tensor.h"

namespace heddle::kernel {

constexpr std::int64_t kMaxLocalElements = std::int64_t{1} << 28;

/// What the interpreter finds wrong.
struct Failure {
  std::string message;
};

/// The interpreter's memory: buffers, their bounds, and who may touch them at the same time.
class Memory {
 public:
  Memory(const Kernel& k, const std::vector<std::span<std::byte>>& args)
      : k_(k), vars_(static_cast<std::size_t>(k.variables), 0) {
    for (const Stmt& s : k.body)
      if (const For* phase = std::get_if<For>(&s.op))
        copies_ = std::max(copies_, threads_of(*phase));
    for (std::int32_t i = 0; i < k.buffers.size(); ++i) bind(k.buffers[BufferId{i}], args);
  }

 protected:
  void bind(const Buffer& b, const std::vector<std::span<std::byte>>& args) {
    Local local;
    std::span<std::byte> bytes;
    if (b.argument >= 0) {
      if (b.argument >= static_cast<int>(args.size()))
        throw Failure{fmt::format("buffer '{}' is argument {}, got {} arguments", b.name,
                                  b.argument, args.size())};
      bytes = args[static_cast<std::size_t>(b.argument)];
      if (static_cast<std::int64_t>(bytes.size()) < b.size * size_of(b.dtype))
        throw Failure{fmt::format("argument {} has {} bytes, '{}' wants {}", b.argument,
                                  bytes.size(), b.name, b.size * size_of(b.dtype))};
    } else if ((local_elements_ += copies(b) * b.size) > kMaxLocalElements) {
      throw Failure{fmt::format("local buffers hold more than {} elements", kMaxLocalElements)};
    } else if (is_float(b.dtype)) {
      local.reals.resize(static_cast<std::size_t>(copies(b) * b.size));
    } else {
      local.integers.resize(static_cast<std::size_t>(copies(b) * b.size));
    }
    // Without threads only tasks run at the same time, and they share grid memory alone.
    const bool shared = b.scope == Scope::grid || (copies_ > 0 && b.scope != Scope::lane);
    if (shared && (b.written || b.argument < 0) && b.use == Use::plain)
      local.seen.resize(static_cast<std::size_t>(b.size));
    locals_.push_back(std::move(local));
    tensors_.push_back(b.argument >= 0 ? Tensor({b.dtype, {b.size}}, nullptr, bytes.data())
                                       : Tensor());
    if (b.argument < 0) poison(locals_.back());
  }

  /// Scratch is undefined at the start of a task: make stale reads visible.
  static void poison(Local& local) {
    for (double& x : local.reals) x = std::numeric_limits<double>::quiet_NaN();
    for (std::int64_t& x : local.integers) x = 0x5a5a5a5a;
  }

  /// Products of warpgroups see what threads stored before the last asynchronous barrier.
  void check_seen(BufferId id, std::int64_t offset) const {
    const Local& local = locals_[static_cast<std::size_t>(id.value)];
    if (offset < 0 || offset >= static_cast<std::int64_t>(local.seen.size())) return;
    const Local::Access& last = local.seen[static_cast<std::size_t>(offset)].write;
    if (last.task == task_ && last.block >= async_interval_)
      throw Failure{fmt::format("'{}'[{}] is multiplied without an asynchronous barrier",
                                k_.buffers[id].name, offset)};
  }

  /// True if an earlier access and one of the running thread cannot happen at the same time.
  bool apart(const Local::Access& a, Scope scope) const {
    if (a.task < 0) return true;
    if (a.task != task_) return scope == Scope::block || a.block < phase_start_;
    if (a.thread == thread_ || a.block < block_interval_) return true;
    return a.thread / kWarp == thread_ / kWarp && a.warp < warp_interval_;
  }
  void trace(BufferId id, std::int64_t offset, bool store) {
    if (count_ == 0 && copies_ > 0) return;
    Local& local = locals_[static_cast<std::size_t>(id.value)];
    if (local.seen.empty()) return;
    Local::Seen& seen = local.seen[static_cast<std::size_t>(offset)];
    const Buffer& b = k_.buffers[id];
    for (const Local::Access* a : {&seen.write, &seen.read}) {
      if (apart(*a, b.scope) || (!store && a == &seen.read)) continue;
      throw Failure{fmt::format(
          "race: '{}'[{}] is {} by thread {} of task {} while thread {} of task {} {} it", b.name,
          offset, store ? "stored" : "loaded", thread_, task_, a->thread, a->task,
          a == &seen.write ? "stores" : "loads")};
    }
    const Local::Access now{block_interval_, warp_interval_, task_, thread_};
    // Of several readers the first is kept unless it is harmless by now.
    if (store)
      seen.write = now;
    else if (apart(seen.read, b.scope))
      seen.read = now;
  }

  void check(BufferId id, std::int64_t offset, std::int64_t count = 1) const {
    const Buffer& b = k_.buffers[id];
    if (offset >= 0 && offset + count <= b.size) return;
    std::string at;
    for (std::size_t i = 0; i < vars_.size(); ++i) at += fmt::format(" d{}={}", i, vars_[i]);
    throw Failure{fmt::format("'{}'[{}] is outside 0..{} at{}", b.name, offset, b.size, at)};
  }

  Scalar read(BufferId id, std::int64_t offset) {
    check(id, offset);
    trace(id, offset, false);
    const Buffer& b = k_.buffers[id];
    if (b.scope == Scope::lane) offset += thread_ * b.size;
    if (b.argument >= 0) {
      const Tensor& t = tensors_[static_cast<std::size_t>(id.value)];
      return is_float(b.dtype) ? Scalar{t.at(offset), 0} : Scalar{0, t.int_at(offset)};
    }
    const Local& local = locals_[static_cast<std::size_t>(id.value)];
    const auto at = static_cast<std::size_t>(offset);
    return is_float(b.dtype) ? Scalar{local.reals[at], 0} : Scalar{0, local.integers[at]};
  }

  void write(BufferId id, std::int64_t offset, Scalar value, DType type) {
    check(id, offset);
    trace(id, offset, true);
    const Buffer& b = k_.buffers[id];
    if (b.scope == Scope::lane) offset += thread_ * b.size;
    if (is_float(type) != is_float(b.dtype))
      throw Failure{
          fmt::format("'{}' is {} but is given {}", b.name, name_of(b.dtype), name_of(type))};
    const auto at = static_cast<std::size_t>(offset);
    if (b.argument >= 0) {
      Tensor& t = tensors_[static_cast<std::size_t>(id.value)];
      is_float(b.dtype) ? t.set(offset, value.real) : t.set_int(offset, value.integer);
    } else if (is_float(b.dtype)) {
      locals_[static_cast<std::size_t>(id.value)].reals[at] = round_to(b.dtype, value.real);
    } else {
      locals_[static_cast<std::size_t>(id.value)].integers[at] = ir::wrap(value.integer, b.dtype);
    }
  }

  /// Copies of a buffer: lane buffers are private to a thread.
  std::int64_t copies(const Buffer& b) const {
    return b.scope == Scope::lane ? std::max(1, copies_) : 1;
  }

  const Kernel& k_;
  int copies_ = 0;              ///< threads of a block, at most
  int thread_ = 0, count_ = 0;  ///< the running one; those that run, 0 outside thread loops
  std::int64_t phase_start_ = 0, task_ = -1, block_interval_ = 0, warp_interval_ = 0;
  std::int64_t async_interval_ = 0;  ///< first after the last asynchronous barrier
  std::vector<std::int64_t> vars_;
  std::vector<Local> locals_;
  std::int64_t local_elements_ = 0;
  std::vector<Tensor> tensors_;
};

}  // namespace heddle::kernel
