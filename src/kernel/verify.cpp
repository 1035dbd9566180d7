#include <unordered_set>

#include "kernel/bounds.h"
#include "kernel/traverse.h"
#include "support/match.h"

namespace heddle::kernel {
namespace {

constexpr std::int64_t kMaxLanes = 64;
constexpr std::int64_t kMultiprocessorRegisters = 65536;  // of a multiprocessor
constexpr int kWarpgroup = 4 * kWarp;
constexpr std::int64_t kTileRow = 64, kTileAlign = 512;  // elements: 128 bytes, 1024 bytes
constexpr std::int64_t kMaxBox = 256;
constexpr std::int64_t kMostFetched = 1 << 10;  // lines in a step, each an instruction

struct Broken {
  std::string message;
};
template <class... Args>
[[noreturn]] void broken(fmt::format_string<Args...> format, Args&&... args) {
  throw Broken{fmt::format(format, std::forward<Args>(args)...)};
}

class Verifier {
 public:
  /// Accesses without proven bounds are put into `unproven` if it is given, else broken.
  Verifier(const Kernel& k, Unproven* unproven) : k_(k), unproven_(unproven) {}

  void run() {
    for (const Buffer& b : k_.buffers) buffer(b);
    phases();
  }

 private:
  void buffer(const Buffer& b) {
    if (b.size < 0 || b.lanes < 1) broken("buffer '{}': size {} lanes {}", b.name, b.size, b.lanes);
    if (b.argument >= 0) {
      if (b.scope != Scope::grid) broken("argument '{}' must have grid scope", b.name);
      if (b.argument >= k_.buffers.size() || !arguments_.insert(b.argument).second)
        broken("'{}': argument number {} is taken or too large", b.name, b.argument);
    }
    if (b.lanes != 1 && b.scope != Scope::lane)
      broken("'{}' has lanes but is not a lane buffer", b.name);
    if (b.size % b.lanes != 0) broken("'{}': size {} is no multiple of lanes", b.name, b.size);
    const bool half = b.dtype == DType::f16 || b.dtype == DType::bf16;
    if (b.use != Use::plain && b.scope != Scope::block)
      broken("'{}' is for tiles or events but is not a block buffer", b.name);
    if ((b.use == Use::tiles && (!half || b.size % kTileAlign != 0)) ||
        (b.use == Use::events && b.dtype != DType::i64))
      broken("'{}' is for tiles or events but has {} of {}", b.name, b.size, name_of(b.dtype));
  }

  void phases() {
    if (k_.resident && !can_be_resident(k_)) broken("phases that resident blocks cannot run");
    bool after_loop = false;
    for (const Stmt& s : k_.body) {
      if (const Barrier* barrier = std::get_if<Barrier>(&s.op)) {
        if (barrier->scope != Scope::grid) broken("a barrier between phases must have grid scope");
        after_loop = false;
        continue;
      }
      const For* loop = std::get_if<For>(&s.op);
      if (!loop || loop->binding != Binding::grid)
        broken("the top level holds something that is not a grid loop");
      if (after_loop) broken("two phases without a barrier between them");
      after_loop = true;
      threads_ = threads_of(*loop);
      thread_vars_.clear();
      enter(*loop, {});
    }
  }

  void enter(const For& x, const Conditions& under) {
    if (x.var.index < 0 || x.var.index >= k_.variables) broken("loop variable d{}", x.var.index);
    if (!bound_.insert(x.var.index).second) broken("d{} is bound twice", x.var.index);
    if (x.end <= x.begin) return;  // never runs
    if (x.binding == Binding::grid && threads_ > kBlockThreads) cluster(x);
    set_range(ranges_, x.var, ir::Interval{x.begin, x.end - 1});
    for (const Stmt& s : *x.body) stmt(s, x, under);
    set_range(ranges_, x.var, std::nullopt);
  }

