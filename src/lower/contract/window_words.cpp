#include "lower/contract/window_words.h"

#include <algorithm>

#include "kernel/halves.h"
#include "lower/evaluate.h"

namespace heddle::lower::contract {

using ir::Expr;
using ir::Var;
using kernel::Value;

std::optional<WindowWords> WindowWords::of(const Product& p) {
  const Target& target = p.request.target;
  WindowWords out;
  Value image = p.a;
  if (const auto* cast = std::get_if<kernel::Apply>(&image->op))
    if (cast->fn == ir::ScalarFn::cast) image = Value(cast->args[0]);
  std::vector<ir::Condition> conditions;
  if (const auto* guard = std::get_if<kernel::Guard>(&image->op)) {
    const auto* fill = std::get_if<kernel::Imm>(&guard->otherwise->op);
    if (fill == nullptr || fill->real != 0) return std::nullopt;
    out.fill_ = fill->integer;
    conditions = guard->conditions;
    image = Value(guard->then);
  }
  const auto *load = kernel::load_under_cast(image), *filter = kernel::load_under_cast(p.b);
  if (!load || !filter || !load->dynamic.empty() || p.k.size() > 2) return std::nullopt;
  const DType stored = p.kernel.buffers[load->buffer].dtype,
              weights = p.kernel.buffers[filter->buffer].dtype;
  const DType meant = (*p.request.graph)[p.problem.a].type.dtype;  // not bytes read as signed ones
  const bool bytes = target.quads && p.problem.type == DType::i32 && stored == DType::u8 &&
                     meant == DType::u8 && weights == DType::i8 && out.fill_ >= 0 &&
                     out.fill_ <= 255;
  const bool halves = target.bf16_pairs && p.problem.type == DType::f32 && stored == DType::bf16 &&
                      weights == DType::bf16;
  if (!bytes && !halves) return std::nullopt;
  out.rows_ = bytes ? 4 : 2;
  out.load_ = *load;
  const std::optional<Var> tap = p.k.size() == 2 ? std::optional(p.k[0].axes[0].var) : std::nullopt;
  for (const ir::Condition& c : conditions) {
    const bool of_rows =
        (tap && ir::depends_on(c.expr, *tap)) || (p.row && ir::depends_on(c.expr, p.row->var));
    const bool of_columns =
        ir::depends_on(c.expr, p.tile->var) || ir::depends_on(c.expr, p.k.back().axes[0].var);
    if (of_rows == of_columns || (of_rows && (out.row_ || !tap))) return std::nullopt;
    if (of_columns) {
      out.own_.push_back(c);
      continue;
    }
    const auto per_tap = ir::coefficient_of(c.expr, *tap),
               step = ir::coefficient_of(load->offset, *tap);
    if (!per_tap || !step || *per_tap == 0 || *step % *per_tap != 0) return std::nullopt;
    out.row_ = Row{c, *step / *per_tap};
    if (p.row && ir::coefficient_of(load->offset, p.row->var) !=
                     out.row_->step * ir::coefficient_of(c.expr, p.row->var).value_or(0))
      return std::nullopt;
  }
  return out;
}

std::int32_t WindowWords::part(std::int64_t bits, std::int64_t place) const {
  const std::int64_t size = 32 / rows_;
  const auto kept = static_cast<std::uint32_t>(bits & ((std::int64_t{1} << size) - 1));
  return static_cast<std::int32_t>(kept << (size * place));
}

std::int32_t WindowWords::weight(const Tensor& filter, std::int64_t element,
                                 std::int64_t place) const {
  return part(bits_at(filter, element), place);
}

Value WindowWords::product(Value word, Value weights) const {
  if (rows_ == 2) return kernel::product_of_halves(word, weights);
  return kernel::apply(ir::ScalarFn::dot4, {std::move(word), std::move(weights)}, DType::i32);
}

Value WindowWords::element(const Expr& offset) const {
  if (rows_ == 2) return kernel::upper_half(kernel::load(load_.buffer, offset, DType::f32));
  return cast_to(kernel::load(load_.buffer, offset, DType::u8), DType::i32);
}

Expr WindowWords::is_inside(const At& at) const {
  const Expr e = at(row_->inside.expr);
  const Expr least = ir::min(e - Expr(row_->inside.low - 1), Expr(row_->inside.high) - e);
  return ir::max(ir::min(least, Expr(1)), Expr(0));
}

std::vector<ir::Condition> WindowWords::all_inside(std::span<const At> rows) const {
  std::vector<ir::Condition> out;
  for (const At& at : rows)
    out.push_back({at(row_->inside.expr), row_->inside.low, row_->inside.high});
  return out;
}

ir::Condition WindowWords::some_outside(std::span<const At> rows) const {
  Expr inside = 0;
  for (const At& at : rows) inside = inside + is_inside(at);
  return {inside, 0, static_cast<std::int64_t>(rows.size())};
}

Value WindowWords::word(std::span<const At> rows, bool masked) const {
  const auto number = [](std::int64_t x) { return kernel::imm_int(DType::i32, x); };
  std::vector<Value> parts;
  std::int32_t padding = 0;
  Expr mask = 0, fill = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto place = static_cast<std::int64_t>(i);
    Expr offset = rows[i](load_.offset);
    if (masked) {
      const Expr e = rows[i](row_->inside.expr), is = is_inside(rows[i]);
      const Expr nearest = ir::max(ir::min(e, Expr(row_->inside.high - 1)), Expr(row_->inside.low));
      offset = offset + (nearest - e) * Expr(row_->step);
      mask = mask + is * Expr(part(-1, place));
      fill = fill + (Expr(1) - is) * Expr(part(fill_, place));
    }
    padding |= part(fill_, place);
    parts.push_back(element(offset));
  }
  parts.resize(static_cast<std::size_t>(rows_), number(0));
  Value word = kernel::packed(parts);
  const auto with = [&](ir::ScalarFn fn, const Expr& e) {
    word = kernel::apply(fn, {word, cast_to(index_value(e), DType::i32)}, DType::i32);
  };
  if (masked) with(ir::ScalarFn::bit_and, mask);
  if (masked && fill_ != 0) with(ir::ScalarFn::bit_or, fill);
  std::vector<ir::Condition> own;
  for (const ir::Condition& c : own_) own.push_back({rows[0](c.expr), c.low, c.high});
  return own.empty() ? word : kernel::guard(own, word, number(padding));
}

}  // namespace heddle::lower::contract
