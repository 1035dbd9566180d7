// Rows that several loops read one after another (softmax, normalisation): the first loop waits for
// memory while the others leave it idle. The second one fetches the next row meanwhile.
#include "lower/stitch/prefetch.h"

#include <map>
#include <set>

#include "kernel/traverse.h"
#include "lower/stitch/axes.h"

namespace heddle::lower::stitch {

using kernel::Binding;
using kernel::Body;
using kernel::BufferId;
using kernel::Expr;
using kernel::For;
using kernel::Stmt;
using kernel::Var;

namespace {

class RowPrefetcher {
 public:
  /// Beyond all caches; where nothing dear is computed meanwhile, beyond the first one, too.
  RowPrefetcher(const kernel::Kernel& k, const Target& target)
      : k_(k), target_(target), least_(has_dear(k) ? target.l3_bytes : target.l2_bytes / 4) {}

  /// The statements, with hints inside those loops over rows that read each row twice.
  Body body(const Body& in) const {
    Body out;
    for (const Stmt& s : in) {
      const For* x = std::get_if<For>(&s.op);
      const bool rows = x && (x->binding == Binding::grid || x->binding == Binding::serial);
      out.push_back(
          rows ? kernel::loop(x->var, x->begin, x->end, x->binding, rows_of(x->var, body(*x->body)))
               : s);
    }
    return out;
  }

 private:
  static bool has_dear(const kernel::Kernel& k) {
    bool found = false;
    kernel::for_each_stmt(k.body, [&](const Stmt& s) {
      kernel::for_each_value_of(s, [&](const kernel::Value& root) {
        kernel::for_each_value(root, [&](const kernel::Value& v) {
          const auto* x = std::get_if<kernel::Apply>(&v->op);
          found = found || (x && ir::info(x->fn).expensive);
        });
      });
    });
    return found;
  }

  using Steps = std::map<BufferId, std::int64_t>;  ///< elements from one row to the next

  Body rows_of(Var row, Body statements) const {
    Steps seen;
    for (Stmt& s : statements) {
      Steps again;
      for (const auto& [buffer, step] : steps_of(s, row))
        if (!seen.insert({buffer, step}).second) again.insert({buffer, step});
      if (again.empty()) continue;
      s = hinted(s, again);
      for (auto& [buffer, step] : again) seen[buffer] = 0;  // once
    }
    return statements;
  }

  /// Large arguments that a statement reads, vector by vector, in loops inside the row.
  Steps steps_of(const Stmt& s, Var row) const {
    Steps out;
    kernel::for_each_stmt({s}, [&](const Stmt& inner) {
      const For* x = std::get_if<For>(&inner.op);
      if (!x || x->binding != Binding::vector) return;
      for (const auto& [buffer, offset] : reads(*x))
        if (const auto step = ir::coefficient_of(offset, row); step && useful(buffer, *step))
          out[buffer] = *step;
    });
    return out;
  }

  bool useful(BufferId id, std::int64_t step) const {
    const kernel::Buffer& b = k_.buffers[id];
    const std::int64_t size = size_of(b.dtype);
    return b.scope == kernel::Scope::grid && !b.written && b.size * size >= least_ &&
           step * size >= kLine && step * size <= target_.l2_bytes / 4;
  }

  static std::vector<std::pair<BufferId, Expr>> reads(const For& vector) {
    std::vector<std::pair<BufferId, Expr>> out;
    for (const Stmt& s : *vector.body)
      kernel::for_each_value_of(s, [&](const kernel::Value& root) {
        kernel::for_each_value(root, [&](const kernel::Value& v) {
          const auto* load = std::get_if<kernel::Load>(&v->op);
          if (load && load->dynamic.empty() && ir::coefficient_of(load->offset, vector.var) == 1)
            out.emplace_back(load->buffer, load->offset);
        });
      });
    return out;
  }

  /// The statement with hints after each of its vectors, or after several side by side.
  Stmt hinted(const Stmt& s, const Steps& steps) const {
    const For* x = std::get_if<For>(&s.op);
    if (!x) return s;
    Body inner;
    for (const Stmt& one : *x->body) {
      const For* loop = std::get_if<For>(&one.op);
      inner.push_back(loop && x->binding == Binding::serial ? hinted(one, steps) : one);
      if (!loop || x->binding != Binding::serial) continue;
      const For* vector = loop->binding == Binding::vector ? loop : nullptr;
      if (loop->binding == Binding::unroll && loop->body->size() == 1)
        vector = std::get_if<For>(&loop->body->front().op);
      if (!vector || vector->binding != Binding::vector) continue;
      const std::int64_t count = (vector == loop ? 1 : loop->end) * (vector->end - vector->begin);
      std::set<std::pair<BufferId, Expr>> done;
      for (const auto& [buffer, offset] : reads(*vector)) {
        const auto step = steps.find(buffer);
        if (step == steps.end()) continue;
        const Expr base = ir::substitute(offset, [&](Var v) -> std::optional<Expr> {
          if (v == vector->var) return Expr(vector->begin);
          if (v == loop->var) return Expr(loop->begin);
          return std::nullopt;
        });
        const std::int64_t line = kLine / size_of(k_.buffers[buffer].dtype);
        for (std::int64_t at = 0; at < count; at += line)
          if (done.insert({buffer, base + Expr(at)}).second)
            inner.push_back({kernel::Prefetch{buffer, base + Expr(step->second + at)}});
      }
    }
    return kernel::loop(x->var, x->begin, x->end, x->binding, std::move(inner));
  }

  const kernel::Kernel& k_;
  const Target& target_;
  const std::int64_t least_;  ///< bytes of a buffer
};

}  // namespace

kernel::Kernel prefetch_rows(const kernel::Kernel& k, const Target& target) {
  kernel::Kernel out = k;
  out.body = RowPrefetcher(k, target).body(k.body);
  return out;
}

}  // namespace heddle::lower::stitch
