#include "lower/contract/gpu/library.h"

#include <algorithm>

namespace heddle::lower::contract::gpu {
namespace {

using ir::Expr;
using kernel::Load;
using kernel::Value;

/// The stride of a position counted through all `axes`, if they step evenly.
std::optional<std::int64_t> stride_along(const Expr& offset, const std::vector<Axis>& axes) {
  std::int64_t count = 1, stride = 0;
  for (std::size_t i = axes.size(); i-- > 0;) {
    if (axes[i].extent == 1) continue;
    const auto step = ir::coefficient_of(offset, axes[i].var);
    if (!step || *step < 0) return std::nullopt;
    if (count == 1) stride = *step;
    if (*step != stride * count) return std::nullopt;
    count *= axes[i].extent;
  }
  return stride;
}

/// The offset where all of these axes are 0, if nothing else is in it.
std::optional<std::int64_t> start_of(const Expr& offset, const std::vector<Axis>& axes) {
  return ir::substitute(offset,
                        [&](ir::Var v) {
                          const bool axis = std::any_of(axes.begin(), axes.end(),
                                                        [&](const Axis& a) { return a.var == v; });
                          return axis ? std::optional<Expr>(Expr(0)) : std::nullopt;
                        })
      .constant();
}

using Axes = const std::vector<Axis>&;
std::optional<LibraryProduct::Matrix> matrix(kernel::BufferId buffer, const Expr& offset,
                                             Axes batch, Axes rows, Axes columns) {
  const auto steps = steps_of(offset, batch, rows, columns);
  if (!steps) return std::nullopt;
  const std::int64_t m = count_of(rows), n = count_of(columns);
  LibraryProduct::Matrix out{buffer.value, steps->start, steps->batch, m == 1 ? n : steps->row,
                             n == 1 ? 1 : steps->column};
  // Lines lie one after another, and do not overlap.
  if (n == 1 && m > 1 && out.row == 1) out.column = m;
  const bool by_rows = out.column == 1 && out.row >= n,
             by_columns = out.row == 1 && out.column >= m;
  if (!by_rows && !by_columns) return std::nullopt;
  return out;
}

/// `plain` under casts that change nothing of a bias.
const Load* bare_load(const Value& v) {
  const Load* load = std::get_if<Load>(&v->op);
  return load && load->dynamic.empty() ? load : nullptr;
}

bool is_zero(const Value& v) {
  const auto* imm = std::get_if<kernel::Imm>(&v->op);
  return imm && imm->real == 0 && imm->integer == 0;
}

struct Epilogue {
  const Gemm& g;
  LibraryProduct& out;

  bool is_result(const Value& v) const {
    const Load* load = bare_load(v);
    return load && load->buffer == g.product.result;
  }
  bool is_bias(const Value& v) {
    const Load* load = bare_load(v);
    if (!load || g.product.kernel.buffers[load->buffer].dtype != out.result) return false;
    if (g.product.kernel.buffers[load->buffer].scope != kernel::Scope::grid) return false;
    const auto step = stride_along(load->offset, g.out_n), start = start_of(load->offset, g.out_n);
    if (!step || !start || (out.columns > 1 && *step != 1)) return false;
    out.bias = load->buffer.value;
    out.bias_start = *start;
    return true;
  }
  bool sum(const Value& v) {
    if (is_result(v)) return true;
    const auto* add = std::get_if<kernel::Apply>(&v->op);
    if (!add || add->fn != ir::ScalarFn::add) return false;
    return (is_result(add->args[0]) && is_bias(add->args[1])) ||
           (is_result(add->args[1]) && is_bias(add->args[0]));
  }
  bool run(const Value& v) {
    const auto* max = std::get_if<kernel::Apply>(&v->op);
    if (!max || max->fn != ir::ScalarFn::max) return sum(v);
    out.relu = true;
    return (is_zero(max->args[1]) && sum(max->args[0])) ||
           (is_zero(max->args[0]) && sum(max->args[1]));
  }
};

bool may_hold(DType t) { return t == DType::f32 || t == DType::f16 || t == DType::bf16; }

}  // namespace

std::optional<Steps> steps_of(const Expr& offset, Axes batch, Axes rows, Axes columns) {
  std::vector<Axis> all = batch;
  all.insert(all.end(), rows.begin(), rows.end());
  all.insert(all.end(), columns.begin(), columns.end());
  const auto b = stride_along(offset, batch), r = stride_along(offset, rows),
             c = stride_along(offset, columns), start = start_of(offset, all);
  if (!b || !r || !c || !start || *start < 0) return std::nullopt;
  return Steps{*start, *b, *r, *c};
}

std::optional<LibraryProduct> library_product(const Gemm& g, bool tf32) {
  const Product& p = g.product;
  if (p.outputs.size() != 1 || p.problem.type != DType::f32) return std::nullopt;
  const Output& output = p.outputs.front();
  const auto m = plain_of(g.m.value), n = plain_of(g.n.value);
  if (!m || !n || !m->conditions.empty() || !n->conditions.empty()) return std::nullopt;
  LibraryProduct out;
  out.operands = p.kernel.buffers[m->buffer].dtype;
  out.result = p.kernel.buffers[output.buffer].dtype;
  if (!may_hold(out.operands) || p.kernel.buffers[n->buffer].dtype != out.operands ||
      (out.result != out.operands && out.result != DType::f32) || !may_hold(out.result))
    return std::nullopt;
  out.batches = g.batch_extent;
  out.rows = g.m.extent;
  out.columns = g.n.extent;
  out.depth = g.k_extent;
  const auto lhs = matrix(m->buffer, m->offset, g.batch, g.m.rows, g.m.k);
  const auto rhs = matrix(n->buffer, n->offset, g.batch, g.n.rows, g.n.k);
  const auto to = matrix(output.buffer, output.offset, g.batch, g.out_m, g.out_n);
  if (!lhs || !rhs || !to || to->column != 1 || to->row < out.columns) return std::nullopt;
  out.lhs = *lhs, out.rhs = *rhs, out.out = *to;
  out.tf32 = tf32 && out.operands == DType::f32;
  if (!Epilogue{g, out}.run(output.value)) return std::nullopt;
  return out;
}

}  // namespace heddle::lower::contract::gpu
