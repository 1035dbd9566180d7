// Index expressions, conditions and addresses. Scalars are i64; parts of a sum are computed at the
// level of the loops they depend on, and constants stay in the addressing mode.
#include <algorithm>
#include <limits>

#include "codegen/cpu/emitter.h"

namespace heddle::codegen::cpu {

using ir::IndexNode;
using namespace kernel;

namespace {

llvm::Constant* iota(llvm::IntegerType* type, unsigned width, std::int64_t begin,
                     std::int64_t step) {
  llvm::SmallVector<llvm::Constant*> lanes;
  for (unsigned i = 0; i < width; ++i) {
    lanes.push_back(llvm::ConstantInt::getSigned(type, begin + step * static_cast<int>(i)));
  }
  return llvm::ConstantVector::get(lanes);
}

/// The terms of a sum; any other node is one term.
std::vector<IndexNode::Term> terms_of(const Expr& e) {
  const IndexNode& n = e.node();
  if (n.kind == IndexNode::Kind::sum) return n.terms;
  return {{1, e}};
}
std::int64_t constant_of(const Expr& e) {
  const IndexNode& n = e.node();
  return n.kind == IndexNode::Kind::sum ? n.constant : 0;
}

}  // namespace

/// The expression with unrolled variables replaced by their values.
Expr Emitter::bound(const Expr& e) const {
  std::vector<Var> used;
  ir::collect_variables(e, used);
  const bool any = std::any_of(used.begin(), used.end(), [&](Var v) {
    return bound_[static_cast<std::size_t>(v.index)].has_value();
  });
  if (!any) return e;
  return ir::substitute(e, [&](Var v) -> std::optional<Expr> {
    const auto& value = bound_[static_cast<std::size_t>(v.index)];
    if (!value) return std::nullopt;
    return Expr(*value);
  });
}

int Emitter::level_of(const Expr& e) const {
  std::vector<Var> used;
  ir::collect_variables(e, used);
  int level = 0;
  for (const Var v : used) level = std::max(level, levels_[static_cast<std::size_t>(v.index)]);
  return level;
}

bool Emitter::varies(const Expr& e) const { return vector_ && ir::depends_on(e, vector_->var); }

/// A scalar index that does not depend on the vector variable.
Emitter::V Emitter::index(const Expr& e) {
  if (const auto c = e.constant()) return b_.getInt64(static_cast<std::uint64_t>(*c));
  const int level = level_of(e);
  auto& memo = scopes_[static_cast<std::size_t>(level)]->indices;
  if (const auto found = memo.find(e); found != memo.end()) return found->second;
  V out = at_level(level, [&] { return make_index(e, level); });
  scopes_[static_cast<std::size_t>(level)]->indices.emplace(e, out);
  return out;
}

Emitter::V Emitter::make_index(const Expr& e, int level) {
  const IndexNode& n = e.node();
  switch (n.kind) {
    case IndexNode::Kind::sum:
      return make_sum(e, level);
    case IndexNode::Kind::var:
      HEDDLE_CHECK(phis_[static_cast<std::size_t>(n.var.index)], "'{}': d{} is not bound", k_.name,
                   n.var.index);
      return phis_[static_cast<std::size_t>(n.var.index)];
    case IndexNode::Kind::div:
      return divide(n);
    case IndexNode::Kind::mod: {
      V x = index(n.args[0]);
      V q = index(ir::floor_div(n.args[0], n.constant));
      V d = b_.getInt64(static_cast<std::uint64_t>(n.constant));
      return b_.CreateSub(x, b_.CreateMul(q, d));
    }
    case IndexNode::Kind::min:
    case IndexNode::Kind::max: {
      V x = index(n.args[0]), y = index(n.args[1]);
      V less = b_.CreateICmpSLT(x, y);
      return n.kind == IndexNode::Kind::min ? b_.CreateSelect(less, x, y)
                                            : b_.CreateSelect(less, y, x);
    }
  }
  HEDDLE_CHECK(false, "index kind");
}

/// Terms of outer levels first, as one expression of their own.
Emitter::V Emitter::make_sum(const Expr& e, int level) {
  Expr outer(constant_of(e));
  std::vector<IndexNode::Term> here;
  for (const IndexNode::Term& t : terms_of(e)) {
    if (level_of(t.atom) < level) {
      outer = outer + t.atom * Expr(t.coefficient);
    } else {
      here.push_back(t);
    }
  }
  V sum = outer.is_constant(0) ? nullptr : index(outer);
  for (const IndexNode::Term& t : here) {
    V x = index(t.atom);
    if (t.coefficient != 1) {
      x = b_.CreateMul(x, b_.getInt64(static_cast<std::uint64_t>(t.coefficient)), "", false, true);
    }
    sum = sum ? b_.CreateAdd(sum, x, "", false, true) : x;
  }
  return sum;
}

/// Floor division by a constant. With a known range a multiple of the divisor is added, so that the
/// unsigned division (a multiplication and shifts) does; without one the sign is corrected.
Emitter::V Emitter::divide(const IndexNode& n) {
  V d = b_.getInt64(static_cast<std::uint64_t>(n.constant));
  const auto range = ir::bounds(n.args[0], ranges_);
  if (!range) {
    V x = index(n.args[0]);
    V q = b_.CreateSDiv(x, d);
    V negative = b_.CreateICmpSLT(b_.CreateSub(x, b_.CreateMul(q, d)), b_.getInt64(0));
    return b_.CreateSub(q, b_.CreateZExt(negative, b_.getInt64Ty()));
  }
  const std::int64_t lift = range->low >= 0 ? 0 : (-range->low + n.constant - 1) / n.constant;
  V x = index(n.args[0] + Expr(lift * n.constant));
  V q;
  if (range->high + lift * n.constant <= std::numeric_limits<std::int32_t>::max()) {
    V narrow = b_.CreateTrunc(x, b_.getInt32Ty());
    q = b_.CreateUDiv(narrow, b_.getInt32(static_cast<std::uint32_t>(n.constant)));
    q = b_.CreateZExt(q, b_.getInt64Ty());
  } else {
    q = b_.CreateUDiv(x, d);
  }
  return lift == 0 ? q : b_.CreateSub(q, b_.getInt64(static_cast<std::uint64_t>(lift)));
}

/// True if 32-bit lanes compute `e` exactly: sums wrap harmlessly, arguments of other nodes may
/// not.
bool Emitter::fits32(const Expr& e) const {
  const auto range = ir::bounds(e, ranges_);
  constexpr std::int64_t kLimit = std::numeric_limits<std::int32_t>::max();
  if (!range || range->low < -kLimit || range->high > kLimit) return false;
  for (const IndexNode::Term& t : terms_of(e)) {
    const IndexNode& n = t.atom.node();
    if (n.kind != IndexNode::Kind::var && n.constant > kLimit) return false;
    for (const Expr& arg : n.args) {
      if (!fits32(arg)) return false;
    }
  }
  return true;
}

/// `e` in every lane, as integers of `type` (wrapping).
Emitter::V Emitter::lane_index(const Expr& e, llvm::IntegerType* type) {
  const unsigned width = vector_->width;
  const auto uniform = [&](const Expr& x) {
    return b_.CreateVectorSplat(width, b_.CreateTrunc(index(x), type));
  };
  if (!varies(e)) return uniform(e);
  const IndexNode& n = e.node();
  if (n.kind == IndexNode::Kind::var) return iota(type, width, vector_->begin, 1);
  if (n.kind == IndexNode::Kind::sum) {
    Expr rest(n.constant);
    V sum = nullptr;
    for (const IndexNode::Term& t : n.terms) {
      if (!varies(t.atom)) {
        rest = rest + t.atom * Expr(t.coefficient);
        continue;
      }
      V x = lane_index(t.atom, type);
      x = b_.CreateMul(x, llvm::ConstantInt::getSigned(x->getType(), t.coefficient));
      sum = sum ? b_.CreateAdd(sum, x) : x;
    }
    return rest.is_constant(0) ? sum : b_.CreateAdd(sum, uniform(rest));
  }
  V x = lane_index(n.args[0], type);
  if (n.kind == IndexNode::Kind::min || n.kind == IndexNode::Kind::max) {
    V y = lane_index(n.args[1], type);
    V less = b_.CreateICmpSLT(x, y);
    return n.kind == IndexNode::Kind::min ? b_.CreateSelect(less, x, y)
                                          : b_.CreateSelect(less, y, x);
  }
  V d = llvm::ConstantInt::getSigned(x->getType(), n.constant);
  const auto range = ir::bounds(n.args[0], ranges_);
  if (range && range->low >= 0) {
    return n.kind == IndexNode::Kind::div ? b_.CreateUDiv(x, d) : b_.CreateURem(x, d);
  }
  V q = b_.CreateSDiv(x, d), r = b_.CreateSub(x, b_.CreateMul(q, d));
  V negative = b_.CreateICmpSLT(r, llvm::Constant::getNullValue(x->getType()));
  if (n.kind == IndexNode::Kind::mod) return b_.CreateSelect(negative, b_.CreateAdd(r, d), r);
  return b_.CreateAdd(q, b_.CreateSExt(negative, x->getType()));
}

/// An index as data of type `dtype`.
Emitter::V Emitter::index_data(const Expr& e, DType dtype) {
  V x = varies(e) ? lane_index(e, fits32(e) ? b_.getInt32Ty() : b_.getInt64Ty()) : index(e);
  llvm::Type* type = Ops::shaped(ops_.compute(dtype), x);
  if (is_float(dtype)) return b_.CreateSIToFP(x, type);
  if (dtype == DType::b1) return ops_.cast(x, DType::i64, dtype);
  return b_.CreateSExtOrTrunc(x, type);
}

/// base + e for a constant-free `e` that is uniform; terms of inner levels are added last.
Emitter::V Emitter::pointer(std::int32_t id, const Expr& e) {
  if (e.is_constant(0)) return bases_[static_cast<std::size_t>(id)];
  const int level = level_of(e);
  const auto known = [&]() -> std::unordered_map<Expr, V>& {
    return scopes_[static_cast<std::size_t>(level)]->pointers[id];
  };
  if (const auto found = known().find(e); found != known().end()) return found->second;
  V out = at_level(level, [&]() -> V {
    Expr outer(0), here(0);
    for (const IndexNode::Term& t : terms_of(e)) {
      Expr& part = level_of(t.atom) < level ? outer : here;
      part = part + t.atom * Expr(t.coefficient);
    }
    return b_.CreateGEP(ops_.storage(buffer(id).dtype), pointer(id, outer), index(here));
  });
  known().emplace(e, out);
  return out;
}

/// The address of element `e`, uniform and with its constant part as displacement.
Emitter::V Emitter::address(std::int32_t id, const Expr& e) {
  const std::int64_t constant = e.constant() ? *e.constant() : constant_of(e);
  V p = pointer(id, e - Expr(constant));
  if (constant == 0) return p;
  return b_.CreateGEP(ops_.storage(buffer(id).dtype), p,
                      b_.getInt64(static_cast<std::uint64_t>(constant)));
}

/// What `e` is in a lane.
Expr Emitter::at_lane(const Expr& e, std::int64_t lane) const {
  return ir::substitute(e, [&](Var x) -> std::optional<Expr> {
    return x == vector_->var ? std::optional(Expr(vector_->begin + lane)) : std::nullopt;
  });
}

/// The lanes in which the condition holds, where no variable but the lane decides it; else null.
Emitter::V Emitter::decided_lanes(const ir::Condition& c) const {
  llvm::SmallVector<llvm::Constant*> bits;
  for (unsigned i = 0; i < vector_->width; ++i) {
    ir::Condition lane = c;
    lane.expr = at_lane(c.expr, std::min(i, vector_->lanes - 1));
    const auto holds = ir::decide(lane, ranges_);
    if (!holds) return nullptr;
    bits.push_back(llvm::ConstantInt::getBool(module_.getContext(), *holds));
  }
  return llvm::ConstantVector::get(bits);
}

/// low ≤ expr < high: one unsigned comparison, or one signed one where the ranges decide a side.
Emitter::V Emitter::condition(const ir::Condition& c) {
  const auto range = ir::bounds(c.expr, ranges_);
  const bool lower = range && range->low >= c.low, upper = range && range->high < c.high;
  if (!varies(c.expr)) {
    const auto at = [&](std::int64_t x) { return b_.getInt64(static_cast<std::uint64_t>(x)); };
    if (lower) return b_.CreateICmpSLT(index(c.expr), at(c.high));
    if (upper) return b_.CreateICmpSGE(index(c.expr), at(c.low));
    return b_.CreateICmpULT(index(c.expr - Expr(c.low)), at(c.high - c.low));
  }
  if (V known = decided_lanes(c)) return known;
  constexpr std::int64_t kLimit = std::numeric_limits<std::int32_t>::max() / 2;
  const bool narrow = fits32(c.expr) && range->low > -kLimit && range->high < kLimit &&
                      (upper || c.high < kLimit) && (lower || c.low > -kLimit);
  llvm::IntegerType* type = narrow ? b_.getInt32Ty() : b_.getInt64Ty();
  const auto splat = [&](std::int64_t x) {
    return llvm::ConstantInt::getSigned(llvm::FixedVectorType::get(type, vector_->width), x);
  };
  V x = lane_index(c.expr, type);
  V low = lower ? nullptr : b_.CreateICmpSGE(x, splat(c.low));
  V high = upper ? nullptr : b_.CreateICmpSLT(x, splat(c.high));
  return low && high ? b_.CreateAnd(low, high) : low ? low : high;
}

}  // namespace heddle::codegen::cpu
