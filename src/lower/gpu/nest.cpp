#include "lower/gpu/nest.h"

#include <algorithm>
#include <numeric>

#include "kernel/traverse.h"

namespace heddle::lower::gpu {

using ir::Expr;
using ir::Var;
using kernel::Binding;
using kernel::Body;
using kernel::Store;
using kernel::Value;

namespace {

constexpr std::int64_t kHoisted = 32;           // reductions of more terms are done by teams
constexpr std::int64_t kThreadsPerCore = 1024;  // that hide the latency of memory
constexpr int kBlock = 256, kMaxTeam = 1024;
constexpr std::int64_t kTermsEach = 16;  // vectors that one member adds up gladly

int power_above(std::int64_t n, int most) {
  int p = 1;
  while (p < n && p < most) p *= 2;
  return p;
}

}  // namespace

int cluster_team(const Target& target, std::int64_t rows, std::int64_t terms, int lanes) {
  constexpr int kClusters = 90;                                     // compute capability
  constexpr std::int64_t kLongest = 1 << 19, kLongAlone = 1 << 17;  // terms
  if (target.stage_threads > 0) return 0;
  if (target.capability < kClusters || rows < 1 || rows * 2 > target.multiprocessors) return 0;
  // Very few rows leave most of the machine idle even so.
  if (terms > (rows * kernel::kClusterBlocks * 2 >= target.multiprocessors ? kLongest : kLongAlone))
    return 0;
  int blocks = 1;
  while (blocks < kernel::kClusterBlocks && rows * blocks * 2 <= target.multiprocessors &&
         terms >= std::int64_t{4} * blocks * kernel::kBlockThreads * lanes)
    blocks *= 2;
  return blocks > 1 ? blocks * kernel::kBlockThreads : 0;
}

ThreadNest::ThreadNest(Emitter& out, std::vector<NestOutput> outputs, Domain domain, int threads)
    : out_(out),
      outputs_(std::move(outputs)),
      domain_(std::move(domain)),
      wanted_threads_(threads) {
  if (element_count(domain_.extent) == 0) {
    tasks_ = 0;
    return;
  }
  stitch::Nest::Traced t = stitch::Nest::trace(out_, outputs_, domain_);
  for (const stitch::Axis& d : t.dims) dims_.push_back(d.var);
  // Neighbours in memory are neighbours in the list, so that they can be fused.
  const NestOutput& main =
      *std::find_if(outputs_.begin(), outputs_.end(), [](const NestOutput& o) { return !o.row; });
  const Expr stored = offset_in(main.layout, stitch::own_index(main, t.position));
  std::stable_sort(t.dims.begin(), t.dims.end(), [&](const stitch::Axis& a, const stitch::Axis& b) {
    return ir::coefficient_of(stored, a.var).value_or(0) >
           ir::coefficient_of(stored, b.var).value_or(0);
  });
  axes_ = stitch::choose_axes(t.dims, t.touches, out_.values().ranges(), out_.lanes(),
                              [this](std::int64_t extent) { return out_.fresh(extent); });
  choose_rows(t);
  choose_vector();
  choose_team();
}

/// Row axes: what long reductions depend on. If some depend on fewer axes than others, the rows are
/// theirs, and the others are done by single threads inside.
void ThreadNest::choose_rows(const stitch::Nest::Traced& t) {
  const auto rule = [&](Var v) -> std::optional<Expr> {
    for (const auto& [original, e] : axes_.originals)
      if (original == v) return e;
    return std::nullopt;
  };
  const std::size_t n = axes_.loops.size();
  row_.assign(n, false);
  bool partial = false;
  for (const Reduction& r : t.reductions) {
    const std::int64_t terms = element_count(r.extents);
    if (terms <= kHoisted) continue;
    teams_ = true;
    terms_ = std::max(terms_, terms);
    std::vector<bool> needs(n, false);
    for (const Expr& e : r.depends) {
      const Expr in_axes = out_.values().simplified(ir::substitute(e, rule));
      for (std::size_t i = 0; i < n; ++i)
        if (ir::depends_on(in_axes, axes_.loops[i].var)) needs[i] = true;
    }
    if (std::find(needs.begin(), needs.end(), false) == needs.end()) continue;
    partial = true;
    for (std::size_t i = 0; i < n; ++i) row_[i] = row_[i] || needs[i];
  }
  if (!partial) row_.assign(n, true);
}

/// The axis along which memory runs for most of what is touched: vectors and neighbouring threads.
void ThreadNest::choose_vector() {
  double best = 0;
  for (std::size_t i = 0; i < axes_.loops.size(); ++i) {
    const double gain = stitch::vector_score(axes_.touches, axes_.loops[i].var);
    if (gain > best) {
      best = gain;
      vector_ = i;
    }
  }
  if (!vector_ && !teams_ && !axes_.loops.empty()) vector_ = axes_.loops.size() - 1;
  columns_ = !teams_ || (vector_ && row_[*vector_]);
  width_ = vector_ ? out_.lanes() : 1;
  while (width_ > 1 && axes_.loops[*vector_].extent % width_ != 0) width_ /= 2;
  // Narrow accesses on many threads before wide ones on few.
  const std::int64_t all = element_count(domain_.extent);
  const std::int64_t few = out_.target().multiprocessors * std::int64_t{kBlock};
  while (width_ > 1 && !teams_ && all / width_ < few) width_ /= 2;
  order_.resize(axes_.loops.size());
  std::iota(order_.begin(), order_.end(), 0);
  std::stable_sort(order_.begin(), order_.end(),
                   [&](std::size_t a, std::size_t b) { return (a == vector_) < (b == vector_); });
  for (std::size_t i = 0; i < axes_.loops.size(); ++i) {
    const std::int64_t extent = axes_.loops[i].extent / (i == vector_ ? width_ : 1);
    (row_[i] ? points_ : inner_) *= extent;
  }
}

/// Enough threads for one wave; no more members than there is work for.
void ThreadNest::choose_team() {
  const std::int64_t cores = out_.target().multiprocessors;
  const std::int64_t wave = cores * kThreadsPerCore;
  const int block = wanted_threads_ ? wanted_threads_ : kBlock;
  const int most = wanted_threads_ ? wanted_threads_ : kMaxTeam;
  if (!teams_) {
    per_block_ = block;
    while (!wanted_threads_ && per_block_ > kernel::kWarp && points_ < per_block_ * cores)
      per_block_ /= 2;
  } else if (columns_) {
    // Neighbours read lines of memory together; where blocks are few, no longer ones than need be.
    const int whole = std::min(kernel::kWarp, kLineAccesses * out_.lanes() / width_);
    int line = power_above(points_, kernel::kWarp);
    while (line > whole && points_ < line * cores) line /= 2;
    while (size_ * line < most && points_ * size_ < wave && size_ * 4 < terms_) size_ *= 2;
    per_block_ = std::max(line, block / size_);
  } else {
    const std::int64_t units = std::max<std::int64_t>(terms_ / out_.lanes(), inner_);
    size_ = power_above(units, kernel::kWarp);
    while (size_ >= kernel::kWarp && size_ < most && size_ * 2 <= units &&
           (points_ * size_ < wave || units / size_ > kTermsEach))
      size_ *= 2;
    if (const int wide = cluster_team(out_.target(), points_, terms_, out_.lanes());
        wide > size_ && !wanted_threads_)
      size_ = wide;
    per_block_ = std::max(1, block / 2 / size_);
    while (!wanted_threads_ && per_block_ > 1 && size_ * per_block_ > kernel::kWarp &&
           points_ < per_block_ * cores)
      per_block_ /= 2;
  }
  if (wanted_threads_) per_block_ = wanted_threads_ / size_;
  tasks_ = (points_ + per_block_ - 1) / per_block_;
}

/// Positions of the row axes, or of the others, at their place number `linear`.
void ThreadNest::place(bool rows, const Expr& linear, const std::function<void()>& make) {
  std::vector<std::size_t> axes;
  Shape extents;
  for (std::size_t axis : order_) {
    if (row_[axis] != rows) continue;
    axes.push_back(axis);
    extents.push_back(axes_.loops[axis].extent / (axis == vector_ ? width_ : 1));
  }
  out_.decode(linear, extents, [&](const Index& position) {
    const bool lanes = vector_ && row_[*vector_] == rows && width_ > 1;
    for (std::size_t i = 0; i < axes.size(); ++i) position_[axes[i]] = position[i];
    if (rows) {
      stitch::Team team = team_;
      team.valid = valid_;
      out_.set_team(std::move(team));
    }
    const stitch::Lanes* l = lanes ? out_.enter_lanes(width_, 1) : nullptr;
    if (l)
      position_[*vector_] =
          out_.values().simplified(*position_[*vector_] * Expr(width_) + l->place(out_.lanes()));
    make();
    if (l) out_.leave_lanes();
  });
}

Body ThreadNest::emit(const Expr& task, Var bound) {
  const Var point = out_.fresh(per_block_), member = out_.fresh(size_), row = out_.fresh(points_);
  out_.begin_task({bound, point, member});
  position_.assign(axes_.loops.size(), std::nullopt);
  rows_done_.clear();
  Expr number = task * Expr(per_block_) + Expr(point);
  valid_.clear();
  // Threads alone need not stay together. A team without a row repeats the last one and stores
  // nothing.
  if (size_ > 1 && points_ % per_block_ != 0) {
    valid_.push_back({number, 0, points_});
    number = ir::min(number, Expr(points_ - 1));
  }
  team_ = {member, size_, columns_ ? per_block_ : 1, point, per_block_, {}, nullptr};
  out_.with(row, number, 0, points_, [&] { place(true, Expr(row), [&] { inner_positions(); }); });
  Body made = out_.end_task();
  const auto threads = [](Var v, int extent, Body inner) {
    return Body{kernel::loop(v, 0, extent, Binding::thread, std::move(inner))};
  };
  if (columns_) return threads(member, size_, threads(point, per_block_, std::move(made)));
  return threads(point, per_block_, threads(member, size_, std::move(made)));
}

/// The other axes: their positions, in vectors, dealt out to the team.
void ThreadNest::inner_positions() {
  const bool some = std::find(row_.begin(), row_.end(), false) != row_.end();
  if (!some) return innermost();
  out_.under(size_ > 1 ? valid_ : std::vector<ir::Condition>{}, [&] {
    out_.deal(inner_, [&](const Expr& at) { place(false, at, [&] { innermost(); }); });
  });
}

Index ThreadNest::index_at(const std::function<std::optional<Expr>(Var)>& more) const {
  const auto rule = [&](Var v) -> std::optional<Expr> {
    for (std::size_t i = 0; i < axes_.loops.size(); ++i)
      if (axes_.loops[i].var == v) return position_[i];
    return std::nullopt;
  };
  Index index;
  std::size_t next = 0;
  for (std::size_t d = 0; d < domain_.extent.size(); ++d) {
    Expr at(domain_.begin[d]);
    if (domain_.extent[d] != 1) {
      const Var dim = dims_[next++];
      for (const auto& [original, e] : axes_.originals)
        if (original == dim) at = at + ir::substitute(e, rule);
    }
    if (more) at = ir::substitute(at, more);
    index.push_back(out_.values().simplified(at));
  }
  return index;
}

/// An output that follows some of the dimensions only is stored where the others are at their
/// start.
void ThreadNest::row_outputs(const Index& index) {
  const stitch::Lanes* l = out_.current_lanes();
  const Index first = index_at([&](Var v) -> std::optional<Expr> {
    return l && (v == l->lane || v == l->unroll) ? std::optional<Expr>(0) : std::nullopt;
  });
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    const NestOutput& o = outputs_[i];
    if (!o.row) continue;
    const Index own = stitch::own_index(o, index);
    if (!rows_done_.insert({i, own}).second) continue;
    const bool shared = out_.shared_by_team(own);
    std::vector<ir::Condition> start;
    bool elsewhere = false;
    for (std::size_t d = 0; d < index.size(); ++d) {
      if (std::find(o.dimensions.begin(), o.dimensions.end(), static_cast<int>(d)) !=
          o.dimensions.end())
        continue;
      elsewhere = elsewhere || domain_.begin[d] != 0;
      if (index[d].constant()) continue;
      if (!shared || out_.shared_by_team({first[d]})) start.push_back({first[d], 0, 1});
    }
    if (elsewhere) continue;
    out_.store_once(own, std::move(start), [&] {
      return Store{o.buffer,
                   out_.values().simplified(offset_in(o.layout, own)),
                   o.value(out_.values(), own),
                   {}};
    });
  }
}

