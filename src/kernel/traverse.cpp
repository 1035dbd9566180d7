#include "kernel/traverse.h"

#include <unordered_set>

#include "support/match.h"

namespace heddle::kernel {
namespace {

Value map_value(const Value& v, const Mapper& m) { return m.value ? m.value(v) : v; }
Expr map_expr(const Expr& e, const Mapper& m) { return m.expr ? m.expr(e) : e; }
BufferId map_buffer(BufferId b, const Mapper& m) { return m.buffer ? m.buffer(b) : b; }
Conditions map_conditions(const Conditions& c, const Mapper& m) {
  if (m.conditions) return m.conditions(c);
  if (!m.expr) return c;
  Conditions out = c;
  for (ir::Condition& condition : out) condition.expr = m.expr(condition.expr);
  return out;
}
std::vector<Load::Dynamic> map_dynamic(const std::vector<Load::Dynamic>& d, const Mapper& m) {
  std::vector<Load::Dynamic> out = d;
  for (Load::Dynamic& part : out) part.value = map_value(part.value, m);
  return out;
}
bool same(const std::vector<Load::Dynamic>& a, const std::vector<Load::Dynamic>& b) {
  for (std::size_t i = 0; i < a.size(); ++i)
    if (a[i].value != b[i].value) return false;
  return true;
}
/// `op` in the place of `v`.
Value make(decltype(ValueNode::op) op, const Value& v) {
  return std::make_shared<const ValueNode>(ValueNode{std::move(op), v->dtype, v->origin});
}
std::shared_ptr<const Body> map_body(const std::shared_ptr<const Body>& body, const Mapper& m) {
  return m.body ? std::make_shared<const Body>(m.body(*body)) : body;
}

}  // namespace

Value map_children(const Value& v, const Mapper& m) {
  return match(
      v->op, [&](const Imm&) { return v; },
      [&](const Load& x) {
        Load out{map_buffer(x.buffer, m), map_expr(x.offset, m), map_dynamic(x.dynamic, m)};
        const bool kept =
            out.buffer == x.buffer && out.offset == x.offset && same(out.dynamic, x.dynamic);
        return kept ? v : make(out, v);
      },
      [&](const Apply& x) {
        Apply out{x.fn, {}};
        for (const Value& arg : x.args) out.args.push_back(map_value(arg, m));
        return out.args == x.args ? v : make(out, v);
      },
      [&](const Index& x) {
        Index out{map_expr(x.expr, m)};
        return out.expr == x.expr ? v : make(out, v);
      },
      [&](const Guard& x) {
        Guard out{map_conditions(x.conditions, m), map_value(x.then, m), map_value(x.otherwise, m)};
        const bool kept =
            out.conditions == x.conditions && out.then == x.then && out.otherwise == x.otherwise;
        return kept ? v : make(out, v);
      },
      [&](const LaneReduce& x) {
        LaneReduce out{x.fn, map_buffer(x.buffer, m), map_expr(x.offset, m)};
        return out.buffer == x.buffer && out.offset == x.offset ? v : make(out, v);
      },
      [&](const RandomBits& x) {
        RandomBits out{x.seed, x.normal, map_expr(x.counter, m)};
        return out.counter == x.counter ? v : make(out, v);
      });
}

Stmt map_children(const Stmt& s, const Mapper& m) {
  return match(
      s.op,
      [&](const For& x) {
        return Stmt{For{x.var, x.begin, x.end, x.binding, map_body(x.body, m)}};
      },
      [&](const Let& x) {
        return Stmt{Let{x.var, map_expr(x.value, m), x.begin, x.end, map_body(x.body, m)}};
      },
      [&](const Store& x) {
        return Stmt{Store{map_buffer(x.buffer, m), map_expr(x.offset, m), map_value(x.value, m),
                          map_dynamic(x.dynamic, m)}};
      },
      [&](const If& x) {
        return Stmt{If{map_conditions(x.conditions, m), map_body(x.body, m)}};
      },
      [&](const Barrier& x) { return Stmt{x}; },
      [&](const Combine& x) {
        Combine out = x;
        out.buffer = map_buffer(x.buffer, m);
        return Stmt{out};
      },
      [&](const Routine& x) {
        Routine out = x;
        for (BufferId& b : out.buffers) b = map_buffer(b, m);
        for (Expr& e : out.integers) e = map_expr(e, m);
        return Stmt{out};
      },
      [&](const Copy& x) {
        return Stmt{Copy{map_buffer(x.to, m), map_buffer(x.from, m), map_expr(x.to_offset, m),
                         map_expr(x.from_offset, m), x.count, map_conditions(x.conditions, m)}};
      },
      [&](const CopyGroup& x) { return Stmt{x}; }, [&](const MmaWait& x) { return Stmt{x}; },
      [&](const Mma& x) {
        Mma out = x;
        out.acc = map_buffer(x.acc, m);
        for (Mma::Operand* o : {&out.a, &out.b}) {
          o->buffer = map_buffer(o->buffer, m);
          o->offset = map_expr(o->offset, m);
        }
        return Stmt{out};
      },
      [&](const Event& x) {
        return Stmt{Event{x.kind, map_buffer(x.events, m), map_expr(x.index, m),
                          map_expr(x.parity, m), x.count}};
      },
      [&](const TileCopy& x) {
        TileCopy out = x;
        for (BufferId* b : {&out.to, &out.from, &out.events}) *b = map_buffer(*b, m);
        for (Expr* e : {&out.to_offset, &out.event}) *e = map_expr(*e, m);
        for (Expr& e : out.at) e = map_expr(e, m);
        return Stmt{std::move(out)};
      },
      [&](const Roles& x) {
        Roles out = x;
        for (Roles::Role& role : out.roles) role.body = map_body(role.body, m);
        return Stmt{std::move(out)};
      },
      [&](const Prefetch& x) {
        return Stmt{Prefetch{map_buffer(x.buffer, m), map_expr(x.offset, m), x.far, x.page}};
      },
      [&](const TileProduct& x) {
        TileProduct out = x;
        out.acc = map_buffer(x.acc, m);
        for (TileProduct::Operand* o : {&out.a, &out.b}) {
          o->buffer = map_buffer(o->buffer, m);
          o->offset = map_expr(o->offset, m);
        }
        out.to = map_expr(out.to, m);
        // The loop of a single step is none.
        if (x.along) out.along = map_expr(Expr(*x.along), m).variable();
        HEDDLE_CHECK(!x.along || out.along || x.steps() == 1,
                     "the step of a product of tiles is no loop's");
        for (TileProduct::Fetch& f : out.fetches) {
          f.buffer = map_buffer(f.buffer, m);
          f.offset = map_expr(f.offset, m);
        }
        return Stmt{std::move(out)};
      });
}

void for_each_child(const ValueNode& v, const std::function<void(const Value&)>& f) {
  match(
      v.op, [](const Imm&) {},
      [&](const Load& x) {
        for (const Load::Dynamic& d : x.dynamic) f(d.value);
      },
      [&](const Apply& x) {
        for (const Value& arg : x.args) f(arg);
      },
      [](const Index&) {},
      [&](const Guard& x) {
        f(x.then);
        f(x.otherwise);
      },
      [](const LaneReduce&) {}, [](const RandomBits&) {});
}

void for_each_expr(const ValueNode& v, const std::function<void(const Expr&)>& f) {
  match(
      v.op, [](const Imm&) {}, [&](const Load& x) { f(x.offset); }, [](const Apply&) {},
      [&](const Index& x) { f(x.expr); },
      [&](const Guard& x) {
        for (const ir::Condition& c : x.conditions) f(c.expr);
      },
      [&](const LaneReduce& x) { f(x.offset); }, [&](const RandomBits& x) { f(x.counter); });
}

void for_each_value(const Value& root, const std::function<void(const Value&)>& f) {
  std::unordered_set<const ValueNode*> seen;
  const std::function<void(const Value&)> visit = [&](const Value& v) {
    if (!seen.insert(v.get()).second) return;
    for_each_child(*v, visit);
    f(v);
  };
  visit(root);
}

void for_each_value_of(const Stmt& s, const std::function<void(const Value&)>& f) {
  const Store* x = std::get_if<Store>(&s.op);
  if (!x) return;
  for (const Load::Dynamic& d : x->dynamic) f(d.value);
  f(x->value);
}

void for_each_stmt(const Body& body, const std::function<void(const Stmt&)>& f) {
  for (const Stmt& s : body) {
    f(s);
    if (const For* loop = std::get_if<For>(&s.op)) for_each_stmt(*loop->body, f);
    if (const If* branch = std::get_if<If>(&s.op)) for_each_stmt(*branch->body, f);
    if (const Let* x = std::get_if<Let>(&s.op)) for_each_stmt(*x->body, f);
    if (const Roles* x = std::get_if<Roles>(&s.op))
      for (const Roles::Role& role : x->roles) for_each_stmt(*role.body, f);
  }
}

namespace {

struct Substitution {
  const Replacement& replacement;
  std::unordered_map<const ValueNode*, Value> memo;

