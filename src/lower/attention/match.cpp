#include "lower/attention/match.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <set>

#include "kernel/traverse.h"
#include "lower/reduction.h"

namespace heddle::lower::attention {

using ir::Expr;
using ir::ScalarFn;
using ir::Var;
using Index = Evaluator::Index;
using prim::Contract;
using prim::Map;
using prim::Node;
using prim::Reduce;
using prim::View;

namespace {

constexpr std::size_t kMostScoreNodes = 48;  // looked at on the way from softmax to product
constexpr int kNear = 12;              // maps and views between a value and what it is made of
constexpr double kSmallLeaves = 0.25;  // of a value that is computed again, not read

/// A value at a position.
struct Place {
  NodeId node;
  Index index;
};

class Matcher {
 public:
  Matcher(const prim::Graph& g, NodeId contract) : g_(g), root_(contract) {}

  std::optional<Attention> run() {
    const auto* second = std::get_if<Contract>(&g_[root_].op);
    if (!second || second->reduced.size() != 1 || !is_f32(root_)) return std::nullopt;
    a_.result = root_;
    a_.extents = g_[root_].type.shape;
    a_.key = new_var(second->reduced[0]);
    for (const bool left : {true, false}) {
      nodes_ = {root_};
      const prim::Access& weights = left ? second->lhs : second->rhs;
      if (!weights.inside.empty()) continue;
      const Place p{g_[root_].args[left ? 0 : 1], placed(weights.index, {})};
      if (!softmax(p) || !find_products()) continue;
      return complete(p.index, g_[root_].args[left ? 1 : 0], left ? second->rhs : second->lhs);
    }
    return std::nullopt;
  }

 private:
  Var new_var(std::int64_t extent) {
    a_.extents.push_back(extent);
    return Var{static_cast<std::int32_t>(a_.extents.size()) - 1};
  }
  bool is_f32(NodeId id) const {
    return is_float(g_[id].type.dtype) && compute_type(g_[id].type.dtype) == DType::f32;
  }
  double elements(NodeId id) const { return static_cast<double>(element_count(g_[id].type.shape)); }
  Expr simple(const Expr& e) const { return ir::simplify(e, ir::ranges_of(a_.extents)); }

  /// Expressions over the root's variables, or over those that `values` replaces; variables of
  /// extent 1 are 0.
  Index placed(const Index& index, const Index& values) const {
    Index out;
    for (const Expr& e : index) {
      const Expr at = values.empty() ? e : ir::substitute(e, values);
      out.push_back(simple(ir::substitute(at, [&](Var v) -> std::optional<Expr> {
        return a_.extent(v) == 1 ? std::optional(Expr(0)) : std::nullopt;
      })));
    }
    return out;
  }

  /// What a value is before casts among floats, rounding or not, and views of all of it.
  Place follow(Place p) {
    for (;;) {
      const Node& n = g_[p.node];
      const Map* map = std::get_if<Map>(&n.op);
      const View* view = std::get_if<View>(&n.op);
      const bool converts = map && (map->fn == ScalarFn::cast || map->fn == ScalarFn::round_f16 ||
                                    map->fn == ScalarFn::round_bf16);
      const bool cast = converts && is_f32(p.node) && is_f32(n.args[0]);
      if (!cast && !(view && view->pieces.size() == 1 && view->pieces[0].inside.empty())) return p;
      nodes_.insert(p.node);
      if (view) p.index = placed(view->pieces[0].index, p.index);
      p.node = n.args[0];
    }
  }
  std::optional<ScalarFn> fn_of(const Place& p) const {
    const Map* map = std::get_if<Map>(&g_[p.node].op);
    return map ? std::optional(map->fn) : std::nullopt;
  }
  Place argument(const Place& p, std::size_t i) {
    nodes_.insert(p.node);
    return follow({g_[p.node].args[i], p.index});
  }

  /// e / Σe with e = exp(s - max s), the division perhaps a multiplication.
  bool softmax(const Place& weights) {
    const Place p = follow(weights);
    const auto fn = fn_of(p);
    if (fn != ScalarFn::mul && fn != ScalarFn::div) return false;
    Place e = argument(p, 0), sum = argument(p, 1);
    if (fn == ScalarFn::mul) {
      if (fn_of(e) == ScalarFn::recip) std::swap(e, sum);
      if (fn_of(sum) != ScalarFn::recip) return false;
      sum = argument(sum, 0);
    }
    if (fn_of(e) != ScalarFn::exp || !reduces(sum, ir::Monoid::sum, e)) return false;
    const Place difference = argument(e, 0);
    if (fn_of(difference) != ScalarFn::sub) return false;
    const Place s = argument(difference, 0), most = argument(difference, 1);
    if (!is_f32(s.node) || !reduces(most, ir::Monoid::max, s)) return false;
    a_.exp = e.node;
    a_.scores = s.node;
    a_.scores_at = s.index;
    return true;
  }

