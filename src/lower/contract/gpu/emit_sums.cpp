// Sums of the epilogue's values over rows and columns (reductions of EVT: gradients of biases and
// norms). Blocks leave parts, which a phase of its own adds up in order, so results do not depend
// on which block is first.
#include <algorithm>
#include <bit>

#include "lower/contract/gpu/emit.h"
#include "lower/reduction.h"

namespace heddle::lower::contract::gpu {

using ir::Expr;
using kernel::Binding;
using kernel::Body;
using kernel::Scope;
using kernel::Value;

void Emitter::plan_sums(Site site) {
  site_ = std::move(site);
  group_ = 0;
  const std::int64_t tiles_m = ceil_div(g_.m.extent, t_.bm), tiles_n = ceil_div(g_.n.extent, t_.bn);
  for (std::size_t i = 0; i < p_.outputs.size(); ++i) {
    const Output& o = p_.outputs[i];
    if (!o.sum) continue;
    Sum s{i, o.sum->over_m, o.sum->over_n, {}, 1, 1, {}};
    if (g_.swapped) std::swap(s.over_m, s.over_n);
    const DType type = o.value->dtype;
    const bool by_column = !s.over_n;
    s.mine = buffer("sum", type, site_.width * (by_column ? site_.groups : 1), Scope::lane);
    if (s.over_m && s.over_n)
      s.count = tiles_m * site_.parts_m * tiles_n * site_.parts_n;
    else if (s.over_m)
      s.count = tiles_m * site_.parts_m, s.length = tiles_n * t_.bn;
    else
      s.count = tiles_n * site_.parts_n * (site_.line / row_team()), s.length = tiles_m * t_.bm;
    if (s.count > 1 || !o.sum->over_batch.empty())
      s.parts = buffer("parts", type, g_.batch_extent * s.count * s.length, Scope::grid);
    sums_.push_back(std::move(s));
  }
}

Value Emitter::element(const Sum& sum, const Expr& slot) const {
  return kernel::load(sum.mine, slot, p_.outputs[sum.output].value->dtype);
}
Value Emitter::both(const Sum& sum, Value x, Value y) const {
  const DType type = x->dtype;
  return kernel::apply(ir::combiner(p_.outputs[sum.output].sum->fn), {std::move(x), std::move(y)},
                       type);
}

/// Nothing yet: for the sums that end with a row, or for the others.
Body Emitter::open_sums(bool of_rows) {
  Body out;
  for (const Sum& s : sums_) {
    if (s.ends_with_row() != of_rows) continue;
    const Output& o = p_.outputs[s.output];
    out.push_back(each(k_.buffers[s.mine].size, Binding::unroll, [&](const Expr& i) {
      return Body{kernel::store(s.mine, i, identity_value(o.sum->fn, o.value->dtype))};
    }));
  }
  return out;
}

/// `lane` of the run that a thread stores.
kernel::Stmt Emitter::add_to(const Sum& s, const Value& value, const Expr& lane) {
  const Expr slot = s.over_n ? lane : group_ * Expr(site_.width) + lane;
  return kernel::store(s.mine, slot, both(s, element(s, slot), value));
}

/// The lanes of a thread become one.
kernel::Stmt Emitter::fold(const Sum& s) const {
  Value all = element(s, 0);
  for (int i = 1; i < site_.width; ++i) all = both(s, all, element(s, i));
  return kernel::store(s.mine, 0, all);
}

kernel::Stmt Emitter::combine(const Sum& s, std::int64_t count, std::int64_t width,
                              std::int64_t stride) {
  kernel::Combine x;
  x.fn = p_.outputs[s.output].sum->fn;
  x.buffer = s.mine;
  x.count = static_cast<int>(count);
  x.width = static_cast<int>(width);
  x.stride = static_cast<int>(stride);
  return {x};
}

/// The threads of a row, number `row` of the tile, add up; no more than a warp's.
Body Emitter::close_rows(const Expr& row) {
  Body out;
  const std::int64_t team = row_team(), teams = site_.line / team;
  const Expr place = place_in_line();
  for (const Sum& s : sums_) {
    if (!s.ends_with_row()) continue;
    out.push_back(fold(s));
    out.push_back(combine(s, 1, team, 1));
    const Expr part =
        (n0_ * Expr(site_.parts_n) + site_.part_n) * Expr(teams) + ir::floor_div(place, team);
    out.push_back(kernel::when({{ir::floor_mod(place, team), 0, 1}}, put(s, part, row, Expr(0))));
  }
  return out;
}

/// The threads of each column add up, or those of the whole.
Body Emitter::close_columns() {
  Body out;
  const std::int64_t tiles_n = ceil_div(g_.n.extent, t_.bn);
  const Expr number = ir::floor_mod(Expr(thread_), site_.threads), place = place_in_line();
  const Expr part_m = m0_ * Expr(site_.parts_m) + site_.part_m;
  for (const Sum& s : sums_) {
    if (s.ends_with_row()) continue;
    if (s.over_n) {
      out.push_back(fold(s));
      out.push_back(combine(s, 1, site_.threads, 1));
      const Expr part =
          part_m * Expr(tiles_n * site_.parts_n) + n0_ * Expr(site_.parts_n) + site_.part_n;
      out.push_back(kernel::when({{number, 0, 1}}, put(s, part, Expr(0), Expr(0))));
      continue;
    }
    out.push_back(combine(s, k_.buffers[s.mine].size, site_.threads / site_.line, site_.line));
    Body stores{each(site_.groups, Binding::unroll, [&](const Expr& h) {
      return Body{each(site_.width, Binding::unroll, [&](const Expr& l) {
        const Expr run = site_.first + h * Expr(site_.span) + place;
        return put(s, part_m, run * Expr(site_.width) + l, h * Expr(site_.width) + l);
      })};
    })};
    out.push_back(kernel::when({{ir::floor_div(number, site_.line), 0, 1}}, std::move(stores)));
  }
  return out;
}

const std::vector<Axis>& Emitter::kept_axes(const Sum& s) const {
  static const std::vector<Axis> none;
  return s.over_m && s.over_n ? none : s.over_m ? g_.out_n : g_.out_m;
}

/// Number of the batch.
Expr Emitter::batch() const {
  Expr out(0);
  for (const Axis& axis : g_.batch) out = out * Expr(axis.extent) + at(Expr(axis.var), env_);
  return out;
}

/// Stores what is in `slot`: the element `in_tile` of the block's tile, of this part.
Body Emitter::put(const Sum& s, const Expr& part, const Expr& in_tile, const Expr& slot) {
  const bool all = s.over_m && s.over_n;
  const std::int64_t size = all ? 1 : s.over_m ? t_.bn : t_.bm;
  const std::int64_t extent = all ? 1 : s.over_m ? g_.n.extent : g_.m.extent;
  const Expr tile = all ? Expr(0) : s.over_m ? n0_ : m0_;
  const Env saved = env_;
  const ir::Var i = k_.new_var();
  const Expr element_at = tile * Expr(size) + Expr(i);
  const auto made = [&]() -> Body {
    if (s.parts)
      return Body{kernel::store(*s.parts,
                                (batch() * Expr(s.count) + part) * Expr(s.length) + element_at,
                                element(s, slot))};
    const ir::Var v = k_.new_var();
    return Body{kernel::let(v, element_at, 0, extent, decoded(kept_axes(s), 1, Expr(v), [&] {
                              const Output& o = p_.outputs[s.output];
                              return Body{
                                  kernel::store(o.buffer, at(o.offset, env_), element(s, slot))};
                            }))};
  };
  Body out{kernel::let(i, in_tile, 0, size, made())};
  env_ = saved;
  return out;
}

bool Emitter::has_parts() const {
  return std::any_of(sums_.begin(), sums_.end(), [](const Sum& s) { return s.parts.has_value(); });
}

/// Batch axes over which a sum is, or the others.
std::vector<Axis> Emitter::batches(const Sum& s, bool reduced) const {
  std::vector<Axis> out;
  const auto& over = p_.outputs[s.output].sum->over_batch;
  for (const Axis& axis : g_.batch)
    if ((std::find(over.begin(), over.end(), axis.var) != over.end()) == reduced)
      out.push_back(axis);
  return out;
}

namespace {

/// Columns that the threads of a block add up together, a team each.
std::int64_t columns_of(std::int64_t extent) {
  return std::min<std::int64_t>(
      kernel::kWarp, static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(extent))));
}
}  // namespace

