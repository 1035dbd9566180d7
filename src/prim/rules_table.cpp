// A function of one byte as a table: what quantised networks compute between two operators, where
// it is more than a few operations (an activation and all that quantises and dequantises it).
#include <map>
#include <set>

#include "prim/interpret.h"
#include "prim/rewrite.h"
#include "prim/rule_examples.h"

namespace heddle::prim {
namespace {

using ir::Expr;
using ir::Interval;
using ir::ScalarFn;
using Rewritten = std::optional<NodeId>;

constexpr std::int64_t kEntries = 256;

/// Operations without a dear one that take longer than a lookup and what it may break up.
constexpr std::size_t kMany = 12;

/// Integers that every type which computes with them holds, without wrapping.
bool is_small(const Interval& range) {
  return -(1 << 24) < range.low && range.low <= range.high && range.high < (1 << 24);
}

/// The interval of an integer value that takes no more than 256 values.
std::optional<Interval> few_integers(const Graph& g, NodeId id) {
  const DType type = g[id].type.dtype;
  if (!is_int(type)) return std::nullopt;
  const Interval range = range_of_integers(g, id);
  const bool few = is_small(range) && range.high - range.low < kEntries;
  return few ? std::optional(range) : std::nullopt;
}

/// An element of a table, as table_of_bytes() leaves it.
bool is_lookup(const Graph& g, NodeId id) {
  const auto* gather = std::get_if<Gather>(&g[id].op);
  return gather != nullptr && *gather == Gather{{0}, {Expr(0)}} && g[id].args.size() == 2 &&
         g.constant_of(g[id].args[0]) != nullptr && g[id].type.dtype == DType::u8 &&
         g[g[id].args[0]].type.shape == Shape{kEntries};
}

/// The elementwise computation of a value from one of few integers.
struct Function {
  NodeId source;
  Interval range;
  std::vector<NodeId> nodes;  ///< from the last to the first
  bool dear = false;
};

std::optional<Function> function_of_byte(const RewriteContext& c, const Node& n) {
  constexpr std::size_t kMost = 64;
  Function f;
  std::set<NodeId> left;  // what the nodes so far read
  const auto read = [&](const Node& by) {
    const bool lookup = std::holds_alternative<Gather>(by.op);
    for (std::size_t i = lookup ? 1 : 0; i < by.args.size(); ++i)
      if (splat(c.g, by.args[i]) == nullptr) left.insert(by.args[i]);
  };
  read(n);
  while (!left.empty() && f.nodes.size() < kMost) {
    const NodeId last = *left.rbegin();
    const Node& node = c.g[last];
    if (const auto range = left.size() == 1 ? few_integers(c.g, last) : std::nullopt) {
      f.source = last;
      f.range = *range;
      return f;
    }
    const auto* map = std::get_if<Map>(&node.op);
    if (map == nullptr && !is_lookup(c.g, last)) return std::nullopt;
    if (is_int(node.type.dtype) && !is_small(range_of_integers(c.g, last))) return std::nullopt;
    f.dear |= map == nullptr || ir::info(map->fn).expensive;
    f.nodes.push_back(last);
    left.erase(last);
    read(node);
  }
  return std::nullopt;
}

/// What the node makes of these, rounded to its type as it is where it runs.
Tensor evaluated(const Node& n, const std::vector<Tensor>& args) {
  Graph g;
  std::vector<NodeId> nodes;
  std::vector<Tensor> values;
  for (const Tensor& arg : args) {
    nodes.push_back(g.add_constant(arg));
    values.push_back(to_reference(arg));
  }
  const NodeId id = g.add(n.op, std::move(nodes), {n.type.dtype, {kEntries}});
  return from_reference(evaluate_node(g, id, values), n.type.dtype);
}

Tensor repeated(const Tensor& number) {
  Tensor out({number.dtype(), {kEntries}});
  for (std::int64_t i = 0; i < kEntries; ++i)
    is_float(number.dtype()) ? out.set(i, number.at(0)) : out.set_int(i, number.int_at(0));
  return out;
}

/// The results less `low` for every integer of the source's interval; those beyond it are as the
/// last.
Tensor table_of(const RewriteContext& c, const Function& f, const Node& n, std::int64_t low) {
  std::map<NodeId, Tensor> at;
  Tensor source({c.b.dtype(f.source), {kEntries}});
  for (std::int64_t i = 0; i < kEntries; ++i)
    source.set_int(i, std::min(f.range.low + i, f.range.high));
  at.emplace(f.source, source);
  const auto value = [&](const Node& of) {
    std::vector<Tensor> args;
    for (const NodeId arg : of.args) {
      const Tensor* number = splat(c.g, arg);
      const auto known = at.find(arg);
      args.push_back(known != at.end() ? known->second
                     : number          ? repeated(*number)
                                       : *c.g.constant_of(arg));
    }
    return evaluated(of, args);
  };
  for (std::size_t i = f.nodes.size(); i-- > 0;) at.emplace(f.nodes[i], value(c.g[f.nodes[i]]));
  const Tensor result = value(n);
  Tensor table({DType::u8, {kEntries}});
  for (std::int64_t i = 0; i < kEntries; ++i) table.set_int(i, result.int_at(i) - low);
  return table;
}

/// f(i) → table[i] for few integers i and results, where f is dear or long.
Rewritten table_of_bytes(RewriteContext& c, const Node& n) {
  if (!is_map(n, ScalarFn::cast) || !is_int(n.type.dtype)) return std::nullopt;
  if (is_int(c.b.dtype(n.args[0]))) return std::nullopt;
  const auto f = function_of_byte(c, n);
  if (!f || (!f->dear && f->nodes.size() < kMany)) return std::nullopt;
  const NodeId cast = c.g.add(n.op, n.args, n.type);
  const auto range = few_integers(c.g, cast);
  if (!range) return std::nullopt;
  const NodeId table = c.b.constant(table_of(c, *f, n, range->low));
  const DType type = c.b.dtype(f->source);
  NodeId index = f->source;
  if (f->range.low != 0) index = c.b.sub(index, c.b.scalar_int(type, f->range.low));
  index = c.b.cast(index, DType::u8);
  const NodeId found = c.g.add(Gather{{0}, {Expr(0)}}, {table, index}, {DType::u8, n.type.shape});
  const NodeId wide = c.b.cast(found, n.type.dtype);
  return range->low == 0 ? wide : c.b.add(wide, c.b.scalar_int(n.type.dtype, range->low));
}

constexpr RewriteRule kTableRules[] = {
    {kByteTable, "f(i) -> table[i]  for dear or long functions of few integers with few results",
     table_of_bytes,
     [](Builder& b) {
       const NodeId q = b.graph().add_input("q", {DType::u8, {4, 6}});
       const NodeId x = b.mul(b.sub(b.cast(q, DType::f32), 128.0), 0.05);
       const NodeId y = b.map(ScalarFn::round, {b.mul(b.mul(x, b.sigmoid(x)), 20.0)});
       return b.cast(b.min(b.max(y, b.scalar(DType::f32, 0)), b.scalar(DType::f32, 255)),
                     DType::u8);
     }},
};

}  // namespace

std::span<const RewriteRule> table_rules() { return kTableRules; }

}  // namespace heddle::prim
