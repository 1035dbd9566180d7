#include <algorithm>
#include <set>

#include "lower/contract/test_util.h"

namespace heddle::lower {
namespace {

struct Halved {
  std::int64_t m, k, n;
  Tuning tuning;
};

/// Rows and pairs of vectors that lack their second, terms that are no whole vectors, several
/// tasks, tiles of two sizes.
const Halved kHalved[] = {
    {8, 4, 16, {}},
    {7, 6, 16, {}},
    {9, 16, 24, {}},
    {26, 40, 40, {{"mr", 3}, {"nv", 2}}},
    {27, 18, 56, {{"mr", 3}, {"nv", 2}, {"panels", 1}, {"tiles", 2}}},
    {33, 64, 8 * 7, {{"mr", 5}, {"nv", 1}, {"tiles", 2}}},
};

void check_strassen(Case& c, const Halved& row) {
  c.tuning = row.tuning;
  c.tuning.emplace_back("strassen", 1);
  SCOPED_TRACE(fmt::format("{}x{}x{}", row.m, row.n, row.k));
  ASSERT_NO_FATAL_FAILURE(check(c));
  EXPECT_TRUE(c.schedule.starts_with("strassen")) << c.schedule;
}

TEST(Strassen, Products) {
  for (const Halved& row : kHalved) {
    Case c;
    c.output(c.b.matmul(c.input({row.m, row.k}), c.constant({row.k, row.n})));
    check_strassen(c, row);
  }
}

/// Rows of two axes that nothing chains: of a transposed operand, with what is added in the other
/// order; every second place of an image.
TEST(Strassen, RowsThatLieInAnyOrder) {
  for (const Halved& row : kHalved)
    for (const bool image : {false, true}) {
      Case c;
      if (image) {
        const NodeId x = c.input({1, row.k, 5, 7});
        c.layouts[x] = ordered(c.b.shape(x), {0, 2, 3, 1});
        c.output(c.b.relu(c.b.conv(x, c.constant({row.n, row.k, 1, 1}), conv(2, 2, 0))));
      } else {
        const NodeId x = c.b.transpose(c.input({row.m, 3, row.k}), {1, 0, 2});
        const NodeId y = c.b.matmul(x, c.constant({row.k, row.n}));
        c.output(c.b.add(y, c.b.transpose(c.input({row.m, 3, row.n}), {1, 0, 2})));
      }
      check_strassen(c, row);
    }
}

/// Sums of rows and columns that the last-level cache does not keep together are made anew by more
/// tasks; where rows come from memory, few columns are not worth their sums.
TEST(Strassen, SchedulesKnowTheLastLevelCache) {
  const auto of = [](std::int64_t m, std::int64_t k, std::int64_t n, std::int64_t l3_bytes) {
    Case c;
    c.target.vector_bytes = 64, c.target.vector_registers = 32;
    c.target.l2_bytes = 1 << 20, c.target.l3_bytes = l3_bytes;
    c.output(c.b.matmul(c.input({m, k}), c.constant({k, n})));
    return contract::lower(request_of(c))->schedule;
  };
  const std::string near = of(1576, 3072, 768, 256 << 20), far = of(1576, 3072, 768, 32 << 20);
  EXPECT_NE(near.find("tiles/task=88"), std::string::npos) << near;
  EXPECT_TRUE(far.starts_with("strassen")) << far;
  EXPECT_EQ(far.find("tiles/task=88"), std::string::npos) << far;
  EXPECT_TRUE(of(6272, 384, 96, 256 << 20).starts_with("strassen"));
  EXPECT_TRUE(of(6272, 384, 96, 32 << 20).starts_with("contract"));
}

/// The constant lies the other way, something is computed of the rows, several results, one of them
/// transposed; a long epilogue goes through memory.
TEST(Strassen, PrologueAndEpilogue) {
  for (const Halved& row : kHalved) {
    Case c;
    const NodeId x = c.b.mul(c.input({row.m, row.k}), 0.5);
    const NodeId w = c.b.transpose(c.constant({row.n, row.k}), {1, 0});
    const NodeId y = c.b.matmul(x, w);
    const NodeId sum = c.b.add(c.b.add(y, c.b.broadcast(c.constant({row.n}), {row.m, row.n})),
                               c.input({row.m, row.n}));
    c.output(sum);
    c.output(c.b.relu(sum));
    c.output(c.b.mul(c.b.mul(c.b.tanh(sum), c.b.exp(sum)), c.b.sigmoid(sum)));
    check_strassen(c, row);
  }
}

/// Pixels of an image channels-last are the rows of a convolution by 1×1; two reductions, of which
/// the outer is halved.
TEST(Strassen, RowsAndTermsOfSeveralAxes) {
  Case c;
  const NodeId x = c.input({1, 16, 5, 7});
  c.layouts[x] = ordered({1, 16, 5, 7}, {0, 2, 3, 1});
  c.output(c.b.conv(x, c.constant({24, 16, 1, 1}), conv(2, 1, 0)));
  check_strassen(c, {35, 16, 24, {}});
  Case heads;
  const NodeId h = heads.input({4, 11, 6});  // heads, rows, width
  heads.output(heads.b.matmul(heads.b.reshape(heads.b.transpose(h, {1, 0, 2}), {11, 24}),
                              heads.constant({24, 16})));
  check_strassen(heads, {11, 24, 16, {}});
}

/// What the kernel makes of a product in which one row has been replaced.
Tensor product_with(double value, std::int64_t row, Case& c) {
  const std::int64_t terms = 40;
  c.output(c.b.matmul(c.input({9, terms}), c.constant({terms, 24})));
  for (std::int64_t k = 0; k < terms; k += value == 0 ? 1 : 3)
    c.inputs[0].set(row * terms + k, value);
  c.tuning = {{"strassen", 1}};
  return output_of(c);
}

/// A row much larger or smaller than its neighbour, or that holds no numbers, does not disturb it.
TEST(Strassen, RowsKeepToThemselves) {
  for (const std::int64_t odd : {2, 3, 8})
    for (const double value :
         {0.0, 1e7, 1e30, 1e-30, double{INFINITY}, -double{INFINITY}, double{NAN}}) {
      Case c;
      const Tensor got = product_with(value, odd, c);
      const Tensor want = (*prim::interpret(c.g, c.inputs))[0];
      for (std::int64_t i = 0; i < want.count(); ++i) {
        SCOPED_TRACE(fmt::format("{} in row {}, element {}", value, odd, i));
        if (i / 24 != odd) {
          ASSERT_NEAR(got.at(i), want.at(i), 2e-5);
        } else if (std::isfinite(want.at(i))) {
          ASSERT_NEAR(got.at(i), want.at(i), 1e-5 * std::max(1.0, 40 * value));
        } else {
          ASSERT_FALSE(std::isfinite(got.at(i)));
        }
      }
    }
}

/// So do columns of the constant.
TEST(Strassen, ColumnsKeepToThemselves) {
  for (const double value : {1e7, double{INFINITY}, double{NAN}}) {
    Case c;
    Tensor w = c.random_tensor({DType::f32, {16, 24}});
    w.set(5 * 24 + 3, value);
    c.output(c.b.matmul(c.input({9, 16}), c.b.constant(w)));
    c.tuning = {{"strassen", 1}};
    const Tensor got = output_of(c), want = (*prim::interpret(c.g, c.inputs))[0];
    for (std::int64_t i = 0; i < want.count(); ++i)
      if (i % 24 != 3) {
        EXPECT_NEAR(got.at(i), want.at(i), 2e-5) << value << " " << i;
      }
  }
}

TEST(Strassen, OnlyWhereItApplies) {
  struct Refused {
    std::int64_t m, k, n;
    bool constant, allowed;
    DType type;
  };
  for (const Refused& r :
       {Refused{8, 15, 16, true, true, DType::f32}, Refused{8, 4098, 16, true, true, DType::f32},
        Refused{8, 16, 12, true, true, DType::f32}, Refused{2, 16, 16, true, true, DType::f32},
        Refused{8, 16, 16, false, true, DType::f32}, Refused{8, 16, 16, true, false, DType::f32},
        Refused{8, 16, 16, true, true, DType::f64}, Refused{8, 16, 16, true, true, DType::f16}}) {
    Case c;
    c.target.strassen = r.allowed;
    c.tuning = {{"strassen", 1}};
    const NodeId w = r.constant ? c.constant({r.k, r.n}, r.type) : c.input({r.k, r.n}, r.type);
    c.output(c.b.matmul(c.input({r.m, r.k}, r.type), w));
    EXPECT_FALSE(contract::lower(request_of(c)).ok())
        << r.m << " " << r.k << " " << r.n << " " << name_of(r.type);
  }
}

/// Measuring chooses between both kinds: each schedule says which it is.
TEST(Strassen, SchedulesToMeasureNameTheirKind) {
  Case c;
  c.output(c.b.matmul(c.input({64, 256}), c.constant({256, 256})));
  Request request = request_of(c);
  std::set<std::int64_t> kinds;
  for (const Tuning& tuning : contract::tuning_space(request)) {
    request.tuning = tuning;
    const auto kind = std::ranges::find(tuning, "strassen", &Tuning::value_type::first);
    ASSERT_NE(kind, tuning.end());
    const auto lowered = contract::lower(request);
    ASSERT_TRUE(lowered.ok()) << lowered.error().message;
    EXPECT_EQ(lowered->schedule.starts_with("strassen"), kind->second == 1) << lowered->schedule;
    kinds.insert(kind->second);
  }
  EXPECT_EQ(kinds.size(), 2U);
}

/// What the cost model is told: large products gain, small ones do not.
TEST(Strassen, IsOfferedWhereItGains) {
  const auto work = [](std::int64_t m, std::int64_t k, std::int64_t n, bool allowed) {
    Case c;
    c.target.strassen = allowed;
    const NodeId y = c.b.matmul(c.input({m, k}), c.constant({k, n}));
    const auto all = contract::algorithms(c.g, y, c.target);
    return all.size() > 1 ? all[1].work : 1;
  };
  EXPECT_LT(work(128, 768, 768, true), 0.93);
  EXPECT_GT(work(128, 768, 768, true), 0.875);
  EXPECT_EQ(work(128, 768, 768, false), 1);
  EXPECT_EQ(work(128, 24, 768, true), 1);
  EXPECT_EQ(work(128, 767, 768, true), 1);
}

}  // namespace
}  // namespace heddle::lower
