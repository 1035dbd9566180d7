#include "lower/contract/winograd.h"

#include <algorithm>

#include "kernel/halves.h"
#include "prim/rewrite.h"
#include "support/math.h"

namespace heddle::lower::contract {
namespace {

using ir::Expr;
using ir::ScalarFn;
using kernel::Value;

/// Points of interpolation besides 0 and infinity are ±1 for m = 2; for m = 4 they are ±a and ±b,
/// the pairs that lose least in f32 of those with short binary fractions.
constexpr double kA = 0.625, kB = 1.5;

Value times(double c, const Value& x) {
  return kernel::apply(ScalarFn::mul, {x, kernel::imm(x->dtype, c)}, x->dtype);
}

/// Of a vector of a transformed filter that is not constant, with what it takes to gather it.
constexpr double kFilterCycles = 10;

/// Cycles per vector of channels: elements of a tile in, results of a tile out.
double transform_cycles(std::int64_t m, bool input) {
  if (m == 2) return input ? 45 : 30;
  return input ? 140 : 90;
}

/// The rows and columns of a 3×3 window of stride 1 that slides over an operand, with whole vectors
/// of channels (and planes).
std::optional<std::array<Axis, 2>> tiled_axes(const Problem& p, int lanes) {
  const std::vector<Axis> k = p.of(Role::k);
  std::vector<Axis> rows = p.of(Role::m);
  if (k.size() != 3 && k.size() != 4) return std::nullopt;
  if (std::ranges::none_of(k, [&](const Axis& a) { return a.extent % lanes == 0; }))
    return std::nullopt;
  if (rows.size() > 2) rows.erase(rows.begin(), rows.end() - 2);
  std::vector<Axis> found;
  for (const Expr& e : p.a_access.index)
    for (const Axis& window : k)
      for (const Axis& axis : rows) {
        const Expr sum = Expr(axis.var) + Expr(window.var);
        if (window.extent == 3 && (e - sum).constant()) found.push_back(axis);
      }
  if (found.size() != 2) return std::nullopt;
  return std::array{found[0], found[1]};
}

/// Cycles of all tasks on all threads, without what comes cold from memory.
double total_cycles(const Product& p, const Schedule& s, const Target& t, int lanes,
                    const Winograd& shape, WinogradTerms terms) {
  const std::int64_t channels = shape.terms();
  const double copy_rate = shape.turned ? 2 : 5;  // bytes in a cycle
  Extents e = p.extents;
  const bool pairs = terms != WinogradTerms::single;
  const std::int64_t bytes = pairs ? 2 : 4;
  e.k = pairs ? channels / 2 : channels;
  const std::int64_t a = s.winograd + 2, tiles = s.big * s.mr + s.small * (s.mr - 1);
  const double k = static_cast<double>(channels), vectors = k / lanes;
  const auto block = [&](std::int64_t mr) {
    return static_cast<double>(e.k) * step_cycles(e, t, mr, s.nv) + static_cast<double>(mr * s.nv) +
           25;
  };
  const double transformed = static_cast<double>(a * a * tiles * bytes) * k;
  const double products = static_cast<double>(a * a * tiles * s.nv * lanes * 4);
  double panel = static_cast<double>(s.big) * block(s.mr);
  if (s.small > 0) panel += static_cast<double>(s.small) * block(s.mr - 1);
  // What is not in the first-level cache comes from the second, or from further away: then it also
  // goes there first.
  const double footprint = transformed + products;
  const bool near = footprint <= 0.8 * static_cast<double>(t.l2_bytes);
  const bool cached = footprint * t.threads <= 0.4 * static_cast<double>(t.l3_bytes);
  const double rate = near ? 48 : cached ? 14 : 4;
  panel = panel * static_cast<double>(a * a) + transformed / rate;
  if (!near) panel += 2 * products / rate;
  const double pixels = static_cast<double>(tiles * s.winograd * s.winograd);
  panel += static_cast<double>(s.nv) *
           (static_cast<double>(tiles) * transform_cycles(s.winograd, false) +
            pixels * (e.epilogue + 1));
  const double weights = static_cast<double>(a * a * s.nv * lanes * bytes) * k;
  // Filters of all panels stay for the next task where they fit beside the rest.
  const double filters_kept = footprint + static_cast<double>(s.panels) * weights;
  panel += weights / (filters_kept <= 0.8 * static_cast<double>(t.l2_bytes) ? 48 : 14);
  double task = static_cast<double>(s.panels_per_task) * panel + 400;
  task += static_cast<double>(tiles) * vectors * transform_cycles(s.winograd, true);
  if (!near) task += transformed / rate;
  const double box = static_cast<double>(s.rows_per_task * e.a_row_bytes + e.a_halo_bytes);
  const auto columns = static_cast<double>(ceil_div(e.tile, s.column_blocks));
  task += box * std::min(1.0, (columns + 2) / static_cast<double>(e.tile)) / copy_rate;
  const double filters = p.base.b == BSource::constant
                             ? 0
                             : k * static_cast<double>(e.n / lanes * a * a) * kFilterCycles;
  return static_cast<double>(ceil_div(s.tasks(p.extents), t.threads)) * task +
         filters / static_cast<double>(t.threads);
}

}  // namespace

std::optional<Winograd> winograd_of(const Product& p, int lanes) {
  const prim::Graph& g = *p.request.graph;
  if (p.problem.parts || !p.box) return std::nullopt;
  const kernel::Load* filter = kernel::load_under_cast(p.b);
  if (!filter || !filter->dynamic.empty()) return std::nullopt;
  const bool constant = p.base.b == BSource::constant;
  if (!constant && g[p.problem.b].type.dtype != DType::f32) return std::nullopt;
  if (!p.row || !p.tile || !p.n || p.n_axes.size() != 1) return std::nullopt;
  if (p.k.size() != 3 && !(p.k.size() == 4 && constant)) return std::nullopt;
  for (const Axis& axis : p.outer)
    if (axis.role != Role::m) return std::nullopt;
  std::optional<Axis> kh, kw, channel, depth;
  std::size_t channel_dim = 0;
  for (std::size_t d = 0; d < p.box->dims.size(); ++d) {
    const Expr& local = p.box->dims[d].local;
    if (local.constant()) continue;
    std::vector<ir::Var> vars;
    ir::collect_variables(local, vars);
    for (const KLoop& loop : p.k) {
      const Axis& k = loop.axes[0];
      if (!ir::depends_on(local, k.var)) continue;
      if (local == Expr(p.row->var) + Expr(k.var)) kh = k;
      if (local == Expr(p.tile->var) + Expr(k.var)) kw = k;
      if (local != Expr(k.var)) continue;
      if (channel && channel->extent % lanes == 0) {
        depth = k;
        continue;
      }
      depth = channel;
      channel = k, channel_dim = d;
    }
  }
  if (!kh || !kw || !channel || kh->extent != 3 || kw->extent != 3) return std::nullopt;
  if (channel->extent % lanes != 0 || p.n->extent % lanes != 0) return std::nullopt;
  if (depth.has_value() != (p.k.size() == 4)) return std::nullopt;
  for (const Axis& axis : {*kh, *kw, *channel, *p.n, depth.value_or(*channel)})
    if (!ir::coefficient_of(filter->offset, axis.var)) return std::nullopt;
  std::vector<int> order = p.box->order;
  const auto at = std::ranges::find(order, static_cast<int>(channel_dim));
  std::rotate(at, at + 1, order.end());
  const bool turned = order != p.box->order;
  return Winograd{*kh, *kw, *channel, depth, channel_dim, std::move(order), turned};
}

namespace {

/// Whether all that Winograd's convolution of these integers computes fits, and results are exact:
/// sums wrap, so only these must fit i32.
bool integers_fit(const prim::Graph& g, const Problem& p) {
  constexpr std::int64_t kTaps = 9, kInSum = 4, kFilter = 128;
  static_assert(kTaps * kFilter <= INT16_MAX && kWinogradScale * kFilter <= INT16_MAX);
  const Tensor* filter = g.constant_of(p.b);
  if (!filter || filter->dtype() != DType::i8) return false;
  const ir::Interval range = prim::range_of_integers(g, p.a);
  const std::int64_t largest = std::max(-range.low, range.high);
  const std::int64_t terms = p.count(Role::k) * (p.parts ? p.parts->count : 1);
  return largest <= INT16_MAX / kInSum &&
         terms <= INT32_MAX / (kWinogradScale * kFilter * std::max<std::int64_t>(largest, 1));
}

}  // namespace

std::optional<WinogradTerms> winograd_terms(const prim::Graph& g, const Problem& p,
                                            const Target& target, std::int64_t m) {
  if (p.type == DType::i32) {
    if (m != 2 || target.quads || target.tiles || !integers_fit(g, p)) return std::nullopt;
    return WinogradTerms::integers;
  }
  if (p.type != DType::f32 || m > target.winograd) return std::nullopt;
  const bool halves = m == 2 && target.bf16_pairs && g[p.a].type.dtype == DType::bf16 &&
                      g[p.b].type.dtype == DType::bf16;
  return halves ? WinogradTerms::halves : WinogradTerms::single;
}

std::vector<Algorithm> winograd_algorithms(const prim::Graph& g, const Problem& p,
                                           const Target& target) {
  std::vector<Algorithm> out;
  const int lanes = target.lanes(DType::f32);
  const auto tiled = tiled_axes(p, lanes);
  const auto channels = static_cast<double>(p.count(Role::k) / 9);
  const auto filters = static_cast<double>(p.count(Role::n));
  if (!tiled || !g.constant_of(p.b) || p.count(Role::batch) > 1) return out;
  if (p.count(Role::n) % lanes != 0) return out;
  bool halves = false;  // as the convolution is written, or for 2×2 results
  for (std::int64_t m : {2, 4}) {
    const auto terms = winograd_terms(g, p, target, m);
    if (!terms) break;
    if (m == 2) halves = terms == WinogradTerms::halves;
    // Else transformed filters and their products are f32, whatever the given ones are.
    const bool single = terms == WinogradTerms::single;
    const double bytes = single ? 4 / static_cast<double>(size_of(g[p.b].type.dtype)) : 1;
    const double work = halves && single ? 2 : 1;
    const auto a = static_cast<double>(m + 2), written = static_cast<double>(9 * m * m);
    double waste = 1;
    for (const Axis& axis : *tiled)
      waste *= static_cast<double>(ceil_div(axis.extent, m) * m) / static_cast<double>(axis.extent);
    // Two multiplications and additions of vectors a cycle, each for all filters or channels.
    const double transforms =
        2 * (transform_cycles(m, true) / filters + transform_cycles(m, false) / channels);
    const double flops = waste * (a * a + transforms) / written;
    out.push_back({work * flops, bytes * a * a / 9, flops});
  }
  return out;
}

std::vector<Value> input_line(std::int64_t m, const std::vector<Value>& d) {
  if (m == 2) return {minus(d[0], d[2]), plus(d[1], d[2]), minus(d[2], d[1]), minus(d[1], d[3])};
  constexpr double kA2 = kA * kA, kB2 = kB * kB;
  const auto outer = [&](const Value& low, const Value& middle, const Value& high) {
    return plus(minus(high, times(kA2 + kB2, middle)), times(kA2 * kB2, low));
  };
  const Value even_a = minus(d[4], times(kB2, d[2])), even_b = minus(d[4], times(kA2, d[2]));
  const Value odd_a = times(kA, minus(d[3], times(kB2, d[1])));
  const Value odd_b = times(kB, minus(d[3], times(kA2, d[1])));
  return {outer(d[0], d[2], d[4]), plus(even_a, odd_a),  minus(even_a, odd_a),
          plus(even_b, odd_b),     minus(even_b, odd_b), outer(d[1], d[3], d[5])};
}

std::vector<Value> output_line(std::int64_t m, const std::vector<Value>& d) {
  if (m == 2) return {plus(plus(d[0], d[1]), d[2]), minus(minus(d[1], d[2]), d[3])};
  const Value even_a = plus(d[1], d[2]), odd_a = minus(d[1], d[2]);
  const Value even_b = plus(d[3], d[4]), odd_b = minus(d[3], d[4]);
  return {plus(d[0], plus(even_a, even_b)), plus(times(kA, odd_a), times(kB, odd_b)),
          plus(times(kA * kA, even_a), times(kB * kB, even_b)),
          plus(plus(d[5], times(kA * kA * kA, odd_a)), times(kB * kB * kB, odd_b))};
}

std::vector<std::array<double, 3>> filter_transform(std::int64_t m) {
  const std::vector<double> points =
      m == 2 ? std::vector<double>{0, 1, -1} : std::vector<double>{0, kA, -kA, kB, -kB};
  std::vector<std::array<double, 3>> out;
  for (double x : points) {
    double scale = 1;
    for (double y : points)
      if (y != x) scale *= x - y;
    // With ±1 the usual signs: the operand's first line is d0 - d2.
    if (m == 2 && x == 0) scale = -scale;
    out.push_back({1 / scale, x / scale, x * x / scale});
  }
  out.push_back({0, 0, 1});
  return out;
}

namespace {

/// Rows of tiles of a task, and blocks of the columns worth trying: equal ones, of those named as
/// many as there can be.
std::vector<std::pair<std::int64_t, std::int64_t>> blocks_of_image(
    std::int64_t rows, std::optional<std::int64_t> rows_pin, std::int64_t columns,
    std::optional<std::int64_t> columns_pin) {
  constexpr std::int64_t kMostBlocks = 8, kFewTiles = 8;
  std::vector<std::pair<std::int64_t, std::int64_t>> out;
  for (const std::int64_t r : block_sizes(rows, rows_pin)) {
    if (columns_pin) {
      std::int64_t blocks = std::clamp<std::int64_t>(*columns_pin, 1, columns);
      while (columns % blocks != 0) --blocks;
      out.emplace_back(r, blocks);
      continue;
    }
    for (std::int64_t blocks = 1; blocks <= kMostBlocks; ++blocks)
      if (columns % blocks == 0 && (blocks == 1 || r * columns / blocks >= kFewTiles))
        out.emplace_back(r, blocks);
  }
  return out;
}

}  // namespace

std::vector<Schedule> winograd_schedules(const Product& p, const Target& target, int lanes,
                                         std::int64_t m, const Tuning& fixed, std::size_t count) {
  std::vector<Schedule> out;
  const auto shape = winograd_of(p, lanes);
  const auto terms = winograd_terms(*p.request.graph, p.problem, target, m);
  if (!shape || !terms) return out;
  const Extents& e = p.extents;
  const std::int64_t across = ceil_div(e.tile, m), down = ceil_div(e.rows, m);
  const std::int64_t vectors = e.n / lanes;
  const auto mr_pin = pinned(fixed, "mr"), nv_pin = pinned(fixed, "nv");
  auto rows_pin = pinned(fixed, "rows");
  if (rows_pin) rows_pin = ceil_div(*rows_pin, m);
  // Schedules of before there were blocks of columns do not name them.
  const auto columns_pin = mr_pin ? pinned(fixed, "columns").value_or(1) : pinned(fixed, "columns");
  for (const auto& [rows, columns] : blocks_of_image(down, rows_pin, across, columns_pin)) {
    for (std::int64_t nv = 1; nv <= 6; ++nv) {
      if (nv_pin && nv != *nv_pin) continue;
      for (std::int64_t mr = 1; mr <= 14; ++mr) {
        if (mr_pin && mr != *mr_pin) continue;
        const std::int64_t spare = terms == WinogradTerms::integers ? kPairSpare : 0;
        if (!(mr_pin && nv_pin) && mr * nv + nv + 1 + spare > target.vector_registers) continue;
        Schedule s = p.base;
        s.winograd = m;
        s.a = ASource::box;
        if (s.b != BSource::constant) s.b = BSource::phase;
        s.rows_per_task = rows * m;
        s.column_blocks = columns;
        const std::int64_t tiles = rows * across / columns, blocks = ceil_div(tiles, mr);
        s.mr = ceil_div(tiles, blocks);
        s.panels = ceil_div(vectors, nv);
        s.nv = ceil_div(vectors, s.panels);
        if (!(mr_pin || nv_pin) && (s.mr != mr || s.nv != nv)) continue;
        s.small = blocks * s.mr - tiles;
        s.big = blocks - s.small;
        s.tiles_per_task = blocks;
        for (std::int64_t panels : block_sizes(s.panels, pinned(fixed, "panels"))) {
          s.panels_per_task = panels;
          s.cycles = total_cycles(p, s, target, lanes, *shape, *terms);
          out.push_back(s);
        }
      }
    }
  }
  return best_first(std::move(out), count);
}

}  // namespace heddle::lower::contract
