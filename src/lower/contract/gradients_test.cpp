#include "lower/contract/test_util.h"

namespace heddle::lower {
namespace {

/// Odd channels, a stride, an even window; at least 4096 positions.
const FilterGradient kGradients[] = {
    {4, 3, 20, 34, 37, 3, 1, 1},
    {4, 2, 16, 64, 65, 3, 2, 1},
    {9, 4, 7, 23, 24, 2, 1, 1},
};

TEST(FilterGradient, TapsAreTheRowsOfOneTile) {
  for (const FilterGradient& row : kGradients) {
    SCOPED_TRACE(fmt::format("{} to {} channels", row.in, row.out));
    Case c;
    c.output(filter_gradient(c, row));
    ASSERT_NO_FATAL_FAILURE(check(c));
    EXPECT_NE(c.schedule.find("rows=1 "), std::string::npos) << c.schedule;
    EXPECT_NE(c.schedule.find("a=box b=phase-packed"), std::string::npos) << c.schedule;
  }
}

/// Over few positions the taps are no rows of one tile: filters under strides, whose windows begin
/// outside the image.
TEST(FilterGradient, OfFewPositions) {
  for (const FilterGradient& row :
       {FilterGradient{2, 3, 16, 16, 17, 3, 2, 1}, FilterGradient{1, 5, 7, 9, 11, 3, 2, 1},
        FilterGradient{3, 2, 9, 13, 10, 4, 3, 2}, FilterGradient{2, 3, 16, 12, 15, 3, 1, 1}})
    for (const int bytes : {16, 32, 64})
      for (const int last : {0, 1, 2, 3}) {  // whose channels lie last
        SCOPED_TRACE(fmt::format("{}x{}, {} taps, stride {}, {} bytes, {}", row.height, row.width,
                                 row.taps, row.stride, bytes, last));
        Case c;
        c.target.vector_bytes = bytes;
        if (last == 3) c.tuning = {{"mr", 3}, {"nv", 2}, {"panels", 1}};
        const NodeId gradient = filter_gradient(c, row, last >= 2);
        for (const std::size_t side : {0, 1}) {
          const NodeId arg = c.g[gradient].args[side];
          if (last >> side & 1) c.layouts[arg] = ordered(c.g[arg].type.shape, {0, 2, 3, 1});
        }
        c.output(gradient);
        ASSERT_NO_FATAL_FAILURE(check(c));
      }
}

/// The update of the weights rides in the epilogue, in their own layout.
TEST(FilterGradient, WithAnUpdate) {
  const FilterGradient row = kGradients[0];
  Case c;
  const NodeId gradient = filter_gradient(c, row);
  const NodeId weight = c.input({row.out, row.in, row.taps, row.taps});
  c.output(c.b.sub(weight, c.b.mul(gradient, 0.01)));
  ASSERT_NO_FATAL_FAILURE(check(c));
  EXPECT_NE(c.schedule.find("a=box"), std::string::npos) << c.schedule;
}

/// Axes of columns that chain in the result but not in the operand that they read, and do not end
/// in the innermost: a strided transposed convolution in which the filter is the rows.
TEST(Columns, AxesOfTasksStayApart) {
  for (const bool bias : {false, true}) {
    Case c;
    const std::int64_t images = 3, rows = 13, phases = 2, m = 8, columns = 21, k = 12;
    const Shape shape = {images, rows, phases, m, columns};
    const NodeId w = c.input({phases, m, k}), x = c.input({images, k, rows, columns});
    const ir::Expr row = ir::Expr(ir::Var{1}) - ir::Expr(1);
    NodeId y =
        c.b.contract(w, x, shape, {k}, {{ir::Var{2}, ir::Var{3}, ir::Var{5}}, {}},
                     {{ir::Var{0}, ir::Var{5}, row, ir::Var{4}}, {{row, 0, rows}}}, DType::f32);
    if (bias) y = c.b.relu(c.b.add(y, c.b.broadcast(c.input({m, 1}), shape)));
    c.output(y);
    c.row_major_outputs = true;
    ASSERT_NO_FATAL_FAILURE(check(c));
  }
}

/// Filters that are computed, as they are and reflected with the channels exchanged (the gradient
/// of the input): transformed in a phase of the kernel. Several panels, the last not whole; tasks
/// of half the columns.
TEST(Convolution, WinogradOfFiltersThatAreComputed) {
  for (const std::int64_t m : {2, 4})
    for (const bool gradient : {false, true}) {
      SCOPED_TRACE(fmt::format("F({0}x{0}) gradient {1}", m, gradient));
      Case c;
      c.target.winograd = 4;
      c.tuning = {{"winograd", m}, {"mr", 3}, {"nv", 2}, {"columns", 2}, {"panels", 1}};
      const std::int64_t from = 16, to = 24, height = 9, width = 8;
      const NodeId x = c.input({2, from, height, width});
      c.layouts[x] = ordered(c.g[x].type.shape, {0, 2, 3, 1});
      const auto v = [](int i) { return ir::Expr(ir::Var{i}); };
      const ir::Expr y = v(2) + v(5) - 1, z = v(3) + v(6) - 1;
      const prim::Access image{{v(0), v(4), y, z}, {{y, 0, height}, {z, 0, width}}};
      const prim::Access filter =
          gradient ? prim::Access{{v(4), v(1), ir::Expr(2) - v(5), ir::Expr(2) - v(6)}, {}}
                   : prim::Access{{v(1), v(4), v(5), v(6)}, {}};
      const NodeId w = c.input(gradient ? Shape{from, to, 3, 3} : Shape{to, from, 3, 3});
      const NodeId out = c.b.relu(
          c.b.contract(x, w, {2, to, height, width}, {from, 3, 3}, image, filter, DType::f32));
      c.output(out);
      c.output(c.b.reduce_sum(out, {0, 2, 3}, false));
      ASSERT_NO_FATAL_FAILURE(check(c));
      EXPECT_TRUE(c.schedule.starts_with(fmt::format("winograd F({0}x{0}", m))) << c.schedule;
      EXPECT_NE(c.schedule.find("b=phase-packed"), std::string::npos) << c.schedule;
    }
}

/// A weight's gradient: the rows are copied as vectors, tile by tile, and what its update reads and
/// writes is asked for while the tile computes.
TEST(WeightGradient, CopiesTilesOfRowsAndFetchesTheWeight) {
  for (const auto& [terms, rows, columns] : {std::array{67, 37, 45}, {130, 64, 48}, {24, 130, 16}})
    for (const Tuning& tuning : {Tuning{}, {{"mr", 5}, {"nv", 2}, {"tiles", 3}, {"panels", 1}}})
      for (const bool scaled : {false, true}) {
        SCOPED_TRACE(fmt::format("{} terms, {} rows, {} columns", terms, rows, columns));
        Case c;
        c.tuning = tuning;
        NodeId x = c.input({terms, rows});
        if (scaled) x = c.b.mul(x, c.input({terms, 1}));
        const NodeId d = c.b.matmul(c.b.transpose(x, {1, 0}), c.input({terms, columns}));
        const NodeId weight = c.input({rows, columns}), mean = c.input({rows, columns});
        const NodeId next = c.b.add(c.b.mul(mean, 0.9), c.b.mul(d, 0.1));
        c.output(next);
        c.output(c.b.sub(weight, next));
        c.row_major_outputs = true;
        ASSERT_NO_FATAL_FAILURE(check(c));
        EXPECT_NE(c.schedule.find("a=tiles"), std::string::npos) << c.schedule;
        const std::string text = kernel::to_string(contract::lower(request_of(c))->kernel);
        EXPECT_NE(text.find("prefetch"), std::string::npos) << text;
      }
}

/// An operand that each task packs: what the next task reads comes while the tiles compute, along
/// the terms or along the columns, whichever lie next to each other.
TEST(Products, FetchTheNextTasksColumns) {
  for (const bool transposed : {false, true})
    for (const auto& [rows, terms, columns] : {std::array{67, 37, 200}, {130, 64, 192}}) {
      SCOPED_TRACE(fmt::format("{} rows, {} terms, {} columns", rows, terms, columns));
      Case c;
      c.tuning = {{"mr", 6}, {"nv", 2}, {"panels", 1}};
      const NodeId x = c.input({rows, terms});
      c.output(transposed ? c.b.matmul(x, c.b.transpose(c.input({columns, terms}), {1, 0}))
                          : c.b.matmul(x, c.input({terms, columns})));
      c.row_major_outputs = true;
      ASSERT_NO_FATAL_FAILURE(check(c));
      const std::string text = kernel::to_string(contract::lower(request_of(c))->kernel);
      const bool fetches = text.find("prefetch b0[") != std::string::npos ||
                           text.find("prefetch b1[") != std::string::npos;  // b2 is the result
      EXPECT_EQ(fetches, c.schedule.find("b=task-packed") != std::string::npos) << c.schedule;
      EXPECT_TRUE(fetches || !transposed) << c.schedule;
    }
}

/// A residual that another kernel made is asked for where it leaves the caches, as are the results.
TEST(Products, FetchResultsFromMemory) {
  for (const bool far : {false, true}) {
    Case c;
    c.target.l3_bytes = far ? 16 << 10 : 32 << 20;
    const NodeId x = c.input({60, 70}), residual = c.input({60, 48});
    const NodeId made = c.b.exp(residual),
                 y = c.b.relu(c.b.add(c.b.matmul(x, c.constant({70, 48})), made));
    c.output(c.b.neg(y));
    Request r = request_of(c);
    std::erase_if(r.cluster.nodes,
                  [&](NodeId id) { return id == made || id == c.g.outputs[0].node; });
    r.cluster.outputs = {y};
    const auto lowered = contract::lower(r);
    ASSERT_TRUE(lowered.ok()) << lowered.error().message;
    const std::string text = kernel::to_string(lowered->kernel);
    for (const char* hint : {"prefetch b1[", "prefetch b2["})  // the residual, the result
      EXPECT_EQ(text.find(hint) != std::string::npos, far) << text;
  }
}

/// Columns that no cache keeps are asked for: by a few rows themselves a little ahead, by more a
/// panel ahead with the page behind it, by many without. What the second-level cache keeps, few
/// rows only read.
TEST(Products, FetchConstantsFromMemory) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const std::int64_t rows : {1, 3, 24, 40})
      for (const bool kept : {false, true}) {
        SCOPED_TRACE(fmt::format("{} {} rows, kept {}", name_of(dtype), rows, kept));
        Case c;
        c.target.l1_bytes = 4 << 10;
        c.target.l2_bytes = kept ? 1 << 20 : 16 << 10;
        if (rows == 40) c.tuning = {{"mr", 4}, {"nv", 3}, {"tiles", 10}};  // all in one task
        const NodeId columns = c.b.constant(c.random_tensor({dtype, {130, 331}}));
        c.output(c.b.matmul(c.input({rows, 130}), c.b.cast(columns, DType::f32)));
        ASSERT_NO_FATAL_FAILURE(check(c));
        const std::string text = kernel::to_string(contract::lower(request_of(c))->kernel);
        const std::string hint = fmt::format("prefetch b{}[", text[text.find(" \"panels\"") - 1]);
        EXPECT_EQ(text.find(hint) != std::string::npos, rows > 16 || !kept) << text;
        EXPECT_EQ(text.find(" far") != std::string::npos, rows > 16) << text;
        EXPECT_EQ(text.find(" far page") != std::string::npos, rows == 24) << text;
      }
}