  /// Threads of several blocks share no block memory, and work together by combining only.
  void cluster(const For& phase) {
    if (threads_ % kBlockThreads != 0 || threads_ > kClusterBlocks * kBlockThreads)
      broken("{} threads", threads_);
    for_each_stmt(*phase.body, [&](const Stmt& s) {
      if (!is_collective(s) || std::holds_alternative<For>(s.op) ||
          std::holds_alternative<If>(s.op) || std::holds_alternative<Let>(s.op))
        return;
      const Combine* x = std::get_if<Combine>(&s.op);
      if (!x || (x->width * x->stride > kBlockThreads && x->width != threads_))
        broken("{} threads are a cluster but do not only combine", threads_);
    });
    Kernel one = k_;
    one.body = {Stmt{phase}};
    const std::vector<bool> used = used_buffers(one);
    for (std::int32_t i = 0; i < k_.buffers.size(); ++i)
      if (used[static_cast<std::size_t>(i)] && k_.buffers[BufferId{i}].scope == Scope::block)
        broken("'{}' is block memory of a cluster", k_.buffers[BufferId{i}].name);
  }

  /// Thread loops enclose everything else of a phase, and all threads reach what they wait in.
  void threads(const Stmt& s, const For& parent) {
    const For* loop = std::get_if<For>(&s.op);
    const bool around = parent.binding == Binding::grid || parent.binding == Binding::thread;
    if (loop && loop->binding == Binding::thread) {
      if (!around) broken("thread loop d{} inside a loop of one thread", loop->var.index);
      if (loop->begin != 0 || loop->end < 1) broken("thread loop d{}: extent", loop->var.index);
      if (parent.binding == Binding::thread && parent.body->size() != 1)
        broken("thread loops d{} and d{} are not perfectly nested", parent.var.index,
               loop->var.index);
      thread_vars_.push_back(loop->var);
      return;
    }
    if (threads_ == 0) return;
    const If* branch = std::get_if<If>(&s.op);
    if (parent.binding == Binding::grid && !branch)
      broken("a statement beside the thread loops of a phase");
    if (!branch || !is_collective(s)) return;
    for (const ir::Condition& c : branch->conditions)
      for (Var v : thread_vars_)
        if (ir::depends_on(c.expr, v))
          broken("not all threads reach a barrier in {}", ir::to_string(c));
  }

  void bind(const Let& x, const Stmt& s, const For& parent, const Conditions& under) {
    if (parent.binding == Binding::vector) broken("vector loop d{} holds a let", parent.var.index);
    if (x.var.index < 0 || x.var.index >= k_.variables) broken("let of d{}", x.var.index);
    if (!bound_.insert(x.var.index).second) broken("d{} is bound twice", x.var.index);
    expr(x.value);
    if (x.end <= x.begin) return;  // never runs
    const auto range = bounds_under(x.value, under, ranges_);
    const bool always = range && range->low >= x.begin && range->high < x.end;
    if (!always && is_collective(s))
      for (Var v : thread_vars_)
        if (ir::depends_on(x.value, v))
          broken("not all threads reach a barrier in let d{} = {}", x.var.index,
                 ir::to_string(x.value));
    set_range(ranges_, x.var, ir::Interval{x.begin, x.end - 1});
    For inside = parent;
    inside.binding = Binding::serial;
    for (const Stmt& nested : *x.body) stmt(nested, inside, under);
    set_range(ranges_, x.var, std::nullopt);
  }

  void combine(const Combine& x) {
    known(x.buffer);
    const Buffer& b = k_.buffers[x.buffer];
    if (threads_ == 0 || (role_ >= 0 && x.width * x.stride > kWarp))
      broken("threads are combined where not all are");
    if (b.scope != Scope::lane) broken("'{}' is combined but is not a lane buffer", b.name);
    if (x.offset < 0 || x.count < 1 || x.offset + x.count > b.size)
      broken("combination of '{}'[{}..{}]", b.name, x.offset, x.offset + x.count);
    const auto power = [](int n) { return n > 0 && (n & (n - 1)) == 0; };
    if (!power(x.width) || !power(x.stride) || threads_ % (x.width * x.stride) != 0)
      broken("teams of {} by {} among {} threads", x.width, x.stride, threads_);
  }

