// Derivatives of reductions and running sums.
#include <algorithm>

#include "grad/rules.h"

namespace heddle::grad {
namespace {

using ir::Monoid;
using ir::ScalarFn;

/// A reduced value, or its adjoint, at every position that was reduced.
NodeId spread(Builder& b, NodeId value, const std::vector<int>& axes, Shape shape) {
  return b.broadcast(b.unsqueeze(value, axes), shape);
}

/// Σ d · Π of the others: products of all before and of all behind, so that zeros do no harm.
NodeId product(Context& c, const prim::Reduce& op) {
  const NodeId x = c.n.args[0];
  const Shape shape = c.b.shape(x);
  std::vector<int> order, back(shape.size());
  Shape flat;
  for (int k = 0; k < static_cast<int>(shape.size()); ++k)
    if (!std::binary_search(op.axes.begin(), op.axes.end(), k)) {
      order.push_back(k);
      flat.push_back(shape[static_cast<std::size_t>(k)]);
    }
  flat.push_back(1);
  for (int k : op.axes) {
    order.push_back(k);
    flat.back() *= shape[static_cast<std::size_t>(k)];
  }
  for (std::size_t k = 0; k < order.size(); ++k)
    back[static_cast<std::size_t>(order[k])] = static_cast<int>(k);
  const NodeId moved = c.b.transpose(x, order);
  const NodeId rows = c.b.reshape(moved, flat);
  const int last = static_cast<int>(flat.size()) - 1;
  const NodeId others = c.b.mul(c.b.scan(Monoid::prod, rows, last, true, false),
                                c.b.scan(Monoid::prod, rows, last, true, true));
  const NodeId partial = c.b.transpose(c.b.reshape(others, c.b.shape(moved)), back);
  return c.b.mul(spread(c.b, c.adjoint, op.axes, shape), partial);
}

/// In equal parts to all that are extreme.
NodeId extreme(Context& c, const prim::Reduce& op) {
  const NodeId x = c.n.args[0];
  const Shape shape = c.b.shape(x);
  const DType t = c.n.type.dtype;
  const NodeId hit = c.b.cast(c.b.map(ScalarFn::equal, {x, spread(c.b, c.id, op.axes, shape)}), t);
  const NodeId share = c.b.div(c.adjoint, c.b.reduce_sum(hit, op.axes, false));
  return c.b.mul(hit, spread(c.b, share, op.axes, shape));
}

bool is_map(const prim::Graph& g, NodeId id, ScalarFn fn) {
  const auto* map = std::get_if<prim::Map>(&g[id].op);
  return map && map->fn == fn;
}
bool is_sum_of(const prim::Graph& g, NodeId id, NodeId source) {
  const auto* reduce = std::get_if<prim::Reduce>(&g[id].op);
  return reduce && reduce->fn == Monoid::sum && g[id].args[0] == source;
}

/// Of values that are reduced along some axes, which reads which.
class RowMatch {
 public:
  explicit RowMatch(const prim::Graph& g) : g_(g) {}

  /// Whether `y` is e / Σ e, or e · 1/(Σ e): the axes of the sum.
  std::optional<std::vector<int>> normalised(NodeId y, NodeId e) {
    const bool quotient = is_map(g_, y, ScalarFn::div);
    const auto& args = g_[y].args;
    if (args[0] == args[1] || (quotient && args[0] != e)) return std::nullopt;
    const NodeId spread = args[args[0] == e ? 1 : 0];
    NodeId sum = spread;
    for (int step = 0; step < kFewViews && !is_sum_of(g_, sum, e); ++step) {
      if (g_[sum].args.size() != 1) return std::nullopt;
      sum = g_[sum].args[0];
    }
    if (!is_sum_of(g_, sum, e)) return std::nullopt;
    axes_ = std::get<prim::Reduce>(g_[sum].op).axes;
    const auto fn = quotient ? std::nullopt : std::optional(ScalarFn::recip);
    return is_spread(spread, e, fn) ? std::optional(axes_) : std::nullopt;
  }

