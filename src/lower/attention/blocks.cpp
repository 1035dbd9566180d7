#include <algorithm>

#include "lower/attention/emit.h"
#include "lower/contract/schedule.h"
#include "support/math.h"

namespace heddle::lower::attention {
namespace {

constexpr std::int64_t kFewRows = 16, kFewKeys = 16;  // not worth the packing

/// Operands of both products, perhaps behind casts.
bool of_type(DType type, const prim::Graph& g, const Attention& a) {
  const auto factors = [&](NodeId product) {
    return std::ranges::all_of(g[product].args, [&](NodeId x) { return g[x].type.dtype == type; });
  };
  return factors(a.result) && factors(a.products);
}

}  // namespace

std::optional<Blocks> blocks_of(const prim::Graph& g, const Attention& a, const Target& target,
                                const Tuning& fixed) {
  const std::int64_t rows = a.extent(a.row), keys = a.extent(a.key),
                     lanes = target.lanes(DType::f32);
  const bool halves =
      target.tiles && of_type(DType::bf16, g, a) && a.extent(a.column) % kTileSide == 0;
  const bool single = of_type(DType::f32, g, a) && g[a.result].type.dtype == DType::f32;
  const bool plain = a.q.inside.empty() && a.k.inside.empty() && a.v.inside.empty();
  if (!(halves || single) || !plain || rows < kFewRows || keys < kFewKeys ||
      a.extent(a.depth) < 1 || a.extent(a.column) < 1)
    return std::nullopt;
  Blocks b;
  const bool many = target.vector_registers >= 32;
  b.nv = contract::pinned(fixed, "nv").value_or(many ? 4 : 2);
  const std::int64_t most_nv = (target.vector_registers - 1) / 2;  // of one row
  b.nv = std::clamp<std::int64_t>(b.nv, 1, std::min(most_nv, ceil_div(keys, lanes)));
  const std::int64_t most_rows = (target.vector_registers - 1 - b.nv) / b.nv;
  b.mr = std::clamp<std::int64_t>(contract::pinned(fixed, "mr").value_or(6), 1, most_rows);
  if (halves) b.mr = kTileSide, b.nv = 2;
  const std::int64_t tiles = ceil_div(rows, b.mr);
  b.halves = halves;
  if (halves) {
    b.less = rows % b.mr;
    b.small = b.less > 0 ? 1 : 0;
  } else {
    b.mr = ceil_div(rows, tiles);
    b.less = b.mr - 1;
    b.small = tiles * b.mr - rows;
  }
  b.big = tiles - b.small;

  // The scores of a task share the cache with the keys and values of a product.
  constexpr double kShare = 0.4;
  constexpr std::int64_t kMostRows = 96, kTasksOfAThread = 4;
  const auto room = static_cast<std::int64_t>(kShare * static_cast<double>(target.l2_bytes)) /
                    (4 * (keys + lanes) * b.mr);
  std::int64_t most =
      std::clamp<std::int64_t>(room, 1, std::max<std::int64_t>(1, kMostRows / b.mr));
  if (const auto pin = contract::pinned(fixed, "rows"))
    most = std::clamp<std::int64_t>(ceil_div(*pin, b.mr), 1, tiles);
  std::int64_t products = 1;
  for (ir::Var v : a.batch) products *= a.extent(v);
  std::int64_t tasks = ceil_div(tiles, most);
  if (target.threads > 1)
    tasks = std::clamp(ceil_div(kTasksOfAThread * target.threads, products), tasks, tiles);
  b.tiles = ceil_div(tiles, tasks);

  // Values stay in the first-level cache while a task's tiles are multiplied with them.
  const std::int64_t panel = b.nv * lanes;
  const std::int64_t near =
      contract::pinned(fixed, "block").value_or(target.l1_bytes / 2 / (4 * panel));
  b.block = std::max<std::int64_t>(1, near / panel) * panel;
  return b;
}

}  // namespace heddle::lower::attention
