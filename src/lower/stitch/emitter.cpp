#include "lower/stitch/emitter.h"

#include <algorithm>
#include <unordered_map>

#include "kernel/traverse.h"

namespace heddle::lower::stitch {
namespace {
constexpr std::int64_t kReductionWeight = 16;  // of terms against what is touched once
}

using kernel::Binding;
using kernel::Body;
using kernel::Store;

Emitter::Emitter(const prim::Graph& g, kernel::Kernel& k, const Target& target, Evaluator& values)
    : g_(g), kernel_(k), target_(target), values_(values) {
  values_.set_combine([this](const Reduction& r) { return reduce(r); });
  values_.set_lookup([this](NodeId n, const Index& i) { return saved_value(n, i); });
  values_.set_observer([this](NodeId n, const Index& i, const Value& v) { save(n, i, v); });
}

Var Emitter::fresh(std::int64_t extent) {
  const Var v = kernel_.new_var();
  auto& ranges = values_.ranges();
  const auto at = static_cast<std::size_t>(v.index);
  if (ranges.size() <= at) ranges.resize(at + 1);
  ranges[at] = ir::Interval{0, std::max<std::int64_t>(extent, 1) - 1};
  if (bound_at_.size() <= at) bound_at_.resize(at + 1);
  return v;
}

void Emitter::begin_task(const std::vector<Var>& bound) {
  HEDDLE_CHECK(!current_, "a task inside a task");
  values_.clear();
  saved_.clear();
  levels_.push_back(std::make_unique<Level>());
  current_ = levels_.back().get();
  for (Var v : bound) bound_at_[static_cast<std::size_t>(v.index)] = current_;
}

Body Emitter::end_task() {
  HEDDLE_CHECK(current_ && !current_->parent && pending_.empty(), "a loop is still open");
  Body out = std::move(current_->body);
  current_ = nullptr;
  team_.reset();
  return out;
}

Var Emitter::open(std::int64_t extent) {
  const Var v = fresh(extent);
  levels_.push_back(std::make_unique<Level>());
  Level* level = levels_.back().get();
  level->parent = current_;
  level->depth = current_->depth + 1;
  bound_at_[static_cast<std::size_t>(v.index)] = level;
  current_ = level;
  return v;
}

void Emitter::close(Var var, std::int64_t extent) {
  Level* level = current_;
  current_ = level->parent;
  append(kernel::loop(var, 0, extent, Binding::serial, std::move(level->body)));
}

void Emitter::close_unrolled(Var var, std::int64_t extent, int by,
                             const std::function<Body(const Expr& block)>& extra) {
  Level* level = current_;
  current_ = level->parent;
  const Var block = fresh(extent / by), one = fresh(by);
  Body inner = kernel::substitute(level->body, [&](Var v) -> std::optional<Expr> {
    if (v != var) return std::nullopt;
    return Expr(block) * Expr(by) + Expr(one);
  });
  Body body{kernel::loop(one, 0, by, Binding::unroll, std::move(inner))};
  for (kernel::Stmt& s : extra(Expr(block))) body.push_back(std::move(s));
  append(kernel::loop(block, 0, extent / by, Binding::serial, std::move(body)));
}

const Lanes* Emitter::enter_lanes(int width, int count) {
  HEDDLE_CHECK(!lanes_, "vectors inside vectors");
  blocks_.push_back(std::make_unique<Lanes>());
  Lanes& l = *blocks_.back();
  l.lane = fresh(width);
  l.unroll = fresh(count);
  l.width = width;
  l.count = count;
  l.level = current_;
  bound_at_[static_cast<std::size_t>(l.lane.index)] = current_;
  bound_at_[static_cast<std::size_t>(l.unroll.index)] = current_;
  lanes_ = &l;
  return lanes_;
}

Level* Emitter::level_of(const std::vector<Expr>& exprs) const {
  const Level* root = current_;
  while (root->parent) root = root->parent;
  const Level* deepest = root;
  for (const Expr& e : exprs) {
    std::vector<Var> used;
    ir::collect_variables(e, used);
    for (Var v : used) {
      const Level* at = bound_at_[static_cast<std::size_t>(v.index)];
      HEDDLE_CHECK(at, "d{} is not bound", v.index);
      if (at->depth > deepest->depth) deepest = at;
    }
  }
  return const_cast<Level*>(deepest);
}

bool Emitter::on_lanes(const std::vector<Expr>& exprs) const {
  return lanes_ && std::any_of(exprs.begin(), exprs.end(), [&](const Expr& e) {
           return ir::depends_on(e, lanes_->lane) || ir::depends_on(e, lanes_->unroll);
         });
}

Emitter::State Emitter::enter(Level* level, bool keep_lanes) {
  State s{current_, lanes_, std::move(pending_), phase_, dry_};
  pending_.clear();
  dry_ = false;
  current_ = level;
  if (!keep_lanes) lanes_ = nullptr;
  return s;
}

void Emitter::restore(State s) {
  HEDDLE_CHECK(pending_.empty(), "a value to be saved was lost");
  current_ = s.current;
  lanes_ = s.lanes;
  pending_ = std::move(s.pending);
  phase_ = s.phase;
  dry_ = s.dry;
}

std::vector<Value> Emitter::prepared(const std::function<std::vector<Value>()>& make) {
  if (save_.empty()) return make();
  const bool dry = std::exchange(dry_, true);
  make();
  values_.forget_pointwise();
  dry_ = dry;
  return make();
}

namespace {

/// Whether a store depends on the lanes; shared subexpressions are looked at once.
class OnLanes {
 public:
  explicit OnLanes(const Lanes& l) : lanes_(l) {}
  bool operator()(const Store& s) {
    bool out = expr(s.offset) || value(s.value);
    for (const auto& d : s.dynamic) out = out || value(d.value);
    return out;
  }