  void stmt(const Stmt& s, const For& parent, const Conditions& under) {
    threads(s, parent);
    match(
        s.op,
        [&](const For& x) {
          if (x.binding == Binding::grid) broken("grid loop d{} is nested", x.var.index);
          if (parent.binding == Binding::vector)
            broken("vector loop d{} holds a loop", parent.var.index);
          if (x.binding == Binding::vector && x.end - x.begin > kMaxLanes)
            broken("vector loop d{} has {} lanes", x.var.index, x.end - x.begin);
          enter(x, under);
        },
        [&](const Let& x) { bind(x, s, parent, under); }, [&](const Store& x) { store(x, under); },
        [&](const If& x) {
          conditions(x.conditions);
          Conditions inner = under;
          inner.insert(inner.end(), x.conditions.begin(), x.conditions.end());
          if (!possible(inner)) return;
          for (const Stmt& nested : *x.body) stmt(nested, parent, inner);
        },
        [&](const Barrier& x) {
          if (threads_ == 0) broken("a barrier inside a phase without threads");
          if (x.scope != Scope::block && x.scope != Scope::warp)
            broken("a barrier among threads has block or warp scope");
          if (x.scope == Scope::block && role_ >= 0) broken("a barrier of the block in a role");
        },
        [&](const Combine& x) { combine(x); },
        [&](const Routine& x) {
          if (role_ >= 0) broken("routine '{}' in a role", x.name);
          for (BufferId id : x.buffers) plain(id);
          for (const Expr& e : x.integers) expr(e);
        },
        [&](const Copy& x) { copy(x, parent, under); },
        [&](const CopyGroup& x) {
          if (threads_ == 0 || x.left < 0) broken("a wait for {} copies", x.left);
        },
        [&](const Mma& x) { mma(x, under); },
        [&](const MmaWait& x) {
          if (threads_ == 0 || x.left < 0) broken("a wait for {} products", x.left);
        },
        [&](const Event& x) { event(x); }, [&](const TileCopy& x) { tile(x, parent, under); },
        [&](const Roles& x) { roles(x, parent, under); },
        [&](const Prefetch& x) {
          known(x.buffer), expr(x.offset);
          if (k_.buffers[x.buffer].scope != Scope::grid)
            broken("a prefetch from '{}'", k_.buffers[x.buffer].name);
        },
        [&](const TileProduct& x) { tiles(x, parent, under); });
  }

  void along(const TileProduct& x, const For& parent) {
    const bool first = std::get_if<TileProduct>(&parent.body->front().op) == &x;
    if (!first || parent.var != *x.along || parent.binding != Binding::serial ||
        parent.begin != 0 || parent.end != x.steps())
      broken("a step along d{} of a product of tiles, which is not the first of its loop's {}",
             x.along->index, x.steps());
    for (const Expr* e : {&x.to, &x.a.offset, &x.b.offset})
      if (ir::depends_on(*e, *x.along))
        broken("a product of tiles moves along d{}", x.along->index);
  }

  void tiles(const TileProduct& x, const For& parent, const Conditions& under) {
    for (const BufferId id : {x.acc, x.a.buffer, x.b.buffer}) known(id);
    const Buffer &acc = k_.buffers[x.acc], &a = k_.buffers[x.a.buffer], &b = k_.buffers[x.b.buffer];
    const auto is_byte = [](DType t) { return t == DType::u8 || t == DType::i8; };
    const bool halves = x.b.type == DType::bf16 && a.dtype == x.a.type && acc.dtype == DType::f32,
               bytes = is_byte(x.a.type) && is_byte(x.b.type) && acc.dtype == DType::i32 &&
                       (a.dtype == x.a.type || a.dtype == DType::i32);
    if (threads_ > 0 || parent.binding == Binding::vector || acc.scope != Scope::block ||
        !(x.bytes() ? bytes : halves) || b.dtype != DType::i32 || a.scope == Scope::lane ||
        b.scope == Scope::lane)
      broken("'{}' as the product of tiles of '{}' and '{}'", acc.name, a.name, b.name);
    if (x.row_bytes < 4 || x.row_bytes > TileProduct::kRowBytes || x.row_bytes % 4 != 0)
      broken("tiles whose rows have {} bytes", x.row_bytes);
    if (x.rows < 1 || x.height < 1 || x.height > TileProduct::kRows || x.columns < 1 ||
        x.columns % TileProduct::kColumns != 0 || !x.fits() || x.depth < 1 ||
        x.depth % x.tile_depth() != 0 || x.terms.empty())
      broken("tiles of {} rows, {} columns, depth {}, {} terms", x.rows, x.columns, x.depth,
             x.terms.size());
    if (x.along) along(x, parent);
    for (const TileProduct::Operand* o : {&x.a, &x.b})
      if (o->step < 0 || o->block < 0 || (o->step == 0 && x.steps() > 1))
        broken("tiles {} and {} apart", o->step, o->block);
    if (x.a_row < 0) broken("rows of tiles {} apart", x.a_row);
    if (!x.b.runs.empty()) broken("columns of tiles in runs");
    for (const TileProduct::Operand::Run& run : x.a.runs)
      if (run.steps < 1 || run.further < 0)
        broken("rows of tiles {} on after {} steps", run.further, run.steps);
    for (const TileProduct::Term& t : x.terms)
      if (t.a < 0 || t.b < 0) broken("terms at {} and {}", t.a, t.b);
    for (const TileProduct::Fetch& f : x.fetches) {
      known(f.buffer);
      expr(f.offset);
      if (k_.buffers[f.buffer].scope != Scope::grid || f.rows < 1 || f.pitch < 0 || f.lines < 1 ||
          f.lines > kMostFetched || f.rows_of_step(x.steps()) > kMostFetched / f.lines)
        broken("a product that fetches {} lines of {} rows", f.lines, f.rows);
    }
    access(x.acc, x.to, {}, under, std::int64_t{x.rows} * x.columns);
    access(x.a.buffer, x.a.offset, {}, under, x.a_span(a.dtype));
    access(x.b.buffer, x.b.offset, {}, under, x.b_span());
  }

