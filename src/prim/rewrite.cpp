#include "prim/rewrite.h"

#include <algorithm>

#include "prim/access.h"
#include "prim/fold.h"
#include "support/options.h"

namespace heddle::prim {
namespace {

// A guard against rows that undo each other; real graphs settle in a few rounds.
constexpr int kMaxRounds = 40;
constexpr int kMaxStepsPerNode = 32;

}  // namespace

bool RewriteContext::constant(NodeId id) {
  for (auto i = static_cast<std::int32_t>(constant_.size()); i <= id.value; ++i) {
    const Node& n = g[NodeId{i}];
    bool all = folds(n.op);
    for (const NodeId a : n.args) all = all && constant_[static_cast<std::size_t>(a.value)];
    constant_.push_back(all);
  }
  return constant_[static_cast<std::size_t>(id.value)];
}

bool is_map(const Node& n, ir::ScalarFn fn) {
  const auto* m = std::get_if<Map>(&n.op);
  return m != nullptr && m->fn == fn;
}

const Access* plain_view(const Graph& g, NodeId id) {
  const auto* v = std::get_if<View>(&g[id].op);
  return v != nullptr && v->pieces.size() == 1 && v->pieces[0].inside.empty() ? &v->pieces[0]
                                                                              : nullptr;
}

const Tensor* splat(const Graph& g, NodeId id) {
  while (plain_view(g, id) != nullptr) id = g[id].args[0];
  const Tensor* t = g.constant_of(id);
  return t != nullptr && t->count() == 1 ? t : nullptr;
}

std::optional<double> splat_value(const Graph& g, NodeId id) {
  const Tensor* t = splat(g, id);
  if (t == nullptr) return std::nullopt;
  return t->at(0);
}

NodeId add_view(Builder& b, std::vector<NodeId> args, std::vector<Access> pieces, double fill,
                const TensorType& type) {
  View v;
  std::vector<NodeId> kept;
  bool total = false;
  for (std::size_t i = 0; i < pieces.size() && !total; ++i) {
    auto a = simplified(pieces[i], type.shape);
    if (!a) continue;
    total = a->inside.empty();
    v.pieces.push_back(*std::move(a));
    kept.push_back(args[i]);
  }
  v.fill = total ? 0 : fill;
  if (kept.empty()) return b.full(type, fill);
  if (kept.size() == 1) return b.view(kept[0], type.shape, v.pieces[0], v.fill);
  return b.graph().add(std::move(v), std::move(kept), type);
}

const std::vector<const RewriteRule*>& rewrite_rules() {
  static const std::vector<const RewriteRule*> kAll = [] {
    std::vector<const RewriteRule*> all;
    for (const auto rows :
         {algebra_rules(), view_rules(), reduce_rules(), contract_rules(), linear_rules(),
          window_rules(), depth_rules(), integer_rules(), quantise_rules(), table_rules()})
      for (const RewriteRule& r : rows) all.push_back(&r);
    return all;
  }();
  return kAll;
}

Graph rewrite_once(const Graph& g, std::span<const RewriteRule* const> rules,
                   RewriteCounts* counts) {
  std::vector<int> old_uses(static_cast<std::size_t>(g.size()), 0);
  for (const NodeId id : live_nodes(g))
    for (const NodeId a : g[id].args) ++old_uses[static_cast<std::size_t>(a.value)];
  for (const GraphOutput& o : g.outputs) ++old_uses[static_cast<std::size_t>(o.node.value)];
  std::vector<int> uses;  // by new id
  std::optional<RewriteContext> context;
  return rebuild(g, [&](Graph& out, const Node& node, NodeId old) {
    if (!context) context.emplace(out, uses);
    Node n = node;
    NodeId result;
    for (int step = 0; step <= kMaxStepsPerNode; ++step) {
      std::optional<NodeId> next;
      for (std::size_t r = 0; r < rules.size() && !next && step < kMaxStepsPerNode; ++r) {
        next = rules[r]->apply(*context, n);
        if (next && *next == result) next.reset();
        if (next && counts != nullptr) ++(*counts)[rules[r]->name];
      }
      if (!next) break;
      HEDDLE_CHECK(out[*next].type == n.type, "rewriting %{} {} changed {} to {}", old.value,
                   kind_name(node.op), to_string(n.type), to_string(out[*next].type));
      result = *next;
      n = out[result];
    }
    if (!result) result = out.add(n.op, n.args, n.type);
    // Nodes that a row made in passing stay at 0: their readers are not known.
    uses.resize(static_cast<std::size_t>(out.size()), 0);
    uses[static_cast<std::size_t>(result.value)] += old_uses[static_cast<std::size_t>(old.value)];
    return result;
  });
}

Graph canonicalize(const Graph& g) { return canonicalize(g, {}); }

Graph canonicalize(const Graph& g, std::string_view disable, RewriteCounts* counts) {
  std::vector<const RewriteRule*> rules;
  for (const RewriteRule* r : rewrite_rules())
    if (!lists(disable, r->name)) rules.push_back(r);
  Graph current =
      rebuild(g, [](Graph& out, const Node& n, NodeId) { return out.add(n.op, n.args, n.type); });
  for (int round = 0; round < kMaxRounds; ++round) {
    Graph next = rewrite_once(current, rules, counts);
    // Unchanged: fold what the rows have left; if that changes nothing either, this is the end.
    if (next == current) {
      next = rebuild(fold_constants(current), [](Graph& out, const Node& n, NodeId) {
        return out.add(n.op, n.args, n.type);
      });
      if (next == current) break;
    }
    current = std::move(next);
  }
  return current;
}

}  // namespace heddle::prim
