#include "codegen/cuda/emitter.h"

#include <algorithm>
#include <numeric>

#include "kernel/bounds.h"
#include "support/match.h"

namespace heddle::codegen::cuda {

using ir::Expr;
using ir::IndexNode;
using ir::Var;
using namespace kernel;
using BufferScope = kernel::Scope;

namespace {

/// Largest absolute value that computing `e` term by term may meet.
double magnitude(const Expr& e, const ir::Ranges& ranges) {
  const IndexNode& n = e.node();
  const auto bound = [](const std::optional<ir::Interval>& b) {
    return b ? std::max(std::abs(static_cast<double>(b->low)),
                        std::abs(static_cast<double>(b->high)))
             : 1e18;
  };
  if (n.kind == IndexNode::Kind::var) return bound(ir::bounds(e, ranges));
  double sum = std::abs(static_cast<double>(n.constant));
  for (const IndexNode::Term& t : n.terms)
    sum += std::abs(static_cast<double>(t.coefficient)) * magnitude(t.atom, ranges);
  for (const Expr& arg : n.args) sum = std::max(sum, magnitude(arg, ranges));
  return sum;
}

}  // namespace

std::string type_of(DType t) { return fmt::format("hd::{}", name_of(t)); }

PhaseEmitter::PhaseEmitter(const Kernel& k, const std::vector<BufferId>& parameters,
                           const For& phase, std::optional<StageForm> stage, const Body* together)
    : k_(k), parameters_(parameters), phase_(phase), stage_(stage), together_(together) {
  info_.tasks = phase.end;
  info_.threads = threads_of(phase);
  if (info_.threads > kBlockThreads) {
    info_.cluster = info_.threads / kBlockThreads;
    info_.threads = kBlockThreads;
    info_.tasks *= info_.cluster;
  }
  if (!stage_) return;
  meet_ = fmt::format("hd::named_sync(1, {});", info_.threads);
  meeting_ = fmt::format(", hdk::Threads<{}>{{}}", info_.threads);
}

void PhaseEmitter::line(const std::string& text) {
  text_.append(static_cast<std::size_t>(depth_) * 2, ' ');
  text_ += text + "\n";
  origins_.push_back(origin_);
}
void PhaseEmitter::open(const std::string& head) {
  line(head);
  ++depth_;
}
void PhaseEmitter::close(const std::string& tail) {
  --depth_;
  line(tail);
}

/// True if 32 bits are too few for the phase's index arithmetic.
bool PhaseEmitter::is_wide() const {
  ir::Ranges ranges;
  // The last step of blocks that take tasks in turn leads past the end.
  double largest = static_cast<double>(phase_.end) * (k_.resident && !stage_ ? 2 : 1);
  const auto look = [&](const Expr& e) { largest = std::max(largest, magnitude(e, ranges)); };
  set_range(ranges, phase_.var, ir::Interval{0, std::max<std::int64_t>(0, phase_.end - 1)});
  for_each_stmt(*phase_.body, [&](const Stmt& s) {
    if (const For* x = std::get_if<For>(&s.op))
      set_range(ranges, x->var, ir::Interval{x->begin, std::max(x->begin, x->end - 1)});
    if (const Let* x = std::get_if<Let>(&s.op))
      set_range(ranges, x->var, ir::Interval{x->begin, std::max(x->begin, x->end - 1)});
    Mapper parts;
    parts.expr = [&](const Expr& e) { return look(e), e; };
    (void)map_children(s, parts);
    for_each_value_of(s, [&](const Value& root) {
      for_each_value(root, [&](const Value& v) { for_each_expr(*v, look); });
    });
  });
  return largest >= 2147483647.0;
}

Result<PhaseText> PhaseEmitter::run() {
  if (info_.threads == 0 && phase_.end > 0)
    return unsupported("kernel '{}': a phase without threads on a GPU", k_.name);
  if (stage_) check_stage();
  if (!error_.empty()) return unsupported("kernel '{}': {}", k_.name, error_);
  wide_ = is_wide();
  scopes_.emplace_back();
  place_shared();
  if (phase_.end > 0) tasks();
  if (!error_.empty()) return unsupported("kernel '{}': {}", k_.name, error_);
  return PhaseText{std::move(info_), std::move(text_), std::move(origins_), stored_in(*phase_.body),
                   shares_registers_};
}

/// Blocks of a stage are neighbours by chance, barriers in memory are in use when the next stage
/// needs the room, and registers stay with their threads.
void PhaseEmitter::check_stage() {
  if (info_.cluster > 1) error_ = "a cluster of blocks is no stage of a persistent kernel";
  bool meets = false;
  for_each_stmt(*phase_.body, [&](const Stmt& s) {
    if (std::holds_alternative<Roles>(s.op) || std::holds_alternative<TileCopy>(s.op) ||
        std::holds_alternative<Event>(s.op))
      error_ = "roles of threads and tile copies are no stage of a persistent kernel";
    meets = meets || is_collective(s);
  });
  if (meets && info_.threads % kWarp != 0)
    error_ = fmt::format("{} threads that meet are no stage of a persistent kernel", info_.threads);
}

/// A block's own task, or those that it takes in turn.
void PhaseEmitter::tasks() {
  set_range(ranges_, phase_.var, ir::Interval{0, phase_.end - 1});
  const std::string type = wide_ ? "long long" : "int", name = fmt::format("d{}", phase_.var.index);
  if (together_) {
    line(fmt::format("{} {} = first;", type, name));
    open(fmt::format("for (; {0} + {1} < last; {0} += {2}) {{", name, stage_->factor - 1,
                     stage_->factor));
    body(*together_);
    close();
    open(fmt::format("for (; {0} < last; ++{0}) {{", name));
    body(*phase_.body);
    return close();
  }
  if (stage_) {
    if (stage_->factor > 1) line(fmt::format("HD_UNROLL_BY({})", stage_->factor));
    open(fmt::format("for ({0} {1} = first; {1} < last; ++{1}) {{", type, name));
    body(*phase_.body);
    if (info_.shared_bytes > 0) line(meet_);  // the next task writes it
    return close();
  }
  if (!k_.resident) {
    line(fmt::format("const {} {} = blockIdx.x{};", type, name,
                     info_.cluster > 1 ? fmt::format(" / {}", info_.cluster) : ""));
    return body(*phase_.body);
  }
  open(fmt::format("for ({0} {1} = blockIdx.x; {1} < {2}; {1} += gridDim.x) {{", type, name,
                   phase_.end));
  body(*phase_.body);
  if (info_.shared_bytes > 0) line("hd::block_sync();");  // the next task writes it
  close();
}

/// Thread loops are the thread's own coordinates.
void PhaseEmitter::threads(const For& x, int outer) {
  (void)outer;
  std::vector<const For*> chain{&x};
  while (chain.back()->body->size() == 1) {
    const For* inner = std::get_if<For>(&chain.back()->body->front().op);
    if (!inner || inner->binding != Binding::thread) break;
    chain.push_back(inner);
  }
  std::int64_t step = 1;
  for (std::size_t i = chain.size(); i-- > 0;) {
    const For& loop = *chain[i];
    std::string at = "static_cast<int>(threadIdx.x)";
    if (info_.cluster > 1)
      at = fmt::format("static_cast<int>(threadIdx.x + blockIdx.x % {} * {})", info_.cluster,
                       info_.threads);
    if (step > 1) at += fmt::format(" / {}", step);
    if (i > 0) at += fmt::format(" % {}", loop.end);
    if (loop.end == 1) at = "0";
    line(fmt::format("const int d{} = {};", loop.var.index, at));
    set_range(ranges_, loop.var, ir::Interval{0, loop.end - 1});
    step *= loop.end;
  }
  HEDDLE_CHECK(step == info_.threads * info_.cluster, "'{}': {} threads beside {}", k_.name, step,
               info_.threads * info_.cluster);
  thread_ = chain.back()->var;
  body(*chain.back()->body);
}

std::set<std::int32_t> PhaseEmitter::stored_in(const Body& statements) const {
  std::set<std::int32_t> out;
  for_each_stmt(statements, [&](const Stmt& s) {
    if (const Store* x = std::get_if<Store>(&s.op)) out.insert(x->buffer.value);
    if (const Combine* x = std::get_if<Combine>(&s.op)) out.insert(x->buffer.value);
    if (const Copy* x = std::get_if<Copy>(&s.op)) out.insert(x->to.value);
    if (const Mma* x = std::get_if<Mma>(&s.op)) out.insert(x->acc.value);
    if (const Routine* x = std::get_if<Routine>(&s.op))
      for (BufferId id : x->buffers) out.insert(id.value);
    // What others stored is seen after a barrier.
    if (is_collective(s))
      for (std::int32_t i = 0; i < k_.buffers.size(); ++i)
        if (k_.buffers[BufferId{i}].scope == BufferScope::block) out.insert(i);
  });
  return out;
}

/// Values read from what is stored are computed again when they are needed next.
void PhaseEmitter::forget(const std::set<std::int32_t>& stored) {
  for (Scope& scope : scopes_)
    std::erase_if(scope.names, [&](const auto& entry) {
      const auto found = reads_.find(entry.first);
      return found == reads_.end() ||
             std::any_of(found->second.begin(), found->second.end(),
                         [&](std::int32_t id) { return stored.contains(id); });
    });
}

void PhaseEmitter::body(const Body& statements) {
  scopes_.emplace_back();
  for (const Stmt& s : statements) statement(s);
  scopes_.pop_back();
}

/// Whose work a statement is: its value's, or that of the buffer that it fills.
std::int32_t PhaseEmitter::origin_of(const Stmt& s) const {
  std::int32_t own = -1;
  BufferId to;
  if (const Store* x = std::get_if<Store>(&s.op)) to = x->buffer, own = x->value->origin;
  if (const Combine* x = std::get_if<Combine>(&s.op)) to = x->buffer;
  if (const Copy* x = std::get_if<Copy>(&s.op)) to = x->to;
  if (const TileCopy* x = std::get_if<TileCopy>(&s.op)) to = x->to;
  if (const Mma* x = std::get_if<Mma>(&s.op)) to = x->acc;
  if (const Routine* x = std::get_if<Routine>(&s.op)) to = x->buffers.front();
  return own >= 0 || to.value < 0 ? own : k_.buffers[to].origin;
}

void PhaseEmitter::statement(const Stmt& s) {
  origin_ = origin_of(s);
  match(
      s.op, [&](const For& x) { loop(x); }, [&](const Store& x) { store(x); },
      [&](const Let& x) {
        const auto range = ir::bounds(x.value, ranges_);
        open("{");
        const std::string name = fmt::format("d{}", x.var.index);
        line(fmt::format("const {} {} = {};", wide_ ? "long long" : "int", name, index(x.value)));
        std::string inside;
        if (!range || range->low < x.begin) inside = fmt::format("{} >= {}", name, x.begin);
        if (!range || range->high >= x.end)
          inside += fmt::format("{}{} < {}", inside.empty() ? "" : " && ", name, x.end);
        set_range(ranges_, x.var, ir::Interval{x.begin, x.end - 1});
        if (!inside.empty()) open(fmt::format("if ({}) {{", inside));
        if (x.end > x.begin) body(*x.body);
        if (!inside.empty()) close();
        set_range(ranges_, x.var, std::nullopt);
        close();
      },
      [&](const If& x) {
        open(fmt::format("if ({}) {{", conditions(x.conditions)));
        body(*x.body);
        close();
      },
      [&](const Barrier& x) {
        if (x.async) line("hd::fence_async();");
        line(x.scope == BufferScope::warp ? "hd::warp_sync();" : meet_);
      },
      [&](const Combine& x) { combine(x); }, [&](const Routine& x) { routine(x); },
      [&](const Copy& x) { copy(x); },
      [&](const CopyGroup& x) {
        line(x.commit ? "hd::copy_commit();" : fmt::format("hd::copy_wait<{}>();", x.left));
      },
      [&](const Mma& x) { mma(x); },
      [&](const MmaWait& x) { line(fmt::format("hd::wgmma_wait<{}>();", x.left)); },
      [&](const Event& x) { event(x); }, [&](const TileCopy& x) { tile(x); },
      [&](const Roles& x) { roles(x); },
      [&](const auto&) { HEDDLE_CHECK(false, "'{}': a CPU's statement on a GPU", k_.name); });
  forget(stored_in({s}));
}

void PhaseEmitter::loop(const For& x) {
  if (x.binding == Binding::thread) return threads(x, 1);
  if (x.end <= x.begin) return;
  forget(stored_in(*x.body));
  set_range(ranges_, x.var, ir::Interval{x.begin, x.end - 1});
  if (x.binding == Binding::vector) {
    vector_loop(x);
  } else {
    if (x.binding == Binding::unroll) line("HD_UNROLL");
    open(fmt::format("for ({0} d{1} = {2}; d{1} < {3}; ++d{1}) {{", wide_ ? "long long" : "int",
                     x.var.index, x.begin, x.end));
    body(*x.body);
    close();
  }
  set_range(ranges_, x.var, std::nullopt);
}

/// Lanes one after another, unrolled; what is contiguous along them is loaded and stored as one
/// access of up to 16 bytes.
void PhaseEmitter::vector_loop(const For& x) {
  const std::int64_t width = x.end - x.begin;
  const bool power = x.begin == 0 && width > 1 && (width & (width - 1)) == 0;
  const std::set<std::int32_t> stored = stored_in(*x.body);
  std::set<std::int32_t> loaded;
  const auto along = [&](BufferId id, const Expr& offset) {
    const Buffer& b = k_.buffers[id];
    return power && b.scope != BufferScope::lane && ir::coefficient_of(offset, x.var) == 1 &&
           multiple_of(offset - Expr(x.var), width);
  };
  open("{");
  scopes_.emplace_back();
  std::map<std::pair<std::int32_t, Expr>, std::string> outer = std::move(vectors_);
  vectors_.clear();
  for (const Stmt& s : *x.body) {
    const Store* one = std::get_if<Store>(&s.op);
    if (!one) continue;
    origin_ = origin_of(s);
    std::unordered_map<const ValueNode*, bool> seen;
    const std::function<void(const Value&)> visit = [&](const Value& v) {
      if (!seen.try_emplace(v.get(), true).second) return;
      if (const Load* l = std::get_if<Load>(&v->op)) {
        loaded.insert(l->buffer.value);
        const std::pair key{l->buffer.value, l->offset};
        if (l->dynamic.empty() && !stored.contains(l->buffer.value) && !vectors_.contains(key) &&
            along(l->buffer, l->offset)) {
          const std::string name = fresh('v');
          line(fmt::format("const auto {} = hd::load_vec<{}>(b{} + {});", name, width,
                           l->buffer.value, index(l->offset - Expr(x.var))));
          vectors_[key] = fmt::format("{}.at[d{}]", name, x.var.index);
        }
      }
      // A branch that is not taken is not evaluated.
      if (!std::holds_alternative<Guard>(v->op)) for_each_child(*v, visit);
      if (const Guard* g = std::get_if<Guard>(&v->op))
        for_each_value(v, [&](const Value& inner) {
          if (const Load* l = std::get_if<Load>(&inner->op)) loaded.insert(l->buffer.value);
          (void)g;
        });
    };
    visit(one->value);
  }
  // Vectors to be stored at the end.
  std::vector<std::pair<const Store*, std::string>> results;
  for (const Stmt& s : *x.body) {
    const Store* one = std::get_if<Store>(&s.op);
    const std::int64_t writers = std::count_if(x.body->begin(), x.body->end(), [&](const Stmt& o) {
      const Store* other = std::get_if<Store>(&o.op);
      return one && other && other->buffer == one->buffer;
    });
    if (!one || writers != 1 || !one->dynamic.empty() || loaded.contains(one->buffer.value) ||
        !along(one->buffer, one->offset))
      continue;
    results.emplace_back(one, fresh('r'));
    line(fmt::format("hd::Vec<{}, {}> {};", type_of(k_.buffers[one->buffer].dtype), width,
                     results.back().second));
  }
  line("HD_UNROLL");
  open(fmt::format("for (int d{0} = {1}; d{0} < {2}; ++d{0}) {{", x.var.index, x.begin, x.end));
  scopes_.emplace_back();
  for (const Stmt& s : *x.body) {
    const Store* one = std::get_if<Store>(&s.op);
    const auto found =
        std::find_if(results.begin(), results.end(), [&](const auto& r) { return r.first == one; });
    if (!one || found == results.end()) {
      statement(s);
      continue;
    }
    origin_ = origin_of(s);
    const std::string v = value(one->value);
    line(fmt::format("{}.at[d{}] = hd::narrow<{}>({});", found->second, x.var.index,
                     type_of(k_.buffers[one->buffer].dtype), v));
  }
  scopes_.pop_back();
  close();
  for (const auto& [one, name] : results) {
    origin_ = origin_of(Stmt{*one});
    line(fmt::format("hd::store_vec(b{} + {}, {});", one->buffer.value,
                     index(one->offset - Expr(x.var)), name));
  }
  vectors_ = std::move(outer);
  scopes_.pop_back();
  close();
}

void PhaseEmitter::store(const Store& x) {
  const Buffer& b = k_.buffers[x.buffer];
  std::string inside;
  std::vector<std::string> dynamic;
  std::string at = index(x.offset);
  for (const Load::Dynamic& d : x.dynamic) {
    const std::string i = fresh('i');
    line(fmt::format("const hd::i64 {} = {};", i, value(d.value)));
    inside += fmt::format("{0}{1} >= 0 && {1} < {2}", inside.empty() ? "" : " && ", i, d.extent);
    at += fmt::format(" + {} * {}", i, d.stride);
  }
  const auto write = [&] {
    line(fmt::format("b{}[{}] = hd::narrow<{}>({});", x.buffer.value, at, type_of(b.dtype),
                     value(x.value)));
  };
  if (inside.empty()) return write();
  open(fmt::format("if ({}) {{", inside));
  scopes_.emplace_back();
  write();
  scopes_.pop_back();
  close();
}

void PhaseEmitter::combine(const Combine& x) {
  static const std::map<ir::Monoid, const char*> kOps = {
      {ir::Monoid::sum, "Sum"}, {ir::Monoid::prod, "Prod"}, {ir::Monoid::max, "Max"},
      {ir::Monoid::min, "Min"}, {ir::Monoid::any, "Any"},   {ir::Monoid::all, "All"}};
  const std::string type = type_of(k_.buffers[x.buffer].dtype);
  const bool alone = x.width * x.stride <= kWarp;
  const bool wide = x.width * x.stride > info_.threads;  // over the blocks of a cluster
  const std::string scratch =
      alone ? fmt::format("static_cast<{}*>(nullptr)", type)
            : fmt::format("reinterpret_cast<{}*>(shared + {})", type, scratch_at_);
  line(fmt::format("hdk::combine<{}, {}, {}, {}>(b{} + {}, hd::{}{{}}, {}{});",
                   wide ? info_.threads : x.width, x.stride, info_.threads, x.count, x.buffer.value,
                   x.offset, kOps.at(x.fn), scratch, alone ? "" : meeting_));
  if (wide)
    line(fmt::format("hdk::combine_cluster<{}, {}>(b{} + {}, hd::{}{{}}, {});", info_.cluster,
                     x.count, x.buffer.value, x.offset, kOps.at(x.fn), scratch));
}

}  // namespace heddle::codegen::cuda
