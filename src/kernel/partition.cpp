#include <algorithm>

#include "kernel/bounds.h"
#include "kernel/traverse.h"
#include "support/match.h"

namespace heddle::kernel {
namespace {

using ir::Condition;
using ir::Interval;

constexpr std::int64_t kMaxGrowth = 8;  // times the statements of the kernel
constexpr std::int64_t kMaxStatements = 4000;

std::int64_t div_floor(std::int64_t a, std::int64_t b) {
  return a / b - ((a % b != 0) && ((a < 0) != (b < 0)));
}
std::int64_t div_ceil(std::int64_t a, std::int64_t b) { return -div_floor(-a, b); }

std::int64_t count_statements(const Body& body) {
  std::int64_t count = 0;
  for_each_stmt(body, [&](const Stmt&) { ++count; });
  return count;
}

/// The values of `var` for which a condition holds whatever the other variables are.
std::optional<Interval> always_true(const Condition& c, Var var, const ir::Ranges& ranges) {
  const auto factor = ir::coefficient_of(c.expr, var);
  if (!factor || *factor == 0) return std::nullopt;
  const Expr rest = c.expr - Expr(var) * Expr(*factor);
  const auto other = ir::bounds(rest, ranges);
  if (!other) return std::nullopt;
  // low <= factor*var + rest < high for all rest in [other.low, other.high]
  const std::int64_t least = c.low - other->low, most = c.high - 1 - other->high;
  if (*factor > 0) return Interval{div_ceil(least, *factor), div_floor(most, *factor)};
  return Interval{div_ceil(most, *factor), div_floor(least, *factor)};
}

class Partitioner {
 public:
  explicit Partitioner(const Kernel& k)
      : out_(k), budget_(std::min(kMaxStatements, kMaxGrowth * count_statements(k.body))) {}

  Kernel run() {
    out_.body = body(out_.body);
    return kernel::simplify(out_);
  }

 private:
  Body body(const Body& in) {
    Body out;
    for (const Stmt& s : in) {
      match(
          s.op, [&](const For& x) { loop(x, out); },
          [&](const If& x) { out.push_back(when(x.conditions, body(*x.body))); },
          [&](const auto&) { out.push_back(s); });
    }
    return out;
  }

  void loop(const For& x, Body& out) {
    const bool splits = x.binding == Binding::serial && x.end - x.begin > 1;
    std::optional<Interval> inner = splits ? interior(x) : std::nullopt;
    if (!inner) return part(x, x.begin, x.end, out);
    const bool before = inner->low > x.begin, after = inner->high + 1 < x.end;
    budget_ -= (before + after) * count_statements(*x.body);
    // What lies before and after may have an interior of its own (pieces of a concatenation).
    if (before) loop(renamed({x.var, x.begin, inner->low, x.binding, x.body}), out);
    part(x, inner->low, inner->high + 1, out);
    if (after) loop(renamed({x.var, inner->high + 1, x.end, x.binding, x.body}), out);
  }

  /// The longest run of the loop in which as many conditions as possible always hold.
  std::optional<Interval> interior(const For& x) {
    ir::Ranges ranges = ranges_;
    set_range(ranges, x.var, Interval{x.begin, x.end - 1});
    std::vector<Interval> found;
    collect(*x.body, x.var, ranges, found);
    Interval all{x.begin, x.end - 1};
    bool narrowed = false;
    for (const Interval& one : found) {
      const Interval next{std::max(all.low, one.low), std::min(all.high, one.high)};
      if (next.low > next.high) continue;  // does not fit the others: its test stays
      narrowed |= !(next == all);
      all = next;
    }
    if (!narrowed || count_statements(*x.body) * 2 > budget_) return std::nullopt;
    return all;
  }

  void collect(const Body& b, Var var, ir::Ranges& ranges, std::vector<Interval>& found) {
    const auto consider = [&](const Conditions& list) {
      for (const Condition& c : list) {
        if (ir::decide(c, ranges)) continue;
        if (auto interval = always_true(c, var, ranges)) found.push_back(*interval);
      }
    };
    for (const Stmt& s : b) {
      for_each_value_of(s, [&](const Value& root) {
        for_each_value(root, [&](const Value& v) {
          if (const Guard* g = std::get_if<Guard>(&v->op)) consider(g->conditions);
        });
      });
      if (const If* branch = std::get_if<If>(&s.op)) {
        consider(branch->conditions);
        collect(*branch->body, var, ranges, found);
      }
      if (const For* inner = std::get_if<For>(&s.op)) {
        if (inner->end <= inner->begin) continue;
        set_range(ranges, inner->var, Interval{inner->begin, inner->end - 1});
        collect(*inner->body, var, ranges, found);
        set_range(ranges, inner->var, std::nullopt);
      }
    }
  }

  void part(const For& x, std::int64_t begin, std::int64_t end, Body& out) {
    set_range(ranges_, x.var, Interval{begin, std::max(begin, end - 1)});
    out.push_back(kernel::loop(x.var, begin, end, x.binding, body(*x.body)));
    set_range(ranges_, x.var, std::nullopt);
  }

  /// A copy with variables of its own: each variable is bound by one loop only.
  For renamed(const For& x) {
    std::vector<std::pair<Var, Var>> names;
    Stmt copy{For{x.var, x.begin, x.end, x.binding, x.body}};
    for_each_stmt({copy}, [&](const Stmt& s) {
      if (const For* inner = std::get_if<For>(&s.op))
        names.emplace_back(inner->var, out_.new_var());
    });
    const auto rename = [&](Var v) {
      for (const auto& [from, to] : names)
        if (from == v) return to;
      return v;
    };
    const std::function<Body(const Body&)> rebind = [&](const Body& b) {
      Body result;
      for (const Stmt& s : b) {
        Mapper m;
        m.body = rebind;
        Stmt next = map_children(s, m);
        if (For* inner = std::get_if<For>(&next.op)) inner->var = rename(inner->var);
        result.push_back(std::move(next));
      }
      return result;
    };
    Body fresh = rebind(substitute(*x.body, [&](Var v) {
      const Var to = rename(v);
      return to == v ? std::nullopt : std::optional<Expr>(Expr(to));
    }));
    return {rename(x.var), x.begin, x.end, x.binding,
            std::make_shared<const Body>(std::move(fresh))};
  }

  Kernel out_;
  std::int64_t budget_;
  ir::Ranges ranges_;
};

}  // namespace

Kernel partition_loops(const Kernel& k) { return Partitioner(k).run(); }

}  // namespace heddle::kernel
