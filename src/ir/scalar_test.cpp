#include "ir/scalar.h"

#include <gtest/gtest.h>

#include <cmath>

namespace heddle::ir {
namespace {

TEST(Scalar, NamesAreUniqueAndFound) {
  for (int f = 0; f < kScalarFnCount; ++f) {
    const auto fn = static_cast<ScalarFn>(f);
    EXPECT_EQ(scalar_fn_named(info(fn).name), fn);
  }
  EXPECT_EQ(scalar_fn_named("nonsense"), std::nullopt);
  EXPECT_EQ(monoid_named("argmin"), Monoid::argmin);
  EXPECT_EQ(info(ScalarFn::select).arity, 3);
  EXPECT_EQ(info(ScalarFn::greater_equal).arity, 2);
  EXPECT_TRUE(info(ScalarFn::less).gives_bool);
}

struct IntCase {
  ScalarFn fn;
  std::int64_t a, b;
  DType type;
  std::int64_t want;
};
TEST(Scalar, IntegersWrapAndNeverTrap) {
  const IntCase cases[] = {
      {ScalarFn::add, 127, 1, DType::i8, -128},
      {ScalarFn::add, 255, 1, DType::u8, 0},
      {ScalarFn::mul, INT64_MAX, 2, DType::i64, -2},
      {ScalarFn::div, 7, 0, DType::i32, 0},
      {ScalarFn::div, INT64_MIN, -1, DType::i64, INT64_MIN},
      {ScalarFn::div, -7, 2, DType::i32, -3},
      {ScalarFn::div, -1, 2, DType::u64, INT64_MAX},
      {ScalarFn::floor_mod, -7, 3, DType::i32, 2},
      {ScalarFn::fmod, -7, 3, DType::i32, -1},
      {ScalarFn::floor_mod, 7, -3, DType::i32, -2},
      {ScalarFn::random_bits, 0, 0, DType::i64, 0x6627e8},  // the paper's vector of zeros
      {ScalarFn::random_bits, 3, 0, DType::i64, 0x9b00db},
      {ScalarFn::fmod, INT64_MIN, -1, DType::i64, 0},
      {ScalarFn::pow, 3, 5, DType::i32, 243},
      {ScalarFn::pow, 2, -1, DType::i32, 0},
      {ScalarFn::shift_left, 1, 8, DType::u8, 0},
      {ScalarFn::shift_left, 1, 7, DType::u8, 128},
      {ScalarFn::shift_right, -8, 1, DType::i32, -4},
      {ScalarFn::less, -1, 1, DType::u64, 0},
      {ScalarFn::less, -1, 1, DType::i64, 1},
      {ScalarFn::max, -1, 1, DType::u64, -1},
      {ScalarFn::neg, 1, 0, DType::u8, 255},
      {ScalarFn::bit_not, 1, 0, DType::b1, 0},
      {ScalarFn::abs, -128, 0, DType::i8, -128},
  };
  for (const IntCase& c : cases) {
    const std::int64_t args[] = {c.a, c.b};
    EXPECT_EQ(apply_int(c.fn, args, c.type), c.want) << info(c.fn).name << " " << c.a << " " << c.b;
  }
}

TEST(Scalar, DoublesFollowTheirDocumentation) {
  const double nan = std::nan("");
  const auto f = [](ScalarFn fn, double a, double b = 0, double c = 0) {
    const double args[] = {a, b, c};
    return apply(fn, args);
  };
  EXPECT_TRUE(std::isnan(f(ScalarFn::max, nan, 1)));
  EXPECT_TRUE(std::isnan(f(ScalarFn::min, 1, nan)));
  EXPECT_EQ(f(ScalarFn::round, 2.5), 2);
  EXPECT_EQ(f(ScalarFn::round, 3.5), 4);
  EXPECT_EQ(f(ScalarFn::round_f16, 4097), 4096);
  EXPECT_EQ(f(ScalarFn::round_f16, 65519), 65504);
  EXPECT_EQ(f(ScalarFn::round_f16, -65520), -INFINITY);
  EXPECT_EQ(f(ScalarFn::round_f16, 3 * 0x1p-25), 0x1p-23);
  EXPECT_EQ(f(ScalarFn::round_bf16, 257), 256);
  EXPECT_EQ(f(ScalarFn::round_bf16, 0x1.ffp127), INFINITY);
  EXPECT_EQ(f(ScalarFn::floor_mod, -7, 3), 2);
  EXPECT_EQ(f(ScalarFn::sign, -0.5), -1);
  EXPECT_EQ(f(ScalarFn::select, 0, 1, 2), 2);
  EXPECT_NEAR(f(ScalarFn::erf, 0.5), 0.5204998778, 1e-9);
}

TEST(Monoid, IdentityIsNeutral) {
  for (const Monoid m : {Monoid::sum, Monoid::prod, Monoid::max, Monoid::min}) {
    for (const DType t : {DType::i8, DType::u8, DType::i32, DType::u32, DType::i64, DType::u64}) {
      for (const std::int64_t v : {0, 1, 5, 100}) {
        const std::int64_t args[] = {identity_int(m, t), v};
        EXPECT_EQ(apply_int(combiner(m), args, t), v) << name_of(m) << " " << name_of(t);
      }
    }
    for (const double v : {-3.5, 0.0, 7.0}) {
      const double args[] = {identity(m, DType::f32), v};
      EXPECT_EQ(apply(combiner(m), args), v);
    }
  }
}

}  // namespace
}  // namespace heddle::ir
