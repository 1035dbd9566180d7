// Checks every node of a graph against what its kind promises.
#include <algorithm>
#include <map>

#include "prim/access.h"
#include "prim/builder.h"
#include "prim/types.h"
#include "support/match.h"

namespace heddle::prim {
namespace {

using ir::Expr;
using ir::Var;

/// Accesses that range analysis cannot decide are tried point by point up to this many points.
constexpr std::int64_t kMaxPoints = 1 << 16;

class Checker {
 public:
  explicit Checker(const Graph& g) : g_(g) {}

  Status check(NodeId id) {
    id_ = id;
    const Node& n = g_[id];
    if (!checked_element_count(n.type.shape, n.type.dtype))
      return error("type {} is too large or has a negative extent", to_string(n.type));
    return match(n.op, [&](const auto& op) { return check(n, op); });
  }

 private:
  template <class... A>
  Error error(fmt::format_string<A...> format, A&&... a) const {
    return fail("%{} {}: {}", id_.value, kind_name(g_[id_].op),
                fmt::format(format, std::forward<A>(a)...));
  }
  const TensorType& arg(const Node& n, std::size_t i) const { return g_[n.args[i]].type; }
  Status arity(const Node& n, std::size_t want) const {
    if (n.args.size() == want) return Ok{};
    return error("has {} arguments, want {}", n.args.size(), want);
  }
  Status same(const TensorType& found, const TensorType& want, std::string_view what) const {
    if (found == want) return Ok{};
    return error("{} is {}, want {}", what, to_string(found), to_string(want));
  }
  Status axis_ok(int axis, const Shape& shape) const {
    if (axis >= 0 && axis < static_cast<int>(shape.size())) return Ok{};
    return error("axis {} is outside {}", axis, to_string(shape));
  }
  Status variables_known(const Expr& e, std::size_t count) const {
    std::vector<Var> vars;
    ir::collect_variables(e, vars);
    if (vars.empty() || (vars.front().index >= 0 && vars.back().index < static_cast<int>(count)))
      return Ok{};
    return error("'{}' uses a variable that is not one of {}", to_string(e), count);
  }
  Status access_ok(const Access& a, const Shape& variables, const TensorType& source,
                   std::string_view what) const {
    if (a.index.size() != source.shape.size())
      return error("{} has {} coordinates, want {} for {}", what, a.index.size(),
                   source.shape.size(), to_string(source));
    for (const Expr& e : a.index) HEDDLE_TRY(variables_known(e, variables.size()));
    for (const auto& c : a.inside) HEDDLE_TRY(variables_known(c.expr, variables.size()));
    if (std::find(variables.begin(), variables.end(), 0) != variables.end()) return Ok{};
    if (in_bounds(a, variables, source.shape, kMaxPoints)) return Ok{};
    return error("{} is not shown to stay inside {}", what, to_string(source));
  }

