// A row that takes products of few channels through what is linear in the positions (resampling,
// concatenation): they are made where the positions are fewest.
#include <algorithm>
#include <map>
#include <tuple>

#include "prim/access.h"
#include "prim/rewrite.h"

namespace heddle::prim {
namespace {

using ir::Expr;
using ir::ScalarFn;
using ir::Var;

Var nth(std::size_t i) { return Var{static_cast<std::int32_t>(i)}; }

/// The one dimension that is `v` itself, if no other depends on it.
std::optional<std::size_t> dimension_of(const Access& a, Var v) {
  std::optional<std::size_t> found;
  for (std::size_t d = 0; d < a.index.size(); ++d) {
    if (!ir::depends_on(a.index[d], v)) continue;
    if (found || a.index[d] != Expr(v)) return std::nullopt;
    found = d;
  }
  return found;
}

/// Σ_r x[… r …]·w[o, r + base] for values x, made as deep inside x as it can be: the result is as x
/// with o in place of r.
class Pushed {
 public:
  Pushed(RewriteContext& c, NodeId w, const Access& access, Var o, Var r, std::int64_t filters)
      : c_(c), w_(w), access_(access), o_(o), r_(r), filters_(filters) {}

  /// Multiply-adds of push().
  double work(NodeId x, std::size_t dim) {
    alone_ = c_.used_once(x);
    build_ = false;
    made_.clear();
    work_ = 0;
    push(x, dim, 0);
    return work_;
  }
  NodeId make(NodeId x, std::size_t dim) {
    build_ = true;
    made_.clear();
    return push(x, dim, 0);
  }

 private:
  NodeId push(NodeId x, std::size_t dim, std::int64_t base) {
    const auto [at, fresh] = made_.try_emplace({x, dim, base});
    if (!fresh) return at->second;
    const Node n = c_.g[x];
    NodeId out;
    if (!(map(n, dim, base, out) || view(n, dim, base, out) || product(x, n, dim, base, out)))
      out = leaf(x, dim, base);
    return made_[{x, dim, base}] = out;
  }

  Shape with_filters(Shape shape, std::size_t dim) const {
    shape[dim] = filters_;
    return shape;
  }

  NodeId leaf(NodeId x, std::size_t dim, std::int64_t base) {
    const Shape shape = c_.g[x].type.shape;
    if (!c_.constant(x))
      work_ += static_cast<double>(element_count(shape)) * static_cast<double>(filters_);
    if (!build_) return {};
    Access read = identity_access(shape);
    read.index[dim] = nth(shape.size());
    std::vector<Expr> to(static_cast<std::size_t>(std::max(o_.index, r_.index)) + 1, Expr(0));
    to[static_cast<std::size_t>(o_.index)] = nth(dim);
    to[static_cast<std::size_t>(r_.index)] = Expr(nth(shape.size())) + Expr(base);
    return c_.b.contract(x, w_, with_filters(shape, dim), {shape[dim]}, read,
                         substitute(access_, to), c_.g[x].type.dtype);
  }

  /// Sums, and products with what does not move along the dimension.
  bool map(const Node& n, std::size_t dim, std::int64_t base, NodeId& out) {
    const auto* m = std::get_if<Map>(&n.op);
    if (m == nullptr) return false;
    std::vector<NodeId> args;
    if (m->fn == ScalarFn::add || m->fn == ScalarFn::sub || m->fn == ScalarFn::neg) {
      for (const NodeId a : n.args) args.push_back(push(a, dim, base));
    } else if (m->fn == ScalarFn::mul) {
      const Access* factor = plain_view(c_.g, n.args[1]);
      if (factor == nullptr || depends_on(*factor, nth(dim))) return false;
      const NodeId source = c_.g[n.args[1]].args[0];
      const Access same = *factor;
      args.push_back(push(n.args[0], dim, base));
      args.push_back(build_ ? c_.b.view(source, with_filters(n.type.shape, dim), same) : NodeId{});
    } else {
      return false;
    }
    if (build_) out = c_.b.map(m->fn, args);
    return true;
  }

