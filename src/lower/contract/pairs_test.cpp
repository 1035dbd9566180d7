// Products of narrow types, several terms at a time.
#include "lower/contract/schedule.h"
#include "lower/contract/test_util.h"

namespace heddle::lower {
namespace {

/// A product of 16-bit integers, large ones, with its sums in i32.
NodeId of_integers(Case& c, NodeId product) {
  for (Tensor& t : c.inputs)
    for (std::int64_t i = 0; i < t.count(); ++i) t.set_int(i, i * 7919 % 511 - 255);
  prim::Node n = c.g[product];
  n.type.dtype = DType::i32;
  return c.g.add(n.op, n.args, n.type);
}

struct MaybePairs {
  Shape x, w;
  Builder::Conv conv;
  bool pairs;
};

TEST(Contract, IntegersGoInPairs) {
  const MaybePairs rows[] = {
      {{1, 6, 8, 8}, {10, 6, 1, 1}, conv(2, 1, 0), true},
      {{2, 4, 9, 7}, {8, 4, 3, 3}, conv(2, 1, 1), true},
      {{1, 8, 9, 9}, {16, 8, 3, 3}, conv(2, 2, 1), true},
      {{2, 8, 7, 7}, {12, 4, 3, 3}, conv(2, 1, 1, 1, 2), true},
      {{1, 3, 8, 8}, {9, 3, 3, 4}, conv(2, 1, 0), false},  // 4 steps, but not of one dimension
      {{1, 5, 8, 8}, {9, 5, 3, 3}, conv(2, 1, 1), false},
      {{1, 21, 8, 8}, {10, 21, 1, 1}, conv(2, 1, 0), true},
      {{2, 17, 5, 7}, {9, 17, 3, 3}, conv(2, 2, 1), true},
  };
  for (const MaybePairs& row : rows)
    for (bool channels_last : {false, true}) {
      Case c;
      const NodeId x = c.input(row.x, DType::i16);
      if (channels_last) c.layouts[x] = ordered(row.x, {0, 2, 3, 1});
      c.row_major_outputs = !channels_last;
      c.output(of_integers(c, c.b.conv(x, c.constant(row.w, DType::i16), row.conv)));
      SCOPED_TRACE(fmt::format("{} {} {}", to_string(row.x), to_string(row.w), channels_last));
      ASSERT_NO_FATAL_FAILURE(check(c));
      const auto lowered = contract::lower(request_of(c));
      EXPECT_EQ(kernel::to_string(lowered->kernel).find("dot2") != std::string::npos, row.pairs);
    }
}

TEST(Contract, BytesGoInQuads) {
  struct Row {
    Shape x, w;
    Builder::Conv conv;
    std::string_view product;
  };
  const Row rows[] = {
      {{1, 8, 8, 8}, {10, 8, 1, 1}, conv(2, 1, 0), "dot4"},
      {{2, 4, 9, 7}, {8, 4, 3, 3}, conv(2, 1, 1), "dot4"},
      {{1, 8, 9, 9}, {19, 8, 3, 3}, conv(2, 2, 1), "dot4"},
      {{2, 8, 7, 7}, {12, 4, 3, 3}, conv(2, 1, 1, 1, 2), "dot4"},
      {{1, 6, 8, 8}, {10, 6, 3, 3}, conv(2, 1, 1), "dot2"},
      {{1, 5, 8, 8}, {9, 5, 3, 3}, conv(2, 1, 1), "mul"},
      {{1, 35, 8, 8}, {10, 35, 1, 1}, conv(2, 1, 0), "dot4"},
      {{2, 33, 5, 7}, {9, 33, 3, 3}, conv(2, 2, 1), "dot4"},
  };
  for (const Row& row : rows)
    for (const bool channels_last : {false, true})
      for (const bool swapped : {false, true}) {
        Case c;
        c.target.quads = true;
        const NodeId x = c.input(row.x, DType::u8);
        if (channels_last) c.layouts[x] = ordered(row.x, {0, 2, 3, 1});
        c.row_major_outputs = !channels_last;
        const NodeId w = c.constant(row.w, DType::i8);
        prim::Node n = c.g[c.b.conv(x, c.b.cast(w, DType::u8), row.conv)];
        auto k = std::get<prim::Contract>(n.op);
        if (swapped) std::swap(k.lhs, k.rhs);
        for (Tensor& t : c.inputs)
          for (std::int64_t i = 0; i < t.count(); ++i) t.set_int(i, i * 7919 % 256);
        c.output(c.g.add(k, swapped ? std::vector{w, x} : std::vector{x, w},
                         {DType::i32, n.type.shape}));
        SCOPED_TRACE(
            fmt::format("{} {} {} {}", to_string(row.x), to_string(row.w), channels_last, swapped));
        ASSERT_NO_FATAL_FAILURE(check(c));
        const auto lowered = contract::lower(request_of(c));
        EXPECT_NE(kernel::to_string(lowered->kernel).find(row.product), std::string::npos);
      }
}

TEST(Contract, Bf16GoesInPairs) {
  const MaybePairs rows[] = {
      {{1, 6, 8, 8}, {10, 6, 1, 1}, conv(2, 1, 0), true},
      {{2, 4, 9, 7}, {8, 4, 3, 3}, conv(2, 1, 1), true},
      {{1, 8, 9, 9}, {19, 8, 3, 3}, conv(2, 2, 1), true},
      {{2, 8, 7, 7}, {12, 4, 3, 3}, conv(2, 1, 1, 1, 2), true},
      {{1, 5, 8, 8}, {9, 5, 3, 3}, conv(2, 1, 1), false},
      {{1, 21, 8, 8}, {10, 21, 1, 1}, conv(2, 1, 0), true},
      {{2, 17, 5, 7}, {9, 17, 3, 3}, conv(2, 2, 1), true},
  };
  for (const MaybePairs& row : rows)
    for (const bool channels_last : {false, true})
      for (const bool prologue : {false, true}) {
        Case c;
        c.target.bf16_pairs = true;
        NodeId x = c.input(row.x, DType::bf16);
        if (channels_last) c.layouts[x] = ordered(row.x, {0, 2, 3, 1});
        c.row_major_outputs = !channels_last;
        if (prologue) x = c.b.mul(x, x);
        c.output(c.b.conv(x, c.constant(row.w, DType::bf16), row.conv));
        SCOPED_TRACE(fmt::format("{} {} {} {}", to_string(row.x), to_string(row.w), channels_last,
                                 prologue));
        ASSERT_NO_FATAL_FAILURE(check(c));
        const auto lowered = contract::lower(request_of(c));
        EXPECT_EQ(kernel::to_string(lowered->kernel).find("bitcast") != std::string::npos,
                  row.pairs);
      }
}

TEST(Contract, Bf16MatricesGoInPairs) {
  struct Row {
    Shape a, b;
    bool constant, transposed;
  };
  const Row rows[] = {
      {{7, 18}, {18, 21}, true, false},        {{7, 18}, {18, 21}, false, false},
      {{3, 9, 16}, {3, 16, 33}, false, false}, {{3, 9, 16}, {3, 33, 16}, false, true},
      {{1, 64}, {64, 50}, true, false},        {{7, 19}, {19, 21}, true, false},
      {{13, 17}, {17, 40}, false, false},      {{3, 9, 21}, {3, 33, 21}, false, true},
      {{1, 63}, {63, 50}, true, false}};
  for (const Row& row : rows) {
    Case c;
    c.target.bf16_pairs = true;
    const NodeId a = c.input(row.a, DType::bf16);
    NodeId b = row.constant ? c.constant(row.b, DType::bf16) : c.input(row.b, DType::bf16);
    if (row.transposed) b = c.b.transpose(b, {0, 2, 1});
    c.output(c.b.matmul(a, b));
    SCOPED_TRACE(fmt::format("{} {}", to_string(row.a), to_string(row.b)));
    ASSERT_NO_FATAL_FAILURE(check(c));
    const auto lowered = contract::lower(request_of(c));
    EXPECT_NE(kernel::to_string(lowered->kernel).find("bitcast"), std::string::npos);
  }
}

/// Three channels and one of zeros, which lies nowhere.
TEST(Contract, ConditionsOfOnePart) {
  for (const bool bytes : {false, true})
    for (const bool channels_last : {false, true}) {
      Case c;
      c.target.quads = true;
      const NodeId x = c.input({1, 3, 9, 11}, bytes ? DType::u8 : DType::i16);
      if (channels_last) c.layouts[x] = ordered({1, 3, 9, 11}, {0, 2, 3, 1});
      const NodeId w = c.constant({19, 4, 3, 3}, bytes ? DType::i8 : DType::i16);
      const NodeId four = c.b.cast(c.b.pad(x, {0, 0, 0, 0}, {0, 1, 0, 0}, 0), DType::i16);
      prim::Node n = c.g[c.b.conv(four, c.b.cast(w, DType::i16), conv(2, 2, 1))];
      auto k = std::get<prim::Contract>(n.op);
      for (std::size_t v = 0; v < k.reduced.size(); ++v)
        if (k.reduced[v] == 4)
          k.lhs.inside.push_back({ir::Expr(ir::Var{static_cast<std::int32_t>(4 + v)}), 0, 3});
      for (Tensor& t : c.inputs)
        for (std::int64_t i = 0; i < t.count(); ++i) t.set_int(i, i * 7919 % 256);
      c.output(c.g.add(k, {x, w}, {DType::i32, n.type.shape}));
      SCOPED_TRACE(fmt::format("{} {}", bytes, channels_last));
      ASSERT_NO_FATAL_FAILURE(check(c));
      const auto lowered = contract::lower(request_of(c));
      EXPECT_NE(kernel::to_string(lowered->kernel).find(bytes ? "dot4" : "dot2"),
                std::string::npos);
    }
}

TEST(Contract, IntegersOfOtherTypesInPairs) {
  for (const DType type : {DType::i16, DType::i8, DType::u8}) {
    Case c;
    const NodeId a = c.input({7, 18}, type), b = c.input({18, 21}, type);
    for (Tensor& t : c.inputs)
      for (std::int64_t i = 0; i < t.count(); ++i) t.set_int(i, i * 37 % 120);
    prim::Node n = c.g[c.b.matmul(a, b)];
    n.type.dtype = DType::i32;
    c.output(c.b.cast(c.g.add(n.op, n.args, n.type), DType::f32));
    ASSERT_NO_FATAL_FAILURE(check(c));
  }
}

/// A quantised result that is an output and is used again: as it was before it was bytes.
TEST(Contract, BytesReadAgainWhereTheyAreMadeAreNotConverted) {
  for (const std::int64_t low : {0, -130})
    for (const bool stored : {false, true}) {
      Case c;
      const NodeId a = c.input({7, 18}, DType::i16), w = c.constant({18, 21}, DType::i16);
      const NodeId sum = c.b.cast(of_integers(c, c.b.matmul(a, w)), DType::f32);
      const NodeId rest = c.input({7, 21});
      const NodeId rounded = c.b.map(ScalarFn::round, {c.b.mul(sum, 1.0 / 64)});
      const auto number = [&](std::int64_t x) {
        return c.b.scalar(DType::f32, static_cast<double>(x));
      };
      const NodeId value = c.b.min(c.b.max(rounded, number(low)), number(low + 255));
      NodeId bytes = c.b.cast(value, DType::u8);
      if (low != 0)
        bytes = c.b.cast(c.b.sub(c.b.cast(value, DType::i32), c.b.scalar_int(DType::i32, low)),
                         DType::u8);
      NodeId again = c.b.cast(bytes, DType::f32);
      if (low != 0) again = c.b.add(again, static_cast<double>(low));
      if (stored) c.output(bytes);
      c.output(c.b.add(c.b.mul(again, 0.5), rest));
      ASSERT_NO_FATAL_FAILURE(check(c));
      const std::string text = kernel::to_string(contract::lower(request_of(c))->kernel);
      EXPECT_EQ(text.find("cast.u8") != std::string::npos, stored) << text;
    }
}

/// A few rows read a constant's bytes, which memory bounds; more of them words of 16-bit halves.
TEST(Contract, BytesOfConstantsStayBytesForFewRows) {
  struct Row {
    std::int64_t matrices, rows, terms, columns;
  };
  const Row rows[] = {{1, 1, 66, 16}, {1, 3, 68, 37},  {1, 8, 66, 37}, {1, 9, 68, 16},
                      {1, 9, 66, 37}, {1, 2, 18, 203}, {3, 2, 66, 37}, {3, 9, 34, 21}};
  for (const DType type : {DType::i8, DType::u8})
    for (const auto& [matrices, rows, terms, columns] : rows)
      for (const int vector_bytes : {16, 32, 64}) {
        Tensor w({type, {matrices, terms, columns}});
        for (std::int64_t i = 0; i < w.count(); ++i)
          w.set_int(i, i * 7919 % 256 - (type == DType::i8 ? 128 : 0));
        Case c;
        c.target.vector_bytes = vector_bytes;
        const NodeId x = c.input({matrices, rows, terms}, DType::i16), y = c.b.constant(w);
        for (std::int64_t i = 0; i < c.inputs[0].count(); ++i)
          c.inputs[0].set_int(i, i * 7907 % 65536 - 32768);
        const prim::Op product = c.g[c.b.matmul(x, c.b.cast(y, DType::i16))].op;
        c.output(c.g.add(product, {x, y}, {DType::i32, {matrices, rows, columns}}));
        SCOPED_TRACE(fmt::format("{} {} {} {} {} {}", type == DType::i8, matrices, rows, terms,
                                 columns, vector_bytes));
        ASSERT_NO_FATAL_FAILURE(check(c));
        const auto lowered = contract::lower(request_of(c));
        const auto packed =
            std::ranges::find(lowered->arguments, Argument::Kind::packed, &Argument::kind);
        ASSERT_NE(packed, lowered->arguments.end());
        EXPECT_EQ(packed->packed.dtype(), rows <= 8 ? type : DType::i32);
      }
}

struct IntegerImage {
  std::int64_t channels, filters, height, width;
  int zero;
};

/// A convolution by 3x3 of bytes less their zero point, at the ends of their range, by filters at
/// the ends of theirs.
NodeId convolution_of_bytes(Case& c, const IntegerImage& row) {
  const Shape shape{1, row.channels, row.height, row.width};
  const NodeId q = c.input(shape, DType::u8);
  c.layouts[q] = ordered(shape, {0, 2, 3, 1});
  std::bernoulli_distribution end;
  for (Tensor& t : c.inputs)
    for (std::int64_t i = 0; i < t.count(); ++i) t.set_int(i, end(c.random) ? 255 : 0);
  Tensor w({DType::i8, {row.filters, row.channels, 3, 3}});
  for (std::int64_t i = 0; i < w.count(); ++i) w.set_int(i, end(c.random) ? 127 : -128);
  const NodeId x =
      c.b.cast(c.b.sub(c.b.cast(q, DType::i32), c.b.scalar_int(DType::i32, row.zero)), DType::i16);
  const NodeId filter = c.b.constant(w);
  const prim::Node n = c.g[c.b.conv(x, c.b.cast(filter, DType::i16), conv(2, 1, 1))];
  return c.g.add(n.op, {x, filter}, {DType::i32, n.type.shape});
}

/// Sums of a row of filters with their bias, scaled, rounded and bounded to a byte.
NodeId as_bytes(Case& c, NodeId sum) {
  const std::int64_t filters = c.g[sum].type.shape[1];
  const NodeId bias = c.constant({1, filters, 1, 1}, DType::i32);
  const NodeId real = c.b.mul(c.b.cast(c.b.add(sum, bias), DType::f32), 1.0 / 4096);
  const NodeId rounded = c.b.map(ScalarFn::round, {real});
  return c.b.cast(c.b.min(c.b.max(rounded, c.b.scalar(DType::f32, 0)), c.b.scalar(DType::f32, 255)),
                  DType::u8);
}

TEST(Contract, WinogradOfIntegersIsExact) {
  const IntegerImage rows[] = {
      {16, 16, 4, 4, 0}, {16, 48, 7, 9, 128}, {32, 16, 5, 12, 255}, {64, 16, 6, 6, 3}};
  for (const IntegerImage& row : rows)
    for (const int vector_bytes : {16, 32, 64})
      for (const bool quantised : {false, true}) {
        Case c;
        c.target.vector_bytes = vector_bytes;
        c.tuning = {{"winograd", 2}};
        const NodeId sum = convolution_of_bytes(c, row);
        c.output(quantised ? as_bytes(c, sum) : sum);
        SCOPED_TRACE(fmt::format("{} {} {} {} {}", row.channels, row.filters, row.zero,
                                 vector_bytes, quantised));
        ASSERT_NO_FATAL_FAILURE(check(c));
        EXPECT_TRUE(c.schedule.starts_with("winograd F(2x2")) << c.schedule;
        EXPECT_NE(kernel::to_string(contract::lower(request_of(c))->kernel).find("dot2"),
                  std::string::npos);
      }
}

TEST(Contract, WinogradOfIntegersOnlyWhereTheyFit) {
  const auto is_lowered = [](const IntegerImage& row, bool quads, int largest, std::int64_t m,
                             bool known) {
    Case c;
    c.target.quads = quads;
    c.target.winograd = largest;
    c.tuning = {{"winograd", m}};
    NodeId sum = convolution_of_bytes(c, row);
    if (!known) {
      const prim::Node n = c.g[sum];
      const NodeId x = c.input(c.g[n.args[0]].type.shape, DType::i16);
      c.layouts[x] = ordered(c.g[x].type.shape, {0, 2, 3, 1});
      sum = c.g.add(n.op, {x, n.args[1]}, n.type);
    }
    c.output(sum);
    return contract::lower(request_of(c)).ok();
  };
  const IntegerImage image{8, 8, 4, 4, 128};
  EXPECT_TRUE(is_lowered(image, false, 2, 2, true));
  EXPECT_FALSE(is_lowered(image, true, 2, 2, true));
  EXPECT_TRUE(is_lowered(image, false, 0, 2, true));  // exact, whatever accuracy is wanted
  EXPECT_FALSE(is_lowered(image, false, 4, 4, true));
  EXPECT_FALSE(is_lowered(image, false, 2, 2, false));
  // A result four times as large as 255 * 128 * 9 terms of so many channels leaves 32 bits.
  EXPECT_TRUE(is_lowered({1824, 8, 4, 4, 0}, false, 2, 2, true));
  EXPECT_FALSE(is_lowered({1832, 8, 4, 4, 0}, false, 2, 2, true));
}

}  // namespace
}  // namespace heddle::lower