  Status check(const Node& n, const Input& op) const {
    HEDDLE_TRY(arity(n, 0));
    if (op.slot < 0 || op.slot >= static_cast<int>(g_.inputs.size()))
      return error("slot {} of {} inputs", op.slot, g_.inputs.size());
    return same(n.type, g_.inputs[static_cast<std::size_t>(op.slot)].type, "type");
  }
  Status check(const Node& n, const Constant&) const {
    HEDDLE_TRY(arity(n, 0));
    return same(n.type, g_.constant_of(id_)->type(), "type");
  }
  Status check(const Node& n, const Iota& op) const {
    HEDDLE_TRY(arity(n, 0));
    return axis_ok(op.axis, n.type.shape);
  }
  Status check(const Node& n, const Map& op) const {
    HEDDLE_TRY(arity(n, static_cast<std::size_t>(ir::info(op.fn).arity)));
    std::vector<DType> types;
    for (std::size_t i = 0; i < n.args.size(); ++i) {
      if (arg(n, i).shape != n.type.shape)
        return error("argument {} is {}, want shape {}", i, to_string(arg(n, i)),
                     to_string(n.type.shape));
      types.push_back(arg(n, i).dtype);
    }
    if (op.fn == ir::ScalarFn::cast) return Ok{};
    if (op.fn == ir::ScalarFn::bitcast && ir::can_bitcast(types[0], n.type.dtype)) return Ok{};
    const auto result = result_type(op.fn, types);
    if (!result)
      return error("{} has no meaning on {}", ir::info(op.fn).name,
                   to_string(arg(n, n.args.size() - 1)));
    return same(n.type, {*result, n.type.shape}, "type");
  }
  Status check(const Node& n, const View& op) const {
    HEDDLE_TRY(arity(n, op.pieces.size()));
    if (op.pieces.empty()) return error("has no pieces");
    for (std::size_t i = 0; i < n.args.size(); ++i) {
      if (arg(n, i).dtype != n.type.dtype)
        return error("piece {} is {}, want {}", i, to_string(arg(n, i)), to_string(n.type));
      HEDDLE_TRY(access_ok(op.pieces[i], n.type.shape, arg(n, i), fmt::format("piece {}", i)));
    }
    return Ok{};
  }
  Status check(const Node& n, const Reduce& op) const {
    HEDDLE_TRY(arity(n, 1));
    const Shape& from = arg(n, 0).shape;
    if (op.axes.empty() || !std::is_sorted(op.axes.begin(), op.axes.end()) ||
        std::adjacent_find(op.axes.begin(), op.axes.end()) != op.axes.end())
      return error("axes are not sorted and unique");
    Shape out;
    for (std::size_t k = 0; k < from.size(); ++k)
      if (!std::binary_search(op.axes.begin(), op.axes.end(), static_cast<int>(k)))
        out.push_back(from[k]);
    for (const int a : op.axes) HEDDLE_TRY(axis_ok(a, from));
    DType t = arg(n, 0).dtype;
    const bool logical = op.fn == ir::Monoid::any || op.fn == ir::Monoid::all;
    if (logical && t != DType::b1) return error("{} of {}", name_of(op.fn), name_of(t));
    if (op.fn == ir::Monoid::argmax || op.fn == ir::Monoid::argmin) {
      if (op.axes.size() != 1) return error("{} over {} axes", name_of(op.fn), op.axes.size());
      if (from[static_cast<std::size_t>(op.axes[0])] == 0)
        return error("{} of nothing in {}", name_of(op.fn), to_string(from));
      t = DType::i64;
    }
    return same(n.type, {t, out}, "type");
  }
  Status check(const Node& n, const Contract& op) const {
    HEDDLE_TRY(arity(n, 2));
    Shape variables = n.type.shape;
    for (const std::int64_t e : op.reduced)
      if (e < 0) return error("reduced extent {}", e);
    variables.insert(variables.end(), op.reduced.begin(), op.reduced.end());
    const DType l = arg(n, 0).dtype, r = arg(n, 1).dtype, t = n.type.dtype;
    if (is_float(t) != is_float(l) || is_float(t) != is_float(r) || t == DType::b1)
      return error("{} of {} and {}", name_of(t), name_of(l), name_of(r));
    HEDDLE_TRY(access_ok(op.lhs, variables, arg(n, 0), "lhs"));
    return access_ok(op.rhs, variables, arg(n, 1), "rhs");
  }
  /// Shared by Gather and Scatter: `first` is the first index argument, over `variables`.
  Status indexed_ok(const Node& n, const std::vector<int>& axes, const std::vector<Expr>& base,
                    std::size_t first, const Shape& variables, const TensorType& data) const {
    HEDDLE_TRY(arity(n, first + axes.size()));
    if (base.size() != data.shape.size())
      return error("{} coordinates, want {} for {}", base.size(), data.shape.size(),
                   to_string(data));
    Access fixed;
    Shape fixed_shape;
    for (std::size_t k = 0; k < base.size(); ++k) {
      HEDDLE_TRY(variables_known(base[k], variables.size()));
      if (std::find(axes.begin(), axes.end(), static_cast<int>(k)) != axes.end()) continue;
      fixed.index.push_back(base[k]);
      fixed_shape.push_back(data.shape[k]);
    }
    for (std::size_t j = 0; j < axes.size(); ++j) {
      HEDDLE_TRY(axis_ok(axes[j], data.shape));
      const TensorType& index = arg(n, first + j);
      if (!is_int(index.dtype) || index.shape != variables)
        return error("index {} is {}, want integers {}", j, to_string(index), to_string(variables));
    }
    return access_ok(fixed, variables, {data.dtype, fixed_shape}, "the fixed coordinates");
  }
  Status check(const Node& n, const Gather& op) const {
    if (n.args.empty()) return arity(n, 1);
    const TensorType& data = arg(n, 0);
    if (element_count(n.type.shape) > 0 && element_count(data.shape) == 0)
      return error("{} from {}", to_string(n.type), to_string(data));
    HEDDLE_TRY(same(n.type, {data.dtype, n.type.shape}, "type"));
    return indexed_ok(n, op.axes, op.base, 1, n.type.shape, data);
  }
  Status check(const Node& n, const Scatter& op) const {
    if (n.args.size() < 2) return arity(n, 2);
    HEDDLE_TRY(same(n.type, arg(n, 0), "type"));
    if (arg(n, 1).dtype != n.type.dtype)
      return error("updates are {}, want {}", to_string(arg(n, 1)), name_of(n.type.dtype));
    return indexed_ok(n, op.axes, op.base, 2, arg(n, 1).shape, n.type);
  }
  Status check(const Node& n, const Scan& op) const {
    HEDDLE_TRY(arity(n, 1));
    if (op.fn == ir::Monoid::argmax || op.fn == ir::Monoid::argmin)
      return error("{} is no scan", name_of(op.fn));
    HEDDLE_TRY(axis_ok(op.axis, n.type.shape));
    return same(n.type, arg(n, 0), "type");
  }
  Status check(const Node& n, const Sort& op) const {
    HEDDLE_TRY(arity(n, 1));
    Shape out = arg(n, 0).shape;
    HEDDLE_TRY(axis_ok(op.axis, out));
    std::int64_t& extent = out[static_cast<std::size_t>(op.axis)];
    if (op.count < 0 || op.count > extent) return error("first {} of {}", op.count, extent);
    extent = op.count;
    return same(n.type, {DType::i64, out}, "type");
  }
  Status check(const Node& n, const Random&) const {
    HEDDLE_TRY(arity(n, 0));
    if (!is_float(n.type.dtype)) return error("type {}", to_string(n.type));
    return Ok{};
  }
  Status check(const Node& n, const AllReduce& op) const {
    HEDDLE_TRY(arity(n, 1));
    if (!is_float(n.type.dtype)) return error("type {}, want floats", to_string(n.type));
    if (op.channel < 0) return error("channel {}", op.channel);
    return same(n.type, arg(n, 0), "type");
  }

  const Graph& g_;
  NodeId id_;
};

}  // namespace

Status verify_node(const Graph& g, NodeId id) {
  for (const NodeId a : g[id].args)
    if (a.value < 0 || a >= id) return fail("%{} reads %{}, which comes later", id.value, a.value);
  return Checker(g).check(id);
}

Status verify(const Graph& g) {
  for (const GraphOutput& o : g.outputs)
    if (o.node.value < 0 || o.node.value >= g.size())
      return fail("output '{}' is %{} of {} nodes", o.name, o.node.value, g.size());
  std::map<int, NodeId> channels;
  for (const NodeId id : live_nodes(g)) {
    HEDDLE_TRY(verify_node(g, id));
    const auto* collective = std::get_if<AllReduce>(&g[id].op);
    if (collective == nullptr) continue;
    const auto [other, fresh] = channels.try_emplace(collective->channel, id);
    if (!fresh)
      return fail("%{} all_reduce: channel {} is that of %{}, want one of its own", id.value,
                  collective->channel, other->second.value);
  }
  return Ok{};
}

}  // namespace heddle::prim