  void event(BufferId id, const Expr& index) {
    known(id);
    const Buffer& b = k_.buffers[id];
    if (b.use != Use::events || threads_ == 0) broken("'{}' as events", b.name);
    inside(id, index, {}, {}, 1);
  }
  void event(const Event& x) {
    event(x.events, x.kind == Event::Kind::init ? Expr(0) : x.index);
    if (x.kind == Event::Kind::wait) {
      expr(x.parity);
      const auto range = ir::bounds(x.parity, ranges_);
      if (!range || range->low < 0 || range->high > 1)
        broken("a wait for parity {}", ir::to_string(x.parity));
    }
    if (x.count < (x.kind == Event::Kind::init)) broken("an event that counts {}", x.count);
  }

  void tile(const TileCopy& x, const For& parent, const Conditions& under) {
    known(x.to), known(x.from);
    const Buffer &to = k_.buffers[x.to], &from = k_.buffers[x.from];
    if (parent.binding == Binding::vector || to.use != Use::tiles || from.scope != Scope::grid ||
        to.dtype != from.dtype)
      broken("a tile of '{}' to '{}'", from.name, to.name);
    const std::size_t rank = x.extents.size();
    if (rank < 2 || rank > 4 || x.strides.size() != rank || x.box.size() != rank ||
        x.at.size() != rank || x.strides[0] != 1 || x.box[0] != kTileRow)
      broken("a tile of '{}' in {} dimensions", from.name, rank);
    std::int64_t last = 0;
    for (std::size_t d = 0; d < rank; ++d) {
      expr(x.at[d]);
      if (x.extents[d] < 1 || x.extents[d] >= std::int64_t{1} << 31 || x.box[d] < 1 ||
          x.box[d] > kMaxBox || (d > 0 && (x.strides[d] < 1 || x.strides[d] % 8 != 0)))
        broken("a tile of '{}': dimension {} of {} with stride {} in boxes of {}", from.name, d,
               x.extents[d], x.strides[d], x.box[d]);
      last += (x.extents[d] - 1) * x.strides[d];
    }
    if (last >= from.size) broken("a tensor ends behind '{}'", from.name);
    if (!multiple_of(x.to_offset, kTileAlign))
      broken("'{}'[{}] is not aligned for a tile", to.name, ir::to_string(x.to_offset));
    inside(x.to, x.to_offset, {}, under, x.bytes() / 2);
    event(x.events, x.event);
  }

