#include <algorithm>

#include "lower/attention/emit.h"
#include "lower/contract/schedule.h"
#include "support/math.h"

namespace heddle::lower::attention {
namespace {

constexpr std::int64_t kFewRows = 16, kFewKeys = 16;  // not worth the packing
constexpr std::int64_t kTasksOfAThread = 4;

/// Operands of both products, perhaps behind casts.
bool of_type(DType type, const prim::Graph& g, const Attention& a) {
  const auto factors = [&](NodeId product) {
    return std::ranges::all_of(g[product].args, [&](NodeId x) { return g[x].type.dtype == type; });
  };
  return factors(a.result) && factors(a.products);
}

/// How many the scores of a task may be of, which share the cache with a product's keys and values.
std::int64_t rows_near(const Attention& a, const Target& target) {
  constexpr double kShare = 0.4;
  const std::int64_t row = 4 * (a.extent(a.key) + target.lanes(DType::f32));
  return static_cast<std::int64_t>(kShare * static_cast<double>(target.l2_bytes)) / row;
}

}  // namespace

bool may_be_alone(const Attention& a, const Target& target) {
  return a.extent(a.row) <= rows_near(a, target) && a.batches() >= kTasksOfAThread * target.threads;
}

std::optional<Blocks> blocks_of(const prim::Graph& g, const Attention& a, const Target& target,
                                const Tuning& fixed) {
  const std::int64_t rows = a.extent(a.row), keys = a.extent(a.key),
                     lanes = target.lanes(DType::f32);
  const bool halves = of_type(DType::bf16, g, a);
  const bool tiles = halves && target.tiles && a.extent(a.column) % kTileSide == 0;
  const bool pairs = halves && target.bf16_pairs && !target.tiles;
  const bool single = of_type(DType::f32, g, a) && g[a.result].type.dtype == DType::f32;
  const bool plain = a.q.inside.empty() && a.k.inside.empty() && a.v.inside.empty();
  if (!(tiles || pairs || single) || !plain || rows < kFewRows || keys < kFewKeys ||
      a.extent(a.depth) < 1 || a.extent(a.column) < 1)
    return std::nullopt;
  Blocks b;
  b.form = tiles ? Blocks::Form::tiles : pairs ? Blocks::Form::pairs : Blocks::Form::single;
  const bool many = target.vector_registers >= 32;
  // A tile of few columns has as many sums as one of more only if it has more rows.
  const bool low = pairs && a.extent(a.column) <= 2 * lanes;
  b.nv = contract::pinned(fixed, "nv").value_or(!many ? 2 : low ? 3 : 4);
  const std::int64_t most_nv = (target.vector_registers - 1) / 2;  // of one row
  b.nv = std::clamp<std::int64_t>(b.nv, 1, std::min(most_nv, ceil_div(keys, lanes)));
  const std::int64_t most_rows = (target.vector_registers - 1 - b.nv) / b.nv;
  b.mr =
      std::clamp<std::int64_t>(contract::pinned(fixed, "mr").value_or(low ? 8 : 6), 1, most_rows);
  if (tiles) b.mr = kTileSide, b.nv = 2;
  const std::int64_t count = ceil_div(rows, b.mr);
  if (tiles) {
    b.less = rows % b.mr;
    b.small = b.less > 0 ? 1 : 0;
  } else {
    b.mr = ceil_div(rows, count);
    b.less = b.mr - 1;
    b.small = count * b.mr - rows;
  }
  b.big = count - b.small;

  constexpr std::int64_t kMostRows = 96;
  const auto room = rows_near(a, target) / b.mr;
  std::int64_t most =
      std::clamp<std::int64_t>(room, 1, std::max<std::int64_t>(1, kMostRows / b.mr));
  if (const auto pin = contract::pinned(fixed, "rows"))
    most = std::clamp<std::int64_t>(ceil_div(*pin, b.mr), 1, count);
  const std::int64_t products = a.batches();
  std::int64_t tasks = ceil_div(count, most);
  if (target.threads > 1)
    tasks = std::clamp(ceil_div(kTasksOfAThread * target.threads, products), tasks, count);
  b.tiles = ceil_div(count, tasks);

  // Values stay in the first-level cache while a task's tiles are multiplied with them.
  const std::int64_t panel = b.nv * lanes;
  const std::int64_t near =
      contract::pinned(fixed, "block").value_or(target.l1_bytes / (pairs ? 4 : 8) / panel);
  b.block = std::max<std::int64_t>(1, near / panel) * panel;
  return b;
}

}  // namespace heddle::lower::attention
