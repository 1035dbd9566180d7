#include "codegen/cpu/narrow.h"

#include <algorithm>
#include <unordered_map>

#include "kernel/traverse.h"
#include "support/match.h"

namespace heddle::codegen::cpu {
namespace {

using namespace kernel;
using ir::ScalarFn;

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
    const bool sums = x.fn == ScalarFn::add || x.fn == ScalarFn::sub;
    const bool by_number = std::ranges::any_of(
        x.args, [](const Value& v) { return std::holds_alternative<Imm>(v->op); });
    for (std::size_t i = 0; i < x.args.size(); ++i) {
      const auto* inner = std::get_if<Apply>(&x.args[i]->op);
      const bool cancels = sums && by_number && inner && inner->fn == ScalarFn::exp;
      const bool is_condition = x.fn == ScalarFn::select && i == 0;
      value(*x.args[i], keeps(x.fn) && !cancels && !is_condition ? need : Need::exact);
    }
  }

  /// Whether the result is no less exact, of its size, than the arguments are of theirs.
  static bool keeps(ScalarFn fn) {
    switch (fn) {
      case ScalarFn::add:
      case ScalarFn::sub:
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

  const Kernel& k_;
  std::vector<Need> buffers_;
  std::unordered_map<const ValueNode*, Need> values_;
  bool changed_ = false;
};

}  // namespace

NarrowValues narrow_values(const Kernel& k) { return Needs(k).narrow(); }

}  // namespace heddle::codegen::cpu
