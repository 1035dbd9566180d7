#include <algorithm>

#include "lower/attention/emit.h"
#include "lower/contract/schedule.h"
#include "support/math.h"

namespace heddle::lower::attention {
namespace {

constexpr std::int64_t kFewRows = 16, kFewKeys = 16;  // not worth the packing

bool plain(const prim::Graph& g, const Attention::Operand& o) {
  return g[o.node].type.dtype == DType::f32 && o.inside.empty();
}

}  // namespace

std::optional<Blocks> blocks_of(const prim::Graph& g, const Attention& a, const Target& target,
                                const Tuning& fixed) {
  const std::int64_t rows = a.extent(a.row), keys = a.extent(a.key),
                     lanes = target.lanes(DType::f32);
  if (!plain(g, a.q) || !plain(g, a.k) || !plain(g, a.v) || g[a.result].type.dtype != DType::f32 ||
      rows < kFewRows || keys < kFewKeys)
    return std::nullopt;
  Blocks b;
  const bool many = target.vector_registers >= 32;
  b.nv = contract::pinned(fixed, "nv").value_or(many ? 4 : 2);
  b.nv = std::clamp<std::int64_t>(b.nv, 1, ceil_div(keys, lanes));
  const std::int64_t most_rows = (target.vector_registers - 1 - b.nv) / b.nv;
  b.mr = std::clamp<std::int64_t>(contract::pinned(fixed, "mr").value_or(6), 1, most_rows);
  const std::int64_t tiles = ceil_div(rows, b.mr);
  b.mr = ceil_div(rows, tiles);
  b.small = tiles * b.mr - rows;
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
