#include "lower/contract/depthwise.h"

#include <algorithm>
#include <map>

#include "kernel/halves.h"
#include "kernel/traverse.h"
#include "lower/contract/depthwise_emit.h"

namespace heddle::lower::contract {
namespace {

using ir::Var;
using kernel::Value;

/// Step of every load of the value along `v`, if it is one number for all of them.
std::optional<std::int64_t> step_along(const Value& value, Var v) {
  std::optional<std::int64_t> step;
  bool same = true;
  kernel::for_each_value(value, [&](const Value& x) {
    const auto* load = std::get_if<kernel::Load>(&x->op);
    if (!load) return;
    const auto here = ir::coefficient_of(load->offset, v);
    same &= here && load->dynamic.empty() && (!step || *step == *here);
    step = here;
  });
  return same ? step : std::nullopt;
}

/// The contraction among maps and views; nullopt if there are others.
std::optional<NodeId> only_contraction(const Request& r) {
  const prim::Graph& g = *r.graph;
  std::optional<NodeId> contract;
  for (const NodeId id : r.cluster.nodes) {
    if (std::holds_alternative<prim::Contract>(g[id].op)) {
      if (contract) return std::nullopt;
      contract = id;
    } else if (!std::holds_alternative<prim::Map>(g[id].op) &&
               !std::holds_alternative<prim::View>(g[id].op)) {
      return std::nullopt;
    }
  }
  return r.target.is_gpu() ? std::nullopt : contract;
}

/// Rows' operand first: each channel alone has neither its columns nor several filters.
std::optional<Problem> problem_of(const prim::Graph& g, Problem p) {
  if (p.count(Role::m) == 1) {
    std::swap(p.a, p.b);
    std::swap(p.a_access, p.b_access);
    for (Axis& axis : p.axes)
      if (axis.role == Role::n) axis.role = Role::m;
  }
  const bool fits = (is_float(p.type) || p.type == DType::i32) && p.of(Role::n).empty() &&
                    p.count(Role::m) > 1 && p.count(Role::k) > 1 && p.count(Role::k) <= kMostTaps &&
                    g.constant_of(p.b) != nullptr && p.b_access.inside.empty();
  return fits ? std::optional(std::move(p)) : std::nullopt;
}

/// Of each dimension that an access reads, the one of the result that goes along it; nullopt unless
/// there is one for each, those of one place in their order.
std::optional<std::vector<int>> dimensions_along(const prim::Access& a, const Shape& from,
                                                 const Shape& to) {
  std::vector<int> out(from.size(), -1);
  std::vector<bool> used(to.size(), false);
  for (std::size_t i = 0; i < from.size(); ++i)
    for (std::size_t d = 0; d < to.size(); ++d) {
      if (!ir::depends_on(a.index[i], Var{static_cast<std::int32_t>(d)})) continue;
      if (used[d] || out[i] >= 0) return std::nullopt;
      out[i] = static_cast<int>(d);
      used[d] = true;
    }
  for (std::size_t i = 0, d = 0; i < from.size(); ++i) {
    if (out[i] >= 0) continue;
    while (d < to.size() && (used[d] || to[d] != 1)) ++d;
    if (d == to.size()) return std::nullopt;
    out[i] = static_cast<int>(d);
    used[d] = true;
  }
  return out;
}

/// The convolution's dimensions as its operand lies in memory, outermost first: what is widened,
/// padded or transposed where it is read lies as it is stored. Empty where they have no such order.
std::vector<int> order_of_operand(const Request& r, const Problem& p) {
  const prim::Graph& g = *r.graph;
  const auto shape = [&](NodeId id) -> const Shape& { return g[id].type.shape; };
  NodeId stored = p.a;
  auto dims = dimensions_along(p.a_access, shape(stored), shape(p.contract));
  while (dims && std::ranges::binary_search(r.cluster.nodes, stored)) {
    const NodeId source = g[stored].args[0];
    if (const auto* view = std::get_if<prim::View>(&g[stored].op)) {
      const auto along = view->pieces.size() == 1
                             ? dimensions_along(view->pieces[0], shape(source), shape(stored))
                             : std::nullopt;
      if (!along) return {};
      std::vector<int> next;
      for (const int d : *along) next.push_back((*dims)[static_cast<std::size_t>(d)]);
      dims = std::move(next);
    }
    stored = source;
  }
  if (!dims) return {};
  const Layout layout = r.layout_of ? r.layout_of(stored) : row_major(shape(stored));
  std::vector<int> order = storage_order(layout, shape(stored));
  for (int& d : order) d = (*dims)[static_cast<std::size_t>(d)];
  return order;
}

/// Whether an expression moves along one axis alone, which the other one moves along, too.
bool same_axis(const ir::Expr& one, const ir::Expr& other) {
  std::vector<Var> variables;
  ir::collect_variables(one, variables);
  return variables.size() == 1 && ir::depends_on(other, variables[0]);
}

/// The same order of the dimensions of an image of the convolution; empty if it has others.
std::vector<int> order_of_image(const Image& image, const Problem& p,
                                const std::vector<int>& order) {
  std::vector<int> out;
  for (const int k : order)
    for (std::size_t d = 0; d < image.index.size(); ++d) {
      const auto at = static_cast<int>(d);
      const ir::Expr& along = p.out[static_cast<std::size_t>(k)];
      if (std::ranges::count(out, at) > 0) continue;
      if (image.index[d] == along) {
        out.push_back(at);
        break;
      }
      if (same_axis(image.index[d], along)) out.push_back(at);
    }
  return out.size() == image.index.size() ? out : std::vector<int>();
}

/// Outputs lie as the operand does, unless they have to lie otherwise.
Request following_operand(const Request& r, const Problem& p) {
  Request out = r;
  const std::vector<int> order = order_of_operand(r, p);
  std::map<NodeId, std::vector<int>> orders;
  if (const auto all = images(*r.graph, r.cluster, p))
    for (const Image& image : *all) orders[image.node] = order_of_image(image, p, order);
  out.required_layout = [&r, orders = std::move(orders)](NodeId id) {
    auto required = r.required_layout ? r.required_layout(id) : std::optional<Layout>();
    const auto found = orders.find(id);
    if (!required && found != orders.end() && !found->second.empty())
      required = ordered((*r.graph)[id].type.shape, found->second);
    return required;
  };
  return out;
}

}  // namespace

bool keeps_order(const prim::Graph& g, NodeId id) {
  const auto* view = std::get_if<prim::View>(&g[id].op);
  if (view == nullptr || view->pieces.size() != 1) return false;
  const std::vector<ir::Expr>& index = view->pieces[0].index;
  const Shape& shape = g[id].type.shape;
  if (index.size() != shape.size()) return false;
  for (std::size_t d = 0; d < index.size(); ++d)
    if (shape[d] > 1 && ir::coefficient_of(index[d], Var{static_cast<std::int32_t>(d)}) != 1)
      return false;
  return true;
}

Result<Lowered> lower_depthwise(const Request& request) {
  const auto refused = [] { return unsupported("depthwise: the cluster is no such convolution"); };
  const auto contract = only_contraction(request);
  if (!contract) return refused();
  auto problem = problem_of(*request.graph, analyse(*request.graph, *contract));
  if (!problem) return refused();
  const Request following = following_operand(request, *problem);
  const auto product = HEDDLE_TRY(make_product(following, *std::move(problem), Form::single));
  Product& p = *product;
  const auto* load = kernel::load_under_cast(p.b);
  if (!p.tile || p.k.empty() || load == nullptr || p.base.b != BSource::constant) return refused();
  const int lanes = request.target.lanes(p.problem.type);
  for (const Axis& axis : p.outer) {
    if (axis.role != Role::batch || axis.extent < lanes) continue;
    bool along = step_along(p.a, axis.var) == 1;
    for (const Output& o : p.outputs) along &= ir::coefficient_of(o.offset, axis.var) == 1;
    if (along) return emit_depthwise(p, axis);
  }
  return refused();
}

namespace {

/// A convolution in groups: channels that each one reads and makes, and how many of the former are
/// one word.
struct Groups {
  std::int64_t count, in, out;
  int parts = 1;
};

/// Those of f32 that leave lanes idle if one group's channels are all that a vector has, and of
/// words, which read in place what a main loop copies, as many channels as lanes.
std::optional<Groups> groups_of(const prim::Graph& g, const Problem& p, const Target& target) {
  const std::vector<Axis> groups = p.of(Role::batch), filters = p.of(Role::n);
  if (groups.size() != 1 || filters.size() != 1 || p.count(Role::m) == 1 ||
      g.constant_of(p.b) == nullptr || !p.b_access.inside.empty())
    return std::nullopt;
  std::optional<std::int64_t> in;
  for (const ir::Expr& e : p.a_access.index)
    if (ir::depends_on(e, groups[0].var)) in = ir::coefficient_of(e, groups[0].var);
  const std::int64_t lanes = target.lanes(p.type), out = filters[0].extent;
  if (!in || *in < 2 || *in > out || out > lanes || lanes % out != 0 ||
      groups[0].extent * out % lanes != 0)
    return std::nullopt;
  Problem joined = p;
  join_reductions(g, target, joined);
  const int parts = joined.parts ? joined.parts->count : 1;
  const DType stored = g[p.a].type.dtype;
  const bool words = (is_float(p.type) || parts > 1) && size_of(stored) * parts == 4 &&
                     (parts > 1 || out < lanes) && joined.count(Role::k) <= kWrittenOut;
  return words ? std::optional(Groups{groups[0].extent, *in, out, parts}) : std::nullopt;
}

/// Whether the value's elements of a vector of channels are those of its groups, side by side.
bool lies_in_groups(const Value& value, const Axis& channel, const Groups& groups) {
  bool fits = true;
  kernel::for_each_value(value, [&](const Value& x) {
    const auto* load = std::get_if<kernel::Load>(&x->op);
    if (!load) return;
    const auto at = [&](std::int64_t c) {
      return ir::substitute(load->offset, [&](Var v) {
        return v == channel.var ? std::optional<ir::Expr>(c) : std::nullopt;
      });
    };
    fits &= load->dynamic.empty();
    for (std::int64_t c = 0; c < channel.extent; ++c)
      fits = fits && (at(c) - at(0)).constant() == c / groups.out * groups.in;
  });
  return fits;
}

/// From each part of an operand's words in memory to the next; nullopt if it is no word of so many
/// loads, or no load.
std::optional<std::int64_t> apart(const Value& operand, int parts) {
  const auto* guard = std::get_if<kernel::Guard>(&operand->op);
  const Value& inside = guard ? guard->then : operand;
  if (parts == 1) return kernel::load_under_cast(inside) ? std::optional(1) : std::nullopt;
  const auto all = kernel::parts_of(inside);
  const auto distance = kernel::distance_of_parts(all);
  return std::ssize(all) == parts && distance ? distance->constant() : std::nullopt;
}

}  // namespace

std::optional<Algorithm> groups_algorithm(const prim::Graph& g, const Problem& p,
                                          const Target& target) {
  constexpr double kOfShuffles = 1.3, kInPlace = 0.85;
  const auto groups = groups_of(g, p, target);
  if (!groups) return std::nullopt;
  const double share = static_cast<double>(groups->out) / target.lanes(p.type);
  return Algorithm{share < 1 ? kOfShuffles * share : kInPlace, 1, 1, false, true};
}

Result<Lowered> lower_groups(const Request& request) {
  const auto refused = [] { return unsupported("groups: the cluster is no such convolution"); };
  const auto contract = only_contraction(request);
  if (!contract) return refused();
  const prim::Graph& g = *request.graph;
  const auto groups = groups_of(g, analyse(g, *contract), request.target);
  if (!groups) return refused();
  auto problem = problem_of(g, analyse_channels(g, *contract));
  if (!problem) return refused();
  const Request following = following_operand(request, *problem);
  join_reductions(g, request.target, *problem);
  const auto product = HEDDLE_TRY(make_product(following, *std::move(problem), Form::single));
  Product& p = *product;
  const auto is_channel = [](const Axis& a) { return a.role == Role::batch; };
  const auto channel = std::ranges::find_if(p.outer, is_channel);
  if (!p.tile || channel == p.outer.end() || p.base.b != BSource::constant ||
      apart(p.a, groups->parts) != 1 || !apart(p.b, groups->parts) ||
      channel->extent != groups->count * groups->out || !lies_in_groups(p.a, *channel, *groups))
    return refused();
  for (const Output& o : p.outputs)
    if (o.sum || ir::coefficient_of(o.offset, channel->var) != 1) return refused();
  // The channels of a group first, so that a row's taps meet columns that they share.
  const auto of_group = [&](const KLoop& loop) {
    return step_along(p.a, loop.axes[0].var) == groups->parts;
  };
  const auto first = std::ranges::find_if(p.k, of_group);
  const std::int64_t words = first == p.k.end() ? 1 : first->extent;
  if (words != groups->in / groups->parts) return refused();
  if (first != p.k.end()) std::rotate(p.k.begin(), first, first + 1);
  return emit_depthwise(p, *channel, words);
}

}  // namespace heddle::lower::contract
