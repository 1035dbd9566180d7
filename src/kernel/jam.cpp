#include "kernel/jam.h"

#include <algorithm>
#include <map>
#include <set>

#include "kernel/traverse.h"

namespace heddle::kernel {
namespace {

constexpr std::int64_t kAccumulators = 16;  // vectors of accumulators, half of what there are
constexpr std::int64_t kFew = 8;            // vectors of a row that leave room for four of them

bool is_private(const Buffer& b) { return b.scope == Scope::lane || b.scope == Scope::block; }

/// The value's loads and horizontal reductions, by buffer.
void for_each_read(const Stmt& s, const std::function<void(BufferId, bool horizontal)>& f) {
  for_each_value_of(s, [&](const Value& root) {
    for_each_value(root, [&](const Value& v) {
      if (const Load* x = std::get_if<Load>(&v->op)) f(x->buffer, false);
      if (const LaneReduce* x = std::get_if<LaneReduce>(&v->op)) f(x->buffer, true);
    });
  });
}

/// What one iteration of a loop over rows does.
struct Row {
  bool plain = true;                                 ///< loops, stores and hints alone
  bool reduces = false;                              ///< along the lanes, which takes long
  std::int64_t vectors = 0;                          ///< the longest of its loops
  std::set<std::int32_t> first_read, written, read;  ///< private: read before written
};

void look(const Kernel& k, const Body& body, std::int64_t times, Row& row) {
  for (const Stmt& s : body) {
    for_each_read(s, [&](BufferId id, bool horizontal) {
      row.reduces |= horizontal;
      row.read.insert(id.value);
      if (is_private(k.buffers[id]) && !row.written.contains(id.value))
        row.first_read.insert(id.value);
    });
    if (const Store* x = std::get_if<Store>(&s.op)) {
      row.written.insert(x->buffer.value);
      row.vectors = std::max(row.vectors, times);
      row.plain &= x->dynamic.empty();
    } else if (const For* x = std::get_if<For>(&s.op)) {
      row.plain &= x->binding == Binding::serial || x->binding == Binding::unroll ||
                   x->binding == Binding::vector;
      look(k, *x->body, x->binding == Binding::vector ? times : times * (x->end - x->begin), row);
    } else if (!std::holds_alternative<Prefetch>(s.op)) {
      row.plain = false;
    }
  }
}

class Jam {
 public:
  explicit Jam(const Kernel& k) : out_(k) {}

  Kernel run() {
    Body phases;
    for (const Stmt& s : out_.body) {
      const For* x = std::get_if<For>(&s.op);
      phase_ = x ? x->body : nullptr;
      phases.push_back(x ? loop(x->var, x->begin, x->end, x->binding, body(*x->body)) : s);
    }
    out_.body = std::move(phases);
    return std::move(out_);
  }

 private:
  Body body(const Body& in) {
    Body out;
    for (const Stmt& s : in) {
      if (const For* x = std::get_if<For>(&s.op); x && x->binding == Binding::serial) {
        for (Stmt& part : rows(*x)) out.push_back(std::move(part));
      } else if (const Let* x = std::get_if<Let>(&s.op)) {
        out.push_back(let(x->var, x->value, x->begin, x->end, body(*x->body)));
      } else if (const If* x = std::get_if<If>(&s.op)) {
        out.push_back(when(x->conditions, body(*x->body)));
      } else {
        out.push_back(s);
      }
    }
    return out;
  }

  /// The loop, some of its iterations side by side where they may be.
  Body rows(const For& x) {
    // The last task may have fewer rows: their number is a variable inside.
    const Let* bound = x.body->size() == 1 ? std::get_if<Let>(&x.body->front().op) : nullptr;
    if (bound && (bound->begin != 0 || ir::coefficient_of(bound->value, x.var) != 1))
      bound = nullptr;
    const Body& row = bound ? *bound->body : *x.body;
    const std::int64_t times = x.end - x.begin;
    const std::int64_t count = side_by_side(row, bound ? std::min(times, bound->end) : times);
    if (count < 2) return {loop(x.var, x.begin, x.end, x.binding, body(*x.body))};
    const Var block = out_.new_var();
    const Expr first = Expr(block) * count + x.begin;
    Body out;
    if (bound) {
      const Expr at = ir::substitute(bound->value, replace(x.var, first));
      const std::int64_t last = bound->end - count + 1;  // where not all of them are rows
      const Var rest = out_.new_var(), one = out_.new_var();
      Body left = with_own_variables(
          {let(bound->var, Expr(rest) + Expr(one), bound->begin, bound->end, row)});
      out.push_back(
          loop(block, 0, times / count, x.binding,
               {let(bound->var, at, bound->begin, last, jammed(row, bound->var, bound->var, count)),
                let(rest, at, last, bound->end,
                    {loop(one, 0, count, Binding::serial, std::move(left))})}));
    } else {
      out.push_back(loop(block, 0, times / count, x.binding, jammed(row, x.var, first, count)));
    }
    const std::int64_t done = x.begin + times / count * count;
    if (done < x.end)
      out.push_back(with_own_variables({loop(x.var, done, x.end, x.binding, *x.body)}).front());
    return out;
  }

  /// How many rows go side by side; 1: one after the other.
  std::int64_t side_by_side(const Body& body, std::int64_t rows) {
    Row row;
    look(out_, body, 1, row);
    if (!row.plain || !row.reduces) return 1;
    private_.clear();
    for (const std::int32_t id : row.written) {
      const Buffer& b = out_.buffers[BufferId{id}];
      if (!is_private(b)) {
        if (row.read.contains(id)) return 1;
        continue;
      }
      if (row.first_read.contains(id) || touches(*phase_, id) != touches(body, id)) return 1;
      private_.insert(id);
    }
    const std::int64_t vectors = accumulators(body);
    std::int64_t count = row.vectors <= kFew ? 4 : 2;
    while (count > 1 && (count * vectors > kAccumulators || count > rows)) count /= 2;
    return count;
  }

