// Own approximations for f32: all are branch-free vector code. Errors against libm's double result
// are checked in math_test.cpp.
#include <llvm/IR/IntrinsicsX86.h>

#include <cmath>

#include "codegen/cpu/ops.h"

namespace heddle::codegen::cpu {

namespace Intrinsic = llvm::Intrinsic;
using V = llvm::Value*;

/// Horner's rule; products and sums contract to fused multiply-adds where the machine has them.
V Ops::polynomial(V x, llvm::ArrayRef<double> high_first) {
  V out = real(x, high_first[0]);
  for (const double c : high_first.drop_front()) {
    out = b_.CreateFAdd(b_.CreateFMul(out, x), real(x, c));
  }
  return out;
}

/// x / c of vectors, |c| at least 1, correctly rounded where |x / c| is at least 2^-100 and next to
/// that below: the product with 1/c and one correction by what is left, where a division takes
/// several times as long (Markstein, "Computation of elementary functions on the IBM RISC
/// System/6000 processor", 1990). Null if y is no such constant.
V Ops::quotient_by_constant(V x, V y) {
  const auto* all = llvm::dyn_cast<llvm::Constant>(y);
  const auto* c = all ? llvm::dyn_cast_or_null<llvm::ConstantFP>(all->getSplatValue()) : nullptr;
  if (!modern_ || width_of(x) < 4 || !c || !c->getType()->isFloatTy()) return nullptr;
  const float divisor = c->getValueAPF().convertToFloat();
  const int exponent = std::isnormal(divisor) ? std::ilogb(divisor) : -1;
  if (exponent < 0 || exponent > 100) return nullptr;
  V reciprocal = real(x, 1 / divisor);
  V quotient = b_.CreateFMul(x, reciprocal);
  V rest = intrinsic(Intrinsic::fma, {b_.CreateFNeg(y), quotient, x});
  V corrected = intrinsic(Intrinsic::fma, {rest, reciprocal, quotient});
  // Nothing is left of exact quotients, zeros' signs among them, and no number of infinite ones.
  return b_.CreateSelect(b_.CreateFCmpONE(rest, real(x, 0)), corrected, quotient);
}

/// An instruction of AVX-512 for vectors of 8 or 16 floats, with no lane masked; null for others.
V Ops::avx512(Intrinsic::ID of_8, Intrinsic::ID of_16, llvm::SmallVector<V> args) {
  constexpr int kCurrentRounding = 4;
  const unsigned width = width_of(args[0]);
  if (x86_bytes_ < 64 || (width != 8 && width != 16)) return nullptr;
  args.push_back(args[0]);  // of masked lanes
  args.push_back(width == 8 ? b_.getInt8(0xff) : b_.getInt16(0xffff));
  if (width == 16) args.push_back(b_.getInt32(kCurrentRounding));
  return b_.CreateIntrinsic(width == 8 ? of_8 : of_16, {}, args);
}

/// x·2^n in one instruction (n whole), right at both ends of the range; null if there is none.
V Ops::scaled(V x, V n) {
  return avx512(Intrinsic::x86_avx512_mask_scalef_ps_256, Intrinsic::x86_avx512_mask_scalef_ps_512,
                {x, n});
}

/// x with |x| bounded by `limit` in one instruction, which may take NaN for a number; null if there
/// is none.
V Ops::bounded(V x, double limit) {
  V least_magnitude = b_.getInt32(2);
  return avx512(Intrinsic::x86_avx512_mask_range_ps_256, Intrinsic::x86_avx512_mask_range_ps_512,
                {x, real(x, limit), least_magnitude});
}

/// e^x = 2^n · e^r with |r| ≤ ln2/2 (Cody and Waite), e^r a minimax polynomial of degree 6. 2^n is
/// applied in two halves, so results below 2^-126 are right denormals and overflow gives infinity.
V Ops::exp_f32(V x) {
  llvm::Type* i32 = shaped(b_.getInt32Ty(), x);
  x = extreme(extreme(x, real(x, -104), true), real(x, 89), false);
  // Adding 1.5·2^23 rounds to an integer and leaves it in the low mantissa bits; 254 more there are
  // the bias of both halves' exponents.
  constexpr double kMagic = 12582912.0 + 254;
  V shifted = b_.CreateFAdd(b_.CreateFMul(x, real(x, 1.44269504088896341)), real(x, kMagic));
  V n = b_.CreateFSub(shifted, real(x, kMagic));
  V r = b_.CreateFSub(x, b_.CreateFMul(n, real(x, 0.693359375)));
  r = b_.CreateFAdd(r, b_.CreateFMul(n, real(x, 2.12194440e-4)));
  V p = polynomial(r, {0.0013814539881412007, 0.008368745279934087, 0.04166839080042989,
                       0.16666520397549814, 0.4999999343202207, 1.0, 1.0});
  if (V out = scaled(p, n)) return out;
  // Shifting by 23 drops the upper bits of both halves' sums.
  V whole = b_.CreateBitCast(shifted, i32);
  V half = b_.CreateLShr(whole, 1);
  const auto power_of_two = [&](V biased) {
    return b_.CreateBitCast(b_.CreateShl(biased, 23), x->getType());
  };
  p = b_.CreateFMul(p, power_of_two(half));
  return b_.CreateFMul(p, power_of_two(b_.CreateSub(whole, half)));
}

/// scale · e^(±x - n·ln2), by a polynomial of degree 5 and with ln2 in one part.
V Ops::short_exp(V x, V n, double sign, double scale) {
  V r = intrinsic(Intrinsic::fma, {n, real(x, -sign * 0.69314718055994531), x});
  return polynomial(r, {scale * sign * 0.00829761940985918, scale * 0.04191562905907631,
                        scale * sign * 0.16667576134204865, scale * 0.4999889135360718,
                        scale * sign * 0.9999997019767761, scale * 1.0000001192092896});
}

/// numerator / (1 + e^(±y)) within 6 ulp: the errors of the shorter exponential lie below those of
/// the rest where the result is not tiny. Null without fused multiply-adds.
V Ops::logistic(V numerator, V y, bool negative, bool narrow) {
  if (!modern_ || width_of(y) < 4) return nullptr;
  if (V e = narrow ? narrow_exp(y, negative ? -1 : 1) : nullptr) {
    V reciprocal = about_reciprocal(b_.CreateFAdd(real(y, 1), e));
    return numerator ? b_.CreateFMul(numerator, reciprocal) : reciprocal;
  }
  const double sign = negative ? -1 : 1;
  V log2e = real(y, sign * 1.44269504088896341);
  const auto between = [&](double low, double high) {
    return extreme(extreme(y, real(y, low), true), real(y, high), false);
  };
  V e = nullptr;
  constexpr double kOverflows = 96;
  if (V x = bounded(y, kOverflows)) {
    if (!numerator) x = between(-kOverflows, kOverflows);  // nothing else says that y is NaN
    V n = intrinsic(Intrinsic::roundeven, {b_.CreateFMul(x, log2e)});
    e = scaled(short_exp(x, n, sign, 1), n);
  } else {
    // From -86, which adds nothing to 1, to 89, whose exponential is infinite, 2^(n-1) is a number.
    x = negative ? between(-89, 86) : between(-86, 89);
    constexpr double kMagic = 12582912.0 + 126;  // as in exp_f32; 126 more bias n-1
    V shifted = b_.CreateFAdd(b_.CreateFMul(x, log2e), real(x, kMagic));
    V power = b_.CreateShl(b_.CreateBitCast(shifted, shaped(b_.getInt32Ty(), x)), 23);
    e = b_.CreateFMul(short_exp(x, b_.CreateFSub(shifted, real(x, kMagic)), sign, 2),
                      b_.CreateBitCast(power, x->getType()));
  }
  if (!numerator) numerator = real(y, 1);
  return b_.CreateFDiv(numerator, b_.CreateFAdd(real(y, 1), e));
}

/// log(m · 2^e) with m in [√½, √2): Cephes' polynomial in m - 1, e·ln2 in two parts.
V Ops::log_f32(V x) {
  llvm::Type* i32 = shaped(b_.getInt32Ty(), x);
  V tiny = b_.CreateFCmpOLT(x, real(x, 1.17549435e-38));
  // A denormal is its bits as an integer, by 2^-149.
  V whole = b_.CreateSIToFP(b_.CreateBitCast(x, i32), x->getType());
  V scaled = b_.CreateSelect(tiny, whole, x);
  V bits = b_.CreateBitCast(scaled, i32);
  // Subtracting √½'s pattern makes the exponent field count from √½ instead of from 1.
  V offset = b_.CreateSub(bits, integer(i32, 0x3f3504f3));
  V exponent = b_.CreateAShr(offset, 23);
  V mantissa = b_.CreateSub(bits, b_.CreateShl(exponent, 23));
  V e = b_.CreateSIToFP(exponent, x->getType());
  e = b_.CreateSelect(tiny, b_.CreateFSub(e, real(x, 149)), e);
  V m = b_.CreateFSub(b_.CreateBitCast(mantissa, x->getType()), real(x, 1));
  V z = b_.CreateFMul(m, m);
  V p = polynomial(
      m, {7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
          -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1});
  V y = b_.CreateFMul(b_.CreateFMul(m, z), p);
  y = b_.CreateFAdd(y, b_.CreateFMul(e, real(x, -2.12194440e-4)));
  y = b_.CreateFSub(y, b_.CreateFMul(z, real(x, 0.5)));
  V out = b_.CreateFAdd(b_.CreateFAdd(m, y), b_.CreateFMul(e, real(x, 0.693359375)));
  // Limits: +inf stays, below 0 and NaN give NaN, ±0 gives -inf (by its bits, as denormals may
  // count as zeros).
  out = b_.CreateSelect(b_.CreateFCmpOEQ(x, real(x, INFINITY)), x, out);
  out = b_.CreateSelect(b_.CreateFCmpULT(scaled, real(x, 0)), real(x, NAN), out);
  V zero = b_.CreateICmpEQ(b_.CreateShl(b_.CreateBitCast(x, i32), 1), integer(i32, 0));
  return b_.CreateSelect(zero, real(x, -INFINITY), out);
}

/// x·P(x²)/Q(x²) with x clamped to ±limit, where the function rounds to ±1. The coefficients are a
/// minimax fit of the relative error whose rounding to f32 was then chosen for the least error in
/// ulps; the constant terms are exact, so that small x keep their precision.
V Ops::odd_rational(V x, double limit, llvm::ArrayRef<double> p, llvm::ArrayRef<double> q) {
  V c = extreme(extreme(x, real(x, -limit), true), real(x, limit), false);
  V z = b_.CreateFMul(c, c);
  V y = b_.CreateFDiv(b_.CreateFMul(c, polynomial(z, p)), polynomial(z, q));
  return extreme(extreme(y, real(x, -1), true), real(x, 1), false);
}

V Ops::tanh_f32(V x) {
  return odd_rational(x, 9.02,
                      {-8.436690067262567e-14, 5.2580714088312774e-11, -2.0184653948263076e-08,
                       1.1144437848997768e-05, 0.003103018505498767, 0.1308317333459854, 1.0},
                      {0.0002544775779824704, 0.024491453543305397, 0.46416500210762024, 1.0});
}

V Ops::erf_f32(V x) {
  return odd_rational(
      x, 3.93,
      {1.981423558561346e-08, -1.9552333014871692e-06, 0.00014247739454731345, 0.003736267564818263,
       0.05068771913647652, 0.20079530775547028, 1.1283791065216064},
      {0.0009637675830163062, 0.014425930567085743, 0.11535723507404327, 0.5112817883491516, 1.0});
}

/// e^(±x) within 2^-13 of it, of 0 exactly 1: 2^floor(t) · 2^(t - floor(t)), t = ±x·log2(e), by two
/// instructions that know what is infinite and what is no number. Null where there are none.
V Ops::narrow_exp(V x, double sign) {
  constexpr int kFraction = 9;  // t - floor(t), no exception
  V t = b_.CreateFMul(x, real(x, sign * 1.44269504088896341));
  V f = avx512(Intrinsic::x86_avx512_mask_reduce_ps_256, Intrinsic::x86_avx512_mask_reduce_ps_512,
               {t, b_.getInt32(kFraction)});
  if (!f) return nullptr;
  return scaled(polynomial(f, {0.07706769555807114, 0.22764427959918976, 0.6951169371604919, 1.0}),
                t);
}

/// 1 + tanh(y) is 2 / (1 + e^(-2y)); 1 + erf(y) is erfc(-y), and erfc(a) for a >= 0 is e^(-a²)
/// times a polynomial of 1 / (1 + 0.42a) without a constant term (the form of Abramowitz and
/// Stegun, 7.1.26), fitted to a relative error below 2^-12 up to 9.5, behind which nothing is left.
V Ops::narrow_one_plus(ir::ScalarFn fn, V y) {
  const bool is_erf = fn == ir::ScalarFn::erf;
  V e = narrow_exp(is_erf ? b_.CreateFMul(y, y) : y, is_erf ? -1 : -2);
  V size = is_erf ? intrinsic(Intrinsic::fabs, {y}) : nullptr;
  V grows = !e ? nullptr : is_erf ? b_.CreateFMul(size, real(y, 0.42)) : e;
  V t = grows ? about_reciprocal(b_.CreateFAdd(grows, real(y, 1))) : nullptr;
  if (!t) return nullptr;
  if (!is_erf) return b_.CreateFMul(t, real(y, 2));
  V series = polynomial(
      t, {0.4428246413609645, 0.041389990517910674, 0.2831645159432527, 0.23269845077848914});
  V left = b_.CreateFMul(b_.CreateFMul(e, t), series);
  return b_.CreateSelect(b_.CreateFCmpOLT(y, real(y, 0)), left, b_.CreateFSub(real(y, 2), left));
}

/// 1/x within 2^-14 of it, 0 from 2^126. Null where there is no such instruction.
V Ops::about_reciprocal(V x) {
  const unsigned width = width_of(x);
  if (x86_bytes_ < 64 || (width != 8 && width != 16)) return nullptr;
  V all = width == 8 ? b_.getInt8(0xff) : b_.getInt16(0xffff);
  return b_.CreateIntrinsic(
      width == 8 ? Intrinsic::x86_avx512_rcp14_ps_256 : Intrinsic::x86_avx512_rcp14_ps_512, {},
      {x, x, all});
}

/// Cody and Waite's reduction by π/2 in three parts (exact products thanks to fused multiply-adds),
/// Cephes' polynomials on [-π/4, π/4]. Arguments beyond 2^16 are left to libm, where a lane has
/// one; no lane's result hangs on another's, some of which may hold anything (the tail of a row).
V Ops::sine_f32(V x, bool cosine) {
  const ir::ScalarFn fn = cosine ? ir::ScalarFn::cos : ir::ScalarFn::sin;
  if (!modern_) return libm(fn, {x}, DType::f32);
  const auto near = [&]() -> V {
    llvm::Type* i32 = shaped(b_.getInt32Ty(), x);
    constexpr double kMagic = 12582912.0;  // rounds to an integer in the low mantissa bits
    V shifted = b_.CreateFAdd(b_.CreateFMul(x, real(x, 0.63661977236758134)), real(x, kMagic));
    V n = b_.CreateFSub(shifted, real(x, kMagic));
    V r = b_.CreateFSub(x, b_.CreateFMul(n, real(x, 0x1.921fb6p+0)));
    r = b_.CreateFSub(r, b_.CreateFMul(n, real(x, -0x1.777a5cp-25)));
    r = b_.CreateFSub(r, b_.CreateFMul(n, real(x, -0x1.ee59dap-50)));
    V quadrant = b_.CreateBitCast(shifted, i32);
    if (cosine) quadrant = b_.CreateAdd(quadrant, integer(i32, 1));
    V z = b_.CreateFMul(r, r);
    V s = polynomial(z, {-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1});
    s = b_.CreateFAdd(r, b_.CreateFMul(b_.CreateFMul(s, z), r));
    V c = polynomial(z, {2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2});
    c = b_.CreateFMul(b_.CreateFMul(c, z), z);
    c = b_.CreateFAdd(b_.CreateFSub(c, b_.CreateFMul(z, real(x, 0.5))), real(x, 1));
    V odd = b_.CreateICmpNE(b_.CreateAnd(quadrant, integer(i32, 1)), integer(i32, 0));
    V out = b_.CreateSelect(odd, c, s);
    V sign = b_.CreateShl(b_.CreateAnd(quadrant, integer(i32, 2)), 30);
    return b_.CreateBitCast(b_.CreateXor(b_.CreateBitCast(out, i32), sign), x->getType());
  };
  V far = b_.CreateFreeze(b_.CreateFCmpUGT(intrinsic(Intrinsic::fabs, {x}), real(x, 65536)));
  if (!far->getType()->isVectorTy())
    return branch_(
        far, [&] { return libm(fn, {x}, DType::f32); }, near);
  return branch_(
      b_.CreateOrReduce(far),
      [&] { return b_.CreateSelect(far, libm(fn, {x}, DType::f32), near()); }, near);
}

}  // namespace heddle::codegen::cpu
