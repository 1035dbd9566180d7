#include "lower/contract/direct.h"

#include "kernel/halves.h"
#include "support/math.h"

namespace heddle::lower::contract {

using ir::Expr;

std::int64_t height_of(const Product& p) {
  return p.extents.tile_step > 1 ? p.extents.tile_step : kernel::TileProduct::kRows;
}

namespace {

/// From the first row of the tile axis to another.
std::optional<std::int64_t> distance(const Expr& offset, ir::Var rows, std::int64_t row) {
  const auto at = [&](std::int64_t r) {
    return ir::substitute(
        offset, [&](ir::Var v) { return v == rows ? std::optional<Expr>(Expr(r)) : std::nullopt; });
  };
  return (at(row) - at(0)).constant();
}

/// Whether channels are the box's innermost dimension, and nothing else.
bool has_channels(const Product& p) {
  const Box::Dim& inner = p.box->dims[static_cast<std::size_t>(p.box->order.back())];
  return inner.local == Expr(p.k.back().axes.back().var);
}

/// Whether reductions follow each other as the box's dimensions do.
bool in_order(const Product& p) {
  std::size_t last = 0;
  for (const KLoop& loop : p.k) {
    std::size_t at = 0;
    while (at < p.box->order.size() &&
           !ir::depends_on(p.box->dims[static_cast<std::size_t>(p.box->order[at])].local,
                           loop.axes[0].var))
      ++at;
    if (at < last) return false;
    last = at;
  }
  return true;
}

}  // namespace

std::optional<DirectRows> direct_rows(const Product& p, const Pieces& shape,
                                      kernel::BufferId buffer, const Expr& offset,
                                      std::int64_t in_term) {
  if (shape.a != 1 || !p.tile) return std::nullopt;
  const auto& cut = shape.cut;
  std::vector<Axis> terms;  // of a cut line one by one: its first may step as a line before would
  if (!cut) terms = merged_reductions(p, {offset});
  for (const KLoop& loop : p.k)
    if (cut) terms.insert(terms.end(), loop.axes.begin(), loop.axes.end());
  const std::int64_t height = height_of(p);
  if (p.extents.tile_step == 1 && !ir::coefficient_of(offset, p.tile->var)) return std::nullopt;
  const auto pitch = distance(offset, p.tile->var, 1),
             block = distance(offset, p.tile->var, height);
  if (pitch.value_or(0) < 1 || block.value_or(0) < 1 || terms.empty() ||
      ir::coefficient_of(offset, terms.back().var) != in_term)
    return std::nullopt;
  std::int64_t line = 1;
  for (; !terms.empty() && line < (cut ? shape.line : 2); terms.pop_back()) {
    const std::int64_t apart = line > 1 && cut && line == cut->channels ? cut->apart : line;
    if (ir::coefficient_of(offset, terms.back().var) != apart * in_term) return std::nullopt;
    line *= terms.back().extent;
  }
  if (cut ? line != shape.line : line % shape.depth() != 0) return std::nullopt;
  kernel::TileProduct::Operand o;
  o.step = (cut ? cut->width : shape.depth()) * in_term;
  std::int64_t steps = (cut ? shape.padded : line) / shape.depth();
  for (std::size_t i = terms.size(); i-- > 0; steps *= terms[i].extent) {
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

Line line_in_box(const Product& p) {
  const std::vector<int>& order = p.box->order;
  const bool channels = has_channels(p);
  Line line{1, channels ? p.k.back().axes.back().extent : 1};
  const std::size_t behind = channels ? 2 : 1;  // dimensions, reductions
  if (order.size() < behind || p.k.size() < behind) return line;
  const Axis& taps = p.k[p.k.size() - behind].axes.back();
  const Box::Dim& dim = p.box->dims[static_cast<std::size_t>(order[order.size() - behind])];
  if (ir::coefficient_of(dim.local, taps.var) == 1) line.taps = taps.extent;
  return line;
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
  if (moving != (lines ? 2 : 1) || !in_order(p)) return false;
  if (!has_channels(p)) return shape.cut && shape.cut->apart == 1;
  if (!shape.cut || shape.cut->apart == shape.cut->channels) return true;
  // Zeros are written behind all channels.
  return is_whole(p.box->dims[static_cast<std::size_t>(p.box->order.back())], shape.cut->channels);
}

}  // namespace heddle::lower::contract
