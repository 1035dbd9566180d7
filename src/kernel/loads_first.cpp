#include "kernel/loads_first.h"

#include <algorithm>
#include <map>
#include <set>

#include "kernel/traverse.h"

namespace heddle::kernel {
namespace {

constexpr std::int64_t kMostKept = 64;  ///< elements in a thread's registers

bool in_registers(const Kernel& k, BufferId id) { return k.buffers[id].scope == Scope::lane; }

/// True if the phase stores to memory in unrolled loops alone, and reads nothing of what it stores.
class Streams {
 public:
  explicit Streams(const Kernel& k) : k_(k) {}
  bool operator()(const Body& body) {
    return look(body, true) && !stored_.empty() &&
           std::ranges::none_of(stored_, [&](std::int32_t id) { return loaded_.contains(id); });
  }

 private:
  bool look(const Body& body, bool unrolled) {
    for (const Stmt& s : body) {
      for_each_value_of(s, [&](const Value& root) {
        for_each_value(root, [&](const Value& v) {
          if (const Load* l = std::get_if<Load>(&v->op)) loaded_.insert(l->buffer.value);
        });
      });
      if (const For* x = std::get_if<For>(&s.op)) {
        if (x->binding == Binding::thread) return false;
        if (!look(*x->body, unrolled && x->binding != Binding::serial)) return false;
      } else if (const Let* x = std::get_if<Let>(&s.op)) {
        if (!look(*x->body, unrolled)) return false;
      } else if (const If* x = std::get_if<If>(&s.op)) {
        if (!look(*x->body, unrolled)) return false;
      } else if (const Store* x = std::get_if<Store>(&s.op)) {
        if (in_registers(k_, x->buffer)) continue;
        if (!unrolled || !x->dynamic.empty()) return false;
        stored_.insert(x->buffer.value);
      } else if (const Combine* x = std::get_if<Combine>(&s.op)) {
        if (x->width * x->stride > kWarp) return false;
      } else {
        return false;
      }
    }
    return true;
  }

  const Kernel& k_;
  std::set<std::int32_t> stored_, loaded_;
};

/// One of the tasks: first with its stores to registers, then from there to memory.
class OneTask {
 public:
  OneTask(Kernel& k, Var task, int number) : k_(k) { vars_[task.index] = Expr(task) + number; }

  Body loads(const Body& body) {
    next_ = 0;
    return visit(body, true);
  }
  Body stores(const Body& body) {
    next_ = 0;
    return visit(body, false);
  }
  std::int64_t kept() const { return elements_; }

 private:
  struct Around {
    Var var;
    std::int64_t begin, end;
    bool vector;
  };

  Replacement replacement() const {
    return [this](Var v) -> std::optional<Expr> {
      const auto found = vars_.find(v.index);
      if (found == vars_.end()) return std::nullopt;
      return found->second;
    };
  }
  /// The statement's own parts, with this copy's variables and registers; its body is as it was.
  Stmt renamed(Stmt s) {
    const Body moved = substitute({std::move(s)}, replacement());
    return rename_buffers(moved, [&](BufferId id) { return own(id); }).front();
  }
  BufferId own(BufferId id) {
    if (!in_registers(k_, id)) return id;
    const auto [at, fresh] = registers_.try_emplace(id.value);
    if (fresh) {
      at->second = k_.add_buffer(Buffer(k_.buffers[id]));
      elements_ += k_.buffers[id].size;
    }
    return at->second;
  }
  Var bind(Var v) {
    const Var fresh = k_.new_var();
    vars_[v.index] = Expr(fresh);
    return fresh;
  }