 protected:
  bool same_axes(NodeId sum) const { return std::get<prim::Reduce>(g_[sum].op).axes == axes_; }
  /// True if each element reads that of `reduced` which its own row has been reduced to.
  bool is_row_of(NodeId id, NodeId reduced) const {
    std::vector<ir::Expr> at;
    const int rank = static_cast<int>(g_[id].type.shape.size());
    for (std::int32_t d = 0; d < rank; ++d) at.push_back(ir::Expr(ir::Var{d}));
    std::vector<ir::Expr> kept;
    for (int d = 0; d < rank; ++d)
      if (std::find(axes_.begin(), axes_.end(), d) == axes_.end())
        kept.push_back(ir::Expr(ir::Var{d}));
    while (id != reduced) {
      if (const auto* view = std::get_if<prim::View>(&g_[id].op)) {
        if (view->pieces.size() != 1 || !view->pieces[0].inside.empty()) return false;
        std::vector<ir::Expr> below;
        for (const ir::Expr& e : view->pieces[0].index)
          below.push_back(ir::substitute(
              e, [&](ir::Var v) { return std::optional(at[static_cast<std::size_t>(v.index)]); }));
        at = std::move(below);
      } else if (g_[id].args.size() != 1) {
        return false;
      }
      id = g_[id].args[0];
    }
    return at == kept;
  }
  /// True if `id` is fn(Σ e) (or Σ e, without fn), through any broadcasts.
  bool is_spread(NodeId id, NodeId e, std::optional<ScalarFn> fn) const {
    const NodeId spread = id;
    for (int step = 0; step < kFewViews; ++step) {
      if (is_sum_of(g_, id, e)) return !fn && same_axes(id) && is_row_of(spread, id);
      if (fn && is_map(g_, id, *fn))
        fn.reset();
      else if (!std::holds_alternative<prim::View>(g_[id].op) || g_[id].args.size() != 1)
        return false;
      id = g_[id].args[0];
    }
    return false;
  }

  static constexpr int kFewViews = 8;
  const prim::Graph& g_;
  std::vector<int> axes_;
};

class SoftmaxMatch : RowMatch {
 public:
  SoftmaxMatch(const prim::Graph& g, const std::vector<std::vector<NodeId>>& consumers)
      : RowMatch(g), consumers_(consumers) {}

  /// x - max x, used by nothing but exp / Σ exp and itself - log Σ exp.
  bool of(NodeId extreme) {
    axes_ = std::get<prim::Reduce>(g_[extreme].op).axes;
    return readers_are(extreme, [&](NodeId shifted) {
      return is_map(g_, shifted, ScalarFn::sub) && g_[shifted].args[0] == g_[extreme].args[0] &&
             is_row_of(g_[shifted].args[1], extreme) && shift_cancels(shifted);
    });
  }

