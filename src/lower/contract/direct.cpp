#include "lower/contract/direct.h"

#include "kernel/halves.h"
#include "support/math.h"

namespace heddle::lower::contract {

using ir::Expr;

std::int64_t height_of(const Product& p) {
  return p.extents.tile_step > 1 ? p.extents.tile_step : kernel::TileProduct::kRows;
}

namespace {

/// The share of a box's terms that are no zeros.
constexpr double kLeastFull = 0.3;

/// From the first row of the tile axis to another.
std::optional<std::int64_t> distance(const Expr& offset, ir::Var rows, std::int64_t row) {
  const auto at = [&](std::int64_t r) {
    return ir::substitute(
        offset, [&](ir::Var v) { return v == rows ? std::optional<Expr>(Expr(r)) : std::nullopt; });
  };
  return (at(row) - at(0)).constant();
}

}  // namespace

std::optional<DirectRows> direct_rows(const Product& p, const Pieces& shape,
                                      kernel::BufferId buffer, const Expr& offset,
                                      std::int64_t in_term) {
  if (shape.a != 1 || !p.tile) return std::nullopt;
  const std::vector<Axis> terms = merged_reductions(p, {offset});
  const std::int64_t height = height_of(p);
  if (p.extents.tile_step == 1 && !ir::coefficient_of(offset, p.tile->var)) return std::nullopt;
  const auto pitch = distance(offset, p.tile->var, 1),
             block = distance(offset, p.tile->var, height);
  if (pitch.value_or(0) < 1 || block.value_or(0) < 1 || terms.empty() ||
      (shape.line > 1 ? shape.padded : terms.back().extent) % shape.depth() != 0 ||
      ir::coefficient_of(offset, terms.back().var) != in_term)
    return std::nullopt;
  kernel::TileProduct::Operand o;
  o.step = shape.depth() * in_term;
  std::int64_t steps = ceil_div(terms.back().extent, shape.depth());
  for (std::size_t i = terms.size() - 1; i-- > 0; steps *= terms[i].extent) {
    const auto apart = ir::coefficient_of(offset, terms[i].var);
    const std::int64_t further = apart.value_or(0) - o.place_of(steps);
    if (!apart || further < 0) return std::nullopt;
    o.runs.push_back({steps, further});
  }
  return DirectRows{buffer, offset, *pitch, *block, o.step, o.runs};
}

std::optional<DirectRows> rows_in_place(const Product& p, const Pieces& shape) {
  const kernel::Load* load = kernel::load_under_cast(p.a);
  if (shape.bytes) {
    const auto parts = kernel::parts_of(p.a);
    const auto apart = kernel::distance_of_parts(parts);
    if (parts.size() != 4 || !apart || apart->constant() != 1) return std::nullopt;
    load = kernel::load_under_cast(parts[0]);
  }
  const DType stored = (*p.request.graph)[p.problem.a].type.dtype;
  if (!load || !load->dynamic.empty() || p.kernel.buffers[load->buffer].dtype != stored)
    return std::nullopt;
  return direct_rows(p, shape, load->buffer, load->offset, shape.bytes ? 4 : 1);
}

bool rows_in_box(const Product& p, const Pieces& shape) {
  if (shape.a != 1 || !p.box || !p.tile || p.k.empty()) return false;
  const bool lines = p.extents.tile_step > 1;
  int moving = 0;  // dimensions along the rows
  for (std::size_t d = 0; d < p.box->dims.size(); ++d) {
    const Expr& local = p.box->dims[d].local;
    if (!lines && !ir::coefficient_of(local, p.tile->var)) return false;
    const auto along = distance(local, p.tile->var, 1),
               across = distance(local, p.tile->var, height_of(p));
    if (along.value_or(-1) < 0 || across.value_or(-1) < 0) return false;
    moving += *along > 0 || *across > 0;
    for (const KLoop& loop : p.k)
      if (ir::coefficient_of(local, loop.axes[0].var).value_or(-1) < 0) return false;
  }
  const Axis& last = p.k.back().axes.back();
  const Box::Dim& inner = p.box->dims[static_cast<std::size_t>(p.box->order.back())];
  if (moving != (lines ? 2 : 1) || inner.local != Expr(last.var)) return false;
  if (last.extent % shape.depth() == 0) return true;
  // Zeros are written behind whole lines.
  return shape.line == last.extent && inner.low.constant() == 0 && inner.inside.low <= 0 &&
         inner.inside.high >= last.extent - 1 &&
         kLeastFull * static_cast<double>(shape.padded) <= static_cast<double>(shape.line);
}

}  // namespace heddle::lower::contract
