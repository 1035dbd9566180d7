#include "codegen/cpu/narrow.h"

#include <cmath>

#include "codegen/cpu/test_util.h"

namespace heddle::codegen::cpu {
namespace {

/// y[i] = value of x[i] (%0), over 4096 elements in vectors of `lanes`; `more` stands before it.
kernel::Kernel narrow_of_x(const std::string& value, int lanes = 16,
                           const std::string& type = "bf16", const std::string& more = "") {
  return parsed(fmt::format(R"(kernel "f" vars=3 {{
  buffer b0 "x" f32[4096] grid arg=0
  buffer b1 "y" {3}[4096] grid arg=1 written
  buffer b2 "z" f32[4096] grid arg=2 written
  buffer b3 "t" f32[4096] block
  buffer b4 "u" bf16[4096] grid arg=3
  for grid d0 in 0..1 {{
    for serial d1 in 0..{0} {{
      for vector d2 in 0..{1} {{ let %0 = load.f32 b0[d1*{1} + d2]
        {4}
        b1[d1*{1} + d2] = {2} }}
    }}
  }}
}})",
                            4096 / lanes, lanes, value, type, more));
}

const std::string kSigmoid = "recip.f32(add.f32(exp.f32(neg.f32(%0)), f32(1)))";

struct Form {
  const char* text;
  double (*reference)(double);
  /// What f32 itself leaves wrong where ones cancel, times |x| above 1.
  double cancels = 0;
  bool whole = false;  ///< with AVX-512 no ones are left to cancel, only what is below 2^-126
};
const Form kForms[] = {
    {"exp.f32(%0)", std::exp},
    {"recip.f32(add.f32(exp.f32(neg.f32(%0)), f32(1)))",
     [](double x) { return 1 / (1 + std::exp(-x)); }},
    {"mul.f32(%0, recip.f32(add.f32(exp.f32(neg.f32(%0)), f32(1))))",
     [](double x) { return x / (1 + std::exp(-x)); }},
    // What is left where terms cancel.
    {"sub.f32(exp.f32(%0), f32(1))", std::expm1, 0x1p-20},
    {"sub.f32(mul.f32(exp.f32(%0), f32(2)), f32(2))", [](double x) { return 2 * std::expm1(x); },
     0x1p-20},
    {"sub.f32(recip.f32(add.f32(exp.f32(neg.f32(%0)), f32(1))), f32(0.5))",
     [](double x) { return std::tanh(x / 2) / 2; }, 0x1p-20},
    {"mul.f32(mul.f32(%0, f32(0.5)), add.f32(erf.f32(mul.f32(%0, f32(0.70710678))), f32(1)))",
     [](double x) { return x * std::erfc(-x * std::sqrt(0.5)) / 2; }, 0x1p-20, true},
    {"mul.f32(%0, add.f32(f32(1), tanh.f32(%0)))",
     [](double x) { return x * 2 / (1 + std::exp(-2 * x)); }, 0x1p-20, true},
    {"add.f32(erf.f32(%0), f32(1))", [](double x) { return std::erfc(-x); }, 0x1p-20, true},
    {"mul.f32(%0, add.f32(erf.f32(%0), f32(2)))", [](double x) { return x * (std::erf(x) + 2); }},
    {"sqrt.f32(sub.f32(f32(1), mul.f32(exp.f32(neg.f32(abs.f32(%0))), "
     "exp.f32(neg.f32(abs.f32(%0))))))",
     [](double x) { return std::sqrt(-std::expm1(-2 * std::fabs(x))); }, 0x1p-10},
};

/// Units of bf16's last place.
double units(double difference, double want) {
  return std::fabs(difference) / std::ldexp(1.0, std::max(std::ilogb(want), -126) - 7);
}

/// Rounded to bf16, no result is an eighth of its last place further off than the nearest.
TEST(Narrow, ErrorsInUnitsOfBf16) {
  const float special[] = {0.0F, -0.0F, INFINITY, NAN, 1e-30F, -1e-30F, 1e-3F, -1e-3F, -1e6F};
  std::mt19937 random(3);
  std::uniform_real_distribution<float> far(-86, 86), near(-4, 4);
  for (const Machine& machine : machines())
    for (const int lanes : {1, 8, 16})
      for (const Form& form : kForms) {
        const Compiled code(narrow_of_x(form.text, lanes), machine);
        std::vector<float> x(4096), z(4096);
        Tensor y({DType::bf16, {4096}});
        for (std::size_t i = 0; i < x.size(); ++i)
          x[i] = i < std::size(special) ? special[i] : i % 2 ? far(random) : near(random);
        code.run({x.data(), y.mutable_data(), z.data(), x.data()});
        for (std::size_t i = 0; i < x.size(); ++i) {
          const double want = form.reference(x[i]), got = y.at(static_cast<std::int64_t>(i));
          const std::string what =
              fmt::format("{} of {} on {}: {}, want {}", form.text, x[i], machine.cpu, got, want);
          const bool whole = form.whole && lanes > 1 && machine.vector_bytes == 64;
          const double allowed =
              (whole ? 0x1p-126 : form.cancels) * std::max(1.0, std::fabs(double{x[i]}));
          const double beyond = std::max(0.0, std::fabs(got - want) - allowed);
          if (!std::isfinite(want)) {
            ASSERT_TRUE(std::isnan(want) ? std::isnan(got) : got == want) << what;
          } else {
            ASSERT_LE(units(beyond, want), 0.5 + 0.125) << what;
          }
        }
      }
}