  /// The part of `x` that one piece shows, and the dimension that is the view's.
  struct Part {
    std::int64_t low = 0;
    Access access;
    std::optional<std::size_t> dim;
    Shape shape;
  };
  std::optional<Part> part_of(const Access& piece, NodeId x, const Shape& shape,
                              std::size_t dim) const {
    Part part{0, piece, {}, shape};
    if (!piece.inside.empty()) {
      const ir::Condition& c = piece.inside[0];
      if (piece.inside.size() != 1 || c.expr != Expr(nth(dim))) return std::nullopt;
      part.low = std::max<std::int64_t>(c.low, 0);
      part.shape[dim] = std::min(c.high, shape[dim]) - part.low;
      if (part.shape[dim] < 1) return std::nullopt;
      std::vector<Expr> to;
      for (std::size_t d = 0; d < shape.size(); ++d) to.push_back(nth(d));
      to[dim] = Expr(nth(dim)) + Expr(part.low);
      const auto moved = simplified(substitute({piece.index, {}}, to), part.shape);
      if (!moved) return std::nullopt;
      part.access = *moved;
    }
    part.dim = dimension_of(part.access, nth(dim));
    if (part.dim && c_.g[x].type.shape[*part.dim] != part.shape[dim]) part.dim.reset();
    return part;
  }

  /// One piece, or a concatenation along the dimension.
  bool view(const Node& n, std::size_t dim, std::int64_t base, NodeId& out) {
    const auto* v = std::get_if<View>(&n.op);
    if (v == nullptr) return false;
    std::vector<Part> parts;
    std::int64_t covered = 0;
    for (std::size_t i = 0; i < v->pieces.size(); ++i) {
      auto part = part_of(v->pieces[i], n.args[i], n.type.shape, dim);
      if (!part || part->low != covered || (v->pieces.size() == 1 && !part->dim)) return false;
      covered += part->shape[dim];
      parts.push_back(*std::move(part));
    }
    if (covered != n.type.shape[dim]) return false;
    const Shape shape = with_filters(n.type.shape, dim);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const Part& p = parts[i];
      NodeId one;
      if (p.dim) {
        one = push(n.args[i], *p.dim, base + p.low);
        if (build_) one = c_.b.view(one, shape, p.access);
      } else {
        one = leaf_of(n.args[i], p, dim, base);
      }
      if (build_) out = i == 0 ? one : c_.b.add(out, one);
    }
    return true;
  }

  /// A piece whose elements lie otherwise is laid out as the view has them.
  NodeId leaf_of(NodeId x, const Part& p, std::size_t dim, std::int64_t base) {
    if (build_) return leaf(c_.b.view(x, p.shape, p.access), dim, base + p.low);
    work_ += static_cast<double>(element_count(p.shape)) * static_cast<double>(filters_);
    return {};
  }

  /// (x @ l) @ w = x @ (l @ w), where that is less and x @ l then goes: other projections of the
  /// same value would want it still.
  bool product(NodeId id, const Node& n, std::size_t dim, std::int64_t base, NodeId& out) {
    const auto* k = std::get_if<Contract>(&n.op);
    if (k == nullptr || !alone_ || !c_.used_once(id)) return false;
    for (std::size_t side = 0; side < 2; ++side) {
      const Access& mine = side == 0 ? k->lhs : k->rhs;
      const Access& other = side == 0 ? k->rhs : k->lhs;
      const auto along = dimension_of(mine, nth(dim));
      if (!c_.constant(n.args[side]) || c_.constant(n.args[1 - side]) || !along ||
          depends_on(other, nth(dim)) || !mine.inside.empty() ||
          c_.g[n.args[side]].type.shape[*along] != n.type.shape[dim])
        continue;
      const auto terms = static_cast<double>(element_count(k->reduced));
      const auto all = static_cast<double>(element_count(n.type.shape));
      const auto columns = static_cast<double>(n.type.shape[dim]);
      const auto filters = static_cast<double>(filters_);
      const double merged = all / columns * filters * terms;
      if (merged > all * (filters + terms)) continue;
      work_ += merged - all * terms;  // that is there already, and goes
      const NodeId constant = push(n.args[side], *along, base);
      if (!build_) return true;
      std::vector<NodeId> args = n.args;
      args[side] = constant;
      out = c_.g.add(*k, std::move(args), {n.type.dtype, with_filters(n.type.shape, dim)});
      return true;
    }
    return false;
  }

