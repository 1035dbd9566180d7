#include "kernel/traverse.h"
#include "lower/stitch/axes.h"
#include "lower/stitch/test_cases.h"

namespace heddle::lower {
namespace {

using cases::StitchCase;
using prim::Builder;

class Stitch : public testing::TestWithParam<StitchCase> {};

TEST_P(Stitch, AgreesWithTheReference) {
  std::mt19937 rng(7);
  for (int round = 0; round < 4; ++round) {
    prim::Graph g;
    Builder b(g);
    GetParam().build(g, b);
    CheckOptions options;
    options.random_layouts = round > 0;
    options.free_outputs = round % 2 == 1;
    options.target.threads = 2;
    if (round == 3) options.target.vector_bytes = 64;
    if (round >= 2) options.target.l3_bytes = 64;  // hints as for inputs past all caches
    ASSERT_EQ(check(g, rng, options), "") << GetParam().name << " round " << round;
  }
}

/// The same by blocks of threads; the kernel interpreter finds races between them.
TEST_P(Stitch, AgreesOnAGpu) {
  std::mt19937 rng(7);
  for (int round = 0; round < 4; ++round) {
    prim::Graph g;
    Builder b(g);
    GetParam().build(g, b);
    CheckOptions options;
    options.random_layouts = round > 0;
    options.free_outputs = round % 2 == 1;
    options.target = gpu_target(round < 3 ? 4 : 132);
    const std::string problem = check(g, rng, options);
    ASSERT_EQ(problem, "") << GetParam().name << " round " << round;
  }
}

/// Rows, and columns along the vectors, that tasks do not divide evenly; the kernel interpreter
/// finds elements that two tasks store.
TEST(Tasks, StoreElementsOfTheirOwn) {
  std::mt19937 rng(7);
  CheckOptions options;
  options.target.threads = 2;
  prim::Graph rows, columns;
  Builder r(rows), c(columns);
  cases::out(rows, r.softmax(cases::in(rows, {17, 2049}), {1}));
  cases::out(columns, c.reduce_sum(cases::in(columns, {400, 101}), {0}));
  EXPECT_EQ(check(rows, rng, options), "");
  EXPECT_EQ(check(columns, rng, options), "");
}

int hints_in(const kernel::Body& body) {
  int count = 0;
  kernel::for_each_stmt(body, [&](const kernel::Stmt& s) {
    count += std::holds_alternative<kernel::Prefetch>(s.op);
  });
  return count;
}

kernel::Kernel lowered(const prim::Graph& g, std::int64_t l3_bytes) {
  Request r;
  r.graph = &g;
  r.cluster = whole(g);
  r.target.l3_bytes = l3_bytes;
  return stitch::lower(r)->kernel;
}

TEST(Prefetch, TheNextRowWhereRowsAreReadTwice) {
  prim::Graph g;
  Builder b(g);
  g.outputs.push_back({"y", b.softmax(g.add_input("x", {DType::f32, {64, 256}}), {1})});
  EXPECT_GT(hints_in(lowered(g, 64 * 256 * 4).body), 0);
  EXPECT_EQ(hints_in(lowered(g, 64 * 256 * 4 + 1).body), 0);  // stays in the cache
}

TEST(Prefetch, NothingWhereRowsAreReadOnce) {
  prim::Graph g;
  Builder b(g);
  g.outputs.push_back({"y", b.relu(g.add_input("x", {DType::f32, {64, 256}}))});
  EXPECT_EQ(hints_in(lowered(g, 64).body), 0);
}

TEST(Prefetch, TheNextTileOfATranspose) {
  prim::Graph g;
  Builder b(g);
  g.outputs.push_back({"y", b.transpose(g.add_input("x", {DType::f32, {128, 128}}), {1, 0})});
  const kernel::Kernel k = lowered(g, 64);
  EXPECT_GT(hints_in(k.body), 0);
  for (const kernel::Buffer& buffer : k.buffers)
    EXPECT_EQ(buffer.scope, kernel::Scope::grid) << "a tile in scratch memory";
}

/// An image is stored as what it is enlarged from: tokens by channels, eight times as high and
/// wide.
TEST(Layouts, OfEnlargedImages) {
  prim::Graph g;
  Builder b(g);
  const NodeId x = g.add_input("x", {DType::f32, {1, 4 * 4, 32}});
  const auto at = [](int d) { return ir::floor_div(ir::Expr(ir::Var{d}), 8); };
  const NodeId y = b.view(x, {1, 32, 32, 32},
                          {{ir::Expr(0), at(2) * ir::Expr(4) + at(3), ir::Expr(ir::Var{1})}, {}});
  g.outputs.push_back({"y", b.relu(y)});
  Request r;
  r.graph = &g;
  r.cluster = whole(g);
  EXPECT_EQ(stitch::lower(r)->output_layouts[0], ordered({1, 32, 32, 32}, {0, 2, 3, 1}));
}

/// A sigmoid of each channel is computed once in a task, not in each row; what is different in each
/// row, or the same in all lanes, stays where it is.
TEST(Kept, GatesThatRowsShare) {
  const auto kept = [](const Shape& gate, std::int64_t rows) {
    prim::Graph g;
    Builder b(g);
    const NodeId x = cases::in(g, {rows, 48});
    cases::out(g, b.mul(x, b.broadcast(b.sigmoid(cases::in(g, gate)), {rows, 48})));
    const kernel::Kernel k = lowered(g, 1 << 20);
    return std::ranges::count(k.buffers, "kept", &kernel::Buffer::name);
  };
  EXPECT_EQ(kept({1, 48}, 200), 1);
  EXPECT_EQ(kept({1, 48}, 2), 0);
  EXPECT_EQ(kept({200, 1}, 200), 0);
  EXPECT_EQ(kept({200, 48}, 200), 0);
  EXPECT_EQ(kept({}, 200), 0);
}

/// The sum of a whole channels-last image is cut along its rows, whose parts lie densely; vectors
/// run along the channels.
TEST(Split, ChannelsLastImages) {
  prim::Graph g;
  Builder b(g);
  const NodeId x = g.add_input("x", {DType::f32, {1, 64, 40, 36}});
  g.outputs.push_back({"y", b.reduce(ir::Monoid::sum, x, {0, 1, 2, 3})});
  Request r;
  r.graph = &g;
  r.cluster = whole(g);
  r.layout_of = [&](NodeId) { return ordered({1, 64, 40, 36}, {0, 2, 3, 1}); };
  const kernel::Kernel k = stitch::lower(r)->kernel;
  const auto parts = std::ranges::find(k.buffers, "parts", &kernel::Buffer::name);
  ASSERT_NE(parts, k.buffers.end());
  EXPECT_EQ(parts->size, 20);  // of two of 40 rows
}

INSTANTIATE_TEST_SUITE_P(Cases, Stitch, testing::ValuesIn(cases::kCases), [](const auto& info) {
  std::string name(info.param.name);
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !std::isalnum(c); }, '_');
  return name;
});

