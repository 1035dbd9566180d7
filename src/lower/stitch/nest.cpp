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
constexpr std::int64_t kLargeTranspose = 1 << 21;  // elements
constexpr std::size_t kMaxBoxes = 24;

/// Instructions, roughly.
std::int64_t weight_of(const kernel::ValueNode& v) {
  const auto* x = std::get_if<kernel::Apply>(&v.op);
  return x && ir::info(x->fn).expensive ? std::llround(ir::info(x->fn).flops) : 1;
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
          if (!o.row)
            kernel::for_each_value(all.back(), [&](const Value& v) { t.weight += weight_of(*v); });
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
  choose_kept(t);
}

/// Whether the reduction is part of another one's terms.
bool Nest::is_nested(const Reduction& r, const Traced& t) {
  std::vector<Var> used;
  for (const Expr& e : r.depends) ir::collect_variables(e, used);
  return std::any_of(used.begin(), used.end(), [&](Var v) {
    return std::none_of(t.dims.begin(), t.dims.end(), [&](const Axis& a) { return a.var == v; });
  });
}

void Nest::choose_order(const Traced& t) {
  std::int64_t nested = 1;  // terms; which reduction holds them is not told, so each may
  for (const Reduction& r : t.reductions)
    if (is_nested(r, t)) nested = std::max(nested, element_count(r.extents));
  const auto rule = [&](Var v) -> std::optional<Expr> {
    for (const auto& [original, e] : axes_.originals)
      if (original == v) return e;
    return std::nullopt;
  };
  for (const Reduction& r : t.reductions) {
    const std::int64_t terms = element_count(r.extents) * nested;
    if (terms <= kHoisted || is_nested(r, t)) continue;
    Hoisted h{std::vector<bool>(axes_.loops.size(), false), terms};
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
    const auto rank = [&](std::size_t i) {
      return i == tiled_ ? 2 : i == vector_ ? 1 : i == blocked_ ? -1 : 0;
    };
    return rank(a) < rank(b);
  });
}

/// Without loads from buffers much smaller than the largest: those stay in the first-level cache,
/// however they are read.
std::vector<Touch> Nest::large_touches() const {
  constexpr std::int64_t kSmallShare = 256;
  const auto size = [&](const Touch& t) {
    return t.kind == Touch::Kind::other ? 0 : out_.kernel().buffers[t.buffer].size;
  };
  std::int64_t largest = 0;
  for (const Touch& t : axes_.touches) largest = std::max(largest, size(t));
  std::vector<Touch> out = axes_.touches;
  std::erase_if(out, [&](const Touch& t) {
    return t.kind == Touch::Kind::load && size(t) * kSmallShare <= largest;
  });
  return out;
}