  Mapper mapper() {
    Mapper m;
    m.expr = [this](const Expr& e) { return ir::substitute(e, replacement); };
    m.value = [this](const Value& v) { return value(v); };
    m.body = [this](const Body& b) { return body(b); };
    return m;
  }
  Value value(const Value& v) {
    auto found = memo.find(v.get());
    if (found != memo.end()) return found->second;
    Value out = map_children(v, mapper());
    memo.emplace(v.get(), out);
    return out;
  }
  Body body(const Body& b) {
    Body out;
    for (const Stmt& s : b) out.push_back(map_children(s, mapper()));
    return out;
  }
};

}  // namespace

Value substitute(const Value& v, const Replacement& replacement) {
  return Substitution{replacement, {}}.value(v);
}
Body substitute(const Body& body, const Replacement& replacement) {
  return Substitution{replacement, {}}.body(body);
}

std::vector<bool> used_buffers(const Kernel& k) {
  std::vector<bool> used(static_cast<std::size_t>(k.buffers.size()), false);
  Mapper mark;
  mark.buffer = [&](BufferId b) {
    used[static_cast<std::size_t>(b.value)] = true;
    return b;
  };
  for_each_stmt(k.body, [&](const Stmt& s) {
    (void)map_children(s, mark);
    for_each_value_of(s, [&](const Value& root) {
      for_each_value(root, [&](const Value& v) { (void)map_children(v, mark); });
    });
  });
  return used;
}

Body rename_buffers(const Body& body, const std::function<BufferId(BufferId)>& to) {
  std::unordered_map<const ValueNode*, Value> memo;
  Mapper m;
  m.buffer = to;
  m.value = [&](const Value& v) {
    auto found = memo.find(v.get());
    if (found != memo.end()) return found->second;
    Value mapped = map_children(v, m);
    memo.emplace(v.get(), mapped);
    return mapped;
  };
  m.body = [&](const Body& b) {
    Body mapped;
    for (const Stmt& s : b) mapped.push_back(map_children(s, m));
    return mapped;
  };
  return m.body(body);
}

Kernel drop_unused_buffers(const Kernel& k) {
  const std::vector<bool> used = used_buffers(k);
  std::vector<BufferId> renumbered(used.size());
  Kernel out = k;
  out.buffers = {};
  for (std::size_t i = 0; i < used.size(); ++i)
    if (used[i]) renumbered[i] = out.add_buffer(k.buffers[BufferId{static_cast<std::int32_t>(i)}]);
  out.body = rename_buffers(
      k.body, [&](BufferId b) { return renumbered[static_cast<std::size_t>(b.value)]; });
  return out;
}

}  // namespace heddle::kernel
