#include "lower/contract/window_words.h"

#include <algorithm>

#include "kernel/halves.h"
#include "lower/evaluate.h"

namespace heddle::lower::contract {

using ir::Expr;
using ir::Var;
using kernel::Value;

std::optional<WindowWords> WindowWords::of(const Product& p) {
  const auto stored_as = [&](const kernel::Load* load) {
    return load ? p.kernel.buffers[load->buffer].dtype : DType::b1;
  };
  WindowWords out;
  Value image = p.a;
  if (const auto* cast = std::get_if<kernel::Apply>(&image->op))
    if (cast->fn == ir::ScalarFn::cast) image = Value(cast->args[0]);
  std::vector<ir::Condition> conditions;
  if (const auto* guard = std::get_if<kernel::Guard>(&image->op)) {
    const auto* fill = std::get_if<kernel::Imm>(&guard->otherwise->op);
    if (fill == nullptr) return std::nullopt;
    out.fill_ = fill->integer;
    conditions = guard->conditions;
    image = Value(guard->then);
  }
  const auto* load = kernel::load_under_cast(image);
  if (p.problem.type != DType::i32 || p.k.size() > 2 || stored_as(load) != DType::u8 ||
      stored_as(kernel::load_under_cast(p.b)) != DType::i8 || !load->dynamic.empty() ||
      out.fill_ < 0 || out.fill_ > 255)
    return std::nullopt;
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

Expr WindowWords::is_inside(const At& at) const {
  const Expr e = at(row_->inside.expr);
  const Expr least = ir::min(e - Expr(row_->inside.low - 1), Expr(row_->inside.high) - e);
  return ir::max(ir::min(least, Expr(1)), Expr(0));
}

Expr WindowWords::inside(std::span<const At> rows) const {
  Expr count = 0;
  for (const At& at : rows) count = count + is_inside(at);
  return count;
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
      mask = mask + is * Expr(part(0xff, place));
      fill = fill + (Expr(1) - is) * Expr(part(fill_, place));
    }
    padding |= part(fill_, place);
    parts.push_back(kernel::apply(ir::ScalarFn::cast,
                                  {kernel::load(load_.buffer, offset, DType::u8)}, DType::i32));
  }
  Value word = parts[0];
  if (parts.size() > 1) {
    parts.resize(kRows, number(0));
    word = kernel::packed(parts);
  }
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