void Nest::choose_vector() {
  double best = 0;
  width_ = out_.lanes();
  if (width_ == 1) return;
  const std::vector<Touch> touches = large_touches();
  for (std::size_t i = 0; i < axes_.loops.size(); ++i) {
    const Axis& a = axes_.loops[i];
    const double gain = vector_score(touches, a.var, 4);
    // A part of a long vector of bytes, of neighbours, is better than all of one that is gathered.
    constexpr int kEnough = 16;
    const int full = gain > 0 ? std::min(width_, kEnough) : width_;
    const double use = std::min(1.0, static_cast<double>(a.extent) / full);
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

std::vector<std::pair<kernel::BufferId, std::int64_t>> Nest::strided_reads() const {
  std::vector<std::pair<kernel::BufferId, std::int64_t>> out;
  if (!vector_) return out;
  for (const Touch& t : axes_.touches) {
    const auto c = ir::coefficient_of(t.offset, axes_.loops[*vector_].var);
    if (t.kind == Touch::Kind::load && c && *c > 1) out.emplace_back(t.buffer, *c);
  }
  return out;
}

/// Several vectors side by side where the body is light or holds accumulators.
void Nest::choose_vector_count() {
  if (!vector_) return;
  const std::int64_t vectors = axes_.loops[*vector_].extent / width_;
  const bool sums = std::any_of(hoisted_.begin(), hoisted_.end(),
                                [&](const Hoisted& h) { return h.needs[*vector_]; });
  // Long runs of stores matter where they go to memory.
  const std::int64_t line = kLine / size_of(out_.kernel().buffers[outputs_[0].buffer].dtype);
  const std::int64_t runs = in_registers_ ? std::max<std::int64_t>(1, line / width_)
                            : element_count(domain_.extent) > kLargeTranspose ? 8
                                                                              : 2;
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
  std::int64_t wish = std::clamp<std::int64_t>(
      work() / kGrain, 1, kTasksPerThread * std::max(1, out_.target().threads));
  if (out_.wanted_tasks() > 0) wish = out_.wanted_tasks();
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
  for (const NodeId node : kept_) out_.keep(node);
  loops(split_ == order_.size() ? 0 : split_);
  return out_.end_task();
}

void Nest::loops(std::size_t at) {
  if (at >= order_.size()) return innermost();
  const std::size_t axis = order_[at];
  if (axis == vector_) return vector_loops(at);
  const std::int64_t extent = axes_.loops[axis].extent;
  const std::int64_t times = at == split_ ? block_ : extent;
  const std::optional<Var> loop = times > 1 ? std::optional(out_.open(times)) : std::nullopt;
  const Expr step = loop ? Expr(*loop) : Expr(0);
  if (at != split_) {
    position_[axis] = step;
    loops(at + 1);
  } else {
    within(split_block_ * Expr(block_) + step, blocks_ * block_, extent, [&](const Expr& place) {
      position_[axis] = place;
      loops(at + 1);
    });
    // What the reads of a tile depend on is not known outside the condition.
    if (blocks_ * block_ > extent) tile_reads_.clear();
  }
  if (!loop) return;
  if (tile_reads_.empty()) return out_.close(*loop, times);
  out_.close_unrolled(*loop, times, width_, [&](const Expr& block) { return next_tile(block); });
  tile_reads_.clear();
}

/// What `make` appends for a place in [0, end) that may be too far: no two tasks store the same.
void Nest::within(const Expr& place, std::int64_t end, std::int64_t extent,
                  const std::function<void(const Expr& place)>& make) {
  if (end <= extent) return make(out_.values().simplified(place));
  const Var v = out_.fresh(extent);
  out_.with(v, out_.values().simplified(place), 0, extent, [&] { make(Expr(v)); });
}

/// Blocks of vectors, then single vectors, then the lanes that are left.
void Nest::vector_loops(std::size_t at) {
  const std::size_t axis = order_[at];
  const std::int64_t extent = axes_.loops[axis].extent;
  const std::int64_t step = static_cast<std::int64_t>(width_) * count_;
  const auto vectors = [&](int lanes, int count, const Expr& start) {
    const Lanes* l = out_.enter_lanes(lanes, count);
    position_[axis] = out_.values().simplified(start + l->place(width_));
    loops(at + 1);
    out_.leave_lanes();
    for (const auto& copy : std::exchange(after_lanes_, {})) copy();
  };
  std::int64_t done = 0;
  const auto part = [&](std::int64_t times, int lanes, int count) {
    if (times == 0) return;
    const std::int64_t each = static_cast<std::int64_t>(lanes) * count;
    const std::optional<Var> loop = times > 1 ? std::optional(out_.open(times)) : std::nullopt;
    vectors(lanes, count, (loop ? Expr(*loop) : Expr(0)) * Expr(each) + Expr(done));
    if (loop) out_.close(*loop, times);
    done += times * each;
  };
  const auto rest = [&] {
    part((extent - done) / width_, width_, 1);
    if (extent > done) part(1, static_cast<int>(extent - done), 1);
  };
  const std::int64_t whole = extent / step;
  if (at != split_ || tasks_ == 1) {
    part(whole, width_, count_);
    return rest();
  }
  const std::optional<Var> loop = block_ > 1 ? std::optional(out_.open(block_)) : std::nullopt;
  within(split_block_ * Expr(block_) + (loop ? Expr(*loop) : Expr(0)), blocks_ * block_, whole,
         [&](const Expr& place) { vectors(width_, count_, place * Expr(step)); });
  if (loop) out_.close(*loop, block_);
  done = whole * step;
  if (extent > done) out_.under({{split_block_, blocks_ - 1, blocks_}}, rest);
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

/// Of the tasks that all come upon a row, the one that stores it.
std::vector<ir::Condition> Nest::first_task_of(const NestOutput& row) const {
  std::vector<ir::Condition> out;
  for (std::size_t i = 0; split_ < order_.size() && i <= split_; ++i) {
    bool follows = false;
    for (std::size_t d = 0, dim = 0; d < domain_.extent.size(); ++d) {
      if (domain_.extent[d] == 1) continue;
      const Expr& at = original_of(dim++);
      follows |= ir::depends_on(at, axes_.loops[order_[i]].var) &&
                 std::ranges::count(row.dimensions, static_cast<int>(d)) > 0;
    }
    if (!follows) out.push_back({i == split_ ? split_block_ : *position_[order_[i]], 0, 1});
  }
  return out;
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
      out_.store_at_level(own, first_task_of(o), [&] { return make(o, own); });
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
  if (stored_before_ == 0) return out_.store(std::move(stores));
  out_.under({{*position_[*tiled_], stored_before_, axes_.loops[*tiled_].extent}},
             [&] { out_.store(std::move(stores)); });
}

std::string Nest::describe() const {
  std::string text = fmt::format("tasks={}", tasks_);
  if (vector_) text += fmt::format(" vector={}x{}", width_, count_);
  if (!hoisted_.empty()) text += fmt::format(" reductions={}", hoisted_.size());
  if (tiled_) text += " tiled";
  return text;
}

}  // namespace heddle::lower::stitch
