#include "prim/precision.h"

#include <cmath>

#include "prim/builder.h"
#include "prim/interpret.h"
#include "prim/rewrite.h"

namespace heddle::prim {
namespace {

/// Nothing overflows.
bool fits(const Tensor& value, const Tensor& stored) {
  for (std::int64_t i = 0; i < value.count(); ++i)
    if (std::isfinite(value.at(i)) != std::isfinite(stored.at(i))) return false;
  return true;
}
/// And nothing but 0 becomes 0.
bool survives(const Tensor& value, const Tensor& stored) {
  for (std::int64_t i = 0; i < value.count(); ++i)
    if ((value.at(i) != 0) != (stored.at(i) != 0)) return false;
  return fits(value, stored);
}

/// One node at a time: its arguments already have the types that they are stored in.
class Lowering {
 public:
  Lowering(const Graph& from, Graph& out, DType low) : from_(from), out_(out), b_(out), low_(low) {}

  NodeId node(const Node& n, NodeId old) {
    old_ = &from_[old];
    const bool real = n.type.dtype == DType::f32;
    if (const auto* c = std::get_if<Constant>(&n.op); c != nullptr && real)
      return constant(n, out_.constant(*c));
    if (const auto* m = std::get_if<Map>(&n.op)) return map(n, *m);
    if (std::holds_alternative<Contract>(n.op) && real)
      return out_.add(n.op, operands(n.args), {low_, n.type.shape});
    const auto* scatter = std::get_if<Scatter>(&n.op);
    const bool assigns = scatter != nullptr && scatter->combine == Scatter::Combine::assign;
    if (std::holds_alternative<View>(n.op) || std::holds_alternative<Gather>(n.op) || assigns)
      return moved(n);
    return out_.add(n.op, all_as(n.args, DType::f32), n.type);
  }

 private:
  /// Stored as `low_` by this pass, or an input, whose own type stays but not what is made of it.
  bool is_low(std::size_t i, const Node& n) const {
    return was_f32(i) && (out_[n.args[i]].type.dtype == low_ ||
                          std::holds_alternative<Input>(out_[n.args[i]].op));
  }
  bool any_low(const Node& n) const {
    for (std::size_t i = 0; i < n.args.size(); ++i)
      if (is_low(i, n)) return true;
    return false;
  }
  bool was_f32(std::size_t i) const { return from_[old_->args[i]].type.dtype == DType::f32; }
  /// Arguments that were f32, as `type`.
  std::vector<NodeId> all_as(std::vector<NodeId> args, DType type) {
    for (std::size_t i = 0; i < args.size(); ++i)
      if (was_f32(i)) args[i] = b_.cast(args[i], type);
    return args;
  }
  /// Of a product, in which what is too small for `low_` counts for nothing: constants, too, are
  /// stored so, some of which become 0.
  std::vector<NodeId> operands(std::vector<NodeId> args) {
    for (std::size_t i = 0; i < args.size(); ++i) {
      const Tensor* value = was_f32(i) ? out_.constant_of(args[i]) : nullptr;
      if (value == nullptr || value->dtype() != DType::f32) continue;
      const Tensor stored = rounded(*value);
      if (fits(*value, stored)) args[i] = out_.add_constant(stored);
    }
    return all_as(std::move(args), low_);
  }
  Tensor rounded(const Tensor& value) const { return from_reference(to_reference(value), low_); }

  NodeId constant(const Node& n, const Tensor& value) {
    if (value.count() <= 1) return out_.add(n.op, n.args, n.type);
    const Tensor stored = rounded(value);
    return survives(value, stored) ? out_.add_constant(stored) : out_.add(n.op, n.args, n.type);
  }
  /// Data movement gives the type that it is given.
  NodeId moved(const Node& n) {
    if (n.type.dtype != DType::f32 || !any_low(n)) return out_.add(n.op, n.args, n.type);
    return out_.add(n.op, all_as(n.args, low_), {low_, n.type.shape});
  }
  /// Stored low if an argument is. What is no number of the network (comparisons, casts to
  /// integers), and what has a constant beside it that `low_` cannot hold, is computed on f32.
  NodeId map(const Node& n, const Map& m) {
    if (m.fn == ir::ScalarFn::cast) return b_.cast(n.args[0], n.type.dtype);
    const bool low = n.type.dtype == DType::f32 && any_low(n) && m.fn != ir::ScalarFn::bitcast;
    bool wide = !low;
    for (std::size_t i = 0; i < n.args.size() && !wide; ++i)
      if (const Tensor* value = was_f32(i) && !is_low(i, n) ? splat(out_, n.args[i]) : nullptr)
        wide = !survives(*value, rounded(*value));
    if (!wide) return out_.add(n.op, all_as(n.args, low_), {low_, n.type.shape});
    const NodeId wanted = out_.add(n.op, all_as(n.args, DType::f32), n.type);
    return low ? b_.cast(wanted, low_) : wanted;
  }

  const Graph& from_;
  Graph& out_;
  Builder b_;
  DType low_;
  const Node* old_ = nullptr;
};

}  // namespace

Graph with_storage(const Graph& g, DType low) {
  Graph result = rebuild(
      g, [&](Graph& out, const Node& n, NodeId old) { return Lowering(g, out, low).node(n, old); });
  Builder b(result);
  for (std::size_t i = 0; i < result.outputs.size(); ++i)
    result.outputs[i].node = b.cast(result.outputs[i].node, g[g.outputs[i].node].type.dtype);
  return result;
}

}  // namespace heddle::prim
