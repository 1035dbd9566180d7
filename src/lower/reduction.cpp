#include "lower/reduction.h"

#include <algorithm>

namespace heddle::lower {

using ir::Expr;
using ir::Monoid;
using ir::ScalarFn;
using kernel::Value;
using Index = Evaluator::Index;
using Conditions = Evaluator::Conditions;
using Combine = Evaluator::Combine;

namespace {

bool is_arg(Monoid fn) { return fn == Monoid::argmax || fn == Monoid::argmin; }

/// Where the result is used outside its node's shape, terms are read only where `under` holds.
Value under_conditions(const Conditions& under, Value term, Value identity) {
  return kernel::guard(under, std::move(term), std::move(identity));
}

std::vector<Expr> dependences(const Index& index, const Conditions& under) {
  std::vector<Expr> out = index;
  for (const ir::Condition& c : under) out.push_back(c.expr);
  return out;
}

/// Coordinates of the argument: kept ones from `index`, reduced ones from `r`.
Index argument_index(const std::vector<int>& axes, const Index& index, const Index& r) {
  Index out;
  std::size_t kept = 0, reduced = 0;
  const std::size_t rank = index.size() + r.size();
  for (std::size_t d = 0; d < rank; ++d) {
    const bool is_reduced = reduced < axes.size() && axes[reduced] == static_cast<int>(d);
    out.push_back(is_reduced ? r[reduced++] : index[kept++]);
  }
  return out;
}

Reduction plain(const prim::Graph& g, NodeId id, const Index& index, const Conditions& under) {
  const prim::Node& node = g[id];
  const auto& op = std::get<prim::Reduce>(node.op);
  const TensorType& in = g[node.args[0]].type;
  Reduction out{op.fn, compute_type(in.dtype), {}, {}, dependences(index, under), id};
  for (int axis : op.axes) out.extents.push_back(in.shape[static_cast<std::size_t>(axis)]);
  const Value none = identity_value(is_arg(op.fn) ? Monoid::sum : op.fn, out.type);
  out.term = [=, arg = node.args[0], axes = op.axes](Evaluator& values, const Index& r) {
    return under_conditions(under, values.at(arg, argument_index(axes, index, r), under), none);
  };
  return out;
}

/// The extreme first (a NaN counts as the largest value), then the least position that has it.
Value arg_extreme(const prim::Graph& g, NodeId id, const Index& index, const Conditions& under,
                  const Combine& combine) {
  const auto& op = std::get<prim::Reduce>(g[id].op);
  const bool largest = op.fn == Monoid::argmax;
  const Reduction base = plain(g, id, index, under);
  const bool real = is_float(base.type);
  Reduction extreme = base;
  extreme.fn = largest ? Monoid::max : Monoid::min;
  if (base.type == DType::b1) extreme.fn = largest ? Monoid::any : Monoid::all;
  const Value none = identity_value(extreme.fn, base.type);
  if (real && !largest) {
    extreme.term = [=](Evaluator& values, const Index& r) {
      Value x = base.term(values, r);
      Value nan = kernel::apply(ScalarFn::isnan, {x}, DType::b1);
      return kernel::apply(ScalarFn::select, {nan, none, x}, base.type);
    };
  }
  const Value best = combine(extreme);
  Reduction position = base;
  position.fn = Monoid::min;
  position.type = DType::i64;
  const Value count = kernel::imm_int(DType::i64, base.extents[0]);
  position.term = [=](Evaluator& values, const Index& r) {
    Value x = base.term(values, r);
    Value hit = kernel::apply(ScalarFn::equal, {x, best}, DType::b1);
    if (real && largest) {
      Value nan = kernel::apply(ScalarFn::isnan, {x}, DType::b1);
      hit = kernel::apply(ScalarFn::logical_or, {hit, nan}, DType::b1);
    }
    return kernel::apply(ScalarFn::select, {hit, index_value(values.simplified(r[0])), count},
                         DType::i64);
  };
  Value at = combine(position);
  // Nothing was equal to the extreme when all elements are NaN: the first one counts.
  if (real && !largest) {
    Value missing = kernel::apply(ScalarFn::equal, {at, count}, DType::b1);
    at = kernel::apply(ScalarFn::select, {missing, kernel::imm_int(DType::i64, 0), at}, DType::i64);
  }
  return cast_to(at, compute_type(g[id].type.dtype));
}

Reduction contraction(const prim::Graph& g, NodeId id, const Index& index,
                      const Conditions& under) {
  const prim::Node& node = g[id];
  const auto& op = std::get<prim::Contract>(node.op);
  const DType type = compute_type(node.type.dtype);
  Reduction out{Monoid::sum, type, op.reduced, {}, dependences(index, under), id};
  out.term = [=, lhs = node.args[0], rhs = node.args[1]](Evaluator& values, const Index& r) {
    Index at = index;
    at.insert(at.end(), r.begin(), r.end());
    Conditions all = under;
    for (const prim::Access* a : {&op.lhs, &op.rhs})
      for (ir::Condition c : a->inside) {
        c.expr = ir::substitute(c.expr, at);
        all.push_back(c);
      }
    const auto conditions = ir::simplify(all, values.ranges());
    const Value zero = identity_value(Monoid::sum, type);
    if (!conditions) return zero;
    const auto operand = [&](NodeId arg, const prim::Access& a) {
      Index source;
      for (const Expr& e : a.index) source.push_back(ir::substitute(e, at));
      return cast_to(values.at(arg, source, *conditions), type);
    };
    Value product =
        kernel::apply(ScalarFn::mul, {operand(lhs, op.lhs), operand(rhs, op.rhs)}, type);
    return kernel::guard(*conditions, product, zero);
  };
  return out;
}

}  // namespace

bool is_reduction(const prim::Graph& g, NodeId node) {
  return std::holds_alternative<prim::Reduce>(g[node].op) ||
         std::holds_alternative<prim::Contract>(g[node].op);
}

std::int64_t reduced_count(const prim::Graph& g, NodeId node) {
  if (const auto* c = std::get_if<prim::Contract>(&g[node].op)) return element_count(c->reduced);
  std::int64_t count = 1;
  const auto& op = std::get<prim::Reduce>(g[node].op);
  const Shape& shape = g[g[node].args[0]].type.shape;
  for (int axis : op.axes) count *= shape[static_cast<std::size_t>(axis)];
  return count;
}

Value identity_value(Monoid fn, DType type) {
  if (is_float(type)) return kernel::imm(type, ir::identity(fn, type));
  return kernel::imm_int(type, ir::identity_int(fn, type));
}

Value reduce_node(const prim::Graph& g, NodeId id, const Index& index, const Conditions& under,
                  const Combine& combine) {
  const prim::Node& node = g[id];
  if (std::holds_alternative<prim::Contract>(node.op))
    return combine(contraction(g, id, index, under));
  const auto* reduce = std::get_if<prim::Reduce>(&node.op);
  HEDDLE_CHECK(reduce, "%{} is a {}, not a reduction", id.value, prim::kind_name(node.op));
  if (is_arg(reduce->fn)) return arg_extreme(g, id, index, under, combine);
  return cast_to(combine(plain(g, id, index, under)), compute_type(node.type.dtype));
}

}  // namespace heddle::lower
