// Rows over Contract as derivatives of windows leave it: conditions on sums of positions and taps.
#include <algorithm>

#include "prim/access.h"
#include "prim/rewrite.h"
#include "prim/rule_examples.h"

namespace heddle::prim {
namespace {

using ir::Expr;
using ir::Var;
using Rewritten = std::optional<NodeId>;

/// A condition that both operands have stays with one of them: where that one is zero, so is the
/// product, whatever the other reads. It leaves the operand that it concerns least.
Rewritten contract_shared_conditions(RewriteContext& c, const Node& n) {
  const auto* k = std::get_if<Contract>(&n.op);
  if (k == nullptr) return std::nullopt;
  const Shape variables = variables_of(n, *k);
  const auto concerned = [](const ir::Condition& condition, const Access& a) {
    std::vector<Var> vars;
    ir::collect_variables(condition.expr, vars);
    return std::count_if(vars.begin(), vars.end(), [&](Var v) {
      return std::any_of(a.index.begin(), a.index.end(),
                         [&](const Expr& e) { return ir::depends_on(e, v); });
    });
  };
  Contract next = *k;
  for (const ir::Condition& condition : k->lhs.inside) {
    if (std::find(k->rhs.inside.begin(), k->rhs.inside.end(), condition) == k->rhs.inside.end())
      continue;
    const bool left = concerned(condition, k->lhs) < concerned(condition, k->rhs);
    for (const bool from_left : {left, !left}) {
      Access smaller = from_left ? next.lhs : next.rhs;
      std::erase(smaller.inside, condition);
      const NodeId operand = n.args[from_left ? 0 : 1];
      if (!shown_in_bounds(smaller, variables, c.b.shape(operand))) continue;
      (from_left ? next.lhs : next.rhs) = std::move(smaller);
      break;
    }
  }
  if (next.lhs == k->lhs && next.rhs == k->rhs) return std::nullopt;
  return c.g.add(std::move(next), n.args, n.type);
}

/// Whether r steps backwards through every coordinate that it shares with other variables, and
/// there is one.
bool runs_backwards(const Contract& k, Var r) {
  bool any = false;
  for (const Access* a : {&k.lhs, &k.rhs})
    for (const Expr& e : a->index) {
      if (!ir::depends_on(e, r)) continue;
      const auto along = ir::coefficient_of(e, r);
      if (!along) return false;
      if ((e - Expr(r) * Expr(*along)).constant()) continue;
      if (*along > 0) return false;
      any = true;
    }
  return any;
}

/// The sum over taps of a reflected window taken in the other order: an ordinary convolution.
Rewritten contract_forwards(RewriteContext& c, const Node& n) {
  const auto* k = std::get_if<Contract>(&n.op);
  if (k == nullptr) return std::nullopt;
  const std::size_t rank = n.type.shape.size(), count = rank + k->reduced.size();
  std::vector<Expr> to;
  bool any = false;
  for (std::size_t v = 0; v < count; ++v) {
    const Var var{static_cast<std::int32_t>(v)};
    const bool reflect = v >= rank && runs_backwards(*k, var);
    any |= reflect;
    to.push_back(reflect ? Expr(k->reduced[v - rank] - 1) - Expr(var) : Expr(var));
  }
  if (!any) return std::nullopt;
  return c.b.contract(n.args[0], n.args[1], n.type.shape, k->reduced, substitute(k->lhs, to),
                      substitute(k->rhs, to), n.type.dtype);
}

/// The values of the condition's only variable at which it holds: [first, second).
std::optional<std::pair<std::int64_t, std::int64_t>> range_of(const ir::Condition& condition,
                                                              Var v) {
  const auto step = ir::coefficient_of(condition.expr, v);
  if (!step || *step == 0) return std::nullopt;
  const auto first = (condition.expr - Expr(v) * Expr(*step)).constant();
  if (!first) return std::nullopt;
  const auto divided = [](std::int64_t x, std::int64_t y) {  // upwards, y > 0
    return x >= 0 ? (x + y - 1) / y : -(-x / y);
  };
  // Of step·v + first in [low, high), or of the same reflected.
  const bool up = *step > 0;
  const std::int64_t low = up ? condition.low - *first : *first - condition.high + 1;
  const std::int64_t high = up ? condition.high - *first : *first - condition.low + 1;
  return std::pair{divided(low, std::abs(*step)), divided(high, std::abs(*step))};
}

/// A term of zeros that makes products of parts out of a reduction of three bytes or bf16.
bool fills_parts(RewriteContext& c, const Node& n, std::int64_t all, std::int64_t kept) {
  return all % 4 == 0 && kept == all - 1 &&
         std::all_of(n.args.begin(), n.args.end(),
                     [&](NodeId x) { return size_of(c.b.dtype(x)) <= 2; });
}

/// Where an operand is outside whatever the other variables are, nothing is computed: the result is
/// zero for such dimensions, and such terms do not count.
Rewritten contract_known_zeros(RewriteContext& c, const Node& n) {
  const auto* k = std::get_if<Contract>(&n.op);
  if (k == nullptr) return std::nullopt;
  const Shape variables = variables_of(n, *k);
  const std::size_t rank = n.type.shape.size();
  for (const Access* a : {&k->lhs, &k->rhs})
    for (const ir::Condition& condition : a->inside) {
      std::vector<Var> vars;
      ir::collect_variables(condition.expr, vars);
      const auto range = vars.size() == 1 ? range_of(condition, vars[0]) : std::nullopt;
      if (!range) continue;
      const auto d = static_cast<std::size_t>(vars[0].index);
      const std::int64_t low = std::max<std::int64_t>(range->first, 0),
                         high = std::min(range->second, variables[d]);
      if (low >= high || high - low == variables[d]) continue;
      if (d >= rank && fills_parts(c, n, variables[d], high - low)) continue;
      std::vector<Expr> to = identity_variables(variables.size());
      to[d] = to[d] + Expr(low);
      Shape shape = n.type.shape, reduced = k->reduced;
      (d < rank ? shape[d] : reduced[d - rank]) = high - low;
      const NodeId inner =
          c.b.contract(n.args[0], n.args[1], shape, reduced, substitute(k->lhs, to),
                       substitute(k->rhs, to), n.type.dtype);
      if (d >= rank) return inner;
      Access back = identity_access(n.type.shape);
      back.index[d] = Expr(vars[0]) - Expr(low);
      back.inside.push_back({Expr(vars[0]), low, high});
      return c.b.view(inner, n.type.shape, std::move(back), 0);
    }
  return std::nullopt;
}

/// Whether v itself is divided somewhere in e.
bool divides(const Expr& e, Var v) {
  const ir::IndexNode& n = e.node();
  const bool division = n.kind == ir::IndexNode::Kind::div || n.kind == ir::IndexNode::Kind::mod;
  if (division && ir::depends_on(n.args[0], v)) return true;
  return std::any_of(n.terms.begin(), n.terms.end(),
                     [&](const auto& t) { return divides(t.atom, v); }) ||
         std::any_of(n.args.begin(), n.args.end(), [&](const Expr& a) { return divides(a, v); });
}

/// The gradient of a strided window: each residue of the position meets taps of its own, and is a
/// product of its own.
Rewritten contract_by_residue(RewriteContext& c, const Node& n) {
  constexpr std::int64_t kMost = 4;
  const auto* k = std::get_if<Contract>(&n.op);
  if (k == nullptr) return std::nullopt;
  for (std::size_t d = 0; d < n.type.shape.size(); ++d) {
    const Var v{static_cast<std::int32_t>(d)};
    const std::int64_t extent = n.type.shape[d];
    const auto varies = [&](const Access& a) {
      return std::any_of(a.inside.begin(), a.inside.end(),
                         [&](const ir::Condition& x) { return divides(x.expr, v); });
    };
    if (extent < 2 || extent > kMost || !(varies(k->lhs) || varies(k->rhs))) continue;
    const Contract contract = *k;
    View parts;
    std::vector<NodeId> args;
    Shape shape = n.type.shape;
    shape[d] = 1;
    for (std::int64_t residue = 0; residue < extent; ++residue) {
      std::vector<Expr> to = identity_variables(shape.size() + contract.reduced.size());
      to[d] = Expr(residue);
      args.push_back(c.b.contract(n.args[0], n.args[1], shape, contract.reduced,
                                  substitute(contract.lhs, to), substitute(contract.rhs, to),
                                  n.type.dtype));
      parts.pieces.push_back(identity_access(n.type.shape));
      parts.pieces.back().index[d] = Expr(0);
      if (residue + 1 < extent)
        parts.pieces.back().inside.push_back({Expr(v), residue, residue + 1});
    }
    return c.g.add(std::move(parts), std::move(args), n.type);
  }
  return std::nullopt;
}

constexpr RewriteRule kWindowRules[] = {
    {"contract-shared-conditions", "a condition of both operands -> of one",
     contract_shared_conditions,
     [](Builder& b) {
       const Expr at = Expr(Var{1}) - Expr(Var{2}) + Expr(1);
       return b.contract(x_of(b, {3, 8}), weight(b, {3}), {3, 8}, {3}, {{Var{0}, at}, {{at, 0, 8}}},
                         {{Var{2}}, {{at, 0, 8}}}, DType::f32);
     }},
    {"contract-forwards", "sum over r of x[d - r]*w[r] -> of x[d + r - (n-1)]*w[n-1-r]",
     contract_forwards,
     [](Builder& b) {
       const Expr at = Expr(Var{1}) - Expr(Var{2}) + Expr(1);
       return b.contract(x_of(b, {3, 8}), weight(b, {3}), {3, 8}, {3}, {{Var{0}, at}, {{at, 0, 8}}},
                         {{Var{2}}, {}}, DType::f32);
     }},
    {"contract-by-residue", "x @ y  where taps depend on d mod s -> one product for each residue",
     contract_by_residue,
     [](Builder& b) {
       const Expr tap = Expr(Var{3}) * Expr(2) + ir::floor_mod(Expr(Var{2}) + Expr(1), 2);
       return b.contract(x_of(b, {3, 4}), weight(b, {3}), {3, 4, 2}, {2},
                         {{Var{0}, Var{1}}, {{tap, 0, 3}}}, {{tap}, {{tap, 0, 3}}}, DType::f32);
     }},
    {"contract-known-zeros", "x @ y  where low <= v < high -> x @ y for those v, padded",
     contract_known_zeros,
     [](Builder& b) {
       return b.contract(x_of(b, {3, 4}), weight(b, {4, 6}), {3, 6}, {4},
                         {{Var{0}, Var{2}}, {{Expr(Var{1}), 1, 3}}}, {{Var{2}, Var{1}}, {}},
                         DType::f32);
     }},
};

}  // namespace

std::span<const RewriteRule> window_rules() { return kWindowRules; }

}  // namespace heddle::prim