  /// True if `r` combines `of` over all keys.
  bool reduces(const Place& r, ir::Monoid fn, const Place& of) {
    const Reduce* reduce = std::get_if<Reduce>(&g_[r.node].op);
    if (!reduce || reduce->fn != fn || reduce->axes.size() != 1) return false;
    const NodeId argument = g_[r.node].args[0];
    const auto axis = static_cast<std::size_t>(reduce->axes[0]);
    if (g_[argument].type.shape[axis] != a_.extent(a_.key)) return false;
    for (const Expr& e : r.index)
      if (ir::depends_on(e, a_.key)) return false;
    Index index = r.index;
    index.insert(index.begin() + static_cast<std::ptrdiff_t>(axis), Expr(a_.key));
    nodes_.insert(r.node);
    const Place got = follow({argument, index});
    return got.node == of.node && got.index == of.index;
  }

  /// The nearest contraction that the scores are a pointwise function of, and what lies between.
  bool find_products() {
    std::deque<NodeId> next{a_.scores};
    std::set<NodeId> seen{a_.scores};
    while (!next.empty() && seen.size() < kMostScoreNodes) {
      const NodeId id = next.front();
      next.pop_front();
      if (std::holds_alternative<Contract>(g_[id].op)) {
        a_.products = id;
        break;
      }
      if (!std::holds_alternative<Map>(g_[id].op) && !std::holds_alternative<View>(g_[id].op))
        continue;
      for (NodeId arg : g_[id].args)
        if (seen.insert(arg).second) next.push_back(arg);
    }
    if (!a_.products) return false;
    return include(a_.scores);
  }
  bool pointwise(NodeId id) const {
    return std::holds_alternative<Map>(g_[id].op) || std::holds_alternative<View>(g_[id].op);
  }
  bool depends(NodeId id) {
    if (id <= a_.products || !pointwise(id)) return id == a_.products;
    if (const auto known = depends_.find(id); known != depends_.end()) return known->second;
    const auto& args = g_[id].args;
    return depends_[id] =
               std::any_of(args.begin(), args.end(), [&](NodeId arg) { return depends(arg); });
  }
  /// Elements that must be read to compute the value from what is near.
  double leaves(NodeId id, int depth = 0) {
    if (inlined_constant(g_, id) || std::holds_alternative<prim::Iota>(g_[id].op)) return 0;
    if (!pointwise(id) || depth > kNear) return elements(id);
    if (const auto known = leaves_.find(id); known != leaves_.end()) return known->second;
    double sum = 0;
    for (NodeId arg : g_[id].args) sum += leaves(arg, depth + 1);
    return leaves_[id] = std::min(sum, elements(id));
  }
  bool is_broadcast(NodeId id) const {
    const View* view = std::get_if<View>(&g_[id].op);
    return view && view->pieces.size() == 1 && view->pieces[0].inside.empty() &&
           elements(id) > elements(g_[id].args[0]);
  }
  /// Takes in what the scores need: what depends on the product, and what is cheaper to compute
  /// again than to read.
  bool include(NodeId id) {
    if (nodes_.size() > kMostScoreNodes) return false;
    const bool inside = depends(id) || is_broadcast(id) ||
                        (!inlined_constant(g_, id) && leaves(id) <= kSmallLeaves * elements(id));
    if (!inside || !nodes_.insert(id).second || id == a_.products) return true;
    return std::all_of(g_[id].args.begin(), g_[id].args.end(),
                       [&](NodeId arg) { return include(arg); });
  }

  /// Where the first product is read: one position for each of the scores.
  std::optional<Index> products_at() {
    Evaluator probe(g_);
    probe.ranges() = ir::ranges_of(a_.extents);
    kernel::Kernel k;
    const Cluster c{{nodes_.begin(), nodes_.end()}, {root_}};
    for (NodeId in : inputs_of(g_, c))
      probe.place(in, k.add_buffer({}), row_major(g_[in].type.shape));
    std::optional<Index> at;
    bool sound = true;
    probe.set_combine([&](const Reduction& r) {
      sound = false;
      return identity_value(r.fn, r.type);
    });
    probe.bind(a_.products, [&](Evaluator&, const Index& index, const auto& conditions) {
      sound = sound && conditions.empty() && (!at || *at == index);
      at = index;
      return kernel::imm(DType::f32, 0);
    });
    (void)probe.at(a_.scores, a_.scores_at);
    return sound ? at : std::nullopt;
  }