 private:
  template <class F>
  bool all(NodeId id, F f) const {
    const auto& users = consumers_[static_cast<std::size_t>(id.value)];
    return !users.empty() && std::all_of(users.begin(), users.end(), f);
  }
  /// The same for what reads it through views.
  template <class F>
  bool readers_are(NodeId id, F f) const {
    return all(id, [&](NodeId u) {
      const bool view = std::holds_alternative<prim::View>(g_[u].op) && g_[u].args.size() == 1;
      return view ? readers_are(u, f) : f(u);
    });
  }
  bool shift_cancels(NodeId shifted) const {
    const auto& users = consumers_[static_cast<std::size_t>(shifted.value)];
    const auto e = std::find_if(users.begin(), users.end(),
                                [&](NodeId u) { return is_map(g_, u, ScalarFn::exp); });
    if (e == users.end()) return false;
    return all(shifted, [&](NodeId u) {
      return u == *e ? exp_is_normalised(u)
                     : is_map(g_, u, ScalarFn::sub) && g_[u].args[0] == shifted &&
                           is_spread(g_[u].args[1], *e, ScalarFn::log);
    });
  }
  /// exp is read by its sum (which only normalises) and by products with the sum's reciprocal.
  bool exp_is_normalised(NodeId e) const {
    return all(e, [&](NodeId u) {
      if (is_sum_of(g_, u, e)) return same_axes(u) && sum_normalises(u, e);
      if (is_map(g_, u, ScalarFn::mul))
        return is_spread(g_[u].args[g_[u].args[0] == e ? 1 : 0], e, ScalarFn::recip);
      return is_map(g_, u, ScalarFn::div) && g_[u].args[0] == e &&
             is_spread(g_[u].args[1], e, std::nullopt);
    });
  }
  bool sum_normalises(NodeId sum, NodeId e) const {
    const auto proper = [&](NodeId user) { return uses_properly(user, e); };
    return readers_are(sum, [&](NodeId u) {
      if (is_map(g_, u, ScalarFn::recip) || is_map(g_, u, ScalarFn::log))
        return readers_are(u, proper);
      return proper(u);
    });
  }
  /// e · …, e / …, or (argument of e) - …
  bool uses_properly(NodeId user, NodeId e) const {
    const auto& args = g_[user].args;
    if (is_map(g_, user, ScalarFn::mul))
      return (args[0] == e || args[1] == e) &&
             is_spread(args[args[0] == e ? 1 : 0], e, ScalarFn::recip);
    if (is_map(g_, user, ScalarFn::div)) return args[0] == e && is_spread(args[1], e, std::nullopt);
    return is_map(g_, user, ScalarFn::sub) && args[0] == g_[e].args[0] &&
           is_spread(args[1], e, ScalarFn::log);
  }

  const std::vector<std::vector<NodeId>>& consumers_;
};

}  // namespace

Status differentiate(Context& c, const prim::Reduce& op) {
  if (!c.wanted(0)) return Ok{};
  switch (op.fn) {
    case Monoid::sum:
      c.add(0, spread(c.b, c.adjoint, op.axes, c.b.shape(c.n.args[0])));
      return Ok{};
    case Monoid::prod:
      c.add(0, product(c, op));
      return Ok{};
    case Monoid::max:
    case Monoid::min:
      c.add(0, extreme(c, op));
      return Ok{};
    default:
      return Ok{};  // truth values and positions
  }
}

Status differentiate(Context& c, const prim::Scan& op) {
  if (op.fn != Monoid::sum)
    return unsupported("a running {} has no derivative here", ir::name_of(op.fn));
  c.add(0, c.b.scan(Monoid::sum, c.adjoint, op.axis, op.exclusive, !op.reverse));
  return Ok{};
}

/// Every process has the sum, so its value moves the losses of all of them.
Status differentiate(Context& c, const prim::AllReduce&) {
  c.add(0, c.b.all_reduce(c.adjoint));
  return Ok{};
}

bool softmax(Context& c) {
  if (!c.may_go_through) return false;
  for (std::size_t k = 0; k < 2; ++k) {
    const NodeId e = c.n.args[k];
    if (!is_map(c.g, e, ScalarFn::exp)) continue;
    const auto axes = RowMatch(c.g).normalised(c.id, e);
    if (!axes) continue;
    const NodeId sum = c.b.reduce_sum(c.b.mul(c.adjoint, c.id), *axes, false);
    const NodeId all = spread(c.b, sum, *axes, c.n.type.shape);
    c.add_through(c.g[e].args[0], c.b.mul(c.id, c.b.sub(c.adjoint, all)));
    return true;
  }
  return false;
}

bool cancels(const prim::Graph& g, NodeId extreme,
             const std::vector<std::vector<NodeId>>& consumers) {
  const auto* reduce = std::get_if<prim::Reduce>(&g[extreme].op);
  return reduce && reduce->fn == Monoid::max && SoftmaxMatch(g, consumers).of(extreme);
}

}  // namespace heddle::grad