/// All sums of parts, one after another among the tasks of one phase.
kernel::Stmt Emitter::sum_phase() {
  // Blocks like those of the first phase can share its launch.
  const int threads = g_.unit == Unit::tma ? 256 : threads_;
  const ir::Var task = k_.new_var();
  thread_ = k_.new_var();
  Body body;
  std::int64_t tasks = 0;
  for (const Sum& s : sums_) {
    if (!s.parts) continue;
    const std::int64_t extent = count_of(kept_axes(s));
    const std::int64_t count = count_of(batches(s, false)) * ceil_div(extent, columns_of(extent));
    const ir::Var own = k_.new_var();
    body.push_back(
        kernel::let(own, Expr(task) - Expr(tasks), 0, count, add_parts(s, Expr(own), threads)));
    tasks += count;
  }
  return kernel::loop(task, 0, tasks, Binding::grid,
                      {kernel::loop(thread_, 0, threads, Binding::thread, std::move(body))});
}

/// A team of threads for each of some neighbouring elements; parts of all batches that are summed.
Body Emitter::add_parts(const Sum& s, const Expr& task, int threads) {
  const Output& o = p_.outputs[s.output];
  const std::int64_t extent = count_of(kept_axes(s)), columns = columns_of(extent),
                     team = threads / columns, chunks = ceil_div(extent, columns);
  const Env saved = env_;
  const Expr element_at =
      ir::floor_mod(task, chunks) * Expr(columns) + ir::floor_mod(Expr(thread_), columns);
  const Expr member = ir::floor_div(Expr(thread_), columns);
  const Axis part{k_.new_var(), s.count, Role::k};
  std::vector<Axis> summed = batches(s, true);
  summed.push_back(part);
  const std::int64_t all = count_of(summed), rounds = all / team;
  const auto step = [&](const Expr& number) {
    const ir::Var n = k_.new_var();
    return Body{kernel::let(
        n, number, 0, all, decoded(summed, 1, Expr(n), [&] {
          const Expr from = (batch() * Expr(s.count) + at(Expr(part.var), env_)) * Expr(s.length) +
                            ir::min(element_at, Expr(extent - 1));
          const Value one = kernel::load(*s.parts, from, o.value->dtype);
          return Body{kernel::store(s.mine, 0, both(s, element(s, 0), one))};
        }))};
  };
  const auto kept = batches(s, false);
  Body out = bound(ir::floor_div(task, chunks), count_of(kept), [&](const Expr& b) {
    return decoded(kept, 1, b, [&] {
      Body body{kernel::store(s.mine, 0, identity_value(o.sum->fn, o.value->dtype))};
      if (rounds > 0)
        body.push_back(each(rounds, Binding::serial,
                            [&](const Expr& i) { return step(i * Expr(team) + member); }));
      if (all % team != 0) append(body, step(Expr(rounds * team) + member));
      if (team > 1) body.push_back(combine(s, 1, team, columns));
      const ir::Var v = k_.new_var();
      body.push_back(kernel::when(
          {{member, 0, 1}},
          {kernel::let(v, element_at, 0, extent, decoded(kept_axes(s), 1, Expr(v), [&] {
                         return Body{kernel::store(o.buffer, at(o.offset, env_), element(s, 0))};
                       }))}));
      return body;
    });
  });
  env_ = saved;
  return out;
}

}  // namespace heddle::lower::contract::gpu