  RewriteContext& c_;
  const NodeId w_;
  const Access access_;
  const Var o_, r_;
  const std::int64_t filters_;
  bool build_ = false;
  bool alone_ = false;  ///< nothing else reads the operand
  double work_ = 0;
  std::map<std::tuple<NodeId, std::size_t, std::int64_t>, NodeId> made_;
};

/// The one output variable that the filters have to themselves: all others are the operand's.
std::optional<Var> filter_of(const Node& n, const Access& operand, const Access& filters) {
  std::optional<Var> found;
  for (std::size_t v = 0; v < n.type.shape.size(); ++v) {
    const bool in_filters = depends_on(filters, nth(v));
    if (in_filters == depends_on(operand, nth(v)) && n.type.shape[v] > 1) return std::nullopt;
    if (!in_filters) continue;
    if (found) return std::nullopt;
    found = nth(v);
  }
  return found;
}

/// Every coordinate a variable of its own, or the only one.
bool plain(const Access& a, const Shape& shape) {
  for (std::size_t d = 0; d < a.index.size(); ++d) {
    const auto v = a.index[d].variable();
    if (v ? dimension_of(a, *v) != d : shape[d] != 1 || a.index[d] != Expr(0)) return false;
  }
  return a.inside.empty();
}

std::optional<NodeId> contract_of_resampled(RewriteContext& c, const Node& n) {
  const auto* k = std::get_if<Contract>(&n.op);
  if (k == nullptr || !is_float(n.type.dtype) || k->reduced.size() != 1) return std::nullopt;
  const Var r = nth(n.type.shape.size());
  for (std::size_t side = 0; side < 2; ++side) {
    const NodeId x = n.args[side], w = n.args[1 - side];
    const Access operand = side == 0 ? k->lhs : k->rhs, filters = side == 0 ? k->rhs : k->lhs;
    const Node& from = c.g[x];
    if (!(std::holds_alternative<Map>(from.op) || std::holds_alternative<View>(from.op)) ||
        from.type.dtype != n.type.dtype || c.g[w].type.dtype != n.type.dtype || c.constant(x) ||
        !c.constant(w) || !plain(operand, from.type.shape) || !filters.inside.empty())
      continue;
    const auto dim = dimension_of(operand, r);
    const auto o = filter_of(n, operand, filters);
    if (!dim || !o || from.type.shape[*dim] != k->reduced[0]) continue;
    const double before =
        static_cast<double>(element_count(n.type.shape)) * static_cast<double>(k->reduced[0]);
    Pushed pushed(c, w, filters, *o, r, n.type.shape[static_cast<std::size_t>(o->index)]);
    // Sums at every position take time, too.
    if (2 * pushed.work(x, *dim) > before || k->reduced[0] < 16) continue;
    Access out = operand;
    out.index[*dim] = *o;
    return c.b.view(pushed.make(x, *dim), n.type.shape, out);
  }
  return std::nullopt;
}

constexpr RewriteRule kLinearRules[] = {
    {kContractOfResampled,
     "resample(x) @ w -> resample(x @ w), also of concatenations  where x is smaller",
     contract_of_resampled,
     [](Builder& b) {
       const NodeId x = b.graph().add_input("x", {DType::f32, {3, 16}});
       const auto matrix = [&](Shape shape) {
         Tensor t({DType::f32, std::move(shape)});
         for (std::int64_t i = 0; i < t.count(); ++i)
           t.set(i, static_cast<double>(i * 7 % 5) - 1.75);
         return b.constant(t);
       };
       const auto tap = [&](const Expr& row, NodeId weights) {
         return b.mul(b.view(x, {12, 16}, {{row, Var{1}}, {}}), b.broadcast(weights, {12, 16}));
       };
       const Expr row = ir::floor_div(Var{0}, 4);
       const NodeId low = tap(row, matrix({12, 1}));
       return b.matmul(b.add(low, tap(Expr(2) - row, b.neg(matrix({12, 1})))), matrix({16, 2}));
     }},
};

}  // namespace

std::span<const RewriteRule> linear_rules() { return kLinearRules; }

}  // namespace heddle::prim
