#include "lower/stitch/nest.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <unordered_map>

#include "kernel/traverse.h"

namespace heddle::lower::stitch {

using kernel::Body;
using kernel::Store;

namespace {

constexpr std::int64_t kGrain = 8192;        // element operations worth a task of their own
constexpr std::int64_t kTasksPerThread = 8;  // evens out what tasks cost
constexpr std::int64_t kHoisted = 32;        // reductions of more terms decide the order of loops
constexpr std::int64_t kTransposeTile = 64;  // elements read in one run: few pages at a time
constexpr std::int64_t kLargeTranspose = 1 << 21;  // elements
constexpr std::size_t kMaxBoxes = 24;

Index own_index(const NestOutput& o, const Index& index) {
  Index own;
  for (int d : o.dimensions) own.push_back(d < 0 ? Expr(0) : index[static_cast<std::size_t>(d)]);
  return own;
}

Expr offset_in(const Layout& layout, const Index& index) {
  Expr offset(0);
  for (std::size_t d = 0; d < index.size(); ++d) offset = offset + index[d] * layout.strides[d];
  return offset;
}

/// The largest divisor of n that is at most `limit`.
std::int64_t divisor_below(std::int64_t n, std::int64_t limit) {
  for (std::int64_t d = std::min(n, limit); d > 1; --d)
    if (n % d == 0) return d;
  return 1;
}

/// Cache lines at a distance of `step` bytes that an L1 cache of 64 sets and 8 ways keeps: a step
/// of a power of two falls into few sets.
double lines_kept(std::int64_t step) {
  constexpr std::int64_t kLine = 64, kSets = 64, kWays = 8;
  if (step < kLine) return static_cast<double>(kSets * kWays * kLine / step);
  return static_cast<double>(kSets / std::gcd(kSets, step / kLine) * kWays);
}

}  // namespace

Nest::Traced Nest::trace(Emitter& out, const std::vector<NestOutput>& outputs,
                         const Domain& domain) {
  Traced t;
  for (std::size_t d = 0; d < domain.extent.size(); ++d) {
    Expr at(domain.begin[d]);
    if (domain.extent[d] != 1) {
      t.dims.push_back({out.fresh(domain.extent[d]), domain.extent[d]});
      at = at + Expr(t.dims.back().var);
    }
    t.position.push_back(at);
  }
  t.touches = out.touches_of(
      [&](Evaluator& values) {
        std::vector<Value> all;
        for (const NestOutput& o : outputs) {
          all.push_back(o.value(values, own_index(o, t.position)));
          if (!o.row) kernel::for_each_value(all.back(), [&](const Value&) { ++t.weight; });
        }
        return all;
      },
      [&](const Reduction& r) {
        t.reductions.push_back(r);
        // Few terms are written out.
        const std::int64_t terms = element_count(r.extents);
        if (terms <= kHoisted) t.weight += 4 * terms;
      });
  for (const NestOutput& o : outputs) {
    if (o.row) continue;
    const std::int64_t bytes = size_of(out.kernel().buffers[o.buffer].dtype);
    t.touches.push_back({Touch::Kind::store, offset_in(o.layout, own_index(o, t.position)), bytes,
                         1, false, 0, 0, o.buffer});
  }
  return t;
}

std::vector<Domain> Nest::boxes(Emitter& out, const std::vector<NestOutput>& outputs,
                                const Domain& domain) {
  const Traced t = trace(out, outputs, domain);
  std::vector<std::set<std::int64_t>> cuts(domain.extent.size());
  for (const Touch& touch : t.touches) {
    const auto var = touch.chooses ? touch.offset.variable() : std::nullopt;
    for (std::size_t d = 0; var && d < domain.extent.size(); ++d) {
      if (!(ir::depends_on(t.position[d], *var))) continue;
      for (std::int64_t at : {touch.low, touch.high})
        if (at > 0 && at < domain.extent[d]) cuts[d].insert(at);
    }
  }
  std::vector<Domain> all{domain};
  for (std::size_t d = 0; d < cuts.size(); ++d) {
    if (cuts[d].empty() || all.size() * (cuts[d].size() + 1) > kMaxBoxes) continue;
    std::vector<Domain> next;
    for (const Domain& box : all) {
      std::int64_t from = 0;
      std::vector<std::int64_t> ends(cuts[d].begin(), cuts[d].end());
      ends.push_back(domain.extent[d]);
      for (std::int64_t end : ends) {
        next.push_back(box);
        next.back().begin[d] = domain.begin[d] + from;
        next.back().extent[d] = end - from;
        from = end;
      }
    }
    all = std::move(next);
  }
  return all;
}

Nest::Nest(Emitter& out, std::vector<NestOutput> outputs, Domain domain)
    : out_(out), outputs_(std::move(outputs)), domain_(std::move(domain)) {
  if (element_count(domain_.extent) == 0) {
    tasks_ = 0;
    return;
  }
  Traced t = trace(out_, outputs_, domain_);
  weight_ = t.weight;
  for (const Axis& d : t.dims) dims_.push_back(d.var);
  // Neighbours in memory are neighbours in the list, so that they can be fused.
  const NestOutput& main =
      *std::find_if(outputs_.begin(), outputs_.end(), [](const NestOutput& o) { return !o.row; });
  const Expr stored = offset_in(main.layout, own_index(main, t.position));
  std::stable_sort(t.dims.begin(), t.dims.end(), [&](const Axis& a, const Axis& b) {
    return ir::coefficient_of(stored, a.var).value_or(0) >
           ir::coefficient_of(stored, b.var).value_or(0);
  });
  axes_ = choose_axes(t.dims, t.touches, out_.values().ranges(), out_.lanes(),
                      [this](std::int64_t extent) { return out_.fresh(extent); });
  choose_order(t);
  choose_vector_count();
  choose_tasks();
}

void Nest::choose_order(const Traced& t) {
  const auto rule = [&](Var v) -> std::optional<Expr> {
    for (const auto& [original, e] : axes_.originals)
      if (original == v) return e;
    return std::nullopt;
  };
  for (const Reduction& r : t.reductions) {
    if (element_count(r.extents) <= kHoisted) continue;
    Hoisted h{std::vector<bool>(axes_.loops.size(), false), element_count(r.extents)};
    for (const Expr& e : r.depends) {
      const Expr in_axes = out_.values().simplified(ir::substitute(e, rule));
      for (std::size_t i = 0; i < axes_.loops.size(); ++i)
        if (ir::depends_on(in_axes, axes_.loops[i].var)) h.needs[i] = true;
    }
    hoisted_.push_back(std::move(h));
  }
  choose_vector();
  tile_transpose();
  keep_weights();
  const auto needed = [&](std::size_t i) {
    return std::count_if(hoisted_.begin(), hoisted_.end(),
                         [&](const Hoisted& h) { return h.needs[i]; });
  };
  order_.resize(axes_.loops.size());
  std::iota(order_.begin(), order_.end(), 0);
  // Loops that reductions do not depend on are inside those they do depend on.
  std::stable_sort(order_.begin(), order_.end(), [&](std::size_t a, std::size_t b) {
    if (needed(a) != needed(b)) return needed(a) > needed(b);
    // Among equals: tasks, vectors, then what is inside the vectors.
    const auto rank = [&](std::size_t i) { return i == tiled_ ? 2 : i == vector_ ? 1 : 0; };
    return rank(a) < rank(b);
  });
}

void Nest::choose_vector() {
  double best = 0;
  width_ = out_.lanes();
  if (width_ == 1) return;
  for (std::size_t i = 0; i < axes_.loops.size(); ++i) {
    const Axis& a = axes_.loops[i];
    const double use = std::min(1.0, static_cast<double>(a.extent) / width_);
    const double gain = vector_score(axes_.touches, a.var);
    // Terms of a reduction had better run along its own axis than be gathered.
    const bool needed =
        std::any_of(hoisted_.begin(), hoisted_.end(), [&](const Hoisted& h) { return h.needs[i]; });
    if (needed && gain <= 0) continue;
    const double score = std::max(1.0, 1000 + gain) * use;
    if (score > best) {
      best = score;
      vector_ = i;
    }
  }
}

/// A transpose: what is contiguous to one side is not to the other. Blocks of the other side's
/// contiguous axis run inside the vectors, so that whole cache lines are used on both sides.
void Nest::tile_transpose() {
  if (!vector_ || !hoisted_.empty()) return;
  const Var lane = axes_.loops[*vector_].var;
  const bool strided = std::any_of(axes_.touches.begin(), axes_.touches.end(), [&](const Touch& t) {
    const auto c = ir::coefficient_of(t.offset, lane);
    return t.kind != Touch::Kind::other && c && *c > 1;
  });
  if (!strided) return;
  for (std::size_t i = 0; i < axes_.loops.size(); ++i) {
    if (i == *vector_) continue;
    const Axis axis = axes_.loops[i];
    const bool contiguous =
        std::any_of(axes_.touches.begin(), axes_.touches.end(), [&](const Touch& t) {
          return t.kind != Touch::Kind::other && ir::coefficient_of(t.offset, axis.var) == 1 &&
                 ir::coefficient_of(t.offset, lane) != 1;
        });
    const std::int64_t tile = divisor_below(axis.extent, kTransposeTile);
    if (!contiguous || tile < 4) continue;
    const Axis outer{out_.fresh(axis.extent / tile), axis.extent / tile};
    const Axis inner{out_.fresh(tile), tile};
    const Expr whole = Expr(outer.var) * Expr(tile) + Expr(inner.var);
    const auto rule = [&](Var v) {
      return v == axis.var ? std::optional<Expr>(whole) : std::nullopt;
    };
    for (auto& [original, e] : axes_.originals) e = ir::substitute(e, rule);
    for (Touch& t : axes_.touches) t.offset = ir::substitute(t.offset, rule);
    axes_.loops[i] = outer;
    axes_.loops.push_back(inner);
    tiled_ = axes_.loops.size() - 1;
    transposes_ = true;
    return;
  }
}

/// A sum of a few products (depthwise convolution): inside the vectors goes the axis along which
/// one factor does not change, so that it stays in registers.
void Nest::keep_weights() {
  constexpr double kSeveral = 4;
  if (!vector_ || tiled_ || !hoisted_.empty()) return;
  const Var lane = axes_.loops[*vector_].var;
  for (std::size_t i = axes_.loops.size(); i-- > 0;) {
    if (i == *vector_ || axes_.loops[i].extent < 4) continue;
    const Var var = axes_.loops[i].var;
    bool fixed = false, moves = false, fits = true;
    for (const Touch& t : axes_.touches) {
      if (t.kind != Touch::Kind::load || t.weight < kSeveral) continue;
      const auto along = ir::coefficient_of(t.offset, var);
      const bool laned = ir::coefficient_of(t.offset, lane) != 0;
      fixed |= laned && along == 0;
      if (!laned || !along || *along == 0) continue;
      moves = true;
      // The window slides along the axis; what it leaves behind is wanted again a row later.
      const double rows = std::sqrt(t.weight) + 1;
      fits &= rows * static_cast<double>(axes_.loops[i].extent) <=
              lines_kept(std::abs(*along) * t.bytes);
    }
    if (!fixed || !moves || !fits) continue;
    tiled_ = i;
    return;
  }
}

std::vector<std::pair<kernel::BufferId, std::int64_t>> Nest::strided_reads() const {
  std::vector<std::pair<kernel::BufferId, std::int64_t>> out;
  if (!vector_) return out;
  for (const Touch& t : axes_.touches) {
    const auto c = ir::coefficient_of(t.offset, axes_.loops[*vector_].var);
    if (t.kind == Touch::Kind::load && c && *c > 1) out.emplace_back(t.buffer, *c);
  }
  return out;
}

/// The same for stores: the tile is collected in scratch memory and written row by row afterwards.
void Nest::stage_stores(std::vector<Store>& stores, const Lanes& l, Var tile, std::int64_t rows,
                        std::int64_t length) {
  const Expr in_block = out_.values().simplified(l.place(width_));
  for (Store& s : stores) {
    const auto step = ir::coefficient_of(s.offset, l.lane);
    const bool blocks =
        l.count == 1 || (step && ir::coefficient_of(s.offset, l.unroll) == *step * width_);
    if (!step || *step <= 1 || !blocks || ir::coefficient_of(s.offset, tile) != 1) continue;
    const Expr base = s.offset - in_block * Expr(*step) - Expr(tile);
    const kernel::BufferId to = s.buffer;
    s.buffer = out_.tile_like(to, rows * length);
    s.offset = Expr(tile) * Expr(rows) + in_block;
    after_lanes_.push_back([=, this, from = s.buffer, step = *step] {
      out_.write_columns(from, to, base, step, rows, length);
    });
  }
}

/// Loads that are strided along the lanes but contiguous along the tile's axis read a copy of their
/// tile, made row by row: each cache line is used whole at once.
void Nest::stage_tile(std::vector<Store>& stores) {
  const Lanes* l = out_.current_lanes();
  const auto tile = transposes_ ? position_[*tiled_]->variable() : std::nullopt;
  if (!tile || !l) return;
  const std::int64_t length = axes_.loops[*tiled_].extent;
  const std::int64_t rows = l->count == 1 ? l->width : static_cast<std::int64_t>(width_) * l->count;
  std::map<std::pair<kernel::BufferId, Expr>, Value> staged;
  bool guarded = false;
  for (const Store& s : stores)
    kernel::for_each_value(s.value, [&](const Value& v) {
      guarded |= std::holds_alternative<kernel::Guard>(v->op);
      const auto* load = std::get_if<kernel::Load>(&v->op);
      if (!load || !load->dynamic.empty()) return;
      const auto step = ir::coefficient_of(load->offset, l->lane);
      const bool blocks =
          l->count == 1 || (step && ir::coefficient_of(load->offset, l->unroll) == *step * width_);
      if (!step || *step <= 1 || !blocks || ir::coefficient_of(load->offset, *tile) != 1) return;
      staged.try_emplace({load->buffer, load->offset});
    });
  stage_stores(stores, *l, *tile, rows, length);
  if (guarded || staged.empty()) return;
  for (auto& [key, value] : staged) {
    const auto& [buffer, offset] = key;
    const std::int64_t step = *ir::coefficient_of(offset, l->lane);
    const Expr in_block = out_.values().simplified(l->place(width_));
    const Expr base = offset - in_block * Expr(step) - Expr(*tile);
    const kernel::BufferId copy = out_.copy_rows(buffer, base, step, rows, length);
    value = kernel::load(copy, in_block * Expr(length) + Expr(*tile),
                         compute_type(out_.kernel().buffers[buffer].dtype));
  }
  std::unordered_map<const kernel::ValueNode*, Value> memo;
  kernel::Mapper mapper;
  mapper.value = [&](const Value& v) -> Value {
    if (const auto found = memo.find(v.get()); found != memo.end()) return found->second;
    const auto* load = std::get_if<kernel::Load>(&v->op);
    const auto copy = load ? staged.find({load->buffer, load->offset}) : staged.end();
    Value out = copy == staged.end() ? kernel::map_children(v, mapper) : copy->second;
    memo.emplace(v.get(), out);
    return out;
  };
  for (Store& s : stores) s.value = mapper.value(s.value);
}

/// Several vectors side by side where the body is light or holds accumulators.
void Nest::choose_vector_count() {
  if (!vector_) return;
  const std::int64_t vectors = axes_.loops[*vector_].extent / width_;
  const bool sums = std::any_of(hoisted_.begin(), hoisted_.end(),
                                [&](const Hoisted& h) { return h.needs[*vector_]; });
  // Long runs of stores matter where they go to memory.
  const std::int64_t runs = element_count(domain_.extent) > kLargeTranspose ? 8 : 2;
  const std::int64_t wish = sums            ? 4
                            : transposes_   ? runs
                            : tiled_        ? 2
                            : weight_ <= 12 ? 4
                            : weight_ <= 40 ? 2
                                            : 1;
  count_ = static_cast<int>(std::max<std::int64_t>(1, std::min(wish, vectors)));
  if (streams_columns(vectors)) {
    count_ = static_cast<int>(vectors);
    return;
  }
  if (vectors < 8)
    while (count_ > 1 && vectors % count_ != 0) --count_;
}

/// Sums of columns whose tasks are found elsewhere: rows are read whole, in the order of memory,
/// and added to a row of accumulators in scratch memory.
bool Nest::streams_columns(std::int64_t vectors) const {
  constexpr std::int64_t kMaxVectors = 512, kManyTerms = 16;
  if (hoisted_.size() != 1 || vectors <= count_ || vectors > kMaxVectors) return false;
  const Hoisted& h = hoisted_[0];
  if (!h.needs[*vector_] || h.count < kManyTerms * 2) return false;
  std::int64_t tasks = 1;
  for (std::size_t i = 0; i < axes_.loops.size(); ++i) {
    if (!h.needs[i]) return false;
    if (i != *vector_) tasks *= axes_.loops[i].extent;
  }
  return tasks >= kTasksPerThread;
}

std::int64_t Nest::work() const {
  std::int64_t points = 1;
  for (const Axis& a : axes_.loops) points *= a.extent;
  std::int64_t total = points * std::max<std::int64_t>(1, weight_ / 4);
  for (const Hoisted& h : hoisted_) {
    std::int64_t rows = h.count;
    for (std::size_t i = 0; i < axes_.loops.size(); ++i)
      if (h.needs[i]) rows *= axes_.loops[i].extent;
    total += rows;
  }
  return total;
}

void Nest::choose_tasks() {
  const std::int64_t wish = std::clamp<std::int64_t>(
      work() / kGrain, 1, kTasksPerThread * std::max(1, out_.target().threads));
  std::int64_t before = 1;
  split_ = order_.size();
  for (std::size_t i = 0; i < order_.size(); ++i) {
    const std::size_t axis = order_[i];
    // A task must not repeat a reduction of another one.
    const bool own = std::all_of(hoisted_.begin(), hoisted_.end(),
                                 [&](const Hoisted& h) { return h.needs[axis]; });
    if (!own || axis == tiled_) break;
    std::int64_t units = axes_.loops[axis].extent;
    if (axis == vector_) {
      const std::int64_t step = static_cast<std::int64_t>(width_) * count_;
      if (units < step) break;
      units = (units + step - 1) / step;
    }
    split_ = i;
    blocks_ = std::clamp<std::int64_t>((wish + before - 1) / before, 1, units);
    block_ = (units + blocks_ - 1) / blocks_;
    if (const std::int64_t exact = divisor_below(units, block_); exact * 2 > block_) block_ = exact;
    blocks_ = (units + block_ - 1) / block_;
    tasks_ = before * blocks_;
    if (before * units >= wish) break;
    before *= units;
    if (axis == vector_) break;
  }
  if (split_ == order_.size()) tasks_ = 1;
}

/// Positions of the axes that the task number decides.
void Nest::place_tasks(const Expr& task) {
  position_.assign(axes_.loops.size(), std::nullopt);
  if (split_ == order_.size()) return;
  split_block_ = blocks_ == 1 ? Expr(0) : ir::floor_mod(task, blocks_);
  Expr rest = ir::floor_div(task, blocks_);
  for (std::size_t i = split_; i-- > 0;) {
    const Axis& a = axes_.loops[order_[i]];
    position_[order_[i]] = out_.values().simplified(ir::floor_mod(rest, a.extent));
    rest = ir::floor_div(rest, a.extent);
  }
  split_block_ = out_.values().simplified(split_block_);
}

Body Nest::emit(const Expr& task, Var bound) {
  out_.begin_task({bound});
  place_tasks(task);
  loops(split_ == order_.size() ? 0 : split_);
  return out_.end_task();
}

void Nest::loops(std::size_t at) {
  if (at >= order_.size()) return innermost();
  const std::size_t axis = order_[at];
  if (axis == vector_) return vector_loops(at);
  const std::int64_t extent = axes_.loops[axis].extent;
  const std::int64_t times = at == split_ ? block_ : extent;
  Expr start(0);
  if (at == split_) {
    start = split_block_ * Expr(block_);
    if (extent % block_ != 0) start = ir::min(start, Expr(extent - block_));
  }
  const std::optional<Var> loop = times > 1 ? std::optional(out_.open(times)) : std::nullopt;
  position_[axis] = out_.values().simplified(start + (loop ? Expr(*loop) : Expr(0)));
  loops(at + 1);
  if (loop) out_.close(*loop, times);
}

/// Blocks of vectors, then single vectors, then the lanes that are left. Where tasks divide the
/// axis, the last blocks are moved back to end with it and compute some elements twice.
void Nest::vector_loops(std::size_t at) {
  const std::size_t axis = order_[at];
  const std::int64_t extent = axes_.loops[axis].extent;
  const std::int64_t step = static_cast<std::int64_t>(width_) * count_;
  std::int64_t done = 0;
  const auto part = [&](std::int64_t times, int lanes, int vectors, const Expr& first,
                        bool overlap) {
    if (times == 0) return;
    const std::optional<Var> loop = times > 1 ? std::optional(out_.open(times)) : std::nullopt;
    const std::int64_t block = static_cast<std::int64_t>(lanes) * vectors;
    Expr start = (first + (loop ? Expr(*loop) : Expr(0))) * Expr(block) + Expr(done);
    if (overlap) start = ir::min(start, Expr(extent - block));
    const Lanes* l = out_.enter_lanes(lanes, vectors);
    position_[axis] = out_.values().simplified(start + l->place(width_));
    loops(at + 1);
    out_.leave_lanes();
    for (const auto& copy : std::exchange(after_lanes_, {})) copy();
    if (loop) out_.close(*loop, times);
    done += times * block;
  };
  if (at == split_ && tasks_ > 1) {
    const bool overlap = extent != blocks_ * block_ * step;
    return part(block_, width_, count_, split_block_ * Expr(block_), overlap);
  }
  part(extent / step, width_, count_, 0, false);
  part((extent - done) / width_, width_, 1, 0, false);
  if (extent > done) part(1, static_cast<int>(extent - done), 1, 0, false);
}

const Expr& Nest::original_of(std::size_t dim) const {
  const auto found = std::find_if(axes_.originals.begin(), axes_.originals.end(),
                                  [&](const auto& o) { return o.first == dims_[dim]; });
  return found->second;
}

Index Nest::current_index() const {
  const auto rule = [&](Var v) -> std::optional<Expr> {
    for (std::size_t i = 0; i < axes_.loops.size(); ++i)
      if (axes_.loops[i].var == v) return position_[i];
    return std::nullopt;
  };
  Index index;
  std::size_t next = 0;
  for (std::size_t d = 0; d < domain_.extent.size(); ++d) {
    Expr at(domain_.begin[d]);
    if (domain_.extent[d] != 1) at = at + ir::substitute(original_of(next++), rule);
    index.push_back(out_.values().simplified(at));
  }
  return index;
}

void Nest::innermost() {
  const Index index = current_index();
  std::vector<Store> stores;
  const auto make = [&](const NestOutput& o, const Index& own) {
    return Store{o.buffer,
                 out_.values().simplified(offset_in(o.layout, own)),
                 o.value(out_.values(), own),
                 {}};
  };
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    const NestOutput& o = outputs_[i];
    const Index own = own_index(o, index);
    if (o.row && rows_done_.insert({i, own}).second)
      out_.store_at_level(own, [&] { return make(o, own); });
  }
  out_.prepared([&] {
    stores.clear();
    std::vector<Value> values;
    for (const NestOutput& o : outputs_) {
      if (o.row) continue;
      stores.push_back(make(o, own_index(o, index)));
      values.push_back(stores.back().value);
    }
    return values;
  });
  stage_tile(stores);
  out_.store(std::move(stores));
}

std::string Nest::describe() const {
  std::string text = fmt::format("tasks={}", tasks_);
  if (vector_) text += fmt::format(" vector={}x{}", width_, count_);
  if (!hoisted_.empty()) text += fmt::format(" reductions={}", hoisted_.size());
  if (tiled_) text += " tiled";
  return text;
}

}  // namespace heddle::lower::stitch