/// A panel of a constant that is less than a line of memory, and is fetched ahead all the same.
TEST(Products, FetchShortPanels) {
  Case c;
  c.target.vector_bytes = 16;
  c.output(c.b.matmul(c.input({70, 2}), c.b.constant(c.random_tensor({DType::f32, {2, 7}}))));
  ASSERT_NO_FATAL_FAILURE(check(c));
}

/// A bias' and a scale's gradient ride in the epilogue of the product that makes what they sum:
/// tiles of two sizes, partial vectors, several tasks, several row axes.
TEST(ColumnSums, InTheEpilogue) {
  const Tuning tunings[] = {{}, {{"mr", 3}, {"nv", 2}, {"panels", 1}, {"tiles", 2}}};
  for (const std::int64_t columns : {16, 21, 70})
    for (const Tuning& tuning : tunings) {
      Case c;
      c.tuning = tuning;
      const NodeId x = c.input({29, 18}), y = c.b.matmul(x, c.input({18, columns}));
      const NodeId z = c.b.mul(y, c.input({29, columns}));
      c.output(z);
      c.output(c.b.reduce_sum(z, {0}, false));
      c.output(c.b.reduce_sum(c.b.mul(z, c.input({29, columns})), {0}, false));
      SCOPED_TRACE(columns);
      ASSERT_NO_FATAL_FAILURE(check(c));
    }
  Case image;
  const NodeId x = image.input({3, 8, 7, 6});
  const NodeId y = image.b.conv(x, image.input({20, 8, 3, 3}), conv(2, 1, 1));
  image.output(y);
  image.output(image.b.reduce_sum(y, {0, 2, 3}, false));
  ASSERT_NO_FATAL_FAILURE(check(image));
}

