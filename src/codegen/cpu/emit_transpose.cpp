// Loads along the rows of a block whose lanes are its columns: whole rows are read and transposed
// in registers, once for all unrolled iterations that want a column of the block.
#include "codegen/cpu/emitter.h"
#include "kernel/bounds.h"

namespace heddle::codegen::cpu {

namespace {

using kernel::Guard;
using kernel::Imm;
using kernel::Load;
using V = llvm::Value*;

/// Elements of a and b picked by `pick(j)`: the j-th of a, or of b where `width` is added.
V shuffled(llvm::IRBuilder<>& b, V a, V c, unsigned width,
           const std::function<unsigned(unsigned)>& pick) {
  llvm::SmallVector<int> picks;
  for (unsigned j = 0; j < width; ++j) picks.push_back(static_cast<int>(pick(j)));
  return b.CreateShuffleVector(a, c, picks);
}

}  // namespace

/// The transpose of rows.size() rows of as many elements: first within the 16-byte parts of
/// registers (unpacking ever larger pieces), then the parts themselves.
std::vector<Emitter::V> Emitter::transposed(std::vector<V> rows, unsigned element_bytes) {
  const auto width = static_cast<unsigned>(rows.size());
  const unsigned part = std::min(width, 16 / element_bytes);
  for (unsigned piece = 1; piece < part; piece *= 2) {
    std::vector<V> next(width);
    for (unsigned i = 0; i < width; ++i) {
      // Rows that differ in the bit `piece` meet; the half of the part they give takes its place.
      if (i & piece) continue;
      for (const unsigned half : {0u, 1u})
        next[i + half * piece] = shuffled(b_, rows[i], rows[i + piece], width, [&](unsigned j) {
          const unsigned in_part = j % part, at = in_part / (2 * piece) * piece + in_part % piece;
          const bool second = in_part / piece % 2;
          return (second ? width : 0) + j / part * part + half * (part / 2) + at;
        });
    }
    rows = std::move(next);
  }
  for (unsigned step = part; step < width; step *= 2) {
    std::vector<V> next(width);
    for (unsigned i = 0; i < width; ++i) {
      if (i & step) continue;
      next[i] = shuffled(b_, rows[i], rows[i + step], width,
                         [&](unsigned j) { return j & step ? width + j - step : j; });
      next[i + step] = shuffled(b_, rows[i], rows[i + step], width,
                                [&](unsigned j) { return j & step ? width + j : j + step; });
    }
    rows = std::move(next);
  }
  // Unpacking has left the columns of a part in bit-reversed order.
  std::vector<V> columns(width);
  for (unsigned i = 0; i < width; ++i) {
    unsigned column = i / part * part;
    for (unsigned bit = 1, to = part / 2; bit < part; bit *= 2, to /= 2)
      if (i & bit) column += to;
    columns[column] = rows[i];
  }
  return columns;
}

/// True if all iterations of the unrolled loop come to where the builder stands: no condition
/// around it tests them, be it decided already.
bool Emitter::always_runs(Var unrolled) const {
  const auto at = static_cast<std::size_t>(unrolled.index);
  // What stands before the loop that it is in is made outside of its scope.
  const auto first = std::min(levels_[at] + 1, static_cast<int>(scopes_.size()));
  return tested_[at] == 0 &&
         std::none_of(scopes_.begin() + first, scopes_.end(),
                      [](const std::shared_ptr<Scope>& s) { return s->conditional; });
}

/// The row of a block that starts at `first`, or zeros where a condition, at the row's lane, does
/// not hold.
Emitter::V Emitter::row_of_block(std::int32_t id, const Expr& first,
                                 const std::vector<ir::Condition>& inside, std::int64_t lane) {
  const unsigned width = vector_->width;
  V from = address(id, first), all = nullptr;
  for (ir::Condition c : inside) {
    c.expr = at_lane(c.expr, lane);
    if (const auto holds = ir::decide(c, ranges_); holds && *holds) continue;
    V one = condition(c);
    all = all ? b_.CreateAnd(all, one) : one;
  }
  if (all) {
    auto* type = llvm::FixedVectorType::get(ops_.storage(buffer(id).dtype), width);
    llvm::GlobalVariable* zeros = module_.getNamedGlobal("zeros");
    if (!zeros || zeros->getValueType() != type) {
      zeros = new llvm::GlobalVariable(module_, type, true, llvm::GlobalValue::PrivateLinkage,
                                       llvm::Constant::getNullValue(type), "zeros");
      zeros->setAlignment(llvm::Align(64));
    }
    from = b_.CreateSelect(all, from, zeros);
  }
  return load_at(id, from, width);
}

/// A guarded load of a column of a block, with zeros elsewhere; null if it is none.
Emitter::V Emitter::guarded_column(const Guard& x, const std::vector<ir::Condition>& left) {
  const auto* load = std::get_if<Load>(&x.then->op);
  const auto* zero = std::get_if<Imm>(&x.otherwise->op);
  if (!load || !load->dynamic.empty() || !zero || zero->real != 0 || zero->integer != 0 ||
      !vector_ || scope().mask || left.empty())
    return nullptr;
  for (const ir::Condition& c : x.conditions) {
    std::vector<Var> used;
    ir::collect_variables(c.expr, used);
    for (const Var v : used)
      if (unrolled_[static_cast<std::size_t>(v.index)] > 0 &&
          ir::coefficient_of(load->offset, v) == 1)
        return nullptr;  // its rows are not whole
  }
  V column = load_column(load->buffer.value, load->offset, left);
  return column ? ops_.cast(column, buffer(load->buffer.value).dtype, x.then->dtype) : nullptr;
}

/// True if the buffer has the elements from `first` to so many on. What conditions around prove
/// stays behind them: blocks are read where the builder stands, and known in its scope.
bool Emitter::is_there(std::int32_t id, const Expr& first, std::int64_t more) const {
  const ir::Interval there{0, buffer(id).size - 1 - more};
  const auto range = kernel::bounds_under(first, given_, ranges_, there);
  return range && range->low >= there.low && range->high <= there.high;
}

/// A load whose lanes lie `stride` apart and whose neighbours, by an unrolled variable, are the
/// next elements of the same rows; null if it is none. `inside`: of lanes, whose rows are there.
Emitter::V Emitter::load_column(std::int32_t id, const Expr& offset,
                                const std::vector<ir::Condition>& inside) {
  const unsigned width = vector_->width;
  if (width < 4 || vector_->lanes != width || in_registers(id)) return nullptr;
  const auto stride = ir::coefficient_of(offset, vector_->var);
  if (!stride || *stride < static_cast<std::int64_t>(width)) return nullptr;
  std::vector<Var> used;
  ir::collect_variables(offset, used);
  for (const Var v : used) {
    const auto at = static_cast<std::size_t>(v.index);
    if (unrolled_[at] == 0 || unrolled_[at] % width != 0) continue;
    if (ir::coefficient_of(offset, v) != 1) continue;
    const auto column = static_cast<std::size_t>(*bound_[at]) % width;
    const Expr first =
        at_lane(bound(offset - Expr(v) + Expr(*bound_[at] - static_cast<std::int64_t>(column))), 0);
    const std::tuple key{id, first, *stride, width, inside};
    if (!scope().blocks.contains(key) &&
        (inside.empty() ? !is_there(id, first, (width - 1) * (*stride + 1)) : !always_runs(v)))
      continue;
    Block& block = scope().blocks[key];
    if (block.columns.empty() || block.time < stored_[static_cast<std::size_t>(id)]) {
      block.time = time_;
      block.columns.clear();
      for (unsigned i = 0; i < width; ++i)
        block.columns.push_back(row_of_block(id, first + Expr(i * *stride), inside, i));
      const unsigned bytes = block.columns[0]->getType()->getScalarSizeInBits() / 8;
      block.columns = transposed(std::move(block.columns), std::max(1u, bytes));
    }
    return block.columns[column];
  }
  return nullptr;
}

}  // namespace heddle::codegen::cpu
