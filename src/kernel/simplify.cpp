#include "kernel/bounds.h"
#include "kernel/traverse.h"
#include "support/match.h"

namespace heddle::kernel {
namespace {

class Simplifier {
 public:
  explicit Simplifier(const Kernel& k) : k_(k) {}

  Body body(const Body& in) {
    Body out;
    for (const Stmt& s : in) statement(s, out);
    return out;
  }

 private:
  Mapper mapper() {
    Mapper m;
    m.value = [this](const Value& v) { return value(v); };
    m.expr = [this](const Expr& e) { return ir::simplify(e, ranges_); };
    m.body = [this](const Body& b) { return body(b); };
    return m;
  }

  void statement(const Stmt& s, Body& out) {
    if (const For* x = std::get_if<For>(&s.op)) return loop(*x, out);
    if (const If* x = std::get_if<If>(&s.op)) return branch(*x, out);
    if (const Let* x = std::get_if<Let>(&s.op)) return bind(*x, out);
    if (const Store* x = std::get_if<Store>(&s.op)) {
      Store bare = *x;
      bare.value = unrounded(bare);
      return out.push_back(map_children(Stmt{std::move(bare)}, mapper()));
    }
    out.push_back(map_children(s, mapper()));
  }

  /// What is stored, without a rounding that storing it is.
  Value unrounded(const Store& x) const {
    const auto* top = std::get_if<Apply>(&x.value->op);
    const bool same = top != nullptr && ir::rounding_to(k_.buffers[x.buffer].dtype) == top->fn;
    return same && top->args[0]->dtype == x.value->dtype ? top->args[0] : x.value;
  }

  void loop(const For& x, Body& out) {
    const bool fixed =
        x.binding == Binding::grid || x.binding == Binding::vector || x.binding == Binding::thread;
    if (x.end <= x.begin && x.binding != Binding::grid && x.binding != Binding::thread) return;
    if (x.end - x.begin == 1 && !fixed) {
      const Expr only(x.begin);
      Body once = substitute(
          *x.body, [&](Var v) { return v == x.var ? std::optional<Expr>(only) : std::nullopt; });
      for (const Stmt& s : once) statement(s, out);
      return;
    }
    // Values stay shared between the statements of one body: only ranges make them differ.
    memo_.clear();
    set_range(ranges_, x.var, ir::Interval{x.begin, x.end - 1});
    Body inner = body(*x.body);
    set_range(ranges_, x.var, std::nullopt);
    memo_.clear();
    if (inner.empty() && x.binding != Binding::grid) return;
    out.push_back(kernel::loop(x.var, x.begin, x.end, x.binding, std::move(inner)));
  }

  void bind(const Let& x, Body& out) {
    if (x.end <= x.begin) return;  // never runs
    memo_.clear();
    set_range(ranges_, x.var, ir::Interval{x.begin, x.end - 1});
    Body inner = body(*x.body);
    set_range(ranges_, x.var, std::nullopt);
    memo_.clear();
    if (inner.empty()) return;
    out.push_back(let(x.var, ir::simplify(x.value, ranges_), x.begin, x.end, std::move(inner)));
  }

  void branch(const If& x, Body& out) {
    auto conditions = ir::simplify(x.conditions, ranges_);
    if (!conditions) return;
    Body inner = body(*x.body);
    if (inner.empty()) return;
    if (conditions->empty())
      out.insert(out.end(), inner.begin(), inner.end());
    else
      out.push_back(when(std::move(*conditions), std::move(inner)));
  }

  Value value(const Value& v) {
    auto found = memo_.find(v);
    if (found != memo_.end()) return found->second;
    Value out = simplified(v);
    memo_.emplace(v, out);
    return out;
  }

  Value simplified(const Value& v) {
    if (const Guard* g = std::get_if<Guard>(&v->op)) {
      auto conditions = ir::simplify(g->conditions, ranges_);
      if (!conditions) return value(g->otherwise);
      if (conditions->empty()) return value(g->then);
      if (*conditions != g->conditions)
        return guard(std::move(*conditions), value(g->then), value(g->otherwise));
    }
    return map_children(v, mapper());
  }

  const Kernel& k_;
  ir::Ranges ranges_;
  // Keys own their nodes: those of a substituted body would otherwise die and their addresses
  // return.
  std::unordered_map<Value, Value> memo_;
};

}  // namespace

Kernel simplify(const Kernel& k) {
  Kernel out = k;
  out.body = Simplifier(k).body(k.body);
  return out;
}

}  // namespace heddle::kernel