  void roles(const Roles& x, const For& parent, const Conditions& under) {
    if (parent.binding != Binding::thread || role_ >= 0 || thread_vars_.size() != 1)
      broken("roles inside something else than one thread loop");
    std::int64_t first = 0, registers = 0;
    const int all = threads_;
    for (const Roles::Role& role : x.roles) {
      if (role.threads < 1 || role.threads % kWarpgroup != 0 || first + role.threads > all)
        broken("a role of {} threads among {}", role.threads, all);
      if (role.registers != 0 && (role.registers < 24 || role.registers % 8 != 0))
        broken("a role with {} registers", role.registers);
      if ((role.registers == 0) != (x.roles[0].registers == 0))
        broken("roles with and without a number of registers");
      registers += std::int64_t{role.registers} * role.threads;
      set_range(ranges_, thread_vars_[0], ir::Interval{first, first + role.threads - 1});
      ++role_, threads_ = role.threads;
      For within = parent;
      within.binding = Binding::serial;
      for (const Stmt& s : *role.body) stmt(s, within, under);
      first += role.threads;
    }
    threads_ = all;
    role_ = -1;
    set_range(ranges_, thread_vars_[0], ir::Interval{0, all - 1});
    if (first != all || registers > kMultiprocessorRegisters)
      broken("roles of {} threads and {} registers", first, registers);
  }

  void copy(const Copy& x, const For& parent, const Conditions& under) {
    known(x.to);
    known(x.from);
    const Buffer &to = k_.buffers[x.to], &from = k_.buffers[x.from];
    if (threads_ == 0 || parent.binding == Binding::vector)
      broken("an asynchronous copy outside a thread's own code");
    if (to.scope != Scope::block || from.scope != Scope::grid || to.dtype != from.dtype)
      broken("a copy from '{}' to '{}'", from.name, to.name);
    const std::int64_t bytes = x.count * size_of(to.dtype);
    if (bytes != 4 && bytes != 8 && bytes != 16) broken("a copy of {} bytes", bytes);
    conditions(x.conditions);
    for (const auto& [buffer, offset] : {std::pair{&to, &x.to_offset}, {&from, &x.from_offset}})
      if (!multiple_of(*offset, x.count))
        broken("'{}'[{}] is not aligned for a copy of {}", buffer->name, ir::to_string(*offset),
               x.count);
    access(x.to, x.to_offset, {}, under, x.count);
    Conditions inner = under;
    inner.insert(inner.end(), x.conditions.begin(), x.conditions.end());
    if (possible(inner)) access(x.from, x.from_offset, {}, inner, x.count);
  }

  void warpgroup_operand(const Mma& x, const Mma::Operand& o, int rows, const Conditions& under) {
    const Buffer& b = k_.buffers[o.buffer];
    if (b.dtype == DType::f32 || x.warps_n != 1 || x.tiles_m != 1 || x.warps_m % 4 != 0 ||
        x.tiles_n > 32)
      broken("a warpgroup's product of {} x {} tiles of '{}'", x.tiles_m, x.tiles_n, b.name);
    if (b.use == Use::tiles) {
      if (o.row != kTileRow || o.step != 1 || x.k != kTileRow || !multiple_of(o.offset, kTileAlign))
        broken("'{}'[{}] as tiles", b.name, ir::to_string(o.offset));
      return inside(o.buffer, o.offset, {}, under, rows * kTileRow);
    }
    if (o.row != 8 || o.step % 8 != 0 || o.step < rows * 8 || !multiple_of(o.offset, 8))
      broken("'{}'[{}] has strides {} and {}", b.name, ir::to_string(o.offset), o.row, o.step);
    access(o.buffer, o.offset, {}, under, (x.k / 8 - 1) * o.step + rows * 8);
  }

  void mma(const Mma& x, const Conditions& under) {
    known(x.acc);
    const Buffer& acc = k_.buffers[x.acc];
    if (threads_ != x.warps_m * x.warps_n * kWarp || role_ > 0)
      broken("{} x {} warps multiply among {} threads", x.warps_m, x.warps_n, threads_);
    if (acc.scope != Scope::lane || acc.dtype != DType::f32 ||
        acc.size != x.tiles_m * x.tiles_n * 4)
      broken("'{}' does not hold {} x {} tiles", acc.name, x.tiles_m, x.tiles_n);
    known(x.a.buffer);
    const DType type = k_.buffers[x.a.buffer].dtype;
    const bool wide = type == DType::f32;
    if (!wide && type != DType::f16 && type != DType::bf16)
      broken("no tensor-core product of {}", name_of(type));
    if (x.k < 1 || x.k % (wide ? 8 : 16) != 0) broken("a product with k {}", x.k);
    for (const auto& [o, rows] : {std::pair{&x.a, x.rows()}, {&x.b, x.columns()}}) {
      known(o->buffer);
      const Buffer& b = k_.buffers[o->buffer];
      if (b.scope != Scope::block || b.dtype != type) broken("'{}' as an operand", b.name);
      if (x.warpgroup) {
        warpgroup_operand(x, *o, rows, under);
        continue;
      }
      if (o->row < 1 || o->step < 1 || std::min(o->row, o->step) != 1)
        broken("'{}' has strides {} and {}", b.name, o->row, o->step);
      constexpr std::int64_t kAligned = 8;  // elements of a row of 16 bytes
      if (!wide && (std::max(o->row, o->step) % kAligned != 0 || !multiple_of(o->offset, kAligned)))
        broken("'{}'[{}] is not aligned", b.name, ir::to_string(o->offset));
      access(o->buffer, o->offset, {}, under, (rows - 1) * o->row + (x.k - 1) * o->step + 1);
    }
  }

