#include "kernel/footprint.h"

#include <algorithm>
#include <map>
#include <set>

#include "kernel/bounds.h"
#include "support/match.h"

namespace heddle::kernel {
namespace {

/// An access to grid memory: elements low..high beside the offset.
struct Access {
  BufferId buffer;
  bool write = false;
  Expr offset;
  std::int64_t low = 0, high = 0;
  auto operator<=>(const Access&) const = default;
};
/// A variable whose range is that of an expression, kept inside [begin, end).
struct Bound {
  Var var;
  Expr value;
  std::int64_t begin, end;
};

/// Walks a phase once and keeps what the ranges of its shares are computed from.
class Collector {
 public:
  explicit Collector(const Kernel& k) : k_(k) {}

  void body(const Body& body) {
    for (const Stmt& s : body) stmt(s);
  }

  std::set<Access> accesses;
  std::vector<Bound> bounds;  ///< outer before inner
  ir::Ranges ranges;          ///< of loops

 private:
  void stmt(const Stmt& s) {
    for_each_value_of(s, [&](const Value& root) {
      for_each_value(root, [&](const Value& v) {
        if (const Load* x = std::get_if<Load>(&v->op)) add(x->buffer, false, x->offset, x->dynamic);
      });
    });
    match(
        s.op,
        [&](const For& x) {
          if (x.end <= x.begin) return;
          set_range(ranges, x.var, ir::Interval{x.begin, x.end - 1});
          body(*x.body);
        },
        [&](const Let& x) {
          if (x.end <= x.begin) return;
          bounds.push_back({x.var, x.value, x.begin, x.end});
          body(*x.body);
        },
        [&](const Store& x) { add(x.buffer, true, x.offset, x.dynamic); },
        [&](const If& x) { body(*x.body); },
        [&](const Copy& x) { add(x.from, false, x.from_offset, {}, x.count); },
        [&](const TileCopy& x) { whole(x.from, false); },
        [&](const TileProduct& x) {
          add(x.a.buffer, false, x.a.offset, {}, x.a_span(k_.buffers[x.a.buffer].dtype));
          add(x.b.buffer, false, x.b.offset, {}, x.b_span());
        },
        [&](const Routine& x) {
          for (BufferId id : x.buffers) whole(id, false), whole(id, true);
        },
        [&](const Roles& x) {
          for (const Roles::Role& role : x.roles) body(*role.body);
        },
        [](const auto&) {});
  }

  void add(BufferId id, bool write, const Expr& offset, const std::vector<Load::Dynamic>& dynamic,
           std::int64_t count = 1) {
    if (k_.buffers[id].scope != Scope::grid) return;
    Access access{id, write, offset, 0, count - 1};
    for (const Load::Dynamic& d : dynamic)
      (d.stride < 0 ? access.low : access.high) += (d.extent - 1) * d.stride;
    accesses.insert(std::move(access));
  }
  void whole(BufferId id, bool write) {
    if (k_.buffers[id].scope == Scope::grid)
      accesses.insert({id, write, Expr(0), 0, k_.buffers[id].size - 1});
  }

  const Kernel& k_;
};

using Key = std::pair<std::int32_t, bool>;

/// Intervals of the buffers that are touched where the phase's variable is in `tasks`.
std::map<Key, ir::Interval> touched(const Kernel& k, const Collector& seen, Var task,
                                    ir::Interval tasks) {
  ir::Ranges ranges = seen.ranges;
  set_range(ranges, task, tasks);
  for (const Bound& b : seen.bounds) {
    ir::Interval range{b.begin, b.end - 1};
    if (const auto value = ir::bounds(b.value, ranges)) {
      range.low = std::max(range.low, value->low);
      range.high = std::min(range.high, value->high);
    }
    // Never bound in this share: what is inside counts as touched all the same.
    if (range.low > range.high) range = {b.begin, b.end - 1};
    set_range(ranges, b.var, range);
  }
  std::map<Key, ir::Interval> out;
  for (const Access& a : seen.accesses) {
    ir::Interval range{0, k.buffers[a.buffer].size - 1};
    if (const auto offset = ir::bounds(a.offset, ranges)) {
      range.low = std::max(range.low, offset->low + a.low);
      range.high = std::min(range.high, offset->high + a.high);
    }
    if (range.low > range.high) continue;
    const auto [at, fresh] = out.try_emplace({a.buffer.value, a.write}, range);
    at->second.low = std::min(at->second.low, range.low);
    at->second.high = std::max(at->second.high, range.high);
  }
  return out;
}

}  // namespace

std::vector<Touch> touches_of(const Kernel& k, const For& phase, std::int64_t shares) {
  const std::int64_t tasks = phase.end - phase.begin;
  shares = std::clamp<std::int64_t>(shares, 1, std::max<std::int64_t>(tasks, 1));
  Collector seen(k);
  set_range(seen.ranges, phase.var, ir::Interval{phase.begin, phase.end - 1});
  seen.body(*phase.body);
  std::map<Key, Touch> touches;
  for (std::int64_t i = 0; i < shares; ++i) {
    const ir::Interval part{phase.begin + tasks * i / shares,
                            phase.begin + tasks * (i + 1) / shares - 1};
    for (const auto& [key, range] : touched(k, seen, phase.var, part)) {
      Touch& touch = touches[key];
      touch.buffer = BufferId{key.first};
      touch.write = key.second;
      touch.shares.resize(static_cast<std::size_t>(shares), ir::Interval{0, -1});
      touch.shares[static_cast<std::size_t>(i)] = range;
    }
  }
  std::vector<Touch> out;
  for (auto& [key, touch] : touches) {
    if (std::ranges::all_of(touch.shares, [&](const auto& s) { return s == touch.shares[0]; }))
      touch.shares.resize(1);
    out.push_back(std::move(touch));
  }
  return out;
}

}  // namespace heddle::kernel
