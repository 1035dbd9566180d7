// Reductions as loops: where they go, which axis runs along the lanes, how partial results combine.
#include <algorithm>

#include "lower/stitch/emitter.h"

namespace heddle::lower::stitch {

using kernel::BufferId;
using kernel::Scope;
using kernel::Store;

namespace {

constexpr std::int64_t kMaxInline = 32;        // terms written out instead of looped over
constexpr std::int64_t kMaxInlineScalars = 4;  // the same where each would be a scalar
constexpr std::size_t kMaxInlineTouches = 8;   // of one such term
constexpr int kAccumulators = 4;               // hide the latency of the combining operation

Value combined(ir::Monoid fn, DType type, Value a, Value b) {
  return kernel::apply(ir::combiner(fn), {std::move(a), std::move(b)}, type);
}

/// How many vectors run side by side over `vectors` of them: a divisor where there is one.
int accumulators(std::int64_t vectors) {
  for (int u : {kAccumulators, 5, 6, 3, 2})
    if (vectors % u == 0) return u;
  return vectors >= 2 * kAccumulators ? kAccumulators : 1;
}

}  // namespace

/// The loops of one reduction while they are written.
struct Emitter::Sum {
  const Reduction& r;
  Axes axes;
  std::vector<std::size_t> serial;    ///< axes in loop order
  std::optional<std::size_t> vector;  ///< axis along the lanes
  std::vector<Expr> position;         ///< of each axis
  BufferId acc;
  int stride = 1;  ///< elements per register of the accumulator
  int vectors = 1;
};

Value Emitter::reduce(const Reduction& r) {
  const std::int64_t count = element_count(r.extents);
  if (count == 0) return identity_value(r.fn, r.type);
  if (auto value = reduce_inline(r, count)) return *value;
  const bool laned = on_lanes(r.depends);
  State s = enter(level_of(r.depends), laned);
  const bool team = team_ && team_->size > 1 && shared_by_team(r.depends);
  phase_ = {++phases_, current_, {}, r.extents, team};
  const int phase = phase_.number;
  Value out = team ? reduce_by_team(r, laned) : laned ? reduce_over_lanes(r) : reduce_alone(r);
  done_.push_back(phase);
  restore(std::move(s));
  return out;
}

/// A few light terms are one expression: windows, small vectors.
std::optional<Value> Emitter::reduce_inline(const Reduction& r, std::int64_t count) {
  if (count > (on_lanes(r.depends) ? kMaxInline : kMaxInlineScalars)) return std::nullopt;
  if (count > 1) {
    bool nested = false;
    const auto touches = touches_of(
        [&](Evaluator& values) {
          Index position;
          for (std::int64_t extent : r.extents) position.push_back(Expr(fresh(extent)));
          values.ranges() = values_.ranges();
          return std::vector<Value>{r.term(values, position)};
        },
        [&](const Reduction& inner) { nested |= element_count(inner.extents) > 1; });
    if (nested || touches.size() > kMaxInlineTouches) return std::nullopt;
  }
  const Shape strides = row_major_strides(r.extents);
  std::vector<Value> terms;
  for (std::int64_t i = 0; i < count; ++i) {
    Index position;
    for (std::size_t d = 0; d < r.extents.size(); ++d)
      position.push_back(Expr(i / strides[d] % r.extents[d]));
    terms.push_back(r.term(values_, position));
  }
  // A tree: its depth, not its size, is the latency.
  while (terms.size() > 1) {
    std::vector<Value> next;
    for (std::size_t i = 0; i + 1 < terms.size(); i += 2)
      next.push_back(combined(r.fn, r.type, terms[i], terms[i + 1]));
    if (terms.size() % 2) next.push_back(terms.back());
    terms = std::move(next);
  }
  return terms[0];
}

Emitter::Sum Emitter::plan(const Reduction& r) {
  Sum s{r, {}, {}, {}, {}, {}, 1, 1};
  std::vector<Axis> order;
  Index position;
  for (std::int64_t extent : r.extents) {
    if (extent == 1) {
      position.push_back(Expr(0));
      continue;
    }
    order.push_back({fresh(extent), extent});
    position.push_back(Expr(order.back().var));
  }
  auto touches =
      touches_of([&](Evaluator& values) { return std::vector<Value>{r.term(values, position)}; });
  s.axes = choose_axes(order, std::move(touches), values_.ranges(), lanes_per_vector_,
                       [this](std::int64_t extent) { return fresh(extent); });
  for (std::size_t i = 0; i < s.axes.loops.size(); ++i) s.serial.push_back(i);
  std::stable_sort(s.serial.begin(), s.serial.end(), [&](std::size_t a, std::size_t b) {
    return largest_step(s.axes.touches, s.axes.loops[a].var) >
           largest_step(s.axes.touches, s.axes.loops[b].var);
  });
  for (const Axis& a : s.axes.loops) s.position.push_back(Expr(a.var));
  // The positions of the original coordinates, unit extents in place.
  std::vector<std::pair<Var, Expr>> originals;
  std::size_t next = 0;
  for (std::int64_t extent : r.extents)
    originals.push_back(extent == 1 ? std::pair{Var{}, Expr(0)} : s.axes.originals[next++]);
  s.axes.originals = std::move(originals);
  return s;
}

void Emitter::serial_loops(Sum& s, const std::function<void()>& innermost) {
  std::vector<Var> vars;
  for (std::size_t axis : s.serial) {
    vars.push_back(open(s.axes.loops[axis].extent));
    s.position[axis] = Expr(vars.back());
  }
  innermost();
  for (std::size_t i = vars.size(); i-- > 0;) close(vars[i], s.axes.loops[s.serial[i]].extent);
}

/// acc[at] = acc[at] combined with the term at the current position.
void Emitter::accumulate(const Sum& s, const Expr& at) {
  const auto rule = [&](Var v) -> std::optional<Expr> {
    for (std::size_t i = 0; i < s.axes.loops.size(); ++i)
      if (s.axes.loops[i].var == v) return s.position[i];
    return std::nullopt;
  };
  phase_.coordinates.clear();
  for (const auto& [original, e] : s.axes.originals)
    phase_.coordinates.push_back(values_.simplified(ir::substitute(e, rule)));
  const Value term =
      prepared([&] { return std::vector<Value>{s.r.term(values_, phase_.coordinates)}; })[0];
  Value old = kernel::load(s.acc, at, s.r.type);
  const Value next = combined(s.r.fn, s.r.type, old, term);
  store({Store{s.acc, at, kernel::with_origin(next, s.r.node.value), {}}});
}

/// The result's position runs along the lanes: one accumulator for each, loops over all terms.
Value Emitter::reduce_over_lanes(const Reduction& r) {
  Sum s = plan(r);
  s.stride = lanes_per_vector_;
  const bool registers = lanes_->count <= kMaxUnroll;
  s.acc = scratch("acc", r.type, static_cast<std::int64_t>(s.stride) * lanes_->count,
                  registers ? Scope::lane : Scope::block, registers ? s.stride : 1);
  const Expr at = lanes_->place(s.stride);
  store({Store{s.acc, at, identity_value(r.fn, r.type), {}}});
  serial_loops(s, [&] { accumulate(s, at); });
  return kernel::load(s.acc, at, r.type);
}

/// The terms run along the lanes: partial results in each lane, combined at the end.
Value Emitter::reduce_alone(const Reduction& r) {
  Sum s = plan(r);
  double best = 0;
  for (std::size_t i = 0; i < s.axes.loops.size(); ++i) {
    const Axis& a = s.axes.loops[i];
    const double use = std::min(1.0, static_cast<double>(a.extent) / lanes_per_vector_);
    const double score = std::max(1.0, 1000 + vector_score(s.axes.touches, a.var)) * use;
    if (score > best) {
      best = score;
      s.vector = i;
    }
  }
  if (lanes_per_vector_ == 1 || !s.vector) {
    s.vector.reset();
    s.acc = scratch("acc", r.type, 1, Scope::lane, 1);
    store({Store{s.acc, 0, identity_value(r.fn, r.type), {}}});
    serial_loops(s, [&] { accumulate(s, 0); });
    return kernel::load(s.acc, 0, r.type);
  }
  s.serial.erase(std::find(s.serial.begin(), s.serial.end(), *s.vector));
  s.stride = lanes_per_vector_;
  const std::int64_t vectors = s.axes.loops[*s.vector].extent / s.stride;
  s.vectors = vectors == 0 ? 1 : accumulators(vectors);
  s.acc = scratch("acc", r.type, static_cast<std::int64_t>(s.stride) * s.vectors, Scope::lane,
                  s.stride);
  enter_lanes(s.stride, s.vectors);
  store({Store{s.acc, lanes_->place(s.stride), identity_value(r.fn, r.type), {}}});
  leave_lanes();
  serial_loops(s, [&] { vector_loops(s); });
  return finish(s);
}

/// The loops over all terms, dealt out to the team along the axis of the vectors or the longest
/// one. `innermost` hears of the vector.
void Emitter::team_loops(Sum& s, const std::function<void(const Expr& unit)>& innermost) {
  const auto units = [&](std::size_t axis) {
    const std::int64_t extent = s.axes.loops[axis].extent;
    return s.vector == axis ? extent / s.stride : extent;
  };
  std::size_t longest = s.vector.value_or(0);
  for (std::size_t axis : s.serial)
    if (!s.vector && units(axis) > units(longest)) longest = axis;
  const auto place = [&](std::size_t axis, const Expr& at) { s.position[axis] = at; };
  std::vector<std::pair<Var, std::int64_t>> open_loops;
  for (std::size_t axis : s.serial) {
    if (axis == longest) continue;
    open_loops.emplace_back(open(units(axis)), units(axis));
    place(axis, Expr(open_loops.back().first));
  }
  deal(units(longest), [&](const Expr& at) {
    place(longest, at);
    innermost(at);
  });
  for (std::size_t i = open_loops.size(); i-- > 0;)
    close(open_loops[i].first, open_loops[i].second);
}

/// Each member adds up some of the terms, then the team combines them: all members have the result.
Value Emitter::reduce_by_team(const Reduction& r, bool laned) {
  Sum s = plan(r);
  const ir::Monoid fn = r.fn;
  const auto combine = [&](BufferId buffer, int count) {
    append({kernel::Combine{fn, buffer, 0, count, team_->size, team_->stride}});
  };
  if (laned) {
    s.stride = lanes_per_vector_;
    s.acc = scratch("acc", r.type, static_cast<std::int64_t>(s.stride) * lanes_->count, Scope::lane,
                    s.stride);
    const Expr at = lanes_->place(s.stride);
    store({Store{s.acc, at, identity_value(fn, r.type), {}}});
    team_loops(s, [&](const Expr&) { accumulate(s, at); });
    combine(s.acc, lanes_->count == 1 ? lanes_->width : s.stride * lanes_->count);
    return kernel::load(s.acc, at, r.type);
  }
  double best = 0;
  for (std::size_t i = 0; i < s.axes.loops.size(); ++i) {
    const double score = vector_score(s.axes.touches, s.axes.loops[i].var);
    if (score <= best) continue;
    best = score;
    s.vector = i;
  }
  int width = lanes_per_vector_;
  while (width > 1 && (!s.vector || s.axes.loops[*s.vector].extent % width != 0)) width /= 2;
  s.stride = width;
  s.acc = scratch("acc", r.type, width, Scope::lane, width);
  // The vectors' axis is the innermost.
  if (s.vector) {
    s.serial.erase(std::find(s.serial.begin(), s.serial.end(), *s.vector));
    s.serial.push_back(*s.vector);
  }
  const auto with_lanes = [&](const std::function<void(const Expr& lane)>& make) {
    if (width == 1) return make(Expr(0));
    const Lanes* l = enter_lanes(width, 1);
    make(values_.simplified(l->place(width)));
    leave_lanes();
  };
  with_lanes([&](const Expr& lane) {
    store({Store{s.acc, lane, identity_value(fn, r.type), {}}});
  });
  team_loops(s, [&](const Expr& unit) {
    with_lanes([&](const Expr& lane) {
      if (s.vector && width > 1) s.position[*s.vector] = unit * Expr(width) + lane;
      accumulate(s, lane);
    });
  });
  if (width == 1) {
    combine(s.acc, 1);
    return kernel::load(s.acc, 0, r.type);
  }
  const Value own = finish(s);
  combine(std::get<kernel::Load>(own->op).buffer, 1);
  return own;
}

/// Whole blocks, then single vectors, then the lanes that are left.
void Emitter::vector_loops(Sum& s) {
  Expr& position = s.position[*s.vector];
  const std::int64_t extent = s.axes.loops[*s.vector].extent;
  const int width = s.stride, count = s.vectors;
  const std::int64_t blocks = extent / (static_cast<std::int64_t>(width) * count);
  const std::int64_t singles = extent / width - blocks * count;
  const std::int64_t tail = extent % width;
  std::int64_t done = 0;
  const auto part = [&](std::int64_t times, int lanes, int vectors) {
    if (times == 0) return;
    const std::int64_t block = static_cast<std::int64_t>(lanes) * vectors;
    const std::optional<Var> loop = times > 1 ? std::optional(open(times)) : std::nullopt;
    const Lanes* l = enter_lanes(lanes, vectors);
    position = Expr(done) + (loop ? Expr(*loop) * Expr(block) : Expr(0)) + l->place(width);
    accumulate(s, l->place(width));
    leave_lanes();
    if (loop) close(*loop, times);
    done += times * block;
  };
  part(blocks, width, count);
  part(singles, width, 1);
  if (tail) part(1, static_cast<int>(tail), 1);
}

/// All accumulators to one scalar.
Value Emitter::finish(const Sum& s) {
  const ir::Monoid fn = s.r.fn;
  const DType type = s.r.type;
  if (s.vectors > 1) {
    const Lanes* l = enter_lanes(s.stride, 1);
    std::vector<Value> parts;
    for (int v = 0; v < s.vectors; ++v)
      parts.push_back(
          kernel::load(s.acc, Expr(static_cast<std::int64_t>(v) * s.stride) + Expr(l->lane), type));
    while (parts.size() > 1) {
      const std::size_t half = parts.size() / 2;
      for (std::size_t i = 0; i < half; ++i)
        parts[i] = combined(fn, type, parts[i], parts[parts.size() - 1 - i]);
      parts.resize(parts.size() - half);
    }
    store({Store{s.acc, Expr(l->lane), parts[0], {}}});
    leave_lanes();
  }
  const BufferId result = scratch("sum", type, 1, Scope::lane, 1);
  Value total = std::make_shared<const kernel::ValueNode>(
      kernel::ValueNode{kernel::LaneReduce{fn, s.acc, 0}, type});
  store({Store{result, 0, kernel::with_origin(total, s.r.node.value), {}}});
  return kernel::load(result, 0, type);
}

}  // namespace heddle::lower::stitch
