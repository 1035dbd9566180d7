#include "codegen/cpu/ops.h"

#include <llvm/Analysis/VectorUtils.h>
#include <llvm/IR/IntrinsicsX86.h>

#include <cmath>

#include "support/result.h"

namespace heddle::codegen::cpu {

using ir::ScalarFn;
using llvm::Intrinsic::ID;
namespace Intrinsic = llvm::Intrinsic;
using V = llvm::Value*;

namespace {

unsigned width_of(V v) {
  const auto* type = llvm::dyn_cast<llvm::FixedVectorType>(v->getType());
  return type ? type->getNumElements() : 1;
}

/// True if no lane can be NaN: max(constant, x) is then one instruction.
bool never_nan(V v) {
  const auto* c = llvm::dyn_cast<llvm::Constant>(v);
  if (!c) return false;
  if (const llvm::Constant* lane = v->getType()->isVectorTy() ? c->getSplatValue() : c) {
    const auto* f = llvm::dyn_cast<llvm::ConstantFP>(lane);
    return f && !f->isNaN();
  }
  return false;
}

/// True if v is bounded by constants within [low, high], as extreme() bounds it, or is NaN.
bool within(V v, double low, double high) {
  const auto number = [](V x) -> std::optional<double> {
    const auto* c = llvm::dyn_cast<llvm::Constant>(x);
    const auto* one = c ? llvm::dyn_cast_or_null<llvm::ConstantFP>(c->getSplatValue()) : nullptr;
    if (!one) return std::nullopt;
    return one->getType()->isFloatTy() ? one->getValueAPF().convertToFloat()
                                       : one->getValueAPF().convertToDouble();
  };
  bool above = false, below = false;
  for (int depth = 0; depth < 2; ++depth) {
    auto* select = llvm::dyn_cast<llvm::SelectInst>(v);
    auto* compare = select ? llvm::dyn_cast<llvm::FCmpInst>(select->getCondition()) : nullptr;
    if (!compare || compare->getOperand(0) != select->getTrueValue() ||
        compare->getOperand(1) != select->getFalseValue())
      return false;
    const auto bound = number(select->getTrueValue());
    if (!bound || *bound < low || *bound > high) return false;
    above |= compare->getPredicate() == llvm::CmpInst::FCMP_OGT;
    below |= compare->getPredicate() == llvm::CmpInst::FCMP_OLT;
    v = select->getFalseValue();
  }
  return above && below;
}

}  // namespace

llvm::Type* Ops::compute(DType t) const {
  switch (t) {
    case DType::f32:
    case DType::f16:
    case DType::bf16:
      return b_.getFloatTy();
    case DType::f64:
      return b_.getDoubleTy();
    case DType::b1:
      return b_.getInt1Ty();
    case DType::i8:
    case DType::u8:
      return b_.getInt8Ty();
    case DType::i16:
    case DType::u16:
      return b_.getInt16Ty();
    case DType::i32:
    case DType::u32:
      return b_.getInt32Ty();
    case DType::i64:
    case DType::u64:
      return b_.getInt64Ty();
  }
  HEDDLE_CHECK(false, "dtype {}", static_cast<int>(t));
}

llvm::Type* Ops::storage(DType t) const {
  if (t == DType::f16 || t == DType::bf16) return b_.getInt16Ty();
  if (t == DType::b1) return b_.getInt8Ty();
  return compute(t);
}

V Ops::from_storage(V v, DType t) {
  if (t == DType::f16) {
    if (!modern_) return per_lane("heddle_f16_to_f32", {v}, b_.getFloatTy());
    return b_.CreateFPExt(b_.CreateBitCast(v, shaped(b_.getHalfTy(), v)),
                          shaped(b_.getFloatTy(), v));
  }
  if (t == DType::b1) return b_.CreateICmpNE(v, integer(v->getType(), 0));
  if (t != DType::bf16) return v;
  V wide = b_.CreateZExt(v, shaped(b_.getInt32Ty(), v));
  return b_.CreateBitCast(b_.CreateShl(wide, 16), shaped(b_.getFloatTy(), v));
}

V Ops::to_storage(V v, DType t) {
  if (t == DType::f16) {
    if (!modern_) return per_lane("heddle_f32_to_f16", {v}, b_.getInt16Ty());
    return b_.CreateBitCast(b_.CreateFPTrunc(v, shaped(b_.getHalfTy(), v)),
                            shaped(b_.getInt16Ty(), v));
  }
  if (t == DType::b1) return b_.CreateZExt(v, shaped(b_.getInt8Ty(), v));
  if (t != DType::bf16) return v;
  llvm::Type* i32 = shaped(b_.getInt32Ty(), v);
  V bits = b_.CreateBitCast(v, i32);
  // Round half to even on the upper 16 bits; a NaN keeps its sign and payload, made quiet.
  V odd = b_.CreateAnd(b_.CreateLShr(bits, 16), integer(i32, 1));
  V rounded = b_.CreateAdd(bits, b_.CreateAdd(odd, integer(i32, 0x7fff)));
  V quiet = b_.CreateOr(bits, integer(i32, 0x400000));
  V chosen = b_.CreateSelect(b_.CreateFCmpUNO(v, v), quiet, rounded);
  return b_.CreateTrunc(b_.CreateLShr(chosen, 16), shaped(b_.getInt16Ty(), v));
}

llvm::Constant* Ops::real(V like, double value) const {
  return llvm::ConstantFP::get(like->getType(), value);
}
llvm::Constant* Ops::integer(llvm::Type* like, std::int64_t value) const {
  return llvm::ConstantInt::getSigned(like, value);
}
llvm::Constant* Ops::constant(DType t, double real_value, std::int64_t integer_value) const {
  if (is_float(t)) return llvm::ConstantFP::get(compute(t), real_value);
  return llvm::ConstantInt::getSigned(compute(t), integer_value);
}
V Ops::intrinsic(ID id, llvm::ArrayRef<V> args) {
  return b_.CreateIntrinsic(id, {args[0]->getType()}, args);
}
llvm::Type* Ops::shaped(llvm::Type* element, V like) {
  const auto* type = llvm::dyn_cast<llvm::FixedVectorType>(like->getType());
  return type ? llvm::FixedVectorType::get(element, type->getNumElements()) : element;
}
V Ops::splat(V v, unsigned width) {
  return width == 1 || v->getType()->isVectorTy() ? v : b_.CreateVectorSplat(width, v);
}

/// Vectors of floats to integers that i32 holds, truncated and saturated, NaN to 0: LLVM's
/// saturating conversions would go lane by lane.
V Ops::saturated(V v, DType to) {
  llvm::Type* i32 = shaped(b_.getInt32Ty(), v);
  const int bits = static_cast<int>(8 * size_of(to));
  const bool is_signed = is_signed_int(to);
  const double end = std::ldexp(1.0, is_signed ? bits - 1 : bits), low = is_signed ? -end : 0;
  if (within(v, low, end - 1)) {
    V number = b_.CreateSelect(b_.CreateFCmpORD(v, v), v, real(v, 0));
    return b_.CreateTrunc(b_.CreateFPToSI(number, i32), shaped(compute(to), v));
  }
  // Exact in the float's type, unlike the largest i32.
  V below = b_.CreateFCmpOLT(v, real(v, end)), above = b_.CreateFCmpOGE(v, real(v, low));
  V inside = b_.CreateSelect(b_.CreateAnd(below, above), v, real(v, 0));
  V out = b_.CreateFPToSI(inside, i32);
  const auto limit = [&](double x) { return integer(i32, static_cast<std::int64_t>(x)); };
  out = b_.CreateSelect(b_.CreateFCmpOGE(v, real(v, end)), limit(end - 1), out);
  if (is_signed) out = b_.CreateSelect(b_.CreateFCmpOLT(v, real(v, low)), limit(low), out);
  return b_.CreateTrunc(out, shaped(compute(to), v));
}

V Ops::cast(V v, DType from, DType to) {
  if (compute_type(from) == compute_type(to)) return v;
  llvm::Type* type = shaped(compute(to), v);
  if (is_float(from)) {
    if (is_float(to)) return b_.CreateFPCast(v, type);
    if (to == DType::b1) return b_.CreateFCmpUNE(v, real(v, 0));
    if (v->getType()->isVectorTy() && (size_of(to) < 4 || to == DType::i32))
      return saturated(v, to);
    const ID id = is_signed_int(to) ? Intrinsic::fptosi_sat : Intrinsic::fptoui_sat;
    return b_.CreateIntrinsic(id, {type, v->getType()}, {v});
  }
  const bool is_signed = is_signed_int(from);
  if (is_float(to)) return is_signed ? b_.CreateSIToFP(v, type) : b_.CreateUIToFP(v, type);
  if (to == DType::b1) return b_.CreateICmpNE(v, integer(v->getType(), 0));
  return b_.CreateIntCast(v, type, is_signed);
}

V Ops::apply(ScalarFn fn, llvm::ArrayRef<V> args, DType from, DType to) {
  if (fn == ScalarFn::cast) return cast(args[0], from, to);
  if (fn == ScalarFn::bitcast) return b_.CreateBitCast(args[0], shaped(compute(to), args[0]));
  if (fn == ScalarFn::select) return b_.CreateSelect(args[0], args[1], args[2]);
  V out = is_float(from) ? apply_float(fn, args, from) : apply_int(fn, args, from);
  return out;
}

V Ops::float_unary(ScalarFn fn, V x, DType type) {
  const bool single = compute_type(type) == DType::f32;
  switch (fn) {
    case ScalarFn::neg:
      return b_.CreateFNeg(x);
    case ScalarFn::abs:
      return intrinsic(Intrinsic::fabs, {x});
    case ScalarFn::sqrt:
      return intrinsic(Intrinsic::sqrt, {x});
    case ScalarFn::rsqrt:
      return b_.CreateFDiv(real(x, 1), intrinsic(Intrinsic::sqrt, {x}));
    case ScalarFn::recip:
      return b_.CreateFDiv(real(x, 1), x);
    case ScalarFn::floor:
      return intrinsic(Intrinsic::floor, {x});
    case ScalarFn::ceil:
      return intrinsic(Intrinsic::ceil, {x});
    case ScalarFn::round:
      return intrinsic(Intrinsic::roundeven, {x});
    case ScalarFn::trunc:
      return intrinsic(Intrinsic::trunc, {x});
    case ScalarFn::sign: {
      // ±1 by the sign bit; zeros and NaN stay as they are.
      V one = b_.CreateIntrinsic(Intrinsic::copysign, {x->getType()}, {real(x, 1), x});
      V nonzero = b_.CreateFCmpONE(x, real(x, 0));
      return b_.CreateSelect(nonzero, one, x);
    }
    case ScalarFn::logical_not:
      return b_.CreateFCmpOEQ(x, real(x, 0));
    case ScalarFn::isnan:
      return b_.CreateFCmpUNO(x, x);
    case ScalarFn::isinf:
      return b_.CreateFCmpOEQ(intrinsic(Intrinsic::fabs, {x}), real(x, INFINITY));
    case ScalarFn::exp:
      return single ? exp_f32(x) : libm(fn, {x}, type);
    case ScalarFn::log:
      return single ? log_f32(x) : libm(fn, {x}, type);
    case ScalarFn::tanh:
      return single ? tanh_f32(x) : libm(fn, {x}, type);
    case ScalarFn::erf:
      return single ? erf_f32(x) : libm(fn, {x}, type);
    case ScalarFn::sin:
    case ScalarFn::cos:
      return single ? sine_f32(x, fn == ScalarFn::cos) : libm(fn, {x}, type);
    default:
      return libm(fn, {x}, type);
  }
}

V Ops::apply_float(ScalarFn fn, llvm::ArrayRef<V> args, DType type) {
  if (args.size() == 1) return float_unary(fn, args[0], type);
  V x = args[0], y = args[1], zero = real(args[0], 0);
  switch (fn) {
    case ScalarFn::add:
      return b_.CreateFAdd(x, y);
    case ScalarFn::sub:
      return b_.CreateFSub(x, y);
    case ScalarFn::mul:
      return b_.CreateFMul(x, y);
    case ScalarFn::div:
      return b_.CreateFDiv(x, y);
    case ScalarFn::min:
      return extreme(x, y, false);
    case ScalarFn::max:
      return extreme(x, y, true);
    case ScalarFn::pow:
      return power(x, y, type);
    case ScalarFn::floor_mod: {
      V r = libm(ScalarFn::fmod, {x, y}, type);
      V differ = b_.CreateXor(b_.CreateFCmpOLT(r, zero), b_.CreateFCmpOLT(y, zero));
      V fix = b_.CreateAnd(b_.CreateFCmpUNE(r, zero), differ);
      return b_.CreateSelect(fix, b_.CreateFAdd(r, y), r);
    }
    case ScalarFn::logical_and:
      return b_.CreateAnd(b_.CreateFCmpUNE(x, zero), b_.CreateFCmpUNE(y, zero));
    case ScalarFn::logical_or:
      return b_.CreateOr(b_.CreateFCmpUNE(x, zero), b_.CreateFCmpUNE(y, zero));
    case ScalarFn::logical_xor:
      return b_.CreateXor(b_.CreateFCmpUNE(x, zero), b_.CreateFCmpUNE(y, zero));
    case ScalarFn::equal:
      return b_.CreateFCmpOEQ(x, y);
    case ScalarFn::not_equal:
      return b_.CreateFCmpUNE(x, y);
    case ScalarFn::less:
      return b_.CreateFCmpOLT(x, y);
    case ScalarFn::less_equal:
      return b_.CreateFCmpOLE(x, y);
    case ScalarFn::greater:
      return b_.CreateFCmpOGT(x, y);
    case ScalarFn::greater_equal:
      return b_.CreateFCmpOGE(x, y);
    default:
      return libm(fn, args, type);
  }
}

/// maxps(a, b) gives b when either is NaN, so an operand that cannot be NaN goes first; otherwise a
/// NaN in the first operand is put back by a select.
V Ops::extreme(V x, V y, bool want_max) {
  if (never_nan(y)) std::swap(x, y);
  V ordered = want_max ? b_.CreateFCmpOGT(x, y) : b_.CreateFCmpOLT(x, y);
  V out = b_.CreateSelect(ordered, x, y);
  return never_nan(x) ? out : b_.CreateSelect(b_.CreateFCmpUNO(x, x), x, out);
}

/// The exponents that models use are constants: squares, cubes, roots.
V Ops::power(V x, V y, DType type) {
  if (const auto* c = llvm::dyn_cast<llvm::Constant>(y)) {
    const llvm::Constant* lane = y->getType()->isVectorTy() ? c->getSplatValue() : c;
    if (const auto* f = lane ? llvm::dyn_cast<llvm::ConstantFP>(lane) : nullptr) {
      const double e = type == DType::f64 ? f->getValueAPF().convertToDouble()
                                          : f->getValueAPF().convertToFloat();
      if (e == 1) return x;
      if (e == 2) return b_.CreateFMul(x, x);
      if (e == 3) return b_.CreateFMul(b_.CreateFMul(x, x), x);
      if (e == -1) return b_.CreateFDiv(real(x, 1), x);
      if (e == 0.5) {
        // pow(-inf, .5) is +inf and pow(-0, .5) is +0, unlike sqrt.
        V root = intrinsic(Intrinsic::sqrt, {b_.CreateFAdd(x, real(x, 0))});
        return b_.CreateSelect(b_.CreateFCmpOEQ(x, real(x, -INFINITY)), real(x, INFINITY), root);
      }
    }
  }
  return libm(ScalarFn::pow, {x, y}, type);
}

V Ops::libm(ScalarFn fn, llvm::ArrayRef<V> args, DType type) {
  std::string name(ir::info(fn).name);
  if (compute_type(type) == DType::f32) name += "f";
  return per_lane(name, args, compute(type));
}

V Ops::per_lane(const std::string& name, llvm::ArrayRef<V> args, llvm::Type* result) {
  llvm::SmallVector<llvm::Type*> types;
  for (V a : args) types.push_back(a->getType()->getScalarType());
  llvm::FunctionCallee callee =
      module_.getOrInsertFunction(name, llvm::FunctionType::get(result, types, false));
  auto* function = llvm::cast<llvm::Function>(callee.getCallee());
  function->setDoesNotThrow();
  function->setMemoryEffects(llvm::MemoryEffects::none());
  function->addFnAttr(llvm::Attribute::WillReturn);
  const unsigned width = width_of(args[0]);
  if (width == 1) return b_.CreateCall(callee, args);
  V out = llvm::PoisonValue::get(llvm::FixedVectorType::get(result, width));
  for (unsigned lane = 0; lane < width; ++lane) {
    llvm::SmallVector<V> one;
    for (V a : args) one.push_back(b_.CreateExtractElement(a, lane));
    out = b_.CreateInsertElement(out, b_.CreateCall(callee, one), lane);
  }
  return out;
}

V Ops::int_unary(ScalarFn fn, V x, DType type) {
  llvm::Type* t = x->getType();
  V zero = integer(t, 0);
  switch (fn) {
    case ScalarFn::neg:
      return b_.CreateNeg(x);
    case ScalarFn::abs:
      if (!is_signed_int(type)) return x;
      return b_.CreateIntrinsic(Intrinsic::abs, {t}, {x, b_.getFalse()});
    case ScalarFn::floor:
    case ScalarFn::ceil:
    case ScalarFn::round:
    case ScalarFn::trunc:
      return x;
    case ScalarFn::sign: {
      V positive = b_.CreateZExt(
          is_signed_int(type) ? b_.CreateICmpSGT(x, zero) : b_.CreateICmpNE(x, zero), t);
      if (!is_signed_int(type)) return positive;
      return b_.CreateSub(positive, b_.CreateZExt(b_.CreateICmpSLT(x, zero), t));
    }
    case ScalarFn::logical_not:
      return b_.CreateICmpEQ(x, zero);
    case ScalarFn::bit_not:
      return b_.CreateNot(x);
    case ScalarFn::isnan:
    case ScalarFn::isinf:
      return llvm::Constant::getNullValue(shaped(b_.getInt1Ty(), x));
    case ScalarFn::recip:
      return int_division(ScalarFn::div, integer(t, 1), x, !is_signed_int(type));
    default:
      HEDDLE_CHECK(false, "{} has no meaning on {}", ir::info(fn).name, name_of(type));
  }
}

V Ops::apply_int(ScalarFn fn, llvm::ArrayRef<V> args, DType type) {
  if (args.size() == 1) return int_unary(fn, args[0], type);
  V x = args[0], y = args[1], zero = integer(args[0]->getType(), 0);
  const bool is_signed = is_signed_int(type);
  const auto compare = [&](llvm::CmpInst::Predicate s, llvm::CmpInst::Predicate u) {
    return b_.CreateICmp(is_signed ? s : u, x, y);
  };
  using P = llvm::CmpInst;
  switch (fn) {
    case ScalarFn::add:
      return type == DType::b1 ? b_.CreateOr(x, y) : b_.CreateAdd(x, y);
    case ScalarFn::sub:
      return b_.CreateSub(x, y);
    case ScalarFn::mul:
      return b_.CreateMul(x, y);
    case ScalarFn::div:
    case ScalarFn::fmod:
    case ScalarFn::floor_mod:
      return int_division(fn, x, y, !is_signed);
    case ScalarFn::pow:
      return int_power(x, y, type);
    case ScalarFn::min:
      return b_.CreateSelect(compare(P::ICMP_SLT, P::ICMP_ULT), x, y);
    case ScalarFn::max:
      return b_.CreateSelect(compare(P::ICMP_SLT, P::ICMP_ULT), y, x);
    case ScalarFn::logical_and:
      return b_.CreateAnd(b_.CreateICmpNE(x, zero), b_.CreateICmpNE(y, zero));
    case ScalarFn::logical_or:
      return b_.CreateOr(b_.CreateICmpNE(x, zero), b_.CreateICmpNE(y, zero));
    case ScalarFn::logical_xor:
      return b_.CreateXor(b_.CreateICmpNE(x, zero), b_.CreateICmpNE(y, zero));
    case ScalarFn::bit_and:
      return b_.CreateAnd(x, y);
    case ScalarFn::bit_or:
      return b_.CreateOr(x, y);
    case ScalarFn::bit_xor:
      return b_.CreateXor(x, y);
    case ScalarFn::shift_left:
    case ScalarFn::shift_right:
      return shift(fn, x, y, type);
    case ScalarFn::dot2:
      return dot2(x, y);
    case ScalarFn::equal:
      return b_.CreateICmpEQ(x, y);
    case ScalarFn::not_equal:
      return b_.CreateICmpNE(x, y);
    case ScalarFn::less:
      return compare(P::ICMP_SLT, P::ICMP_ULT);
    case ScalarFn::less_equal:
      return compare(P::ICMP_SLE, P::ICMP_ULE);
    case ScalarFn::greater:
      return compare(P::ICMP_SGT, P::ICMP_UGT);
    case ScalarFn::greater_equal:
      return compare(P::ICMP_SGE, P::ICMP_UGE);
    default:
      HEDDLE_CHECK(false, "{} has no meaning on {}", ir::info(fn).name, name_of(type));
  }
}

/// Quotient and remainders with a zero divisor giving 0 and the lowest value over -1 wrapping.
V Ops::int_division(ScalarFn fn, V x, V y, bool is_unsigned) {
  llvm::Type* t = y->getType();
  V zero = integer(t, 0), one = integer(t, 1), minus = integer(t, -1);
  V by_zero = b_.CreateICmpEQ(y, zero);
  V by_minus = is_unsigned ? nullptr : b_.CreateICmpEQ(y, minus);
  V unsafe = is_unsigned ? by_zero : b_.CreateOr(by_zero, by_minus);
  V safe = b_.CreateSelect(unsafe, one, y);
  if (fn == ScalarFn::div) {
    V q = is_unsigned ? b_.CreateUDiv(x, safe) : b_.CreateSDiv(x, safe);
    if (!is_unsigned) q = b_.CreateSelect(by_minus, b_.CreateNeg(x), q);
    return b_.CreateSelect(by_zero, zero, q);
  }
  V r = is_unsigned ? b_.CreateURem(x, safe) : b_.CreateSRem(x, safe);
  if (is_unsigned || fn == ScalarFn::fmod) return r;
  V differ = b_.CreateXor(b_.CreateICmpSLT(r, zero), b_.CreateICmpSLT(y, zero));
  V fix = b_.CreateAnd(b_.CreateICmpNE(r, zero), differ);
  return b_.CreateSelect(fix, b_.CreateAdd(r, y), r);
}

/// Low·low + high·high of the i16 halves; whole vectors in one instruction (pmaddwd).
V Ops::dot2(V x, V y) {
  const unsigned width = width_of(x), most = static_cast<unsigned>(x86_bytes_) / 4;
  if (width > most && most > 0 && width % 2 == 0) {
    llvm::SmallVector<int> low, high;
    for (unsigned i = 0; i < width; ++i)
      (i < width / 2 ? low : high).push_back(static_cast<int>(i));
    V parts[] = {dot2(b_.CreateShuffleVector(x, low), b_.CreateShuffleVector(y, low)),
                 dot2(b_.CreateShuffleVector(x, high), b_.CreateShuffleVector(y, high))};
    return llvm::concatenateVectors(b_, parts);
  }
  if (most > 0 && (width == 4 || width == 8 || width == 16)) {
    const Intrinsic::ID id = width == 4   ? Intrinsic::x86_sse2_pmadd_wd
                             : width == 8 ? Intrinsic::x86_avx2_pmadd_wd
                                          : Intrinsic::x86_avx512_pmaddw_d_512;
    auto* halves = llvm::FixedVectorType::get(b_.getInt16Ty(), 2 * width);
    return b_.CreateIntrinsic(id, {}, {b_.CreateBitCast(x, halves), b_.CreateBitCast(y, halves)});
  }
  llvm::Type* half = shaped(b_.getInt16Ty(), x);
  const auto part = [&](V v, unsigned shift) {
    V bits = shift == 0 ? v : b_.CreateLShr(v, shift);
    return b_.CreateSExt(b_.CreateTrunc(bits, half), v->getType());
  };
  return b_.CreateAdd(b_.CreateMul(part(x, 0), part(y, 0)), b_.CreateMul(part(x, 16), part(y, 16)));
}

/// Integer powers are rare: one call per lane on i64.
V Ops::int_power(V x, V y, DType type) {
  const DType wide = is_signed_int(type) ? DType::i64 : DType::u64;
  const char* name = is_signed_int(type) ? "heddle_ipow" : "heddle_upow";
  V out = per_lane(name, {cast(x, type, wide), cast(y, type, wide)}, b_.getInt64Ty());
  return b_.CreateTrunc(out, x->getType());
}

V Ops::shift(ScalarFn fn, V x, V y, DType type) {
  llvm::Type* t = x->getType();
  const std::int64_t bits = t->getScalarSizeInBits();
  V far = b_.CreateICmpUGE(y, integer(t, bits));
  V safe = b_.CreateSelect(far, integer(t, 0), y);
  if (fn == ScalarFn::shift_left) {
    return b_.CreateSelect(far, integer(t, 0), b_.CreateShl(x, safe));
  }
  if (!is_signed_int(type)) return b_.CreateSelect(far, integer(t, 0), b_.CreateLShr(x, safe));
  return b_.CreateAShr(x, b_.CreateSelect(far, integer(t, bits - 1), y));
}

V Ops::reduce(ir::Monoid m, V vector, DType t) {
  const ScalarFn fn = ir::combiner(m);
  const unsigned width = width_of(vector);
  if ((width & (width - 1)) != 0) {
    V out = b_.CreateExtractElement(vector, std::uint64_t{0});
    for (unsigned i = 1; i < width; ++i) {
      out = apply(fn, {out, b_.CreateExtractElement(vector, i)}, t, t);
    }
    return out;
  }
  for (unsigned half = width / 2; half >= 1; half /= 2) {
    llvm::SmallVector<int> low, high;
    for (unsigned i = 0; i < half; ++i) {
      low.push_back(static_cast<int>(i));
      high.push_back(static_cast<int>(half + i));
    }
    V a = b_.CreateShuffleVector(vector, low), c = b_.CreateShuffleVector(vector, high);
    vector = apply(fn, {a, c}, t, t);
  }
  return width == 1 ? vector : b_.CreateExtractElement(vector, std::uint64_t{0});
}

}  // namespace heddle::codegen::cpu
