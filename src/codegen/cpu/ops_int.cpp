// Integers: arithmetic that wraps, saturating conversion, products of halves.
#include <llvm/Analysis/VectorUtils.h>
#include <llvm/IR/IntrinsicInst.h>
#include <llvm/IR/IntrinsicsX86.h>

#include <array>
#include <cmath>
#include <optional>

#include "codegen/cpu/ops.h"
#include "support/result.h"

namespace heddle::codegen::cpu {

using ir::ScalarFn;
namespace Intrinsic = llvm::Intrinsic;
using V = llvm::Value*;

namespace {

std::optional<double> number(V x) {
  const auto* c = llvm::dyn_cast<llvm::Constant>(x);
  const auto* one = c ? llvm::dyn_cast_or_null<llvm::ConstantFP>(c->getSplatValue()) : nullptr;
  if (!one) return std::nullopt;
  return one->getType()->isFloatTy() ? one->getValueAPF().convertToFloat()
                                     : one->getValueAPF().convertToDouble();
}

/// One of the bounds that extreme() makes of a constant.
struct Bound {
  llvm::CmpInst::Predicate compare;
  V limit;
  double number;
};
/// What is bounded, and by what from outside in.
struct Bounded {
  V value;
  std::array<Bound, 2> by;
};

/// If v is bounded by constants within [low, high], or is NaN.
std::optional<Bounded> within(V v, double low, double high) {
  Bounded out{v, {}};
  bool above = false, below = false;
  for (Bound& bound : out.by) {
    auto* select = llvm::dyn_cast<llvm::SelectInst>(out.value);
    auto* compare = select ? llvm::dyn_cast<llvm::FCmpInst>(select->getCondition()) : nullptr;
    if (!compare || compare->getOperand(0) != select->getTrueValue() ||
        compare->getOperand(1) != select->getFalseValue())
      return std::nullopt;
    const auto limit = number(select->getTrueValue());
    if (!limit || *limit < low || *limit > high) return std::nullopt;
    bound = {compare->getPredicate(), select->getTrueValue(), *limit};
    above |= bound.compare == llvm::CmpInst::FCMP_OGT;
    below |= bound.compare == llvm::CmpInst::FCMP_OLT;
    out.value = select->getFalseValue();
  }
  return above && below ? std::optional(out) : std::nullopt;
}

/// What is rounded to the nearest whole number, half to even; null where nothing is.
V under_rounding(V v) {
  auto* call = llvm::dyn_cast<llvm::IntrinsicInst>(v);
  return call && call->getIntrinsicID() == Intrinsic::roundeven ? call->getArgOperand(0) : nullptr;
}

}  // namespace

/// Whole vectors of f32 within i32 to the nearest integers, by the one instruction; those of NaN
/// have no low bits. Null of other shapes.
V Ops::nearest(V v) {
  const unsigned width = width_of(v);
  if (!v->getType()->getScalarType()->isFloatTy() || x86_bytes_ == 0) return nullptr;
  if (width == 4) return b_.CreateIntrinsic(Intrinsic::x86_sse2_cvtps2dq, {}, {v});
  if (width == 8 && x86_bytes_ >= 32)
    return b_.CreateIntrinsic(Intrinsic::x86_avx_cvt_ps2dq_256, {}, {v});
  if (width != 16 || x86_bytes_ < 64) return nullptr;
  constexpr int kCurrentRounding = 4;
  V none = llvm::PoisonValue::get(shaped(b_.getInt32Ty(), v));
  return b_.CreateIntrinsic(Intrinsic::x86_avx512_mask_cvtps2dq_512, {},
                            {v, none, b_.getInt16(0xffff), b_.getInt32(kCurrentRounding)});
}

/// Bounds that are whole numbers, and a rounding, may change places.
V Ops::bounded_to_nearest(V v, double low, double high) {
  const auto bounded = within(v, low, high);
  V x = bounded ? under_rounding(bounded->value) : nullptr;
  if (!x) return nullptr;
  for (std::size_t i = bounded->by.size(); i-- > 0;) {
    const Bound& bound = bounded->by[i];
    if (bound.number != std::floor(bound.number)) return nullptr;
    x = b_.CreateSelect(b_.CreateFCmp(bound.compare, bound.limit, x), bound.limit, x);
  }
  return nearest(x);
}

/// Vectors of floats to integers that i32 holds, truncated and saturated, NaN to 0: LLVM's
/// saturating conversions would go lane by lane.
V Ops::saturated(V v, DType to) {
  llvm::Type* i32 = shaped(b_.getInt32Ty(), v);
  const int bits = static_cast<int>(8 * size_of(to));
  const bool is_signed = is_signed_int(to);
  const double end = std::ldexp(1.0, is_signed ? bits - 1 : bits), low = is_signed ? -end : 0;
  if (V whole = bits <= 16 ? bounded_to_nearest(v, low, end - 1) : nullptr)
    return b_.CreateTrunc(whole, shaped(compute(to), v));
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
    case ScalarFn::dot4:
      return dot4(zero, x, y);
    case ScalarFn::random_bits:
      return random_bits(x, y);
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

/// ir::philox_bits: words of 32 bits in lanes of 64, so that products keep their upper halves.
V Ops::random_bits(V position, V key) {
  llvm::Type* t = position->getType();
  const auto number = [&](std::uint64_t v) { return integer(t, static_cast<std::int64_t>(v)); };
  const auto low = [&](V v) { return b_.CreateAnd(v, number(0xffffffffu)); };
  const auto high = [&](V v) { return b_.CreateLShr(v, 32); };
  V block = b_.CreateLShr(position, 2);
  V x[] = {low(block), high(block), number(0), number(0)}, k[] = {low(key), high(key)};
  for (int round = 0; round < 10; ++round) {
    V p0 = b_.CreateMul(x[0], number(0xD2511F53u)), p1 = b_.CreateMul(x[2], number(0xCD9E8D57u));
    V first = b_.CreateXor(b_.CreateXor(high(p1), x[1]), k[0]);
    V third = b_.CreateXor(b_.CreateXor(high(p0), x[3]), k[1]);
    x[0] = first, x[1] = low(p1), x[2] = third, x[3] = low(p0);
    k[0] = low(b_.CreateAdd(k[0], number(0x9E3779B9u)));
    k[1] = low(b_.CreateAdd(k[1], number(0xBB67AE85u)));
  }
  const auto bit = [&](int i) {
    return b_.CreateICmpNE(b_.CreateAnd(position, number(1u << i)), number(0));
  };
  V odd = bit(0);
  V word =
      b_.CreateSelect(bit(1), b_.CreateSelect(odd, x[3], x[2]), b_.CreateSelect(odd, x[1], x[0]));
  return b_.CreateLShr(word, 8);
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

V Ops::dot4(V sum, V x, V y) {
  const unsigned width = width_of(x);
  if (quads_ && (width == 4 || width == 8 || width == 16) &&
      width * 4 <= static_cast<unsigned>(x86_bytes_)) {
    const Intrinsic::ID id = width == 4   ? Intrinsic::x86_avx512_vpdpbusd_128
                             : width == 8 ? Intrinsic::x86_avx512_vpdpbusd_256
                                          : Intrinsic::x86_avx512_vpdpbusd_512;
    return b_.CreateIntrinsic(id, {}, {sum, x, y});
  }
  llvm::Type* byte = shaped(b_.getInt8Ty(), x);
  for (unsigned shift = 0; shift < 32; shift += 8) {
    const auto part = [&](V v) { return b_.CreateTrunc(b_.CreateLShr(v, shift), byte); };
    V product =
        b_.CreateMul(b_.CreateZExt(part(x), x->getType()), b_.CreateSExt(part(y), x->getType()));
    sum = b_.CreateAdd(sum, product);
  }
  return sum;
}

V Ops::add_bf16_products(V sum, V x, V y) {
  const unsigned width = width_of(x);
  if (width != 4 && width != 8 && width != 16) return nullptr;
  const Intrinsic::ID id = width == 4   ? Intrinsic::x86_avx512bf16_dpbf16ps_128
                           : width == 8 ? Intrinsic::x86_avx512bf16_dpbf16ps_256
                                        : Intrinsic::x86_avx512bf16_dpbf16ps_512;
  auto* halves = llvm::FixedVectorType::get(b_.getBFloatTy(), 2 * width);
  return b_.CreateIntrinsic(id, {},
                            {sum, b_.CreateBitCast(x, halves), b_.CreateBitCast(y, halves)});
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

}  // namespace heddle::codegen::cpu