  static bool depend(const Index& index, const Evaluator::Conditions& inside, Var v) {
    const auto on = [&](const Expr& e) { return ir::depends_on(e, v); };
    return std::any_of(index.begin(), index.end(), on) ||
           std::any_of(inside.begin(), inside.end(), [&](const auto& c) { return on(c.expr); });
  }
  static bool depend(const Attention::Operand& o, Var v) { return depend(o.index, o.inside, v); }

  /// Read where it lies: through views.
  Attention::Operand operand(NodeId node, const prim::Access& access, const Index& values) {
    const Place p = follow({node, placed(access.index, values)});
    Attention::Operand out{p.node, p.index, access.inside, {}, {}};
    for (ir::Condition& c : out.inside) c.expr = placed({c.expr}, values)[0];
    return out;
  }

  std::optional<Attention> complete(const Index& weights, NodeId value,
                                    const prim::Access& access) {
    const auto* first = std::get_if<Contract>(&g_[a_.products].op);
    if (first->reduced.size() != 1 || !is_f32(a_.products)) return std::nullopt;
    a_.depth = new_var(first->reduced[0]);
    const auto at = products_at();
    if (!at) return std::nullopt;
    Index values = *at;
    values.push_back(Expr(a_.depth));
    a_.q = operand(g_[a_.products].args[0], first->lhs, values);
    a_.k = operand(g_[a_.products].args[1], first->rhs, values);
    a_.v = operand(value, access, {});
    if (depend(a_.q, a_.key)) std::swap(a_.q, a_.k);
    if (depend(a_.q, a_.key) || !depend(a_.k, a_.key)) return std::nullopt;
    for (const Attention::Operand* o : {&a_.q, &a_.k, &a_.v})
      if (nodes_.contains(o->node) || !is_f32(o->node) || inlined_constant(g_, o->node))
        return std::nullopt;
    if (!roles(weights)) return std::nullopt;
    a_.cluster = {{nodes_.begin(), nodes_.end()}, {root_}};
    return a_;
  }

  /// Rows: what the weights but neither keys nor values depend on; columns: what only the values
  /// do.
  bool roles(const Index& weights) {
    const auto rank = static_cast<std::int32_t>(g_[root_].type.shape.size());
    for (std::int32_t i = 0; i < rank; ++i) {
      const Var v{i};
      if (a_.extent(v) == 1) continue;
      const bool p = depend(weights, {}, v), value = depend(a_.v, v);
      if (!p) {
        if (!value || a_.column.index >= 0) return false;
        a_.column = v;
        continue;
      }
      const bool row = !value && !depend(a_.k, v);
      if (row && (a_.row.index < 0 || a_.extent(v) > a_.extent(a_.row))) {
        if (a_.row.index >= 0) a_.batch.push_back(a_.row);
        a_.row = v;
      } else {
        a_.batch.push_back(v);
      }
    }
    if (a_.row.index < 0 || a_.column.index < 0) return false;
    std::sort(a_.batch.begin(), a_.batch.end());
    a_.q.across = a_.row;
    a_.k.across = a_.v.across = a_.key;
    a_.q.along = a_.k.along = a_.depth;
    a_.v.along = a_.column;
    return true;
  }

