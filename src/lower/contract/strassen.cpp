#include "lower/contract/strassen.h"

#include <algorithm>
#include <cmath>

#include "support/math.h"

namespace heddle::lower::contract {
namespace {

using ir::Expr;

/// Cycles beside the products where two multiply-adds are done in one: of a vector of terms of a
/// pair of rows, and of a vector of a pair of columns of a pair of rows (four results, no
/// epilogue).
constexpr double kRowCycles = 20, kResultCycles = 40;

/// With fewer, what is beside the products takes longer than an eighth of them.
constexpr std::int64_t kLeastTerms = 96;
/// Longer sums would err by more than the accuracy says (driver/accuracy_test.cpp).
constexpr std::int64_t kMostTerms = 4096;

/// Cycles of all tasks on all threads, without what comes cold from memory.
double total_cycles(const Product& p, const Strassen& shape, const Schedule& s, const Target& t,
                    int lanes) {
  Extents e = p.extents;
  e.k = shape.terms;
  const double terms = static_cast<double>(shape.terms), products = kStrassenProducts;
  const double slow = 2 / t.fma_rate;
  const double share = static_cast<double>(s.tiles_per_task) / static_cast<double>(s.tiles());
  const double pairs = share * static_cast<double>(shape.pairs);
  const auto tile = [&](std::int64_t mr) {
    const double results = static_cast<double>(mr * s.nv) * (kResultCycles * slow + 4 * e.epilogue);
    return products * (terms * step_cycles(e, t, mr, s.nv) + 25) + results;
  };
  double panel = static_cast<double>(s.big) * tile(s.mr);
  if (s.small > 0) panel += static_cast<double>(s.small) * tile(s.mr - 1);
  // Of the columns' bytes most come while products run.
  panel = panel * share + products * terms * static_cast<double>(s.nv * lanes) * 4 / 40;
  // Nothing is computed while rows are summed: what does not lie near is waited for (cycles a
  // byte).
  const double operand = 4 * static_cast<double>(shape.pairs) * terms * 4;
  const auto last = static_cast<double>(t.l3_bytes);
  const double wait = operand <= last / 8 ? 0 : operand <= last / 4 ? 1.0 / 16 : 1.0 / 4;
  double rows = pairs * terms / lanes * kRowCycles * slow + share * operand * wait;
  // Sums that do not stay in the second-level cache go out and come back for every panel; where
  // those of all threads and all columns leave the last one, too, from and to memory (bytes a
  // cycle).
  const double sums = products * pairs * terms * 4;
  const double columns = products * terms * static_cast<double>(s.panels * s.nv * lanes) * 4;
  const bool away = sums > 0.75 * static_cast<double>(t.l2_bytes);
  const bool far = away && static_cast<double>(t.threads) * sums + columns > 0.65 * last;
  if (away) rows += sums / (far ? 6 : 14);
  panel += sums / (far ? 10 : away ? 28 : 48);
  const double task = static_cast<double>(s.panels_per_task) * panel + rows + 400;
  return static_cast<double>(ceil_div(s.tasks(p.extents), t.threads)) * task;
}

}  // namespace

std::optional<Strassen> strassen_of(const Product& p, int lanes) {
  // Constants of 16 bits stay so: sums of them would be f32.
  const prim::Graph& g = *p.request.graph;
  if (p.problem.type != DType::f32 || g[p.problem.b].type.dtype != DType::f32) return std::nullopt;
  if (p.base.b != BSource::constant || p.row || !p.tile || !p.n || p.n_axes.size() != 1)
    return std::nullopt;
  for (const Axis& axis : p.outer)
    if (axis.role != Role::m) return std::nullopt;
  if (p.a_across || p.k.empty() || p.k[0].extent % 2 != 0 || p.extents.k > kMostTerms)
    return std::nullopt;
  if (p.n->extent % lanes != 0 || p.n->extent < 2 * lanes || p.tile->extent < 4)
    return std::nullopt;
  return Strassen{ceil_div(p.tile->extent, 2), ceil_div(p.n->extent / lanes, 2), p.extents.k / 2};
}

bool rows_stand_alone(const Problem& p) {
  const std::vector<Axis> rows = p.of(Role::m), terms = p.of(Role::k);
  const auto any = [](const Expr& e, const std::vector<Axis>& axes) {
    return std::ranges::any_of(axes, [&](const Axis& a) { return ir::depends_on(e, a.var); });
  };
  const auto alone = [&](const Axis& axis) {
    return std::ranges::any_of(p.a_access.index, [&](const Expr& e) {
      return ir::depends_on(e, axis.var) && !any(e, terms);
    });
  };
  return p.a_access.inside.empty() && std::ranges::all_of(rows, alone);
}

std::optional<Algorithm> strassen_algorithm(const prim::Graph& g, const Problem& p,
                                            const Target& target) {
  const int lanes = target.lanes(DType::f32);
  const std::vector<Axis> k = p.of(Role::k);
  if (p.type != DType::f32 || !g.constant_of(p.b) || g[p.b].type.dtype != DType::f32 ||
      p.count(Role::batch) > 1 || k.empty() || p.count(Role::k) % 2 != 0 ||
      p.count(Role::k) > kMostTerms || p.count(Role::n) % lanes != 0 || p.count(Role::m) < 4 ||
      !rows_stand_alone(p))
    return std::nullopt;
  const std::int64_t m = p.count(Role::m), vectors = p.count(Role::n) / lanes;
  const auto terms = static_cast<double>(p.count(Role::k));
  const auto pairs = static_cast<double>(ceil_div(m, 2)),
             columns = static_cast<double>(ceil_div(vectors, 2));
  // In multiplications of vectors, of which two are done in a cycle.
  const double written = static_cast<double>(m * vectors) * terms;
  const double products = kStrassenProducts * pairs * columns * terms / 2;
  const double beside = pairs * terms / 2 / lanes * kRowCycles + pairs * columns * kResultCycles;
  const double work = (products + 2 * beside) / written;
  if (work > 0.98) return std::nullopt;
  return Algorithm{work, 7.0 / 4, work};
}

std::array<std::array<int, 4>, kStrassenProducts> column_shares() {
  return {{{1, 0, 0, 0},
           {0, 0, 1, 0},
           {0, 0, 0, 1},
           {1, -1, -1, 1},
           {-1, 1, 0, 0},
           {1, -1, 0, 1},
           {0, -1, 0, 1}}};
}

std::vector<Schedule> strassen_schedules(const Product& p, const Target& target, int lanes,
                                         const Tuning& fixed, std::size_t count) {
  std::vector<Schedule> out;
  const auto shape = strassen_of(p, lanes);
  if (!shape || (p.extents.k < kLeastTerms && !pinned(fixed, "strassen"))) return out;
  const auto mr_pin = pinned(fixed, "mr"), nv_pin = pinned(fixed, "nv");
  for (std::int64_t nv = 1; nv <= 6; ++nv) {
    if (nv_pin && nv != *nv_pin) continue;
    for (std::int64_t mr = 1; mr <= 14; ++mr) {
      if (mr_pin && mr != *mr_pin) continue;
      if (!(mr_pin && nv_pin) && mr * nv + nv + 1 > target.vector_registers) continue;
      Schedule s = p.base;
      s.strassen = true;
      s.a = ASource::matrix;
      const std::int64_t tiles = ceil_div(shape->pairs, mr);
      s.mr = ceil_div(shape->pairs, tiles);
      s.panels = ceil_div(shape->columns, nv);
      s.nv = ceil_div(shape->columns, s.panels);
      if (!(mr_pin || nv_pin) && (s.mr != mr || s.nv != nv)) continue;  // met at its own size
      s.small = tiles * s.mr - shape->pairs;
      s.big = tiles - s.small;
      for (std::int64_t m : block_sizes(s.tiles(), pinned(fixed, "tiles"))) {
        s.tiles_per_task = m;
        for (std::int64_t panels : block_sizes(s.panels, pinned(fixed, "panels"))) {
          s.panels_per_task = panels;
          s.cycles = total_cycles(p, *shape, s, target, lanes);
          out.push_back(s);
        }
      }
    }
  }
  return best_first(std::move(out), count);
}

}  // namespace heddle::lower::contract