  Body visit(const Body& body, bool loading) {
    Body out;
    for (const Stmt& s : body) {
      if (const For* x = std::get_if<For>(&s.op)) {
        const Var var = bind(x->var);
        around_.push_back({var, x->begin, x->end, x->binding == Binding::vector});
        Body inner = visit(*x->body, loading);
        around_.pop_back();
        if (!inner.empty())
          out.push_back(loop(var, x->begin, x->end, x->binding, std::move(inner)));
      } else if (const Let* x = std::get_if<Let>(&s.op)) {
        const Expr value = ir::substitute(x->value, replacement());
        const Var var = bind(x->var);
        Body inner = visit(*x->body, loading);
        if (!inner.empty()) out.push_back(let(var, value, x->begin, x->end, std::move(inner)));
      } else if (const If* x = std::get_if<If>(&s.op)) {
        Body inner = visit(*x->body, loading);
        if (inner.empty()) continue;
        Stmt head = renamed(when(x->conditions, {}));
        std::get<If>(head.op).body = std::make_shared<const Body>(std::move(inner));
        out.push_back(std::move(head));
      } else if (const Store* x = std::get_if<Store>(&s.op); x && !in_registers(k_, x->buffer)) {
        out.push_back(kept_store(*x, loading));
      } else if (loading) {
        out.push_back(renamed(s));
      }
    }
    return out;
  }

  Stmt kept_store(const Store& s, bool loading) {
    std::int64_t size = 1;
    Expr at(0);
    for (std::size_t i = around_.size(); i-- > 0;) {
      at = at + (Expr(around_[i].var) - around_[i].begin) * size;
      size *= around_[i].end - around_[i].begin;
    }
    if (loading) {
      const Buffer& to = k_.buffers[s.buffer];
      Buffer keep{"kept", to.dtype, size, Scope::lane};
      if (!around_.empty() && around_.back().vector)
        keep.lanes = static_cast<int>(around_.back().end - around_.back().begin);
      keep.origin = s.value->origin;
      kept_.push_back(k_.add_buffer(std::move(keep)));
      elements_ += size;
      Store to_registers = std::get<Store>(renamed(Stmt{s}).op);
      to_registers.buffer = kept_.back();
      to_registers.offset = at;
      return Stmt{std::move(to_registers)};
    }
    Store from_registers = std::get<Store>(renamed(Stmt{s}).op);
    from_registers.value = load(kept_.at(next_++), at, s.value->dtype);
    return Stmt{std::move(from_registers)};
  }

  Kernel& k_;
  std::map<std::int32_t, Expr> vars_;
  std::map<std::int32_t, BufferId> registers_;
  std::vector<Around> around_;  ///< unrolled loops inside the threads'
  std::vector<BufferId> kept_;  ///< by store, in order
  std::size_t next_ = 0;
  std::int64_t elements_ = 0;
};

}  // namespace

std::optional<TasksTogether> loads_first(const Kernel& k, const For& phase, int count) {
  std::vector<const For*> threads;
  const Body* inner = phase.body.get();
  while (inner->size() == 1) {
    const For* x = std::get_if<For>(&inner->front().op);
    if (!x || x->binding != Binding::thread) break;
    threads.push_back(x);
    inner = x->body.get();
  }
  if (threads.empty() || !Streams(k)(*inner)) return std::nullopt;
  TasksTogether out{k, {}};
  out.kernel.body.clear();
  std::vector<OneTask> tasks;
  Body all;
  std::int64_t kept = 0;
  for (int c = 0; c < count; ++c) tasks.emplace_back(out.kernel, phase.var, c);
  for (OneTask& one : tasks) {
    const Body loads = one.loads(*inner);
    all.insert(all.end(), loads.begin(), loads.end());
    kept += one.kept();
  }
  if (kept > kMostKept) return std::nullopt;
  for (OneTask& one : tasks) {
    const Body stores = one.stores(*inner);
    all.insert(all.end(), stores.begin(), stores.end());
  }
  for (std::size_t i = threads.size(); i-- > 0;)
    all = {
        loop(threads[i]->var, threads[i]->begin, threads[i]->end, Binding::thread, std::move(all))};
  out.body = std::move(all);
  return out;
}

}  // namespace heddle::kernel
