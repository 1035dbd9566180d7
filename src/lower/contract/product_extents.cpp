// What a schedule has to know of a product.
#include "kernel/bounds.h"
#include "kernel/traverse.h"
#include "lower/contract/product.h"

namespace heddle::lower::contract {

using ir::Var;
using kernel::Load;
using kernel::Value;

namespace {

std::int64_t product_of(const std::vector<Axis>& axes) {
  std::int64_t count = 1;
  for (const Axis& axis : axes) count *= axis.extent;
  return count;
}

void limit(ir::Ranges& ranges, Var v, std::int64_t extent) {
  kernel::set_range(ranges, v, ir::Interval{0, extent - 1});
}

/// Windows read in place overlap: what counts is the memory between first and last element.
void span_bytes(const Product& p, Extents& e) {
  ir::Ranges ranges = p.problem.ranges();
  for (const Axis& axis : p.outer) limit(ranges, axis.var, 1);
  const std::optional<Axis> cut = e.rows > 1 ? p.row : p.tile;
  const Load* load = first_load(p.a);
  if (!cut || !load) return;
  if (p.tile) limit(ranges, p.tile->var, e.tile);
  const auto span = [&](std::int64_t rows) {
    limit(ranges, cut->var, rows);
    const auto b = ir::bounds(load->offset, ranges);
    return b ? (b->high - b->low + 1) * e.element_bytes : INT64_MAX / 2;
  };
  const std::int64_t one = span(1), two = span(2);
  if (two - one >= e.a_row_bytes) return;
  e.a_row_bytes = two - one;
  e.a_halo_bytes = one - e.a_row_bytes;
}

void box_bytes(const Product& p, Extents& e) {
  ir::Ranges ranges = p.problem.ranges();
  const std::optional<Axis> cut = e.rows > 1 ? p.row : p.tile;
  const auto volume = [&](std::int64_t rows) {
    if (cut) limit(ranges, cut->var, rows);
    std::int64_t count = e.element_bytes;
    for (const Box::Dim& dim : p.box->dims) {
      const auto span = ir::bounds(dim.local, ranges);
      count *= span->high - span->low + 1;
    }
    return count;
  };
  e.a_row_bytes = volume(2) - volume(1);
  e.a_halo_bytes = volume(1) - e.a_row_bytes;
}
}  // namespace

const Load* first_load(const Value& v) {
  const Load* found = nullptr;
  kernel::for_each_value(v, [&](const Value& x) {
    const Load* load = std::get_if<Load>(&x->op);
    if (load && load->dynamic.empty() && !found) found = load;
  });
  return found;
}

std::int64_t stride_of(const Load* load, ir::Var v) {
  return load ? std::abs(ir::coefficient_of(load->offset, v).value_or(0)) : 0;
}

bool is_whole(const Box::Dim& dim, std::int64_t extent) {
  return dim.low.constant() == 0 && dim.inside.low <= 0 && dim.inside.high >= extent - 1;
}

void measure(Product& p) {
  Extents& e = p.extents;
  e.outer = product_of(p.outer);
  e.rows = p.row ? p.row->extent : 1;
  e.tile = p.tile ? p.tile->extent : 1;
  e.n = p.n ? p.n->extent : 1;
  e.k = p.problem.count(Role::k);
  e.element_bytes = size_of(p.problem.type);
  e.spare = p.problem.parts ? kPairSpare : 0;
  e.a_row_bytes = e.k * e.element_bytes * (e.rows > 1 ? e.tile : 1);
  // Where bf16 is all that is kept, a processor with tile registers has shorter functions.
  constexpr double kNarrow = 0.4;
  double work = 1;
  for (const Output& o : p.outputs) {
    const bool narrow = p.request.target.tiles && p.kernel.buffers[o.buffer].dtype == DType::bf16;
    kernel::for_each_value(o.value, [&](const Value& v) {
      if (const auto* x = std::get_if<kernel::Apply>(&v->op))
        work += ir::info(x->fn).flops * (narrow && ir::info(x->fn).expensive ? kNarrow : 1);
      if (std::holds_alternative<Load>(v->op)) work += 1;
    });
  }
  e.epilogue = work;
  p.base.staged = work > 8;
  if (p.base.a == ASource::tiles) e.a_copy_rate = 12;
  if (p.base.a == ASource::box) box_bytes(p, e);
  if (p.base.a == ASource::in_place) {
    span_bytes(p, e);
    if (const Load* load = first_load(p.a); load && p.tile)
      e.a_apart = stride_of(load, p.tile->var) * size_of(p.kernel.buffers[load->buffer].dtype);
  }
}

}  // namespace heddle::lower::contract