void ThreadNest::innermost() {
  const Index index = index_at();
  row_outputs(index);
  std::vector<Store> stores;
  out_.prepared([&] {
    stores.clear();
    std::vector<Value> values;
    for (const NestOutput& o : outputs_) {
      if (o.row) continue;
      const Index own = stitch::own_index(o, index);
      stores.push_back(Store{o.buffer,
                             out_.values().simplified(offset_in(o.layout, own)),
                             o.value(out_.values(), own),
                             {}});
      values.push_back(stores.back().value);
    }
    return values;
  });
  std::vector<ir::Condition> leader;
  if (size_ > 1 && out_.shared_by_team(index)) {
    leader = valid_;
    leader.push_back({Expr(out_.team()->member), 0, 1});
  }
  out_.under(std::move(leader), [&] { out_.store(std::move(stores)); });
}

std::string ThreadNest::describe() const {
  const int blocks = std::max(1, size_ / kernel::kBlockThreads);
  std::string text =
      fmt::format("blocks={} threads={}", tasks_ * blocks, size_ * per_block_ / blocks);
  if (blocks > 1) text += fmt::format(" cluster={}", blocks);
  if (size_ > 1) text += fmt::format(" {}={}", columns_ ? "column" : "row", size_);
  if (width_ > 1) text += fmt::format(" vector={}", width_);
  return text;
}

}  // namespace heddle::lower::gpu
