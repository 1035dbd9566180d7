#include "codegen/cpu/ops.h"

#include <llvm/IR/IntrinsicsX86.h>
#include <llvm/IR/PatternMatch.h>

#include <cmath>

#include "support/result.h"

namespace heddle::codegen::cpu {

using ir::ScalarFn;
using llvm::Intrinsic::ID;
namespace Intrinsic = llvm::Intrinsic;
using V = llvm::Value*;

namespace {

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

/// The bits of bf16 that v was made of, which need no rounding; null if there are none.
V Ops::stored_bf16(V v) {
  namespace pm = llvm::PatternMatch;
  llvm::Type* stored = shaped(b_.getInt16Ty(), v);
  V bits = nullptr, condition = nullptr, then = nullptr, otherwise = nullptr;
  if (pm::match(v, pm::m_PosZeroFP())) return llvm::Constant::getNullValue(stored);
  if (pm::match(v,
                pm::m_BitCast(pm::m_Shl(pm::m_ZExt(pm::m_Value(bits)), pm::m_SpecificInt(16)))) &&
      bits->getType() == stored)
    return bits;
  if (!pm::match(v,
                 pm::m_Select(pm::m_Value(condition), pm::m_Value(then), pm::m_Value(otherwise))))
    return nullptr;
  then = stored_bf16(then);
  otherwise = then ? stored_bf16(otherwise) : nullptr;
  return otherwise ? b_.CreateSelect(condition, then, otherwise) : nullptr;
}

V Ops::to_storage(V v, DType t) {
  if (t == DType::f16) {
    if (!modern_) return per_lane("heddle_f32_to_f16", {v}, b_.getInt16Ty());
    return b_.CreateBitCast(b_.CreateFPTrunc(v, shaped(b_.getHalfTy(), v)),
                            shaped(b_.getInt16Ty(), v));
  }
  if (t == DType::b1) return b_.CreateZExt(v, shaped(b_.getInt8Ty(), v));
  if (t != DType::bf16) return v;
  if (V bits = stored_bf16(v)) return bits;
  if (V bits = to_bf16(v)) return bits;
  return to_bf16_exactly(v);
}

V Ops::to_bf16_exactly(V v) {
  llvm::Type* i32 = shaped(b_.getInt32Ty(), v);
  V bits = b_.CreateBitCast(v, i32);
  // Round half to even on the upper 16 bits; a NaN keeps its sign and payload, made quiet.
  V odd = b_.CreateAnd(b_.CreateLShr(bits, 16), integer(i32, 1));
  V rounded = b_.CreateAdd(bits, b_.CreateAdd(odd, integer(i32, 0x7fff)));
  V quiet = b_.CreateOr(bits, integer(i32, 0x400000));
  V chosen = b_.CreateSelect(b_.CreateFCmpUNO(v, v), quiet, rounded);
  return b_.CreateTrunc(b_.CreateLShr(chosen, 16), shaped(b_.getInt16Ty(), v));
}

/// One instruction rounds a vector; of other widths a part of one.
V Ops::to_bf16(V v) {
  if (!bf16_pairs_) return nullptr;
  const unsigned width = width_of(v), most = static_cast<unsigned>(x86_bytes_) / 4;
  if (width == 2 * most && most == 16) {  // of two registers in one
    const auto half = [&](int first) {
      llvm::SmallVector<int> lanes;
      for (int i = 0; i < 16; ++i) lanes.push_back(first + i);
      return b_.CreateShuffleVector(v, lanes);
    };
    return b_.CreateBitCast(
        b_.CreateIntrinsic(Intrinsic::x86_avx512bf16_cvtne2ps2bf16_512, {}, {half(16), half(0)}),
        llvm::FixedVectorType::get(b_.getInt16Ty(), width));
  }
  if (width > most) return nullptr;
  const unsigned whole = width <= 8 ? 8 : 16;
  V wide = v;
  if (width == 1)
    wide = b_.CreateVectorSplat(whole, v);
  else if (width != whole) {
    llvm::SmallVector<int> lanes(whole, 0);
    for (unsigned i = 0; i < width; ++i) lanes[i] = static_cast<int>(i);
    wide = b_.CreateShuffleVector(v, lanes);
  }
  const ID id = whole == 8 ? Intrinsic::x86_avx512bf16_cvtneps2bf16_256
                           : Intrinsic::x86_avx512bf16_cvtneps2bf16_512;
  V bits = b_.CreateBitCast(b_.CreateIntrinsic(id, {}, {wide}),
                            llvm::FixedVectorType::get(b_.getInt16Ty(), whole));
  if (width == whole) return bits;
  if (width == 1) return b_.CreateExtractElement(bits, std::uint64_t{0});
  llvm::SmallVector<int> lanes;
  for (unsigned i = 0; i < width; ++i) lanes.push_back(static_cast<int>(i));
  return b_.CreateShuffleVector(bits, lanes);
}

V Ops::rounded(V v, DType t) {
  V single = b_.CreateFPCast(v, shaped(b_.getFloatTy(), v));
  V bits = t == DType::bf16 ? to_bf16_exactly(single) : to_storage(single, t);
  return b_.CreateFPCast(from_storage(bits, t), v->getType());
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

V Ops::cast(V v, DType from, DType to) {
  if (compute_type(from) == compute_type(to)) return v;
  llvm::Type* type = shaped(compute(to), v);
  if (is_float(from)) {
    if (is_float(to)) return b_.CreateFPCast(v, type);
    // By its bits, so that no denormal counts as zero.
    if (to == DType::b1 && from != DType::f64) {
      llvm::Type* bits = shaped(b_.getInt32Ty(), v);
      return b_.CreateICmpNE(b_.CreateShl(b_.CreateBitCast(v, bits), 1), integer(bits, 0));
    }
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
    case ScalarFn::round_f16:
      return rounded(x, DType::f16);
    case ScalarFn::round_bf16:
      return rounded(x, DType::bf16);
    case ScalarFn::sign: {
      // ±1 by the sign bit; zeros, as which denormals may count, give 0, and NaN itself.
      V one = b_.CreateIntrinsic(Intrinsic::copysign, {x->getType()}, {real(x, 1), x});
      V nonzero = b_.CreateFCmpONE(x, real(x, 0));
      return b_.CreateSelect(nonzero, one, b_.CreateFMul(x, x));
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
      if (V out = quotient_by_constant(x, y)) return out;
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

/// v, or x where that is NaN.
V Ops::unless_nan(V x, V v) {
  const unsigned width = width_of(x);
  if (x86_bytes_ < 64 || !x->getType()->getScalarType()->isFloatTy() ||
      (width != 4 && width != 8 && width != 16))
    return b_.CreateSelect(b_.CreateFCmpUNO(x, x), x, v);
  constexpr std::int32_t kNanIsTaken = 0x22;  // of the two kinds of NaN; all else stays
  constexpr int kCurrentRounding = 4;
  V table =
      llvm::ConstantVector::getSplat(llvm::ElementCount::getFixed(width), b_.getInt32(kNanIsTaken));
  llvm::SmallVector<V> args{v, x, table, b_.getInt32(0)};
  args.push_back(width == 16 ? b_.getInt16(0xffff) : b_.getInt8(0xff));
  if (width == 16) args.push_back(b_.getInt32(kCurrentRounding));
  const ID id = width == 16  ? Intrinsic::x86_avx512_mask_fixupimm_ps_512
                : width == 8 ? Intrinsic::x86_avx512_mask_fixupimm_ps_256
                             : Intrinsic::x86_avx512_mask_fixupimm_ps_128;
  return b_.CreateIntrinsic(id, {}, args);
}

/// maxps(a, b) gives b when either is NaN, so an operand that cannot be NaN goes first; otherwise a
/// NaN in the first operand is put back.
V Ops::extreme(V x, V y, bool want_max) {
  if (never_nan(y)) std::swap(x, y);
  V ordered = want_max ? b_.CreateFCmpOGT(x, y) : b_.CreateFCmpOLT(x, y);
  V out = b_.CreateSelect(ordered, x, y);
  return never_nan(x) ? out : unless_nan(x, out);
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
  // Neighbours at last where the order does not matter: of a sum of products of bytes by halves all
  // the way LLVM makes an instruction (VPDPBUSD) and loses three of its four sums where there are
  // 16 terms. (At first they would be sums that only half of the registers can have, VPHADDD's.)
  const bool any_order = !is_float(t);
  for (unsigned half = width / 2; half >= 1; half /= 2) {
    const bool neighbours = any_order && half <= 2;
    llvm::SmallVector<int> low, high;
    for (unsigned i = 0; i < half; ++i) {
      low.push_back(static_cast<int>(neighbours ? 2 * i : i));
      high.push_back(static_cast<int>(neighbours ? 2 * i + 1 : half + i));
    }
    V a = b_.CreateShuffleVector(vector, low), c = b_.CreateShuffleVector(vector, high);
    vector = apply(fn, {a, c}, t, t);
  }
  return width == 1 ? vector : b_.CreateExtractElement(vector, std::uint64_t{0});
}

}  // namespace heddle::codegen::cpu