  bool possible(const Conditions& list) const { return ir::simplify(list, ranges_).has_value(); }

  void known(BufferId id) {
    if (id.value < 0 || id.value >= k_.buffers.size()) broken("no buffer b{}", id.value);
  }

  void expr(const Expr& e) {
    std::vector<Var> used;
    ir::collect_variables(e, used);
    for (Var v : used)
      if (v.index < 0 || static_cast<std::size_t>(v.index) >= ranges_.size() ||
          !ranges_[static_cast<std::size_t>(v.index)])
        broken("d{} is used outside its loop in {}", v.index, ir::to_string(e));
  }
  void conditions(const Conditions& list) {
    for (const ir::Condition& c : list) expr(c.expr);
  }

  /// A buffer that threads may load and store.
  void plain(BufferId id) {
    known(id);
    if (k_.buffers[id].use != Use::plain)
      broken("threads touch '{}', which is for tiles or events", k_.buffers[id].name);
  }

  void access(BufferId id, const Expr& offset, const std::vector<Load::Dynamic>& dynamic,
              const Conditions& under, std::int64_t count) {
    plain(id);
    inside(id, offset, dynamic, under, count);
  }

  void inside(BufferId id, const Expr& offset, const std::vector<Load::Dynamic>& dynamic,
              const Conditions& under, std::int64_t count) {
    expr(offset);
    const Buffer& b = k_.buffers[id];
    std::int64_t low = 0, high = count - 1;
    for (const Load::Dynamic& d : dynamic) {
      if (d.extent <= 0) broken("'{}': dynamic extent {}", b.name, d.extent);
      if (d.value->dtype != DType::i64 && d.value->dtype != DType::i32)
        broken("'{}': dynamic offset is {}", b.name, name_of(d.value->dtype));
      (d.stride < 0 ? low : high) += (d.extent - 1) * d.stride;
    }
    auto range = bounds_under(offset, under, ranges_, ir::Interval{-low, b.size - 1 - high});
    if (range && range->low > range->high) return;  // the conditions contradict each other
    const bool inside = range && range->low + low >= 0 && range->high + high < b.size;
    if (!inside && unproven_ && high - low < b.size) {
      unproven_->insert({id.value, offset});
      return;
    }
    if (!range) broken("'{}'[{}]: no bounds", b.name, ir::to_string(offset));
    if (!inside) {
      std::string given;
      for (const ir::Condition& c : under) given += " & " + ir::to_string(c);
      broken("'{}'[{}] may reach {}..{} outside 0..{}{}", b.name, ir::to_string(offset),
             range->low + low, range->high + high, b.size - 1, given);
    }
  }

  void store(const Store& x, const Conditions& under) {
    known(x.buffer);
    const Buffer& b = k_.buffers[x.buffer];
    if (b.argument >= 0 && !b.written) broken("'{}' is stored to but not marked written", b.name);
    if (x.value->dtype != compute_type(b.dtype))
      broken("'{}' is {} but is given {}", b.name, name_of(b.dtype), name_of(x.value->dtype));
    seen_.clear();
    for (const Load::Dynamic& d : x.dynamic) value(d.value, under);
    access(x.buffer, x.offset, x.dynamic, under, 1);
    value(x.value, under);
  }