/// A layer's statistics, and gradients of its scale, ride where the row is made: tiles of two
/// sizes, several panels and tasks, partial vectors, several row axes, one row, rows and columns at
/// once.
TEST(RowSums, InTheEpilogue) {
  const Tuning tunings[] = {
      {}, {{"mr", 3}, {"nv", 2}, {"panels", 1}, {"tiles", 2}}, {{"nv", 1}, {"panels", 2}}};
  for (const auto& [rows, columns] : {std::pair{29, 16}, {29, 21}, {64, 70}, {1, 100}, {17, 130}})
    for (const Tuning& tuning : tunings) {
      Case c;
      c.tuning = tuning;
      const NodeId y = c.b.matmul(c.input({rows, 18}), c.input({18, columns}));
      const NodeId z = c.b.add(y, c.input({rows, columns}));
      c.output(z);
      const NodeId wide = c.b.cast(z, DType::f64);
      c.output(c.b.reduce_sum(wide, {1}, false));
      c.output(c.b.reduce_sum(c.b.mul(wide, wide), {1}, false));
      if (rows > 1) c.output(c.b.reduce_sum(c.b.mul(z, c.input({rows, columns})), {0}, false));
      SCOPED_TRACE(fmt::format("{} x {}", rows, columns));
      ASSERT_NO_FATAL_FAILURE(check(c));
    }
  Case heads;
  const NodeId y = heads.b.matmul(heads.input({3, 5, 7, 24}), heads.input({24, 40}));
  heads.output(heads.b.transpose(y, {0, 2, 1, 3}));
  heads.output(heads.b.reduce_sum(y, {3}, false));
  ASSERT_NO_FATAL_FAILURE(check(heads));
}

/// Over the rows or along them, nothing but sums, and none that something in the kernel reads.
TEST(EpilogueSums, OverRowsOrAlongThem) {
  const auto supported = [](auto&& make) {
    Case c;
    const NodeId y = c.b.matmul(c.input({29, 18}), c.input({18, 32}));
    c.output(y);
    make(c, y);
    return contract::supports(c.g, request_of(c).cluster, c.target);
  };
  EXPECT_TRUE(supported([](Case& c, NodeId y) { c.output(c.b.reduce_sum(y, {0}, false)); }));
  EXPECT_TRUE(supported([](Case& c, NodeId y) { c.output(c.b.reduce_sum(y, {1}, false)); }));
  EXPECT_FALSE(supported([](Case& c, NodeId y) { c.output(c.b.reduce_sum(y, {0, 1}, false)); }));
  EXPECT_FALSE(supported([](Case& c, NodeId y) { c.output(c.b.reduce_max(y, {0})); }));
  EXPECT_FALSE(
      supported([](Case& c, NodeId y) { c.output(c.b.sqrt(c.b.reduce_sum(y, {0}, false))); }));
}

}  // namespace
}  // namespace heddle::lower
