#include "codegen/cpu/narrow.h"

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "kernel/traverse.h"
#include "support/match.h"

namespace heddle::codegen::cpu {
namespace {

using namespace kernel;
using ir::ScalarFn;

/// Values that are not negative whatever the arguments hold, NaN apart.
class NonNegative {
 public:
  explicit NonNegative(const Kernel& k) : buffers_(static_cast<std::size_t>(k.buffers.size())) {
    for (std::int32_t i = 0; i < k.buffers.size(); ++i)
      buffers_[static_cast<std::size_t>(i)] = k.buffers[BufferId{i}].argument < 0;
    do {
      changed_ = false;
      known_.clear();
      for_each_stmt(k.body, [&](const Stmt& s) { statement(s); });
    } while (changed_);
  }

  bool holds(const ValueNode& v) {
    if (const auto found = known_.find(&v); found != known_.end()) return found->second;
    const bool is = match(
        v.op, [](const auto&) { return false; }, [](const Imm& x) { return x.real >= 0; },
        [&](const Load& x) -> bool { return at(x.buffer); },
        [&](const LaneReduce& x) -> bool { return at(x.buffer); },
        [&](const Guard& x) { return holds(*x.then) && holds(*x.otherwise); },
        [&](const Apply& x) { return applied(x); });
    return known_[&v] = is;
  }

 private:
  std::vector<bool>::reference at(BufferId id) {
    return buffers_[static_cast<std::size_t>(id.value)];
  }
  void lose(BufferId id) {
    changed_ = changed_ || at(id);
    at(id) = false;
  }
  void statement(const Stmt& s) {
    if (const auto* store = std::get_if<Store>(&s.op))
      if (!holds(*store->value)) lose(store->buffer);
    if (const auto* routine = std::get_if<Routine>(&s.op))
      for (const BufferId id : routine->buffers) lose(id);
    if (const auto* product = std::get_if<TileProduct>(&s.op)) lose(product->acc);
  }
  bool applied(const Apply& x) {
    const auto is = [&](const Value& v) { return holds(*v); };
    switch (x.fn) {
      case ScalarFn::exp:
      case ScalarFn::abs:
        return true;
      case ScalarFn::max:
        return std::ranges::any_of(x.args, is);
      case ScalarFn::select:
        return is(x.args[1]) && is(x.args[2]);
      case ScalarFn::add:
      case ScalarFn::mul:
      case ScalarFn::div:
      case ScalarFn::min:
      case ScalarFn::recip:
      case ScalarFn::sqrt:
      case ScalarFn::rsqrt:
      case ScalarFn::round_bf16:
        return std::ranges::all_of(x.args, is);
      default:
        return false;
    }
  }

  std::vector<bool> buffers_;  ///< those of the kernel's own that nothing negative is stored in
  std::unordered_map<const ValueNode*, bool> known_;
  bool changed_ = false;
};

/// How much of a value counts, the most first by all who use it.
enum class Need : std::uint8_t { nothing, narrow, exact };

class Needs {
 public:
  explicit Needs(const Kernel& k) : k_(k), buffers_(static_cast<std::size_t>(k.buffers.size())) {
    for (std::int32_t i = 0; i < k.buffers.size(); ++i) {
      const Buffer& b = k.buffers[BufferId{i}];
      if (b.dtype == DType::bf16)
        at(BufferId{i}) = Need::narrow;
      else if (b.argument >= 0 || b.dtype != DType::f32)
        at(BufferId{i}) = Need::exact;
    }
    // What is read of a buffer is needed of what is stored there, in whichever order they stand.
    do {
      changed_ = false;
      for_each_stmt(k.body, [&](const Stmt& s) { statement(s); });
    } while (changed_);
  }

  NarrowValues narrow() const {
    NarrowValues out;
    for (const auto& [node, need] : values_)
      if (need == Need::narrow && node->dtype == DType::f32) out.insert(node);
    return out;
  }

 private:
  Need& at(BufferId id) { return buffers_[static_cast<std::size_t>(id.value)]; }

  void statement(const Stmt& s) {
    if (const auto* store = std::get_if<Store>(&s.op)) {
      for (const Load::Dynamic& d : store->dynamic) value(*d.value, Need::exact);
      value(*store->value, at(store->buffer));
    }
    const auto whole = [&](BufferId id) { buffer(id, Need::exact); };
    if (const auto* routine = std::get_if<Routine>(&s.op))
      std::ranges::for_each(routine->buffers, whole);
    if (const auto* product = std::get_if<TileProduct>(&s.op))
      for (const BufferId id : {product->a.buffer, product->b.buffer, product->acc}) whole(id);
  }

  void buffer(BufferId id, Need need) {
    if (at(id) >= need || k_.buffers[id].dtype == DType::bf16) return;
    at(id) = need;
    changed_ = true;
  }

  void value(const ValueNode& v, Need need) {
    Need& known = values_[&v];
    if (known >= need) return;
    known = need;
    match(
        v.op, [](const auto&) {},
        [&](const Load& x) {
          for (const Load::Dynamic& d : x.dynamic) value(*d.value, Need::exact);
          buffer(x.buffer, need);
        },
        [&](const LaneReduce& x) { buffer(x.buffer, need); },
        [&](const Guard& x) {
          value(*x.then, need);
          value(*x.otherwise, need);
        },
        [&](const Apply& x) { arguments(x, need); });
  }

  void arguments(const Apply& x, Need need) {
    if (x.fn == ScalarFn::round_bf16) return value(*x.args[0], Need::narrow);
    const bool kept = need == Need::narrow && keeps(x);
    for (std::size_t i = 0; i < x.args.size(); ++i) {
      const bool is_condition = x.fn == ScalarFn::select && i == 0;
      value(*x.args[i], kept && !is_condition ? Need::narrow : Need::exact);
    }
  }

  /// Whether the result is no less exact, of its size, than the arguments are of theirs, or than
  /// one that is of bf16 can be.
  bool keeps(const Apply& x) {
    switch (x.fn) {
      case ScalarFn::add:
        if (!non_negative_) non_negative_.emplace(k_);
        if (std::ranges::all_of(x.args, [&](const Value& v) { return non_negative_->holds(*v); }))
          return true;
        [[fallthrough]];
      case ScalarFn::sub:
        return std::ranges::any_of(x.args, [&](const Value& v) { return is_bf16(*v); });
      case ScalarFn::mul:
      case ScalarFn::div:
      case ScalarFn::neg:
      case ScalarFn::abs:
      case ScalarFn::min:
      case ScalarFn::max:
      case ScalarFn::select:
      case ScalarFn::recip:
      case ScalarFn::sqrt:
      case ScalarFn::rsqrt:
        return true;
      default:
        return false;
    }
  }

  bool is_bf16(const ValueNode& v) const {
    if (const auto* x = std::get_if<Guard>(&v.op)) return is_bf16(*x->then);
    if (const auto* x = std::get_if<Apply>(&v.op)) return x->fn == ScalarFn::round_bf16;
    const auto* load = std::get_if<Load>(&v.op);
    return load != nullptr && k_.buffers[load->buffer].dtype == DType::bf16;
  }

  const Kernel& k_;
  std::optional<NonNegative> non_negative_;  ///< made for the first sum that asks
  std::vector<Need> buffers_;
  std::unordered_map<const ValueNode*, Need> values_;
  bool changed_ = false;
};

}  // namespace

NarrowValues narrow_values(const Kernel& k) { return Needs(k).narrow(); }

}  // namespace heddle::codegen::cpu