 private:
  bool expr(const Expr& e) const {
    return ir::depends_on(e, lanes_.lane) || ir::depends_on(e, lanes_.unroll);
  }
  bool value(const Value& v) {
    const auto found = memo_.find(v.get());
    if (found != memo_.end()) return found->second;
    bool out = false;
    kernel::for_each_expr(*v, [&](const Expr& e) { out = out || expr(e); });
    if (!out) kernel::for_each_child(*v, [&](const Value& c) { out = out || value(c); });
    memo_[v.get()] = out;
    return out;
  }
  const Lanes& lanes_;
  std::unordered_map<const kernel::ValueNode*, bool> memo_;
};

}  // namespace

void Emitter::store(std::vector<Store> stores) {
  std::vector<Store> all = std::move(pending_);
  pending_.clear();
  all.insert(all.end(), std::make_move_iterator(stores.begin()),
             std::make_move_iterator(stores.end()));
  Body laned;
  if (!lanes_) {
    for (Store& s : all) append({std::move(s)});
    return;
  }
  OnLanes varies(*lanes_);
  for (Store& s : all) {
    if (varies(s))
      laned.push_back({std::move(s)});
    else
      append({std::move(s)});
  }
  if (laned.empty()) return;
  const Lanes& l = *lanes_;
  const Var lane = l.used ? fresh(l.width) : l.lane, unroll = l.used ? fresh(l.count) : l.unroll;
  if (l.used || l.count == 1) {
    laned = kernel::substitute(laned, [&](Var v) -> std::optional<Expr> {
      if (v == l.unroll && l.count == 1) return Expr(0);
      if (v == l.unroll) return Expr(unroll);
      if (v == l.lane) return Expr(lane);
      return std::nullopt;
    });
  }
  l.used = true;
  kernel::Stmt vector = kernel::loop(lane, 0, l.width, Binding::vector, std::move(laned));
  const Binding binding = l.count > kMaxUnroll ? Binding::serial : Binding::unroll;
  append(l.count == 1 ? vector : kernel::loop(unroll, 0, l.count, binding, {vector}));
}

kernel::BufferId Emitter::tile_like(kernel::BufferId like, std::int64_t size) {
  return scratch("tile", kernel_.buffers[like].dtype, size, kernel::Scope::block, 1);
}

/// Vectors side by side, then the lanes that are left.
void Emitter::vector_parts(std::int64_t length, const std::function<void(const Expr& at)>& make) {
  const auto part = [&](int width, int count, std::int64_t from) {
    const Lanes* l = enter_lanes(width, count);
    make(values_.simplified(l->place(lanes_per_vector_)) + Expr(from));
    leave_lanes();
  };
  const std::int64_t vectors = length / lanes_per_vector_, tail = length % lanes_per_vector_;
  if (vectors) part(lanes_per_vector_, static_cast<int>(vectors), 0);
  if (tail) part(static_cast<int>(tail), 1, length - tail);
}

kernel::BufferId Emitter::copy_rows(kernel::BufferId source, const Expr& base, std::int64_t step,
                                    std::int64_t rows, std::int64_t length) {
  const DType type = compute_type(kernel_.buffers[source].dtype);
  const kernel::BufferId tile = tile_like(source, rows * length);
  State s = enter(lanes_->level, false);
  const Var row = open(rows);
  vector_parts(length, [&](const Expr& at) {
    const Expr from = base + Expr(row) * Expr(step) + at;
    store({Store{tile, Expr(row) * Expr(length) + at, kernel::load(source, from, type), {}}});
  });
  close(row, rows);
  restore(std::move(s));
  return tile;
}

void Emitter::write_columns(kernel::BufferId tile, kernel::BufferId target, const Expr& base,
                            std::int64_t step, std::int64_t rows, std::int64_t length) {
  const DType type = compute_type(kernel_.buffers[target].dtype);
  const Var row = open(rows);
  vector_parts(length, [&](const Expr& at) {
    const Expr from = at * Expr(rows) + Expr(row);
    store({Store{target, base + Expr(row) * Expr(step) + at, kernel::load(tile, from, type), {}}});
  });
  close(row, rows);
}

void Emitter::store_at_level(const std::vector<Expr>& depends,
                             std::vector<ir::Condition> conditions,
                             const std::function<Store()>& make) {
  State s = enter(level_of(depends), on_lanes(depends));
  phase_ = {};
  std::optional<Store> made;
  prepared([&] {
    made = make();
    return std::vector<Value>{made->value};
  });
  under(std::move(conditions), [&] { store({*made}); });
  restore(std::move(s));
}

kernel::BufferId Emitter::scratch(std::string name, DType type, std::int64_t size,
                                  kernel::Scope scope, int lanes) {
  kernel::Buffer b{std::move(name), type, size, scope, -1, false, lanes};
  return kernel_.add_buffer(std::move(b));
}

std::vector<Touch> Emitter::touches_of(const std::function<std::vector<Value>(Evaluator&)>& make,
                                       const std::function<void(const Reduction&)>& seen) {
  Evaluator tracer = values_.blank();
  std::vector<Touch> out;
  // Reductions side by side share their variables: what they both read is looked at once. Without
  // this the steps of a recurrent network, each read by several gates, are seen 3^steps times.
  std::map<std::pair<int, Shape>, Index> positions;
  int depth = 0;
  tracer.set_combine([&](const Reduction& r) -> Value {
    if (seen) seen(r);
    const Value none = identity_value(r.fn, r.type);
    if (element_count(r.extents) == 0) return none;
    Index& position = positions[{depth, r.extents}];
    if (position.empty())
      for (std::int64_t extent : r.extents)
        position.push_back(extent == 1 ? Expr(0) : Expr(fresh(extent)));
    tracer.ranges() = values_.ranges();
    ++depth;
    const Value term = r.term(tracer, position);
    --depth;
    std::vector<Touch> inner;
    collect_touches(kernel_, term, inner);
    const double often =
        static_cast<double>(std::min<std::int64_t>(element_count(r.extents), kReductionWeight));
    for (Touch& t : inner) {
      t.weight = often;
      out.push_back(std::move(t));
    }
    return none;
  });
  for (const Value& v : make(tracer)) collect_touches(kernel_, v, out);
  return out;
}

}  // namespace heddle::lower::stitch
