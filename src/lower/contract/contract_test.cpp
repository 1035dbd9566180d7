#include "lower/contract/invert.h"
#include "lower/contract/schedule.h"
#include "lower/contract/test_util.h"

namespace heddle::lower {
namespace {

TEST(Invert, Rearrangements) {
  const ir::Expr a{ir::Var{0}}, b{ir::Var{1}}, c{ir::Var{2}};
  const ir::Expr x{ir::Var{10}}, y{ir::Var{11}};
  // [12,128,64] seen in [128,768]: (b, a*64+c).
  auto heads = contract::invert({b, a * ir::Expr(64) + c}, {12, 128, 64}, {128, 768}, {x, y});
  ASSERT_TRUE(heads);
  EXPECT_EQ((*heads)[0], ir::floor_div(y, 64));
  EXPECT_EQ((*heads)[1], x);
  EXPECT_EQ((*heads)[2], ir::floor_mod(y, 64));
  // [128,768] seen in [12,128,64]: (b/64, a, b%64).
  const ir::Expr z{ir::Var{12}};
  auto rows = contract::invert({ir::floor_div(b, 64), a, ir::floor_mod(b, 64)}, {128, 768},
                               {12, 128, 64}, {x, y, z});
  ASSERT_TRUE(rows);
  EXPECT_EQ((*rows)[0], y);
  EXPECT_EQ((*rows)[1], x * ir::Expr(64) + z);
  // A broadcast is no bijection, nor is a diagonal.
  EXPECT_FALSE(contract::invert({a}, {4, 3}, {4}, {x}));
  EXPECT_FALSE(contract::invert({a, a}, {4}, {4, 4}, {x, y}));
}

TEST(Contract, Matmul) {
  for (const auto& [m, n, k] : {std::array{1, 16, 40},
                                {1, 37, 19},
                                {5, 16, 7},
                                {13, 40, 33},
                                {64, 24, 10},
                                {7, 100, 3},
                                {30, 9, 50}}) {
    for (bool constant : {true, false}) {
      Case c;
      const NodeId x = c.input({m, k});
      const NodeId w = constant ? c.constant({k, n}) : c.input({k, n});
      c.output(c.b.matmul(x, w));
      SCOPED_TRACE(fmt::format("{}x{}x{} {}", m, n, k, constant));
      ASSERT_NO_FATAL_FAILURE(check(c));
    }
  }
}

TEST(Contract, TransposedOperands) {
  for (int which = 0; which < 8; ++which) {
    Case c;
    const bool ta = which & 1, tb = which & 2, constant = which & 4;
    NodeId x = c.input(ta ? Shape{11, 13} : Shape{13, 11});
    NodeId w = tb ? (constant ? c.constant({20, 11}) : c.input({20, 11}))
                  : (constant ? c.constant({11, 20}) : c.input({11, 20}));
    if (ta) x = c.b.transpose(x, {1, 0});
    if (tb) w = c.b.transpose(w, {1, 0});
    c.output(c.b.matmul(x, w));
    SCOPED_TRACE(which);
    ASSERT_NO_FATAL_FAILURE(check(c));
  }
}

TEST(Contract, ConstantOnTheLeft) {
  Case c;
  c.output(c.b.matmul(c.constant({24, 9}), c.input({9, 5})));
  ASSERT_NO_FATAL_FAILURE(check(c));
}

TEST(Contract, BatchedAttention) {
  // q·kᵀ and p·v on [batch, sequence, heads·width] memory, all through views.
  Case c;
  const NodeId q = c.input({2, 9, 12}), k = c.input({2, 9, 12});
  const NodeId heads_q = c.b.transpose(c.b.reshape(q, {2, 9, 3, 4}), {0, 2, 1, 3});
  const NodeId heads_k = c.b.transpose(c.b.reshape(k, {2, 9, 3, 4}), {0, 2, 3, 1});
  c.output(c.b.mul(c.b.matmul(heads_q, heads_k), 0.5));
  ASSERT_NO_FATAL_FAILURE(check(c));
  Case d;
  const NodeId p = d.input({2, 3, 9, 9}), v = d.input({2, 9, 24});
  const NodeId heads_v = d.b.transpose(d.b.reshape(v, {2, 9, 3, 8}), {0, 2, 1, 3});
  const NodeId out = d.b.matmul(p, heads_v);
  d.output(d.b.reshape(d.b.transpose(out, {0, 2, 1, 3}), {2, 9, 24}));
  ASSERT_NO_FATAL_FAILURE(check(d));
}

TEST(Contract, Convolutions) {
  struct Row {
    Shape x, w;
    Builder::Conv conv;
  };
  auto asymmetric = conv(2, 2, 0);
  asymmetric.pads_begin = {0, 2};
  asymmetric.pads_end = {3, 1};
  const Row rows[] = {
      {{1, 5, 17}, {12, 5, 3}, conv(1, 1, 1)},
      {{2, 4, 9, 7}, {8, 4, 3, 3}, conv(2, 1, 1)},
      {{1, 6, 8, 8}, {10, 6, 1, 1}, conv(2, 1, 0)},
      {{1, 6, 9, 9}, {16, 6, 1, 1}, conv(2, 2, 0)},
      {{1, 3, 15, 15}, {8, 3, 7, 7}, conv(2, 2, 3)},
      {{1, 4, 12, 12}, {8, 4, 3, 3}, conv(2, 1, 2, 2)},
      {{2, 6, 7, 7}, {12, 3, 3, 3}, conv(2, 1, 1, 1, 2)},
      {{1, 4, 8, 11}, {9, 4, 3, 2}, asymmetric},
      {{1, 5, 4, 4}, {12, 5, 3, 3}, conv(2, 1, 1)},
      {{2, 4, 9, 3}, {17, 4, 3, 2}, conv(2, 1, 1)},
      {{1, 2, 19, 23}, {24, 2, 7, 7}, conv(2, 4, 3)},
      {{1, 3, 9, 8}, {8, 3, 3, 3}, conv(2, 1, 6, 6)},
      {{2, 3, 4, 17}, {8, 3, 5, 3}, conv(2, 1, 3)},
      {{1, 3, 5, 6, 4}, {8, 3, 3, 3, 3}, conv(3, 1, 1)},
  };
  for (const Row& row : rows)
    for (bool channels_last : {false, true}) {
      Case c;
      const NodeId x = c.input(row.x);
      if (channels_last) {
        std::vector<int> order{0};
        for (std::size_t d = 2; d < row.x.size(); ++d) order.push_back(static_cast<int>(d));
        order.push_back(1);
        c.layouts[x] = ordered(row.x, order);
      }
      c.row_major_outputs = !channels_last;
      c.output(c.b.conv(x, c.constant(row.w), row.conv));
      SCOPED_TRACE(fmt::format("{} {} {}", to_string(row.x), to_string(row.w), channels_last));
      ASSERT_NO_FATAL_FAILURE(check(c));
    }
}

/// Channels-last operands, tiles that do not divide the image, every part of the epilogue.
TEST(Contract, WinogradConvolutions) {
  struct Row {
    Shape x;
    std::int64_t filters, pad;
    Tuning tuning;
  };
  const Row rows[] = {
      {{1, 8, 8, 8}, 16, 1, {}},
      {{1, 16, 7, 9}, 24, 1, {}},
      {{2, 8, 10, 6}, 8, 0, {}},
      {{1, 8, 13, 14}, 40, 1, {{"rows", 4}, {"panels", 1}}},
      {{1, 24, 5, 5}, 40, 2, {{"rows", 4}, {"mr", 3}, {"nv", 2}, {"panels", 2}}},
      {{1, 8, 9, 31}, 16, 1, {{"rows", 4}, {"columns", 4}}},
      {{1, 8, 13, 34}, 24, 0, {{"rows", 12}, {"columns", 5}, {"panels", 1}}},  // four
      {{1, 8, 16, 32}, 16, 1, {{"rows", 16}, {"columns", 1}}},  // places a power of two apart
  };
  for (const std::int64_t m : {2, 4})
    for (const Row& row : rows) {
      Case c;
      c.target.winograd = 4;
      c.tuning = row.tuning;
      c.tuning.emplace_back("winograd", m);
      const NodeId x = c.input(row.x);
      c.layouts[x] = ordered(row.x, {0, 2, 3, 1});
      const NodeId w = c.constant({row.filters, row.x[1], 3, 3});
      const NodeId y = c.b.conv(c.b.mul(x, 0.5), w, conv(2, 1, row.pad));
      const NodeId bias = c.b.broadcast(c.constant({1, row.filters, 1, 1}), c.b.shape(y));
      const NodeId rest = c.input(c.b.shape(y));
      const NodeId sum = c.b.add(c.b.add(y, bias), rest);
      c.output(sum);
      c.output(c.b.relu(sum));
      SCOPED_TRACE(fmt::format("{} -> {} pad {} m {}", to_string(row.x), row.filters, row.pad, m));
      ASSERT_NO_FATAL_FAILURE(check(c));
      EXPECT_TRUE(c.schedule.starts_with(fmt::format("winograd F({0}x{0}", m))) << c.schedule;
      const bool blocks = contract::pinned(row.tuning, "columns").value_or(1) > 1;
      EXPECT_EQ(c.schedule.find("columns=1/4") != std::string::npos, blocks) << c.schedule;
    }
}

/// Planes are further channels: windows of three, two and five of them, as memory has them or
/// channels-last, of f32, bf16 and bytes.
TEST(Contract, WinogradOfVolumes) {
  struct Row {
    Shape x, w;
    std::int64_t m;
    DType type = DType::f32;
    bool channels_last = true;
    std::int64_t pad = 1;
  };
  const Row rows[] = {{{1, 8, 4, 7, 9}, {16, 8, 3, 3, 3}, 2},
                      {{1, 8, 4, 7, 9}, {16, 8, 3, 3, 3}, 4, DType::f32, false},
                      {{2, 16, 3, 8, 6}, {24, 16, 2, 3, 3}, 4},
                      {{1, 8, 6, 12, 5}, {8, 8, 5, 3, 3}, 4},
                      {{1, 8, 4, 7, 9}, {16, 8, 3, 3, 3}, 4, DType::f32, true, 0},
                      {{1, 16, 3, 7, 9}, {16, 16, 3, 3, 3}, 2, DType::bf16},
                      {{1, 16, 3, 7, 9}, {16, 16, 3, 3, 3}, 2, DType::i16}};
  for (const Row& row : rows) {
    Case c;
    c.target.bf16_pairs = true;
    c.tuning = {{"winograd", row.m}};
    if (row.type == DType::bf16) c.tolerance = 0.1;
    const NodeId x = c.input(row.x, row.type == DType::i16 ? DType::u8 : row.type);
    if (row.channels_last) c.layouts[x] = ordered(row.x, {0, 2, 3, 4, 1});
    if (row.type == DType::i16) {
      const NodeId w = c.constant(row.w, DType::i8), narrow = c.b.cast(x, DType::i16);
      const prim::Node n = c.g[c.b.conv(narrow, c.b.cast(w, DType::i16), conv(3, 1, 1))];
      c.output(c.g.add(n.op, {narrow, w}, {DType::i32, n.type.shape}));
    } else {
      c.output(c.b.relu(c.b.conv(x, c.constant(row.w, row.type), conv(3, 1, row.pad))));
    }
    SCOPED_TRACE(fmt::format("{} * {} m {}", to_string(row.x), to_string(row.w), row.m));
    ASSERT_NO_FATAL_FAILURE(check(c));
    EXPECT_TRUE(c.schedule.starts_with(fmt::format("winograd F({0}x{0}", row.m))) << c.schedule;
  }
}

/// A line of taps over planes that are too many for the second-level cache once they are copied:
/// tasks are parts of a plane.
TEST(Contract, PlanesOfALineOfTaps) {
  for (const std::int64_t stride : {1, 2}) {
    Case c;
    c.target.l2_bytes = 1 << 14;
    const NodeId x = c.input({1, 8, 6, 9, 11}), w = c.constant({16, 8, 3, 1, 1});
    Builder::Conv geometry = conv(3, 1, 0);
    geometry.strides = {stride, 1, 1};
    geometry.pads_begin = geometry.pads_end = {1, 0, 0};
    c.output(c.b.relu(c.b.conv(x, w, geometry)));
    c.layouts[x] = ordered(c.b.shape(x), {0, 2, 3, 4, 1});
    ASSERT_NO_FATAL_FAILURE(check(c));
    EXPECT_NE(c.schedule.find("rows=1 "), std::string::npos) << c.schedule;
    EXPECT_NE(c.schedule.find("a=matrix"), std::string::npos) << c.schedule;
  }
}

TEST(Contract, AlgorithmsOfAConvolution) {
  const auto count = [](std::int64_t channels, std::int64_t kernel, std::int64_t stride,
                        int largest) {
    Case c;
    c.target.winograd = largest;
    const NodeId x = c.input({1, channels, 20, 20});
    const NodeId w = c.constant({16, channels, kernel, kernel});
    const auto all = contract::algorithms(c.g, c.b.conv(x, w, conv(2, stride, 1)), c.target);
    EXPECT_EQ(all[0].work, 1);
    for (std::size_t i = 1; i < all.size(); ++i) {
      EXPECT_LT(all[i].work, all[i - 1].work);
      EXPECT_GT(all[i].constant_bytes, all[i - 1].constant_bytes);
    }
    return all.size();
  };
  EXPECT_EQ(count(16, 3, 1, 4), 3U);
  EXPECT_EQ(count(16, 3, 1, 2), 2U);
  EXPECT_EQ(count(16, 3, 1, 0), 1U);
  EXPECT_EQ(count(16, 3, 2, 4), 1U);
  EXPECT_EQ(count(16, 5, 1, 4), 1U);
  EXPECT_EQ(count(3, 3, 1, 4), 1U);
}

TEST(Contract, WinogradOfBf16) {
  for (const std::int64_t m : {2, 4})
    for (const std::int64_t size : {7, 12}) {
      Case c;
      c.target.bf16_pairs = true;
      c.tuning = {{"winograd", m}};
      c.tolerance = m == 2 ? 0.1 : 0;  // results are of size 10; what is transformed is rounded
      const NodeId x = c.input({1, 16, size, size + 2}, DType::bf16);
      c.layouts[x] = ordered(c.g[x].type.shape, {0, 2, 3, 1});
      c.output(c.b.relu(c.b.conv(x, c.constant({24, 16, 3, 3}, DType::bf16), conv(2, 1, 1))));
      ASSERT_NO_FATAL_FAILURE(check(c));
      EXPECT_EQ(c.schedule.starts_with("winograd"), true) << c.schedule;
      const auto lowered = contract::lower(request_of(c));
      EXPECT_EQ(kernel::to_string(lowered->kernel).find("bitcast") != std::string::npos, m == 2);
    }
}

TEST(Contract, WinogradOnlyWhereItApplies) {
  const auto refused = [](Case& c, NodeId x, NodeId y) {
    c.layouts[x] = ordered(c.g[x].type.shape, {0, 2, 3, 1});
    c.tuning = {{"winograd", 2}};
    c.output(y);
    return !contract::lower(request_of(c)).ok();
  };
  struct Row {
    std::int64_t channels, filters, kernel, stride, dilation, groups;
    int largest;
    bool refused;
  };
  for (const Row& row : {Row{8, 8, 3, 1, 1, 1, 2, false}, Row{8, 8, 3, 1, 1, 1, 0, true},
                         Row{4, 8, 3, 1, 1, 1, 2, true}, Row{8, 12, 3, 1, 1, 1, 2, true},
                         Row{8, 8, 5, 1, 1, 1, 2, true}, Row{8, 8, 3, 2, 1, 1, 2, true},
                         Row{8, 8, 3, 1, 2, 1, 2, true}, Row{16, 16, 3, 1, 1, 2, 2, true}}) {
    Case c;
    c.target.winograd = row.largest;
    const NodeId x = c.input({1, row.channels, 10, 10});
    const NodeId w = c.constant({row.filters, row.channels / row.groups, row.kernel, row.kernel});
    const NodeId y = c.b.conv(x, w, conv(2, row.stride, 1, row.dilation, row.groups));
    EXPECT_EQ(refused(c, x, y), row.refused)
        << row.channels << " " << row.filters << " " << row.kernel << " " << row.stride;
  }
}

/// Without dilation, strides make plain convolutions of them.
TEST(Contract, TransposedConvolution) {
  for (std::int64_t groups : {1, 2}) {
    Case c;
    const NodeId x = c.input({1, 4, 5, 5});
    c.output(c.b.conv_transpose(x, c.constant({4, 8 / groups, 3, 3}), conv(2, 2, 1, 2, groups),
                                {11, 11}));
    ASSERT_NO_FATAL_FAILURE(check(c));
  }
}

/// Whole vectors of channels: a batch of phases, with an epilogue.
TEST(Contract, TransposedConvolutionByPhases) {
  struct Row {
    std::int64_t in, kernel, stride, pad, dilation, out;
  };
  for (const Row& row : {Row{4, 4, 2, 1, 1, 8}, Row{5, 3, 2, 1, 1, 10}, Row{4, 5, 3, 2, 2, 15}}) {
    Case c;
    const NodeId x = c.input({1, 12, row.in, row.in});
    const NodeId y =
        c.b.conv_transpose(x, c.constant({12, 16, row.kernel, row.kernel}),
                           conv(2, row.stride, row.pad, row.dilation, 1), {row.out, row.out});
    c.output(c.b.relu(y));
    ASSERT_NO_FATAL_FAILURE(check(c)) << row.stride;
  }
}

TEST(Contract, Epilogues) {
  for (int which = 0; which < 6; ++which) {
    Case c;
    const NodeId x = c.input({14, 10}), w = c.constant({10, 21});
    NodeId y = c.b.add(c.b.matmul(x, w), c.b.broadcast(c.constant({21}), {14, 21}));
    if (which == 1) y = c.b.relu(y);
    if (which == 2) y = gelu(c.b, y);
    if (which == 3) y = c.b.add(gelu(c.b, y), c.input({14, 21}));
    if (which == 4) y = c.b.transpose(c.b.reshape(y, {14, 3, 7}), {1, 0, 2});
    if (which == 5) {
      c.output(y);
      c.output(gelu(c.b, y));
      y = c.b.mul(y, c.input({14, 1}));
    }
    c.output(y);
    for (bool row_major : {false, true}) {
      c.row_major_outputs = row_major;
      SCOPED_TRACE(which);
      ASSERT_NO_FATAL_FAILURE(check(c));
    }
  }
}

TEST(Contract, ConvolutionWithResidual) {
  Case c;
  const NodeId x = c.input({1, 8, 6, 6}), r = c.input({1, 16, 6, 6});
  c.layouts[x] = ordered({1, 8, 6, 6}, {0, 2, 3, 1});
  c.layouts[r] = ordered({1, 16, 6, 6}, {0, 2, 3, 1});
  const NodeId bias = c.b.broadcast(c.b.reshape(c.constant({16}), {1, 16, 1, 1}), {1, 16, 6, 6});
  const NodeId y = c.b.add(c.b.conv(x, c.constant({16, 8, 3, 3}), conv(2, 1, 1)), bias);
  c.output(c.b.relu(c.b.add(y, r)));
  ASSERT_NO_FATAL_FAILURE(check(c));
}

TEST(Contract, Prologues) {
  // An affine activation before a convolution, a scale before a matmul, a computed vector side.
  Case c;
  const NodeId x = c.input({1, 4, 6, 6});
  const NodeId scale = c.b.broadcast(c.b.reshape(c.constant({4}), {1, 4, 1, 1}), {1, 4, 6, 6});
  c.output(c.b.conv(c.b.relu(c.b.mul(x, scale)), c.constant({8, 4, 3, 3}), conv(2, 1, 1)));
  ASSERT_NO_FATAL_FAILURE(check(c));
  Case d;
  const NodeId u = d.input({9, 12}), v = d.input({12, 17});
  d.output(d.b.matmul(d.b.exp(u), d.b.tanh(v)));
  ASSERT_NO_FATAL_FAILURE(check(d));
}

TEST(Contract, ConvolutionOfComposedViews) {
  // Reflected padding, nearest upsampling and a concatenation are read through by index.
  const ir::Expr y{ir::Var{2}}, x{ir::Var{3}}, n{ir::Var{0}}, ch{ir::Var{1}};
  const auto reflect = [](const ir::Expr& e, std::int64_t extent) {
    const ir::Expr up = ir::max(e, ir::Expr(0) - e);
    return ir::min(up, ir::Expr(2 * extent - 2) - up);
  };
  Case c;
  NodeId v = c.input({1, 5, 7, 8});
  v = c.b.view(v, {1, 5, 9, 10},
               {{n, ch, reflect(y - ir::Expr(1), 7), reflect(x - ir::Expr(1), 8)}, {}});
  c.output(c.b.conv(v, c.constant({9, 5, 3, 3}), conv(2, 1, 0)));
  ASSERT_NO_FATAL_FAILURE(check(c));
  EXPECT_NE(c.schedule.find("a=box"), std::string::npos) << c.schedule;
  Case d;
  NodeId u = d.input({1, 6, 5, 4});
  u = d.b.view(u, {1, 6, 10, 8}, {{n, ch, ir::floor_div(y, 2), ir::floor_div(x, 2)}, {}});
  d.output(d.b.conv(u, d.constant({8, 6, 3, 3}), conv(2, 1, 1)));
  ASSERT_NO_FATAL_FAILURE(check(d));
  Case e;
  const NodeId joined = e.b.concat({e.input({1, 16, 6, 6}), e.input({1, 8, 6, 6})}, 1);
  e.output(e.b.conv(joined, e.constant({8, 24, 1, 1}), conv(2, 1, 0)));
  ASSERT_NO_FATAL_FAILURE(check(e));
}

TEST(Contract, RowsThatRunAcrossMemory) {
  // A pointwise convolution of NCHW memory: reductions are far apart.
  for (std::int64_t batch : {1, 2}) {
    Case c;
    c.target.threads = 2;
    c.target.l2_bytes = 4096;
    c.output(c.b.conv(c.input({batch, 40, 5, 7}), c.constant({20, 40, 1, 1}), conv(2, 1, 0)));
    ASSERT_NO_FATAL_FAILURE(check(c));
    EXPECT_NE(c.schedule.find("a=tiles"), std::string::npos) << c.schedule;
  }
}

TEST(Contract, Types) {
  for (DType type : {DType::f64, DType::f16, DType::bf16, DType::i32, DType::i64})
    for (bool constant : {false, true}) {
      Case c;
      const NodeId x = c.input({9, 11}, type);
      c.output(c.b.matmul(x, constant ? c.constant({11, 19}, type) : c.input({11, 19}, type)));
      SCOPED_TRACE(name_of(type));
      ASSERT_NO_FATAL_FAILURE(check(c));
    }
}

TEST(Contract, NarrowIntegersAccumulateWide) {
  for (bool constant : {false, true}) {
    Case c;
    const NodeId x = c.input({6, 9}, DType::u8);
    const NodeId w = constant ? c.constant({9, 18}, DType::i8) : c.input({9, 18}, DType::i8);
    const ir::Expr m{ir::Var{0}}, n{ir::Var{1}}, k{ir::Var{2}};
    c.output(c.b.contract(x, w, {6, 18}, {9}, {{m, k}, {}}, {{k, n}, {}}, DType::i32));
    ASSERT_NO_FATAL_FAILURE(check(c));
  }
}

TEST(Contract, TuningSpaceIsValid) {
  Case c;
  c.output(c.b.conv(c.input({1, 8, 12, 12}), c.constant({40, 8, 3, 3}), conv(2, 1, 1)));
  const auto space = contract::tuning_space(request_of(c));
  ASSERT_GE(space.size(), 4u);
  for (const Tuning& t : space) {
    c.tuning = t;
    ASSERT_NO_FATAL_FAILURE(check(c));
  }
}

TEST(Contract, WideVectors) {
  Case c;
  c.target.vector_bytes = 64;
  c.target.vector_registers = 32;
  c.output(c.b.matmul(c.input({30, 20}), c.constant({20, 70})));
  ASSERT_NO_FATAL_FAILURE(check(c));
}

/// Operands that lie transposed (a weight's gradient, products with transposed weights), with rows,
/// columns and terms that fill no whole vector or block.
TEST(Contract, OperandsAcrossMemory) {
  for (const auto& [m, n, k] : {std::array{33, 35, 40}, {20, 50, 16}, {50, 64, 37}, {64, 48, 96}})
    for (const int bytes : {32, 64})
      for (const bool both : {false, true}) {
        Case c;
        c.target.vector_bytes = bytes;
        c.target.vector_registers = bytes / 2;
        const NodeId x = both ? c.b.transpose(c.input({k, m}), {1, 0}) : c.input({m, k});
        c.output(c.b.relu(c.b.matmul(x, c.b.transpose(c.input({n, k}), {1, 0}))));
        ASSERT_NO_FATAL_FAILURE(check(c)) << m << "x" << n << "x" << k;
      }
}

TEST(Contract, Refuses) {
  Case c;  // a broadcast of the result
  const NodeId y = c.b.matmul(c.input({8, 8}), c.constant({8, 16}));
  c.output(c.b.broadcast(c.b.reshape(y, {8, 1, 16}), {8, 3, 16}));
  EXPECT_FALSE(contract::supports(c.g, request_of(c).cluster, c.target));
  EXPECT_FALSE(contract::lower(request_of(c)).ok());
  Case d;  // depthwise: nothing for vectors to run along
  d.output(d.b.conv(d.input({1, 8, 6, 6}), d.constant({8, 1, 3, 3}), conv(2, 1, 1, 1, 8)));
  EXPECT_FALSE(contract::supports(d.g, request_of(d).cluster, d.target));
}

TEST(ContractFuzz, RandomShapes) {
  std::random_device device;
  const unsigned seed = device();
  std::mt19937 random(seed);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution(low, high)(random);
  };
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(3);
  for (int i = 0; std::chrono::steady_clock::now() < deadline; ++i) {
    Case c;
    c.random.seed(random());
    c.target.threads = pick(1, 4);
    if (pick(0, 1)) c.target.vector_bytes = 64, c.target.vector_registers = 32;
    c.target.tiles = c.target.vector_bytes == 64 && pick(0, 1);
    c.target.l2_bytes = pick(0, 1) ? 4096 : 512 << 10;
    std::string what;
    if (pick(0, 1)) {
      const int m = pick(1, 40), n = pick(4, 60), k = pick(2, 40), batch = pick(1, 3);
      const NodeId x = c.input({batch, m, k});
      const NodeId w = pick(0, 1) ? c.constant({k, n}) : c.input({batch, k, n});
      what = fmt::format("matmul {} {}x{}x{}", batch, m, n, k);
      c.output(c.b.relu(c.b.matmul(x, w)));
    } else {
      const int groups = pick(1, 2), ci = groups * pick(1, 5), co = groups * pick(4, 20);
      const int kh = pick(1, 4), kw = pick(1, 4), h = pick(5, 12), w = pick(5, 14);
      auto p = conv(2, pick(1, 3), 0, pick(1, 2), groups);
      p.pads_begin = {pick(0, 2), pick(0, 2)};
      p.pads_end = {pick(0, 2), pick(0, 2)};
      p.strides[1] = pick(1, 2);
      if (p.dilations[0] * (kh - 1) + 1 > h || p.dilations[0] * (kw - 1) + 1 > w) continue;
      const Shape shape{pick(1, 2), ci, h, w};
      const NodeId x = c.input(shape);
      if (pick(0, 1)) c.layouts[x] = ordered(shape, {0, 2, 3, 1});
      c.row_major_outputs = pick(0, 1);
      what = fmt::format("conv {} -> {} {}x{}", to_string(shape), co, kh, kw);
      c.output(c.b.relu(c.b.conv(x, c.constant({co, ci / groups, kh, kw}), p)));
    }
    if (!contract::supports(c.g, request_of(c).cluster, c.target)) continue;
    SCOPED_TRACE(fmt::format("seed {} case {}: {}", seed, i, what));
    ASSERT_NO_FATAL_FAILURE(check(c));
  }
}

/// So that the next kernel finds them there, and so that what each task writes can be told apart.
TEST(Schedule, LargeResultsAreCutIntoEqualTasksThatStayInTheCache) {
  contract::Extents e;
  e.tile = 112 * 112, e.n = 96, e.k = 16, e.a_row_bytes = 64;
  Target t;
  t.vector_bytes = 64, t.vector_registers = 32, t.l2_bytes = 1 << 20, t.threads = 2;
  const auto cut = contract::schedules(e, t, 16, {}, {}, 1).at(0);
  EXPECT_EQ(cut.tiles() % cut.tiles_per_task, 0);
  EXPECT_EQ(cut.tiles() / cut.tiles_per_task % t.threads, 0);
  EXPECT_LE(cut.tiles_per_task * cut.mr * (16 + 96) * 4, t.l2_bytes / 4);
  const auto asked = contract::schedules(e, t, 16, {}, {{"tiles", 448}}, 1).at(0);
  EXPECT_EQ(asked.tiles_per_task, 448);
  e.k = 1024, e.a_row_bytes = 4096;  // its columns would come from the second level for each task
  const auto wide = contract::schedules(e, t, 16, {}, {}, 1).at(0);
  EXPECT_GT(wide.tiles_per_task * wide.mr * (1024 + 96) * 4, t.l2_bytes / 4);
}

/// A row's results are written out, and those of a long epilogue spill.
TEST(Schedule, LongEpiloguesHaveNarrowTiles) {
  contract::Extents e;
  e.outer = 8, e.tile = 128 * 128, e.n = 256, e.k = 32, e.a_row_bytes = 128;
  Target t;
  t.vector_bytes = 64, t.vector_registers = 32, t.l2_bytes = 1 << 20;
  for (const double epilogue : {25, 62}) {
    e.epilogue = epilogue;
    const std::vector<contract::Schedule> all = contract::schedules(e, t, 16, {}, {}, 1000);
    const auto place_of = [&](std::int64_t nv) {
      return std::ranges::find(all, nv, &contract::Schedule::nv) - all.begin();
    };
    EXPECT_EQ(place_of(8) > place_of(1), epilogue == 62) << epilogue;
  }
}

/// Else rows that lie a multiple of a way apart take each other's lines.
TEST(Schedule, TilesHaveNoMoreRowsThatShareSetsThanWays) {
  contract::Extents e;
  e.tile = 14 * 14, e.n = 1024, e.k = 512, e.a_row_bytes = 2048;
  Target t;
  t.vector_bytes = 64, t.vector_registers = 32, t.l1_bytes = 32 << 10;
  for (const auto& [apart, most] :
       {std::pair{4096, 8}, {8192, 8}, {2048, 14}, {4160, 14}, {0, 14}}) {
    e.a_apart = apart;
    const contract::Schedule s = contract::schedules(e, t, 16, {}, {}, 1).at(0);
    EXPECT_LE(s.mr, most) << apart;
    EXPECT_EQ(s.mr > 8, most > 8) << apart;
  }
}

}  // namespace
}  // namespace heddle::lower