  const prim::Graph& g_;
  NodeId root_;
  Attention a_;
  std::set<NodeId> nodes_;
  std::map<NodeId, bool> depends_;
  std::map<NodeId, double> leaves_;
};

}  // namespace

namespace {

/// An integer value as an index expression.
std::optional<ir::Expr> integer_of(const kernel::Value& v) {
  if (const auto* index = std::get_if<kernel::Index>(&v->op)) return index->expr;
  if (v->dtype != DType::i64 && v->dtype != DType::i32) return std::nullopt;  // others wrap around
  if (const auto* imm = std::get_if<kernel::Imm>(&v->op)) return ir::Expr(imm->integer);
  const auto* apply = std::get_if<kernel::Apply>(&v->op);
  if (!apply) return std::nullopt;
  const auto a = integer_of(apply->args[0]);
  if (apply->fn == ScalarFn::cast) return a;
  if (!a || (apply->fn != ScalarFn::add && apply->fn != ScalarFn::sub)) return std::nullopt;
  const auto b = integer_of(apply->args[1]);
  if (!b) return std::nullopt;
  return apply->fn == ScalarFn::add ? *a + *b : *a - *b;
}

/// What is not negative exactly where the comparison is `wanted`.
std::optional<ir::Expr> difference_where(const kernel::Value& v, bool wanted) {
  const auto* x = std::get_if<kernel::Apply>(&v->op);
  if (!x) return std::nullopt;
  if (x->fn == ScalarFn::logical_not) return difference_where(x->args[0], !wanted);
  if (x->args.size() != 2) return std::nullopt;
  const auto a = integer_of(x->args[0]), b = integer_of(x->args[1]);
  if (!a || !b) return std::nullopt;
  const ir::Expr one(1);
  if (x->fn == ScalarFn::less_equal) return wanted ? *b - *a : *a - *b - one;
  if (x->fn == ScalarFn::less) return wanted ? *b - *a - one : *a - *b;
  if (x->fn == ScalarFn::greater_equal) return wanted ? *a - *b : *b - *a - one;
  if (x->fn == ScalarFn::greater) return wanted ? *a - *b - one : *b - *a;
  return std::nullopt;
}

/// Less than any sum of products: exporters write -inf, or the least number of f32.
constexpr double kHidden = -1e30;

bool is_hidden(const kernel::Value& v) {
  const auto* imm = std::get_if<kernel::Imm>(&v->op);
  return imm && is_float(v->dtype) && imm->real < kHidden;
}

}  // namespace

Layout output_layout(const Request& request, const Attention& a) {
  if (request.required_layout)
    if (auto required = request.required_layout(a.result)) return *required;
  const Shape& shape = (*request.graph)[a.result].type.shape;
  const Layout q = request.layout_of ? request.layout_of(a.q.node)
                                     : row_major((*request.graph)[a.q.node].type.shape);
  const Expr offset = offset_in(q, a.q.index);
  std::vector<int> order(shape.size());
  std::vector<std::int64_t> step(shape.size());
  for (std::size_t d = 0; d < shape.size(); ++d) {
    const Var v{static_cast<std::int32_t>(d)};
    order[d] = static_cast<int>(d);
    step[d] = shape[d] == 1   ? std::numeric_limits<std::int64_t>::max()
              : v == a.column ? -1
                              : ir::coefficient_of(offset, v).value_or(0);
  }
  std::stable_sort(order.begin(), order.end(), [&](int x, int y) {
    return step[static_cast<std::size_t>(x)] > step[static_cast<std::size_t>(y)];
  });
  return ordered(shape, order);
}

namespace {

/// Where a choice has what hides, or adds it.
std::optional<std::int64_t> hidden_by_choice(const Attention& a, const kernel::Value& scores) {
  const auto* choice = std::get_if<kernel::Apply>(&scores->op);
  if (!choice || choice->fn != ScalarFn::select) return std::nullopt;
  const bool otherwise = is_hidden(choice->args[2]);
  if (otherwise == is_hidden(choice->args[1])) return std::nullopt;
  const auto seen = difference_where(choice->args[0], otherwise);
  if (!seen || ir::coefficient_of(*seen, a.row) != 1 || ir::coefficient_of(*seen, a.key) != -1)
    return std::nullopt;
  const auto offset = (*seen - Expr(a.row) + Expr(a.key)).constant();
  // Rows that see nothing are NaN: nothing may be left out for them.
  return offset && *offset >= 0 ? offset : std::nullopt;
}

/// Where a view has what hides, and not its fill, or the other way round.
std::optional<std::int64_t> hidden_by_view(const Attention& a, const kernel::Guard& guard) {
  const bool then = is_hidden(guard.then);
  if (guard.conditions.size() != 1 || then == is_hidden(guard.otherwise)) return std::nullopt;
  const auto& [expr, low, high] = guard.conditions[0];
  const auto shift = (expr + Expr(a.row) - Expr(a.key)).constant();
  if (!shift) return std::nullopt;
  // low <= key - row + shift < high, of which one bound must hold everywhere.
  const bool ends =
      then ? a.extent(a.key) - 1 + *shift < high : 1 - a.extent(a.row) + *shift >= low;
  const std::int64_t offset = (then ? low : high) - *shift - 1;
  return ends && offset >= 0 ? std::optional(offset) : std::nullopt;
}

/// The same of a constant. Each row must see something, or all its keys are equal.
std::optional<std::int64_t> hidden_by_constant(const Attention& a, const kernel::Load& load,
                                               const Tensor& mask) {
  const auto row_step = ir::coefficient_of(load.offset, a.row),
             key_step = ir::coefficient_of(load.offset, a.key);
  if (!row_step || !key_step || !load.dynamic.empty() || !is_float(mask.dtype()))
    return std::nullopt;
  const auto first =
      (load.offset - Expr(a.row) * Expr(*row_step) - Expr(a.key) * Expr(*key_step)).constant();
  if (!first) return std::nullopt;
  std::int64_t beyond = 0;
  for (std::int64_t row = 0; row < a.extent(a.row); ++row) {
    std::int64_t key = a.extent(a.key) - 1;
    while (key >= 0 && mask.at(*first + row * *row_step + key * *key_step) < kHidden) --key;
    if (key < 0) return std::nullopt;
    beyond = std::max(beyond, key - row);
  }
  return beyond;
}

std::optional<std::int64_t> hidden_in(const Attention& a, const kernel::Value& v,
                                      const ConstantOf& constant_of) {
  if (const auto* load = std::get_if<kernel::Load>(&v->op)) {
    const Tensor* mask = ir::depends_on(load->offset, a.row) && ir::depends_on(load->offset, a.key)
                             ? constant_of(load->buffer)
                             : nullptr;
    return mask ? hidden_by_constant(a, *load, *mask) : std::nullopt;
  }
  if (const auto* guard = std::get_if<kernel::Guard>(&v->op)) return hidden_by_view(a, *guard);
  if (const auto beyond = hidden_by_choice(a, v)) return beyond;
  const auto* sum = std::get_if<kernel::Apply>(&v->op);
  if (!sum || sum->fn != ScalarFn::add) return std::nullopt;
  for (const kernel::Value& term : sum->args)
    if (const auto beyond = hidden_in(a, term, constant_of)) return beyond;
  return std::nullopt;
}

/// Whether what hides is -inf, which hides whatever is added to it; or else is the only thing in
/// the scores that may hide, so that each row sees something: two finite masks together can hide
/// all of a row, which then weighs its keys by them. Two masks may share one literal.
bool hides_alone(const kernel::Value& scores, kernel::BufferId product,
                 const ConstantOf& constant_of) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  int masks = 0;
  bool infinite = true, other = false;
  const auto seen = [&](double x) {
    const bool hides = !(std::fabs(x) < -kHidden);
    infinite = infinite && (!hides || x == -kInfinity);
    return hides;
  };
  const auto use = [&](const kernel::Value& v) {
    if (const auto* imm = std::get_if<kernel::Imm>(&v->op)) {
      if (is_float(v->dtype) && seen(imm->real)) ++masks;
    } else if (const auto* load = std::get_if<kernel::Load>(&v->op)) {
      const Tensor* mask = constant_of(load->buffer);
      if (mask != nullptr && is_float(mask->dtype())) {
        ++masks;
        for (std::int64_t i = 0; infinite && i < mask->count(); ++i) seen(mask->at(i));
      } else {
        other = other || load->buffer != product;
      }
    }
  };
  use(scores);
  kernel::for_each_value(scores, [&](const kernel::Value& v) { kernel::for_each_child(*v, use); });
  return infinite || (masks == 1 && !other);
}

}  // namespace

std::optional<std::int64_t> hidden_beyond(const Attention& a, const kernel::Value& scores,
                                          kernel::BufferId product, const ConstantOf& constant_of) {
  const auto beyond = hidden_in(a, scores, constant_of);
  // A mask that hides nothing is none.
  if (!beyond || *beyond >= a.extent(a.key) - 1 || !hides_alone(scores, product, constant_of))
    return std::nullopt;
  return beyond;
}

ConstantOf constants_of(const prim::Graph& g, const Request& request, const kernel::Kernel& k,
                        const Lowered& out) {
  return [&](kernel::BufferId b) -> const Tensor* {
    const int argument = k.buffers[b].argument;
    if (argument < 0) return nullptr;
    const NodeId node = out.arguments[static_cast<std::size_t>(argument)].node;
    const bool plain =
        !request.layout_of || request.layout_of(node) == row_major(g[node].type.shape);
    return plain ? g.constant_of(node) : nullptr;
  };
}

std::optional<Attention> attention_at(const prim::Graph& g, NodeId contract) {
  return Matcher(g, contract).run();
}

}  // namespace heddle::lower::attention
