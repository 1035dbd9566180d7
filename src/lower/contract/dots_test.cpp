// Products of few columns, by vectors of terms.
#include "lower/contract/dots.h"
#include "lower/contract/test_util.h"

namespace heddle::lower {
namespace {

/// A processor of AVX-512, or what all have.
void on_lanes(Case& c, bool wide) {
  c.target.vector_bytes = wide ? 64 : 32;
  c.target.vector_registers = wide ? 32 : 16;
}

struct FewColumns {
  Shape x, w;
  Builder::Conv conv;
};

const FewColumns kFew[] = {
    {{1, 16, 9, 23}, {3, 16, 9, 9}, conv(2, 1, 0)},
    {{1, 32, 11, 13}, {2, 32, 1, 1}, conv(2, 1, 0)},
    {{1, 32, 7, 19}, {4, 32, 3, 3}, conv(2, 1, 1)},
    {{2, 24, 8, 9}, {8, 24, 3, 3}, conv(2, 2, 1)},
    {{1, 40, 5, 17}, {1, 40, 1, 1}, conv(2, 1, 0)},
    {{1, 17, 9, 11}, {1, 17, 3, 3}, conv(2, 1, 0)},
    {{3, 48, 6, 7}, {5, 48, 3, 3}, conv(2, 1, 2, 2)},
};

TEST(Dots, ConvolutionsOfFewFilters) {
  for (const FewColumns& row : kFew)
    for (const bool wide : {false, true})
      for (const bool planes : {false, true}) {
        if (!wide && row.w[0] > 6) continue;  // registers for less than one row
        Case c;
        on_lanes(c, wide);
        c.tuning = {{"dots", 1}};
        c.row_major_outputs = planes;
        const NodeId x = c.input(row.x);
        c.layouts[x] = ordered(row.x, {0, 2, 3, 1});
        const NodeId y = c.b.conv(x, c.constant(row.w), row.conv);
        const NodeId bias = c.b.reshape(c.constant({row.w[0]}), {row.w[0], 1, 1});
        c.output(c.b.sigmoid(c.b.add(y, bias)));
        SCOPED_TRACE(fmt::format("{} {} {} {}", to_string(row.x), to_string(row.w), wide, planes));
        ASSERT_NO_FATAL_FAILURE(check(c));
        EXPECT_TRUE(c.schedule.starts_with("dots")) << c.schedule;
      }
}

/// What is computed for each term is so in the loop, as each is read once.
TEST(Dots, PrologueInTheLoop) {
  Case c;
  on_lanes(c, true);
  c.tuning = {{"dots", 1}};
  const Shape image{1, 48, 7, 13};
  const NodeId x = c.input(image);
  c.layouts[x] = ordered(image, {0, 2, 3, 1});
  const NodeId bias = c.b.reshape(c.constant({48}), {48, 1, 1});
  const NodeId y = c.b.relu(c.b.add(x, bias));
  c.output(c.b.conv(y, c.constant({3, 48, 1, 1}), conv(2, 1, 0)));
  ASSERT_NO_FATAL_FAILURE(check(c));
  EXPECT_NE(c.schedule.find("in-place"), std::string::npos) << c.schedule;
}

TEST(Dots, RowsOfAMatrix) {
  for (const std::int64_t columns : {1, 3, 8})
    for (const std::int64_t terms : {16, 77, 256}) {
      Case c;
      on_lanes(c, true);
      c.tuning = {{"dots", 1}};
      c.output(c.b.matmul(c.input({301, terms}), c.constant({terms, columns})));
      SCOPED_TRACE(fmt::format("{} {}", columns, terms));
      ASSERT_NO_FATAL_FAILURE(check(c));
      EXPECT_TRUE(c.schedule.starts_with("dots")) << c.schedule;
    }
}

TEST(Dots, BytesByWords) {
  for (const FewColumns& row : {FewColumns{{1, 32, 9, 23}, {3, 32, 9, 9}, conv(2, 1, 0)},
                                FewColumns{{1, 68, 7, 9}, {2, 68, 3, 3}, conv(2, 1, 1)},
                                FewColumns{{1, 64, 7, 9}, {1, 64, 1, 1}, conv(2, 1, 0)}}) {
    Case c;
    on_lanes(c, true);
    c.target.quads = true;
    c.tuning = {{"dots", 1}};
    const NodeId x = c.input(row.x, DType::u8);
    c.layouts[x] = ordered(row.x, {0, 2, 3, 1});
    const NodeId w = c.constant(row.w, DType::i8);
    prim::Node n = c.g[c.b.conv(x, c.b.cast(w, DType::u8), row.conv)];
    for (Tensor& t : c.inputs)
      for (std::int64_t i = 0; i < t.count(); ++i) t.set_int(i, i * 7919 % 256);
    c.output(c.g.add(n.op, {x, w}, {DType::i32, n.type.shape}));
    SCOPED_TRACE(to_string(row.w));
    ASSERT_NO_FATAL_FAILURE(check(c));
    const auto lowered = contract::lower(request_of(c));
    EXPECT_NE(kernel::to_string(lowered->kernel).find("dot4"), std::string::npos);
  }
}

TEST(Dots, HalvesByPairs) {
  Case c;
  on_lanes(c, true);
  c.target.bf16_pairs = true;
  c.tuning = {{"dots", 1}};
  const Shape image{1, 32, 9, 23};
  const NodeId x = c.input(image, DType::bf16);
  c.layouts[x] = ordered(image, {0, 2, 3, 1});
  const NodeId y = c.b.conv(x, c.constant({3, 32, 3, 3}, DType::bf16), conv(2, 1, 0));
  c.output(y);
  ASSERT_NO_FATAL_FAILURE(check(c));
  EXPECT_TRUE(c.schedule.starts_with("dots")) << c.schedule;
}

/// Planes of an image have no lines of terms, many columns fill vectors, variable ones are packed.
TEST(Dots, OnlyWhereTheyApply) {
  const auto has = [](Shape image, Shape filter, bool planes, bool constant) {
    Case c;
    on_lanes(c, true);
    const NodeId x = c.input(image);
    if (!planes) c.layouts[x] = ordered(image, {0, 2, 3, 1});
    const NodeId w = constant ? c.constant(filter) : c.input(filter);
    c.output(c.b.conv(x, w, conv(2, 1, 0)));
    c.tuning = {{"dots", 1}};
    return contract::lower(request_of(c)).ok();
  };
  EXPECT_TRUE(has({1, 32, 9, 9}, {3, 32, 3, 3}, false, true));
  EXPECT_FALSE(has({1, 32, 9, 9}, {3, 32, 3, 3}, true, true));
  EXPECT_FALSE(has({1, 32, 9, 9}, {9, 32, 3, 3}, false, true));
  EXPECT_FALSE(has({1, 32, 9, 9}, {3, 32, 3, 3}, false, false));
}

/// The windows of a padded plane are no columns of a product that a task could pack.
TEST(Dots, PlanesOfOneFilterAreStitched) {
  Case c;
  on_lanes(c, true);
  const NodeId x = c.input({1, 32, 40, 41});
  const NodeId y = c.b.conv(c.b.relu(x), c.constant({1, 32, 3, 3}), conv(2, 1, 1));
  EXPECT_TRUE(contract::worth_main_loop(c.g, y));
  EXPECT_FALSE(contract::worth_main_loop(c.g, y, true));
  c.output(y);
  const auto lowered = lower(request_of(c));
  ASSERT_TRUE(lowered.ok()) << lowered.error().message;
  EXPECT_EQ(run(c, *lowered), "") << lowered->schedule;
}

/// The model takes them for few columns of many terms, and not for others.
TEST(Dots, ChosenWhereColumnsAreFew) {
  const auto schedule = [](std::int64_t columns, std::int64_t terms) {
    Case c;
    on_lanes(c, true);
    c.output(c.b.matmul(c.input({4096, terms}), c.constant({terms, columns})));
    const auto lowered = contract::lower(request_of(c));
    return lowered.ok() ? lowered->schedule : lowered.error().message;
  };
  EXPECT_TRUE(schedule(3, 512).starts_with("dots"));
  EXPECT_TRUE(schedule(1, 256).starts_with("dots"));
  EXPECT_FALSE(schedule(8, 16).starts_with("dots"));
  EXPECT_FALSE(schedule(16, 512).starts_with("dots"));
}

}  // namespace
}  // namespace heddle::lower