/// Gates of squeeze-and-excitation are kernels of their own where they are read at many positions,
/// and fused where a row's reduction reads what the kernel reads anyway.
Lowered on_an_h200(const std::function<void(prim::Graph&, Builder&)>& build) {
  prim::Graph g;
  Builder b(g);
  build(g, b);
  auto lowered = stitch::lower({&g, whole(g), gpu_target(132), {}, {}, {}});
  EXPECT_TRUE(lowered.ok()) << lowered.error().message;
  return *std::move(lowered);
}
std::int64_t tasks_of_first_phase(const Lowered& lowered) {
  return std::get<kernel::For>(lowered.kernel.body.front().op).end;
}

TEST(StitchOnAGpu, ColumnSumsKeepAllMultiprocessorsBusy) {
  for (const auto& [rows, columns] : {std::pair{100000, 3072}, {8192, 2176}, {20000, 4096}}) {
    const Lowered lowered = on_an_h200([&](auto& g, auto& b) {
      cases::out(g, b.reduce_sum(cases::in(g, {rows, columns}), {0}));
    });
    EXPECT_GE(tasks_of_first_phase(lowered), 128) << columns << ": " << lowered.schedule;
  }
}

TEST(StitchOnAGpu, PhasesShareALaunchUnlessForbidden) {
  prim::Graph g;
  Builder b(g);
  cases::out(g, b.reduce_sum(cases::in(g, {1 << 20}), {0}));
  Request request{&g, whole(g), gpu_target(132), {}, {}, {}};
  EXPECT_TRUE(stitch::lower(request)->kernel.resident);
  EXPECT_EQ(stitch::tuning_space(request).size(), 2u);
  request.tuning = {{"resident", 0}};
  EXPECT_FALSE(stitch::lower(request)->kernel.resident);
  request.tuning = {};
  request.target.grid_barriers = false;
  EXPECT_FALSE(stitch::lower(request)->kernel.resident);
}

