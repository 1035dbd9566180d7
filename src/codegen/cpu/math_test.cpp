#include <bit>
#include <cmath>

#include "codegen/cpu/test_util.h"
#include "support/denormals.h"

namespace heddle::codegen::cpu {
namespace {

/// y[i] = value of x[i], over 4096 elements in vectors of `lanes`.
kernel::Kernel of_x(const std::string& value, int lanes) {
  return parsed(fmt::format(R"(kernel "f" vars=3 {{
  buffer b0 "x" f32[4096] grid arg=0
  buffer b1 "y" f32[4096] grid arg=1 written
  for grid d0 in 0..1 {{
    for serial d1 in 0..{0} {{
      for vector d2 in 0..{1} {{ let %0 = load.f32 b0[d1*{1} + d2]
        b1[d1*{1} + d2] = {2} }}
    }}
  }}
}})",
                            4096 / lanes, lanes, value));
}

kernel::Kernel unary(const std::string& fn) { return of_x(fn + ".f32(%0)", 8); }

/// Distance to the exact result in units of its last place (of the smallest normal below that).
double ulps(float got, double want) {
  if (std::isnan(want)) return std::isnan(got) ? 0 : 1e9;
  const float rounded = static_cast<float>(want);
  if (got == rounded) return 0;
  if (!std::isfinite(rounded) || !std::isfinite(got)) return 1e9;
  const double unit = std::ldexp(1.0, std::max(std::ilogb(want), -126) - 23);
  return std::fabs(got - want) / unit;
}

struct Function {
  const char* name;
  double (*reference)(double);
  float low, high;
  double limit;  ///< in ulps
};
const Function kFunctions[] = {
    {"exp", std::exp, -104, 89, 2},      {"log", std::log, 0, 1e30F, 2},
    {"log", std::log, 0.5F, 2, 2},       {"tanh", std::tanh, -10, 10, 4.5},
    {"erf", std::erf, -5, 5, 6},         {"tanh", std::tanh, -1e-3F, 1e-3F, 2},
    {"erf", std::erf, -1e-3F, 1e-3F, 3}, {"sin", std::sin, -100, 100, 2},
    {"cos", std::cos, -100, 100, 2},     {"sin", std::sin, -1e9F, 1e9F, 2},
    {"cos", std::cos, -65536, 65536, 2}, {"sin", std::sin, -3.2F, 3.2F, 2},
};

/// The largest error of a function's machine code on random arguments, and where.
std::pair<double, float> worst_of(const Function& f, const Machine& machine) {
  const Compiled code(unary(f.name), machine);
  std::mt19937 random(7);
  double worst = 0;
  float at = 0;
  std::vector<float> x(4096), y(4096);
  for (int round = 0; round < 32; ++round) {
    std::uniform_real_distribution<float> range(f.low, f.high);
    for (float& v : x) v = range(random);
    code.run({x.data(), y.data()});
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double error = ulps(y[i], f.reference(x[i]));
      if (error > worst) worst = error, at = x[i];
    }
  }
  return {worst, at};
}

TEST(Math, ErrorsInUlps) {
  for (const Function& f : kFunctions) {
    const auto [worst, at] = worst_of(f, host_machine());
    EXPECT_LE(worst, f.limit) << f.name << " at " << at;
    std::printf("%-5s on [%g, %g]: %.2f ulp at %g\n", f.name, f.low, f.high, worst, at);
  }
}

TEST(Math, ExpWithoutFusedMultiplyAdd) {
  const auto machine = machine_named("x86-64-v2");
  ASSERT_TRUE(machine.ok());
  for (const Function& f : {kFunctions[0], Function{"exp", std::exp, -1, 1, 2}}) {
    const auto [worst, at] = worst_of(f, *machine);
    EXPECT_LE(worst, f.limit) << " at " << at;
    std::printf("exp on [%g, %g] without: %.2f ulp at %g\n", f.low, f.high, worst, at);
  }
}

TEST(Math, LimitsAndNans) {
  const float inf = INFINITY;
  const float special[] = {0.0F,    -0.0F, inf,    -inf,  NAN,   1e-45F, -1e-45F,
                           1e-38F,  3e38F, -3e38F, 88.7F, 88.8F, -87.4F, -103.9F,
                           -110.0F, 1.0F,  -1.0F,  20.0F, -20.0F};
  for (const Function& f : kFunctions) {
    const Compiled code(unary(f.name));
    std::vector<float> x(4096), y(4096);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = special[i % std::size(special)];
    code.run({x.data(), y.data()});
    for (std::size_t i = 0; i < std::size(special); ++i) {
      const double want = f.reference(x[i]);
      EXPECT_LE(ulps(y[i], want), 5)
          << f.name << "(" << x[i] << ") = " << y[i] << ", want " << want;
    }
  }
}

/// Where the thread flushes denormals, as in sessions: logarithms know them, signs are -1, 0 or 1.
TEST(Math, DenormalsThatAreFlushed) {
  std::vector<float> x(4096), logs(4096), signs(4096);
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = std::ldexp(static_cast<float>(i % 5) - 1.0F, -149 + static_cast<int>(i / 5 % 24));
  std::vector<double> want(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) want[i] = std::log(static_cast<double>(x[i]));
  for (const Machine& machine : machines()) {
    const Compiled log(unary("log"), machine), sign(unary("sign"), machine);
    {
      const FlushDenormals flush(true);
      log.run({x.data(), logs.data()});
      sign.run({x.data(), signs.data()});
    }
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_LE(ulps(logs[i], want[i]), 2) << x[i] << " on " << machine.cpu;
      ASSERT_TRUE(signs[i] == 0 || std::fabs(signs[i]) == 1) << x[i] << " on " << machine.cpu;
    }
  }
}