/// Where the instructions are those of AVX-512: "vrcp14" stands for a narrow sigmoid.
class NarrowValuesTest : public testing::Test {
 protected:
  void SetUp() override {
#if defined(__x86_64__)
    const auto named = machine_named("x86-64-v4");
    ASSERT_TRUE(named) << named.error().message;
    machine = *named;
#else
    GTEST_SKIP() << "another processor's instructions";
#endif
  }
  bool divides(const kernel::Kernel& k) const { return has(k, "vdivps"); }
  bool estimates(const kernel::Kernel& k) const { return has(k, "vrcp14ps"); }
  bool has(const kernel::Kernel& k, const char* instruction) const {
    const auto text = to_assembly_text(k, machine);
    return text.ok() && text->find(instruction) != std::string::npos;
  }
  Machine machine;
};

TEST_F(NarrowValuesTest, OfWhatIsStored) {
  EXPECT_TRUE(estimates(narrow_of_x(kSigmoid)));
  EXPECT_FALSE(divides(narrow_of_x(kSigmoid)));
  EXPECT_TRUE(divides(narrow_of_x(kSigmoid, 16, "f32")));
  EXPECT_TRUE(divides(narrow_of_x(kSigmoid, 16, "f16")));
  EXPECT_TRUE(estimates(narrow_of_x("round_bf16.f32(" + kSigmoid + ")", 16, "f32")));
  machine.exact_functions = true;
  EXPECT_TRUE(divides(narrow_of_x(kSigmoid)));
  EXPECT_FALSE(estimates(narrow_of_x(kSigmoid)));
}

TEST_F(NarrowValuesTest, OfAllWhoUseThem) {
  const std::string also = "let %1 = " + kSigmoid + " b2[d1*16 + d2] = %1";
  EXPECT_TRUE(divides(narrow_of_x("%1", 16, "bf16", also)));
  EXPECT_TRUE(estimates(narrow_of_x("mul.f32(max.f32(" + kSigmoid + ", f32(0.5)), %0)")));
  // What is a function's argument, or compared, counts as a whole.
  EXPECT_TRUE(divides(narrow_of_x("exp.f32(" + kSigmoid + ")")));
  EXPECT_TRUE(divides(narrow_of_x("floor.f32(" + kSigmoid + ")")));
  EXPECT_TRUE(divides(narrow_of_x("select.f32(less.b1(" + kSigmoid + ", f32(0.5)), %0, f32(1))")));
}

TEST_F(NarrowValuesTest, ThroughBuffers) {
  const std::string kept = "b3[d1*16 + d2] = " + kSigmoid, again = "load.f32 b3[d1*16 + d2]";
  EXPECT_TRUE(estimates(narrow_of_x(again, 16, "bf16", kept)));
  EXPECT_TRUE(divides(narrow_of_x(again, 16, "bf16", kept + " b2[d1*16 + d2] = " + again)));
  EXPECT_TRUE(divides(narrow_of_x(again, 16, "f32", kept)));
}

TEST_F(NarrowValuesTest, NotWhereTermsMayCancel) {
  const auto narrow = [&](const std::string& value, const std::string& more = "") {
    return has(narrow_of_x(value, 16, "bf16", more), "vreduceps");
  };
  EXPECT_TRUE(narrow("exp.f32(%0)"));
  EXPECT_FALSE(narrow("sub.f32(exp.f32(%0), f32(1))"));
  EXPECT_FALSE(narrow("sub.f32(f32(1), mul.f32(exp.f32(%0), exp.f32(%0)))"));
  EXPECT_FALSE(narrow("add.f32(exp.f32(%0), %0)"));
  EXPECT_FALSE(narrow("add.f32(" + kSigmoid + ", f32(-0.5))"));
  // Nothing negative cancels nothing, a buffer's sums neither.
  EXPECT_TRUE(narrow("add.f32(mul.f32(exp.f32(%0), f32(2)), f32(1))"));
  const std::string sum =
      "b3[d1*16 + d2] = f32(0) b3[d1*16 + d2] = add.f32(load.f32 b3[d1*16 + d2], exp.f32(%0))";
  EXPECT_TRUE(narrow("load.f32 b3[d1*16 + d2]", sum));
  EXPECT_FALSE(narrow("load.f32 b3[d1*16 + d2]", sum + " b3[d1*16 + d2] = sub.f32(load.f32 "
                                                       "b3[d1*16 + d2], f32(3))"));
  // A number of bf16 is itself no more exact than that.
  EXPECT_TRUE(narrow("add.f32(exp.f32(%0), load.f32 b4[d1*16 + d2])"));
}

}  // namespace
}  // namespace heddle::codegen::cpu