  /// Guards make a context: a node is checked once per set of conditions it is met under.
  void value(const Value& v, const Conditions& under) {
    if (!seen_.insert({v.get(), under}).second) return;
    if (v->dtype != compute_type(v->dtype)) broken("a value of storage type {}", name_of(v->dtype));
    if (const Guard* g = std::get_if<Guard>(&v->op)) {
      conditions(g->conditions);
      if (g->then->dtype != v->dtype || g->otherwise->dtype != v->dtype)
        broken("guard of {} holds {} and {}", name_of(v->dtype), name_of(g->then->dtype),
               name_of(g->otherwise->dtype));
      Conditions inner = under;
      inner.insert(inner.end(), g->conditions.begin(), g->conditions.end());
      if (possible(inner)) value(g->then, inner);
      value(g->otherwise, under);
      return;
    }
    for_each_child(*v, [&](const Value& c) { value(c, under); });
    node(*v, under);
  }

  void node(const ValueNode& v, const Conditions& under) {
    match(
        v.op, [](const Imm&) {},
        [&](const Load& x) {
          access(x.buffer, x.offset, x.dynamic, under, 1);
          if (v.dtype != compute_type(k_.buffers[x.buffer].dtype))
            broken("'{}' is {} but is loaded as {}", k_.buffers[x.buffer].name,
                   name_of(k_.buffers[x.buffer].dtype), name_of(v.dtype));
        },
        [&](const Apply& x) { types(x, v.dtype); },
        [&](const Index& x) {
          expr(x.expr);
          if (v.dtype != DType::i64) broken("index of type {}", name_of(v.dtype));
        },
        [](const Guard&) {},
        [&](const LaneReduce& x) {
          known(x.buffer);
          const Buffer& b = k_.buffers[x.buffer];
          if (b.scope != Scope::lane) broken("lane reduction of '{}'", b.name);
          if (v.dtype != b.dtype) broken("lane reduction of '{}' as {}", b.name, name_of(v.dtype));
          access(x.buffer, x.offset, {}, under, b.lanes);
        },
        [&](const RandomBits& x) {
          expr(x.counter);
          if (v.dtype != DType::f32) broken("random numbers of type {}", name_of(v.dtype));
        });
  }

  void types(const Apply& x, DType dtype) {
    const auto& fn = ir::info(x.fn);
    if (static_cast<int>(x.args.size()) != fn.arity) broken("{}: arity", fn.name);
    if (x.fn == ir::ScalarFn::cast) return;
    if (x.fn == ir::ScalarFn::bitcast) {
      if (!ir::can_bitcast(x.args[0]->dtype, dtype))
        broken("bitcast of {} to {}", name_of(x.args[0]->dtype), name_of(dtype));
      return;
    }
    std::size_t first = 0;
    if (x.fn == ir::ScalarFn::select) {
      if (x.args[0]->dtype != DType::b1) broken("select on {}", name_of(x.args[0]->dtype));
      first = 1;
    }
    const DType operand = x.args[first]->dtype;
    for (std::size_t i = first; i < x.args.size(); ++i)
      if (x.args[i]->dtype != operand)
        broken("{} of {} and {}", fn.name, name_of(operand), name_of(x.args[i]->dtype));
    const DType result = fn.gives_bool ? DType::b1 : operand;
    if (dtype != result)
      broken("{} of {} gives {}, not {}", fn.name, name_of(operand), name_of(result),
             name_of(dtype));
  }

  struct SeenHash {
    std::size_t operator()(const std::pair<const ValueNode*, Conditions>& x) const {
      std::size_t seed = std::hash<const void*>{}(x.first);
      for (const ir::Condition& c : x.second) seed = combine(seed, c.expr.hash());
      return seed;
    }
    static std::size_t combine(std::size_t a, std::size_t b) { return a * 31 + b; }
  };

  const Kernel& k_;
  Unproven* unproven_;
  ir::Ranges ranges_;
  int threads_ = 0;  ///< of the phase, or of the role
  int role_ = -1;    ///< number of the role, outside -1
  std::vector<Var> thread_vars_;
  std::unordered_set<int> arguments_;
  std::unordered_set<std::int32_t> bound_;
  std::unordered_set<std::pair<const ValueNode*, Conditions>, SeenHash> seen_;
};

}  // namespace

Status verify(const Kernel& k) { return verify(k, nullptr); }

Status verify(const Kernel& k, Unproven* unproven) {
  try {
    Verifier(k, unproven).run();
    return Ok{};
  } catch (const Broken& b) {
    return fail("kernel '{}': {}", k.name, b.message);
  }
}

}  // namespace heddle::kernel