/// Division by a constant rounds as the processor's does.
TEST(Math, QuotientsByConstants) {
  const float special[] = {0.0F, -0.0F, INFINITY, -INFINITY, NAN, 3.4e38F, -3.4e38F, 1e-37F, 1.0F};
  std::mt19937 random(11);
  for (const float c : {1.41421356F, 3.0F, -0.1F, 1.99999988F, 1.00000012F, 7e20F, 1e-30F, 4.0F})
    for (const Machine& machine : machines()) {
      const std::string constant = fmt::format("f32({:.9g})", c);
      kernel::Kernel k = unary("neg");
      std::string text = kernel::to_string(k);
      const std::string load = "load.f32 b0[d1*8 + d2]";
      const auto at = text.find("neg.f32(" + load + ")");
      ASSERT_NE(at, std::string::npos) << text;
      text.replace(at, std::string("neg.f32()").size() + load.size(),
                   "div.f32(" + load + ", " + constant + ")");
      const Compiled code(parsed(text), machine);
      std::vector<float> x(4096), y(4096);
      std::uniform_int_distribution<std::uint32_t> bits;
      for (std::size_t i = 0; i < x.size(); ++i)
        x[i] = i < std::size(special) ? special[i] : std::bit_cast<float>(bits(random));
      code.run({x.data(), y.data()});
      for (std::size_t i = 0; i < x.size(); ++i) {
        const float want = x[i] / c;
        if (std::isnan(want)) {
          EXPECT_TRUE(std::isnan(y[i])) << x[i] << " / " << c;
        } else if (std::fabs(x[i]) < 1e-30F || std::fabs(want) < 1e-30F) {
          EXPECT_LE(ulps(y[i], static_cast<double>(x[i]) / c), 1) << x[i] << " / " << c;
        } else {
          EXPECT_EQ(std::bit_cast<std::uint32_t>(want), std::bit_cast<std::uint32_t>(y[i]))
              << x[i] << " / " << c << " on " << machine.cpu;
        }
      }
      const bool divides =
          to_assembly_text(parsed(text), machine)->find("vdivps") != std::string::npos;
      if (machine.vector_bytes >= 32 && std::fabs(c) >= 1) {
        EXPECT_FALSE(divides) << machine.cpu << " " << c;
      }
    }
}

/// What is one division and one exponential without care for its own overflow.
TEST(Math, Logistics) {
  struct Form {
    const char* text;
    double (*reference)(double);
  };
  const Form forms[] = {
      {"recip.f32(add.f32(exp.f32(neg.f32(%0)), f32(1)))",
       [](double x) { return 1 / (1 + std::exp(-x)); }},
      {"recip.f32(add.f32(f32(1), exp.f32(%0)))", [](double x) { return 1 / (1 + std::exp(x)); }},
      {"mul.f32(%0, recip.f32(add.f32(exp.f32(neg.f32(%0)), f32(1))))",
       [](double x) { return x / (1 + std::exp(-x)); }},
      {"mul.f32(recip.f32(add.f32(exp.f32(neg.f32(mul.f32(%0, f32(2)))), f32(1))), %0)",
       [](double x) { return x / (1 + std::exp(-2 * x)); }},
      // What is no number in the sum only is none in the result.
      {"mul.f32(%0, recip.f32(add.f32(exp.f32(neg.f32(mul.f32(%0, f32(0)))), f32(1))))",
       [](double x) { return x / (1 + std::exp(-(x * 0))); }},
      {"mul.f32(%0, recip.f32(add.f32(exp.f32(neg.f32(mul.f32(%0, f32(-0)))), f32(1))))",
       [](double x) { return x / (1 + std::exp(-(x * -0.0))); }},
      {"mul.f32(%0, recip.f32(add.f32(exp.f32(mul.f32(%0, f32(inf))), f32(1))))",
       [](double x) { return x * (1 / (1 + std::exp(x * INFINITY))); }},
      {"mul.f32(%0, recip.f32(add.f32(exp.f32(mul.f32(%0, f32(nan))), f32(1))))",
       [](double) -> double { return NAN; }},
      // Another factor is none of these.
      {"mul.f32(f32(3), recip.f32(add.f32(exp.f32(neg.f32(%0)), f32(1))))",
       [](double x) { return 3 / (1 + std::exp(-x)); }},
  };
  const float special[] = {0.0F, -0.0F, INFINITY, -INFINITY, NAN, 1e-40F, -1e-40F, 3e38F, -3e38F};
  std::mt19937 random(5);
  std::uniform_real_distribution<float> far(-43, 43), near(-3, 3);
  for (const Machine& machine : machines())
    for (const int lanes : {4, 8, 16})
      for (const Form& form : forms) {
        const Compiled code(of_x(form.text, lanes), machine);
        std::vector<float> x(4096), y(4096);
        for (std::size_t i = 0; i < x.size(); ++i)
          x[i] = i < std::size(special) ? special[i] : i % 2 ? far(random) : near(random);
        code.run({x.data(), y.data()});
        for (std::size_t i = 0; i < x.size(); ++i) {
          const double want = form.reference(x[i]);
          ASSERT_LE(ulps(y[i], want), 6)
              << form.text << " of " << x[i] << " on " << machine.cpu << ": " << y[i];
        }
      }
}

}  // namespace
}  // namespace heddle::codegen::cpu
