// Rows that compose, move and remove views.
#include <algorithm>
#include <numeric>

#include "prim/access.h"
#include "prim/rewrite.h"
#include "prim/rule_examples.h"

namespace heddle::prim {
namespace {

using ir::Expr;
using ir::ScalarFn;
using ir::Var;
using Rewritten = std::optional<NodeId>;

constexpr std::size_t kMaxPieces = 64;  // more cost more to evaluate than the copy they save

Rewritten view_simplify(RewriteContext& c, const Node& n) {
  const auto* v = std::get_if<View>(&n.op);
  if (v == nullptr) return std::nullopt;
  const NodeId simple = add_view(c.b, n.args, v->pieces, v->fill, n.type);
  if (c.g[simple] == n) return std::nullopt;
  return simple;
}

/// True if the two conjunctions cannot hold together.
bool disjoint(const Access& a, const Access& b) {
  for (const auto& x : a.inside)
    for (const auto& y : b.inside)
      if (x.expr == y.expr && (x.high <= y.low || y.high <= x.low)) return true;
  return false;
}

/// Where piece k of `outer` holds but no piece of `inner` does, the value is inner's fill; the
/// fill of the composition for which that stays so, if there is one.
std::optional<double> composed_fill(const View& outer, std::size_t k, const View& inner) {
  const Access& piece = outer.pieces[k];
  if (inner.pieces.back().inside.empty()) return outer.fill;
  if (outer.pieces.size() == 1 && piece.inside.empty()) return inner.fill;
  if (inner.fill != outer.fill) return std::nullopt;
  for (std::size_t later = k + 1; later < outer.pieces.size(); ++later)
    if (!disjoint(piece, outer.pieces[later])) return std::nullopt;
  return outer.fill;
}

bool permutes(const View& v) {
  return v.pieces.size() == 1 && v.pieces[0].inside.empty() &&
         std::ranges::all_of(v.pieces[0].index,
                             [](const Expr& e) { return e.variable().has_value(); });
}

Rewritten view_of_view(RewriteContext& c, const Node& n) {
  const auto* outer = std::get_if<View>(&n.op);
  if (outer == nullptr) return std::nullopt;
  for (std::size_t k = 0; k < n.args.size(); ++k) {
    const Node source = c.g[n.args[k]];
    const auto* inner = std::get_if<View>(&source.op);
    if (inner == nullptr || outer->pieces.size() + inner->pieces.size() > kMaxPieces) continue;
    // A concatenation that others read is made once, and read transposed or in groups as it lies.
    if (inner->pieces.size() > 1 && !c.used_once(n.args[k]) &&
        (permutes(*outer) || (outer->pieces.size() == 1 &&
                              crosses_groups(outer->pieces[0], source.type.shape, n.type.shape))))
      continue;
    const auto fill = composed_fill(*outer, k, *inner);
    if (!fill) continue;
    std::vector<Access> pieces(outer->pieces.begin(),
                               outer->pieces.begin() + static_cast<std::ptrdiff_t>(k));
    std::vector<NodeId> args(n.args.begin(), n.args.begin() + static_cast<std::ptrdiff_t>(k));
    bool fits = true;
    for (std::size_t i = 0; i < inner->pieces.size() && fits; ++i) {
      const auto a = simplified(compose(outer->pieces[k], inner->pieces[i]), n.type.shape);
      if (!a) continue;
      fits = size_of(*a) <= kMaxAccessSize &&
             shown_in_bounds(*a, n.type.shape, c.b.shape(source.args[i]));
      pieces.push_back(*a);
      args.push_back(source.args[i]);
    }
    if (!fits) continue;
    pieces.insert(pieces.end(), outer->pieces.begin() + static_cast<std::ptrdiff_t>(k) + 1,
                  outer->pieces.end());
    args.insert(args.end(), n.args.begin() + static_cast<std::ptrdiff_t>(k) + 1, n.args.end());
    return add_view(c.b, std::move(args), std::move(pieces), *fill, n.type);
  }
  return std::nullopt;
}

Rewritten filled_with_itself(RewriteContext& c, const Node& n) {
  const auto* v = std::get_if<View>(&n.op);
  if (v == nullptr || v->pieces.size() != 1 || v->pieces[0].inside.empty()) return std::nullopt;
  if (splat_value(c.g, n.args[0]) != v->fill) return std::nullopt;
  return c.b.full(n.type, v->fill);
}

/// The one value of which all elements of a constant tensor (of rank > 0) are made.
std::optional<Tensor> element_of_equals(const Tensor& t) {
  if (t.shape().empty() || t.count() == 0) return std::nullopt;
  const std::int64_t size = size_of(t.dtype()), bytes = t.bytes();
  const std::byte* data = t.data();
  for (std::int64_t at = size; at < bytes; at += size)
    if (std::memcmp(data, data + at, static_cast<std::size_t>(size)) != 0) return std::nullopt;
  Tensor one({t.dtype(), {}});
  std::memcpy(one.mutable_data(), data, static_cast<std::size_t>(size));
  return one;
}

/// Only for maps and views: an operand of a contraction is better dense.
Rewritten constant_splat(RewriteContext& c, const Node& n) {
  if (!std::holds_alternative<Map>(n.op) && !std::holds_alternative<View>(n.op))
    return std::nullopt;
  for (std::size_t i = 0; i < n.args.size(); ++i) {
    const Tensor* t = c.g.constant_of(n.args[i]);
    const auto one = t != nullptr ? element_of_equals(*t) : std::nullopt;
    if (!one) continue;
    std::vector<NodeId> args = n.args;
    args[i] = c.b.broadcast(c.b.constant(*one), t->shape());
    return c.g.add(n.op, std::move(args), n.type);
  }
  return std::nullopt;
}

/// A number that is the same everywhere, in another shape.
NodeId spread(RewriteContext& c, const Tensor& number, const Shape& shape) {
  return c.b.broadcast(c.b.constant(number.reshaped({})), shape);
}

Rewritten view_below_map(RewriteContext& c, const Node& n) {
  const auto* m = std::get_if<Map>(&n.op);
  if (m == nullptr) return std::nullopt;
  const Access* shared = nullptr;
  Shape source;
  for (const NodeId a : n.args) {
    if (splat(c.g, a) != nullptr) continue;
    const Access* access = plain_view(c.g, a);
    if (access == nullptr) return std::nullopt;
    const Shape& from = c.b.shape(c.g[a].args[0]);
    if (shared != nullptr && (!(*shared == *access) || source != from)) return std::nullopt;
    shared = access;
    source = from;
  }
  if (shared == nullptr || element_count(source) > element_count(n.type.shape)) return std::nullopt;
  const Access access = *shared;
  std::vector<NodeId> args;
  for (const NodeId a : n.args) {
    const Tensor* t = splat(c.g, a);
    args.push_back(t != nullptr ? spread(c, *t, source) : c.g[a].args[0]);
  }
  const NodeId small = c.g.add(*m, std::move(args), {n.type.dtype, source});
  return c.b.view(small, n.type.shape, access);
}

/// A value in groups of its channels, and what each group has of its own: the groups are looked up
/// instead, so that the value stays as it is.
Rewritten regroup_below_map(RewriteContext& c, const Node& n) {
  const auto* m = std::get_if<Map>(&n.op);
  if (m == nullptr) return std::nullopt;
  const Shape to = n.type.shape;
  std::optional<Access> groups;
  Shape from;
  for (const NodeId a : n.args) {
    const Access* access = plain_view(c.g, a);
    if (access == nullptr || !crosses_groups(*access, c.b.shape(c.g[a].args[0]), to)) continue;
    groups = *access;
    from = c.b.shape(c.g[a].args[0]);
    break;
  }
  if (!groups) return std::nullopt;
  const Access back{unflatten(flat_index(identity_variables(from.size()), from), to), {}};
  std::vector<NodeId> args;
  for (const NodeId a : n.args) {
    if (const Tensor* t = splat(c.g, a)) {
      args.push_back(spread(c, *t, from));
      continue;
    }
    const Access* access = plain_view(c.g, a);
    if (access == nullptr) return std::nullopt;
    const NodeId source = c.g[a].args[0];
    if (*access == *groups && c.b.shape(source) == from) {
      args.push_back(source);
      continue;
    }
    if (element_count(c.b.shape(source)) >= element_count(to)) return std::nullopt;
    const auto looked_up = simplified(compose(back, *access), from);
    if (!looked_up || !shown_in_bounds(*looked_up, from, c.b.shape(source))) return std::nullopt;
    args.push_back(c.b.view(source, from, *looked_up));
  }
  return c.b.view(c.g.add(*m, std::move(args), {n.type.dtype, from}), to, *groups);
}

/// The access through which a Map's argument is read: a plain view's, or the identity of a
/// constant.
std::optional<Access> read_through(RewriteContext& c, NodeId id) {
  if (const Access* a = plain_view(c.g, id)) return *a;
  if (c.g.constant_of(id) != nullptr) return identity_access(c.b.shape(id));
  return std::nullopt;
}

Rewritten map_before_broadcast(RewriteContext& c, const Node& n) {
  const auto* m = std::get_if<Map>(&n.op);
  if (m == nullptr) return std::nullopt;
  const Shape& shape = n.type.shape;
  std::vector<bool> used(shape.size(), false);
  std::vector<Access> accesses;
  for (const NodeId a : n.args) {
    auto access = read_through(c, a);
    if (!access) return std::nullopt;
    for (std::size_t k = 0; k < shape.size(); ++k)
      used[k] = used[k] || depends_on(*access, Var{static_cast<std::int32_t>(k)});
    accesses.push_back(*std::move(access));
  }
  Shape small;
  Access spread;                                      // the result, from the small value
  std::vector<Expr> to_small(shape.size(), Expr(0));  // old variable → small variable
  bool saves = false;
  for (std::size_t k = 0; k < shape.size(); ++k) {
    saves = saves || (!used[k] && shape[k] > 1);
    if (!used[k]) continue;
    to_small[k] = var(small.size());
    spread.index.push_back(var(k));
    small.push_back(shape[k]);
  }
  if (!saves) return std::nullopt;
  std::vector<NodeId> args;
  for (std::size_t i = 0; i < n.args.size(); ++i) {
    const bool view = plain_view(c.g, n.args[i]) != nullptr;
    args.push_back(c.b.view(view ? c.g[n.args[i]].args[0] : n.args[i], small,
                            substitute(accesses[i], to_small)));
  }
  const NodeId result = c.g.add(*m, std::move(args), {n.type.dtype, small});
  return c.b.view(result, shape, spread);
}

Rewritten gather_at_constant(RewriteContext& c, const Node& n) {
  const auto* gather = std::get_if<Gather>(&n.op);
  if (gather == nullptr || element_count(n.type.shape) == 0) return std::nullopt;
  Access a{gather->base, {}};
  const Shape data = c.b.shape(n.args[0]);
  for (std::size_t j = 0; j < gather->axes.size(); ++j) {
    const auto axis = static_cast<std::size_t>(gather->axes[j]);
    const Tensor* at = splat(c.g, n.args[1 + j]);
    const auto base = gather->base[axis].constant();
    if (at == nullptr || base != 0) return std::nullopt;
    a.index[axis] = Expr(std::clamp<std::int64_t>(at->int_at(0), 0, data[axis] - 1));
  }
  return c.b.view(n.args[0], n.type.shape, std::move(a));
}

/// Whether the gather picks along its last dimension only, by an index that depends on nothing
/// else.
bool picks_along_last(const Graph& g, const Node& n) {
  const auto* gather = std::get_if<Gather>(&n.op);
  const std::size_t rank = n.type.shape.size();
  if (gather == nullptr || rank < 2 || gather->axes != std::vector{static_cast<int>(rank) - 1} ||
      gather->base.size() != rank || !gather->base.back().is_constant(0))
    return false;
  for (std::size_t k = 0; k + 1 < rank; ++k)
    if (gather->base[k].variable() != Var{static_cast<std::int32_t>(k)} &&
        !(n.type.shape[k] == 1 && gather->base[k].is_constant(0)))
      return false;
  const Access* index = plain_view(g, n.args[1]);
  std::vector<Var> used;
  if (index != nullptr)
    for (const Expr& e : index->index) ir::collect_variables(e, used);
  return index != nullptr &&
         std::ranges::all_of(used, [&](Var v) { return v.index + 1 == static_cast<int>(rank); });
}

/// Whole rows are picked then, which lie together.
Rewritten picked_then_turned(RewriteContext& c, const Node& n) {
  const auto* v = std::get_if<View>(&n.op);
  if (v == nullptr || n.type.shape.size() < 2) return std::nullopt;
  const Var last{static_cast<std::int32_t>(n.type.shape.size()) - 1};
  const auto reads = [&](const Expr& e) {
    std::vector<Var> used;
    ir::collect_variables(e, used);
    return std::ranges::find(used, last) != used.end();
  };
  for (std::size_t k = 0; k < n.args.size(); ++k) {
    const Node picked = c.g[n.args[k]];
    if (!picks_along_last(c.g, picked) || n.type.shape.back() == 1 ||
        element_count(c.b.shape(picked.args[0])) > 2 * element_count(picked.type.shape))
      continue;
    Access access = v->pieces[k];
    const auto row = std::ranges::find_if(
        access.index, [&](const Expr& e) { return (e - Expr(last)).constant().has_value(); });
    if (row == access.index.end() || reads(access.index.back())) continue;
    std::swap(*row, access.index.back());
    std::vector<int> order(picked.type.shape.size());
    std::iota(order.begin(), order.end(), 0);
    std::swap(order[static_cast<std::size_t>(row - access.index.begin())], order.back());
    const NodeId source = c.b.transpose(picked.args[0], order);
    const NodeId index = c.b.transpose(picked.args[1], order);
    Gather gather{{static_cast<int>(row - access.index.begin())}, {}};
    for (std::size_t j = 0; j < order.size(); ++j)
      gather.base.push_back(static_cast<int>(j) == gather.axes[0] ? Expr(0) : var(j));
    Shape shape = picked.type.shape;
    std::swap(shape[static_cast<std::size_t>(gather.axes[0])], shape.back());
    std::vector<NodeId> args = n.args;
    args[k] = c.b.gather(source, {index}, std::move(gather), shape);
    std::vector<Access> pieces = v->pieces;
    pieces[k] = std::move(access);
    return add_view(c.b, std::move(args), std::move(pieces), v->fill, n.type);
  }
  return std::nullopt;
}

constexpr RewriteRule kViewRules[] = {
    {"constant-splat", "f(constant of equal elements) -> f(broadcast of one)", constant_splat,
     [](Builder& b) {
       const float v[] = {2, 2, 2, 2};
       return b.exp(b.add(x_of(b, {4}), b.constant(Tensor::from<float>(DType::f32, {4}, v))));
     }},
    {"view-simplify", "view with decided conditions or constant indices -> simpler view",
     view_simplify,
     [](Builder& b) {
       // Made by hand: the builder simplifies what it makes.
       const NodeId x = x_of(b, {4});
       const Expr d0 = Var{0};
       return b.graph().add(View{{{{ir::floor_mod(d0 + 4, 4)}, {{d0, 0, 4}}}}, 5}, {x},
                            {DType::f32, {4}});
     }},
    {"view-of-view", "view(view(x)) -> view(x)", view_of_view,
     [](Builder& b) {
       const NodeId x = x_of(b, {2, 3, 4});
       const NodeId joined = b.concat({b.pad(x, {0, 1, 0}, {0, 0, 0}, 0), b.flip(x, {2})}, 1);
       return b.slice_axis(b.transpose(joined, {1, 0, 2}), 0, 1, 5);
     }},
    {"filled-with-itself", "view(splat c) filled with c -> splat c", filled_with_itself,
     [](Builder& b) {
       return b.add(x_of(b, {5}), b.pad(b.full({DType::f32, {3}}, 2), {1}, {1}, 2));
     }},
    {"view-below-map", "f(view(x), view(y), splat) -> view(f(x, y, splat))  if x is not larger",
     view_below_map,
     [](Builder& b) {
       const NodeId x = x_of(b, {2, 6});
       return b.mul(b.exp(b.reshape(x, {3, 4})), b.reshape(x, {3, 4}));
     }},
    {"regroup-below-map", "f(groups(x), broadcast(y)) -> groups(f(x, y of each group))",
     regroup_below_map,
     [](Builder& b) {
       const NodeId x = x_of(b, {1, 6, 4}), y = b.graph().add_input("y", {DType::f32, {1, 3, 1}});
       return b.sub(b.reshape(x, {1, 3, 8}), b.broadcast(y, {1, 3, 8}));
     }},
    {"map-before-broadcast", "f(broadcast(x), broadcast(y)) -> broadcast(f(x, y))",
     map_before_broadcast,
     [](Builder& b) {
       const NodeId x = x_of(b, {3, 1, 4}), y = b.graph().add_input("y", {DType::f32, {1, 1, 4}});
       const Shape all = {3, 5, 4};
       return b.add(b.broadcast(x, all), b.broadcast(y, all));
     }},
    {"gather-at-constant", "x[constant] -> view(x)", gather_at_constant,
     [](Builder& b) {
       return b.take(x_of(b, {3, 4}), b.broadcast(b.scalar_int(DType::u8, 2), {2}), 0);
     }},
    {"picked-then-turned", "transpose(x[.., i]) -> transpose(x)[i, ..]", picked_then_turned,
     [](Builder& b) {
       const NodeId i = b.graph().add_input("i", {DType::i32, {5}});
       return b.slice_axis(b.transpose(b.take(x_of(b, {2, 3, 4}), i, 2), {0, 2, 1}), 2, 1, 2);
     }},
};

}  // namespace

std::span<const RewriteRule> view_rules() { return kViewRules; }

}  // namespace heddle::prim