TEST(StitchOnAGpu, ManyRowsAreOneWave) {
  const auto softmax = [](std::int64_t rows) {
    return on_an_h200([&](auto& g, auto& b) {
      cases::out(g, b.softmax(cases::in(g, {rows, 64}), {1}));
    });
  };
  EXPECT_TRUE(softmax(200000).kernel.resident);
  EXPECT_FALSE(softmax(2000).kernel.resident);
}

TEST(StitchOnAGpu, UpdatesThatCannotMeetAreSpread) {
  const Lowered lowered = on_an_h200([](auto& g, auto& b) {
    cases::out(g,
               b.scatter(cases::in(g, {50, 64}), cases::in(g, {9, 64}),
                         {cases::in(g, {9, 64}, DType::i64)},
                         {{0}, {ir::Expr(0), ir::Expr(ir::Var{1})}, prim::Scatter::Combine::add}));
  });
  EXPECT_NE(lowered.schedule.find("at 64 positions"), std::string::npos) << lowered.schedule;
}

TEST(StitchLegality, SmallReductionsAreNotBroadcastOverLargeOutputs) {
  const auto gated = [](std::int64_t positions) {
    prim::Graph g;
    Builder b(g);
    const NodeId pooled = cases::in(g, {1, 32}), map = cases::in(g, {positions, 64});
    const NodeId gate = b.matmul(pooled, cases::in(g, {32, 64}));
    cases::out(g, b.mul(map, b.broadcast(gate, {positions, 64})));
    return stitch::supports(g, whole(g));
  };
  EXPECT_TRUE(gated(16));
  EXPECT_FALSE(gated(4096));
  prim::Graph g;
  Builder b(g);
  cases::out(g, b.softmax(cases::in(g, {4096, 64}), {1}));
  EXPECT_TRUE(stitch::supports(g, whole(g)));
}

/// Sums of rows that are read at eight times as many positions as there are rows would be done over
/// for each; at positions that are rows they are not.
TEST(StitchLegality, ReductionsAreNotRepeated) {
  const auto reads = [](std::int64_t positions, const ir::Expr& row) {
    prim::Graph g;
    Builder b(g);
    const NodeId sums = b.reduce_sum(cases::in(g, {512, 64}), {1}, false);
    cases::out(g, b.sqrt(b.view(sums, {positions, 2}, prim::Access{{row}, {}})));
    return stitch::supports(g, whole(g));
  };
  const ir::Expr position(ir::Var{0});
  EXPECT_FALSE(reads(4096, floor_div(position, 8)));
  EXPECT_TRUE(reads(500, position + 12));
  EXPECT_TRUE(reads(256, position * 2));
}

/// Elements of a depthwise convolution in bytes, its weights in f32 where channels are far apart.
TEST(VectorAxis, GatheringBytesCostsNoLessThanWords) {
  const ir::Var channel{0}, column{1};
  std::vector<stitch::Touch> touches(2);
  touches[0].offset = ir::Expr(channel) + ir::Expr(column) * ir::Expr(32);
  touches[0].bytes = 1;
  touches[1].offset = ir::Expr(channel) * ir::Expr(9);
  EXPECT_LT(stitch::vector_score(touches, channel), stitch::vector_score(touches, column));
  EXPECT_GT(stitch::vector_score(touches, channel, 4), stitch::vector_score(touches, column, 4));
}

/// A batch-norm's gradient with the channels outermost: vectors along the channels would gather.
TEST(VectorAxis, SmallVectorsDoNotDecideIt) {
  prim::Graph g;
  Builder b(g);
  const Shape shape{64, 16384};
  const auto per_channel = [&] { return b.broadcast(cases::in(g, {64, 1}), shape); };
  NodeId x = cases::in(g, shape);
  for (int i = 0; i < 4; ++i) x = b.add(b.mul(x, per_channel()), per_channel());
  cases::out(g, b.add(x, b.broadcast(b.reduce_sum(x, {1}), shape)));
  const auto lowered = stitch::lower({&g, whole(g), Target{}, {}, {}, {}});
  ASSERT_TRUE(lowered.ok()) << lowered.error().message;
  EXPECT_GE(tasks_of_first_phase(*lowered), 8) << lowered->schedule;
}

}  // namespace
}  // namespace heddle::lower
