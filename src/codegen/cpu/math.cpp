// Own approximations for f32: all are branch-free vector code. Errors against libm's double result
// are checked in math_test.cpp.
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

/// e^x = 2^n · e^r with |r| ≤ ln2/2 (Cody and Waite; Cephes' polynomial). 2^n is applied in two
/// halves, so results below 2^-126 are right denormals and overflow gives infinity.
V Ops::exp_f32(V x) {
  llvm::Type* i32 = shaped(b_.getInt32Ty(), x);
  x = extreme(extreme(x, real(x, -104), true), real(x, 89), false);
  // Adding 1.5·2^23 rounds to an integer and leaves it in the low mantissa bits.
  constexpr double kMagic = 12582912.0;
  V shifted = b_.CreateFAdd(b_.CreateFMul(x, real(x, 1.44269504088896341)), real(x, kMagic));
  V n = b_.CreateFSub(shifted, real(x, kMagic));
  V r = b_.CreateFSub(x, b_.CreateFMul(n, real(x, 0.693359375)));
  r = b_.CreateFAdd(r, b_.CreateFMul(n, real(x, 2.12194440e-4)));
  V q = polynomial(r, {1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2,
                       1.6666665459e-1, 5.0000001201e-1});
  V p = b_.CreateFAdd(b_.CreateFAdd(b_.CreateFMul(q, b_.CreateFMul(r, r)), r), real(x, 1));
  V whole = b_.CreateSub(b_.CreateBitCast(shifted, i32), integer(i32, 0x4b400000));
  V half = b_.CreateAShr(whole, 1);
  const auto power_of_two = [&](V exponent) {
    return b_.CreateBitCast(b_.CreateShl(b_.CreateAdd(exponent, integer(i32, 127)), 23),
                            x->getType());
  };
  p = b_.CreateFMul(p, power_of_two(half));
  return b_.CreateFMul(p, power_of_two(b_.CreateSub(whole, half)));
}

/// log(m · 2^e) with m in [√½, √2): Cephes' polynomial in m - 1, e·ln2 in two parts.
V Ops::log_f32(V x) {
  llvm::Type* i32 = shaped(b_.getInt32Ty(), x);
  V tiny = b_.CreateFCmpOLT(x, real(x, 1.17549435e-38));
  V scaled = b_.CreateSelect(tiny, b_.CreateFMul(x, real(x, 33554432.0)), x);
  V bits = b_.CreateBitCast(scaled, i32);
  // Subtracting √½'s pattern makes the exponent field count from √½ instead of from 1.
  V offset = b_.CreateSub(bits, integer(i32, 0x3f3504f3));
  V exponent = b_.CreateAShr(offset, 23);
  V mantissa = b_.CreateSub(bits, b_.CreateShl(exponent, 23));
  V e = b_.CreateSIToFP(exponent, x->getType());
  e = b_.CreateSelect(tiny, b_.CreateFSub(e, real(x, 25)), e);
  V m = b_.CreateFSub(b_.CreateBitCast(mantissa, x->getType()), real(x, 1));
  V z = b_.CreateFMul(m, m);
  V p = polynomial(m, {7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1,
                       1.4249322787e-1, -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1,
                       3.3333331174e-1});
  V y = b_.CreateFMul(b_.CreateFMul(m, z), p);
  y = b_.CreateFAdd(y, b_.CreateFMul(e, real(x, -2.12194440e-4)));
  y = b_.CreateFSub(y, b_.CreateFMul(z, real(x, 0.5)));
  V out = b_.CreateFAdd(b_.CreateFAdd(m, y), b_.CreateFMul(e, real(x, 0.693359375)));
  // Limits: +inf stays, 0 gives -inf, below 0 and NaN give NaN.
  out = b_.CreateSelect(b_.CreateFCmpOEQ(x, real(x, INFINITY)), x, out);
  out = b_.CreateSelect(b_.CreateFCmpOEQ(x, real(x, 0)), real(x, -INFINITY), out);
  return b_.CreateSelect(b_.CreateFCmpULT(x, real(x, 0)), real(x, NAN), out);
}

/// Rational minimax approximation x·P(x²)/Q(x²), saturated where tanh rounds to ±1 (Eigen's form).
V Ops::tanh_f32(V x) {
  V c = extreme(extreme(x, real(x, -7.90531110763549805), true), real(x, 7.90531110763549805),
                false);
  V z = b_.CreateFMul(c, c);
  V p = polynomial(z, {-2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11,
                       5.12229709037114e-08, 1.48572235717979e-05, 6.37261928875436e-04,
                       4.89352455891786e-03});
  V q = polynomial(z, {1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03,
                       4.89352518554385e-03});
  return b_.CreateFDiv(b_.CreateFMul(c, p), q);
}

/// Rational approximation x·P(x²)/Q(x²), saturated at 4 (Eigen's form).
V Ops::erf_f32(V x) {
  V c = extreme(extreme(x, real(x, -4), true), real(x, 4), false);
  V z = b_.CreateFMul(c, c);
  V p = polynomial(z, {-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06,
                       -5.69250639462346e-05, -7.34990630326855e-04, -2.95459980854025e-03,
                       -1.60960333262415e-02});
  V q = polynomial(z, {-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03,
                       -7.37332916720468e-03, -1.42647390514189e-02});
  return b_.CreateFDiv(b_.CreateFMul(c, p), q);
}

V Ops::sine_f32(V x, bool cosine) {
  return libm(cosine ? ir::ScalarFn::cos : ir::ScalarFn::sin, {x}, DType::f32);
}

}  // namespace heddle::codegen::cpu