  /// The most vectors of the row's own registers that are in use at a time, from the first
  /// statement that touches them to the last one.
  std::int64_t accumulators(const Body& body) const {
    std::vector<std::int64_t> live(body.size());
    for (const std::int32_t id : private_) {
      const Buffer& b = out_.buffers[BufferId{id}];
      if (b.scope != Scope::lane || b.lanes < 2) continue;
      std::size_t first = body.size(), last = 0;
      for (std::size_t i = 0; i < body.size(); ++i)
        if (touches({body[i]}, id) > 0) first = std::min(first, i), last = i;
      for (std::size_t i = first; i <= last; ++i) live[i] += b.size / b.lanes;
    }
    return live.empty() ? 0 : *std::max_element(live.begin(), live.end());
  }

  static int touches(const Body& body, std::int32_t id) {
    int count = 0;
    for_each_stmt(body, [&](const Stmt& s) {
      if (const Store* store = std::get_if<Store>(&s.op)) count += store->buffer.value == id;
      for_each_read(s, [&](BufferId read, bool) { count += read.value == id; });
    });
    return count;
  }

  static Replacement replace(Var from, Expr to) {
    return
        [from, to = std::move(to)](Var v) { return v == from ? std::optional(to) : std::nullopt; };
  }

  /// `count` rows from `first` on, statement by statement.
  Body jammed(const Body& body, Var row, const Expr& first, std::int64_t count) {
    std::vector<Body> copies;
    for (std::int64_t c = 0; c < count; ++c) {
      copies.push_back(substitute(body, replace(row, first + c)));
      if (c > 0) copies.back() = with_own_buffers(copies.back());
    }
    const std::size_t together = fused_statements(body, row);
    std::vector<Body> heads;
    for (const Body& copy : copies)
      heads.emplace_back(copy.begin(), copy.begin() + static_cast<std::ptrdiff_t>(together));
    Body out = fused(heads);
    for (std::size_t c = 0; c < copies.size(); ++c) {
      Body tail(copies[c].begin() + static_cast<std::ptrdiff_t>(together), copies[c].end());
      if (c > 0) tail = with_own_variables(tail);
      out.insert(out.end(), tail.begin(), tail.end());
    }
    return out;
  }

  /// Behind the last reduction nothing waits, and memory had better be written row by row, unless
  /// rows share what they read there.
  std::size_t fused_statements(const Body& body, Var row) const {
    std::size_t last = 0;
    bool shared = false;
    for (std::size_t i = 0; i < body.size(); ++i) {
      bool reduces = false;
      for_each_read(body[i], [&](BufferId, bool horizontal) { reduces |= horizontal; });
      if (reduces) last = i + 1;
      shared = !reduces && (shared || reads_across(body[i], row));
    }
    return shared ? body.size() : last;
  }

  /// Whether vectors of arguments are read that are the same in all rows.
  bool reads_across(const Stmt& s, Var row) const {
    bool found = false;
    const For* x = std::get_if<For>(&s.op);
    for_each_stmt(x ? *x->body : Body{}, [&](const Stmt& inner) {
      for_each_value_of(inner, [&](const Value& root) {
        for_each_value(root, [&](const Value& v) {
          const Load* load = std::get_if<Load>(&v->op);
          found = found || (load && !private_.contains(load->buffer.value) &&
                            !load->offset.constant() && !ir::depends_on(load->offset, row));
        });
      });
    });
    return found;
  }

  /// Copies of one body, of which loops are fused.
  static Body fused(const std::vector<Body>& copies) {
    Body out;
    for (std::size_t i = 0; i < copies[0].size(); ++i) {
      const For* x = std::get_if<For>(&copies[0][i].op);
      std::vector<Body> inner;
      for (const Body& copy : copies) {
        if (x)
          inner.push_back(*std::get<For>(copy[i].op).body);
        else
          out.push_back(copy[i]);
      }
      if (x) out.push_back(loop(x->var, x->begin, x->end, x->binding, fused(inner)));
    }
    return out;
  }

  Body with_own_buffers(const Body& body) {
    std::map<std::int32_t, BufferId> own;
    return rename_buffers(body, [&](BufferId id) {
      if (!private_.contains(id.value)) return id;
      const auto [at, fresh] = own.try_emplace(id.value);
      if (fresh) at->second = out_.add_buffer(Buffer(out_.buffers[id]));
      return at->second;
    });
  }

  /// Each variable is bound once in a kernel.
  Body with_own_variables(const Body& body) {
    Body out;
    for (const Stmt& s : body) {
      if (const For* x = std::get_if<For>(&s.op)) {
        const Var own = out_.new_var();
        out.push_back(loop(own, x->begin, x->end, x->binding,
                           with_own_variables(substitute(*x->body, replace(x->var, own)))));
      } else if (const Let* x = std::get_if<Let>(&s.op)) {
        const Var own = out_.new_var();
        out.push_back(let(own, x->value, x->begin, x->end,
                          with_own_variables(substitute(*x->body, replace(x->var, own)))));
      } else {
        out.push_back(s);
      }
    }
    return out;
  }

  Kernel out_;
  std::shared_ptr<const Body> phase_;
  std::set<std::int32_t> private_;  ///< buffers of a row
};

}  // namespace

Kernel with_rows_side_by_side(const Kernel& k) { return Jam(k).run(); }

}  // namespace heddle::kernel
