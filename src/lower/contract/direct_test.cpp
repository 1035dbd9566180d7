#include "lower/contract/test_util.h"

namespace heddle::lower {
namespace {

void check_direct(Case& c, Tuning tuning, const std::string& source) {
  c.on_tiles();
  c.target.quads = true;
  c.tuning = std::move(tuning);
  c.tuning.insert(c.tuning.end(), {{"pieces", 1}, {"direct", 1}});
  ASSERT_NO_FATAL_FAILURE(check(c));
  EXPECT_TRUE(c.schedule.starts_with("pieces")) << c.schedule;
  EXPECT_NE(c.schedule.find("a=" + source), std::string::npos) << c.schedule;
}

/// Rows of a matrix: tiles of two sizes (the smaller ones have a row of the tile before them),
/// tasks of some tiles or panels, panels within tiles, results beside products or after.
TEST(DirectRows, InMemory) {
  struct Row {
    std::int64_t m, k, n;
    Tuning tuning;
  };
  const Row rows[] = {{16, 32, 16, {}},
                      {5, 64, 19, {}},
                      {33, 96, 48, {{"mr", 17}, {"nv", 2}, {"tiles", 1}}},
                      {70, 96, 100, {{"mr", 32}, {"nv", 2}, {"panels", 2}}},
                      {70, 96, 64, {{"mr", 32}, {"nv", 2}, {"tiles", 2}, {"beside", 1}}},
                      {96, 64, 33, {{"mr", 17}, {"nv", 2}, {"tiles", 5}, {"beside", 1}}},
                      {150, 64, 200, {{"mr", 16}, {"nv", 1}, {"tiles", 3}}}};
  for (const Row& row : rows)
    for (const bool constant : {true, false})
      for (const bool long_results : {true, false}) {
        Case c;
        const NodeId x = c.input({row.m, row.k}, DType::bf16);
        const NodeId w = constant ? c.constant({row.k, row.n}, DType::bf16)
                                  : c.input({row.k, row.n}, DType::bf16);
        const NodeId y = c.b.cast(c.b.matmul(x, w), DType::f32);
        c.output(long_results ? c.b.mul(c.b.tanh(y), c.b.sigmoid(y)) : y);
        c.tolerance = 2e-2;
        SCOPED_TRACE(fmt::format("{}x{}x{} {} {}", row.m, row.n, row.k, constant, long_results));
        ASSERT_NO_FATAL_FAILURE(check_direct(c, row.tuning, "in-place"));
      }
}

TEST(DirectRows, OfHeads) {
  Case c;  // heads between rows and terms in memory
  const NodeId q = c.b.transpose(c.input({2, 21, 3, 32}, DType::bf16), {0, 2, 1, 3});
  const NodeId k = c.b.transpose(c.input({2, 35, 3, 32}, DType::bf16), {0, 2, 3, 1});
  c.output(c.b.matmul(q, k));
  ASSERT_NO_FATAL_FAILURE(check_direct(c, {}, "in-place"));
}

struct Image {
  Shape x, w;
  Builder::Conv conv;
  Tuning tuning = {};
  std::string source = "box";
};

/// Taps, lines of a window one after another or apart (dilation, strides), images cut into tasks,
/// groups, tiles of two sizes; windows that never leave the image are read in memory.
const Image kImages[] = {
    {{2, 64, 9, 7}, {40, 64, 3, 3}, conv(2, 1, 1)},
    {{1, 64, 10, 19}, {33, 64, 3, 3}, conv(2, 1, 1), {{"mr", 10}, {"rows", 3}}},
    {{1, 128, 9, 9}, {16, 128, 3, 3}, conv(2, 1, 2, 2), {{"rows", 4}}},
    {{3, 64, 18, 15}, {48, 64, 3, 3}, conv(2, 2, 1), {{"nv", 2}, {"panels", 1}}},
    {{1, 256, 8, 8}, {32, 128, 3, 3}, conv(2, 1, 1, 1, 2)},
    {{1, 64, 14, 14}, {40, 64, 3, 3}, conv(2, 1, 1), {{"mr", 28}}},
    {{1, 128, 29, 27}, {16, 128, 3, 3}, conv(2, 2, 1), {{"mr", 42}, {"nv", 1}}},
    {{1, 64, 9, 20}, {20, 64, 2, 5}, conv(2, 1, 2), {{"rows", 2}}},
    {{1, 64, 11, 20}, {20, 64, 3, 3}, conv(2, 1, 0), {{"mr", 9}}, "in-place"}};

void check_image(const Image& image, DType a, DType b, bool constant, bool planes = false) {
  Case c;
  const NodeId x = c.input(image.x, a);
  if (!planes) c.layouts[x] = ordered(image.x, {0, 2, 3, 1});
  const NodeId w = constant ? c.constant(image.w, b) : c.input(image.w, b);
  SCOPED_TRACE(fmt::format("{} {} {} {} {}", to_string(image.x), to_string(image.w), name_of(a),
                           name_of(b), constant));
  if (a == DType::bf16) {
    c.output(c.b.relu(c.b.conv(x, w, image.conv)));
  } else {
    const prim::Node n =
        c.g[c.b.conv(c.b.cast(x, DType::i32), c.b.cast(w, DType::i32), image.conv)];
    for (Tensor& t : c.inputs)
      for (std::int64_t i = 0; i < t.count(); ++i) t.set_int(i, i * 7919 % 256);
    c.output(c.g.add(n.op, {x, w}, {DType::i32, n.type.shape}));
  }
  const bool lies = a == DType::bf16 || image.source == "box";
  ASSERT_NO_FATAL_FAILURE(check_direct(c, image.tuning, lies ? image.source : "in-place"));
}

/// Lines of taps and channels that are no whole tiles: cut into one, two and more equal steps, with
/// zeros behind an odd number of channels; dilated taps are lines each.
const Image kLines[] = {
    {{1, 3, 11, 19}, {20, 3, 3, 3}, conv(2, 1, 1)},
    {{2, 3, 17, 35}, {33, 3, 7, 7}, conv(2, 2, 3)},
    {{1, 3, 12, 20}, {16, 3, 9, 9}, conv(2, 1, 4), {{"mr", 16}, {"nv", 1}, {"rows", 5}}},
    {{1, 2, 9, 18}, {40, 2, 5, 4}, conv(2, 1, 2)},
    {{1, 4, 20, 37}, {24, 4, 7, 7}, conv(2, 2, 3), {{"mr", 16}, {"nv", 1}}},
    {{1, 12, 10, 21}, {16, 12, 3, 3}, conv(2, 1, 1), {{"rows", 3}}},
    {{2, 16, 9, 7}, {24, 16, 3, 3}, conv(2, 1, 1)},
    {{1, 48, 8, 9}, {20, 48, 3, 3}, conv(2, 1, 1)},
    {{1, 80, 7, 20}, {20, 80, 3, 3}, conv(2, 2, 1)},
    {{1, 17, 9, 10}, {20, 17, 3, 3}, conv(2, 1, 1)},
    {{1, 3, 20, 3}, {20, 3, 3, 3}, conv(2, 1, 0)},  // results one place wide
    {{1, 250, 4, 5}, {9, 250, 3, 3}, conv(2, 1, 1)},
    {{1, 508, 4, 5}, {9, 508, 3, 3}, conv(2, 1, 1)},
    {{1, 5, 12, 18}, {20, 5, 3, 3}, conv(2, 1, 2, 2)},
    {{1, 13, 8, 9}, {8, 13, 1, 5}, conv(2, 1, 2)}};

TEST(DirectRows, OfLines) {
  for (const Image& image : kLines)
    for (const bool planes : {true, false}) {
      if (planes && image.x[1] > 16) continue;  // more are copied row by row
      ASSERT_NO_FATAL_FAILURE(check_image(image, DType::bf16, DType::bf16, true, planes));
      if (image.x[1] % 4 != 0) continue;  // bytes are words of four
      for (const DType a : {DType::u8, DType::i8})
        ASSERT_NO_FATAL_FAILURE(check_image(image, a, DType::i8, true, planes));
    }
}

/// Results one place high or wide, channels that the image lacks: whatever is read where.
TEST(DirectRows, OfBorders) {
  for (const Image& image : {Image{{1, 4, 20, 3}, {20, 4, 3, 3}, conv(2, 1, 0)},
                             Image{{1, 32, 20, 4}, {20, 32, 3, 4}, conv(2, 1, 0)},
                             Image{{1, 32, 2, 20}, {16, 32, 4, 3}, conv(2, 1, 1)},
                             Image{{1, 12, 2, 20}, {16, 12, 4, 3}, conv(2, 1, 1)},
                             Image{{1, 3, 16, 20}, {16, 4, 3, 3}, conv(2, 1, 1)}})
    for (const bool planes : {true, false}) {
      Case c;
      NodeId x = c.input(image.x, DType::bf16);
      if (!planes) c.layouts[x] = ordered(image.x, {0, 2, 3, 1});
      if (image.x[1] < image.w[1]) x = c.b.pad(x, {0, 0, 0, 0}, {0, 1, 0, 0}, 0);
      c.output(c.b.conv(x, c.constant(image.w, DType::bf16), image.conv));
      c.on_tiles();
      c.tuning = {{"pieces", 1}};
      c.tolerance = 2e-2;
      SCOPED_TRACE(fmt::format("{} {} {}", to_string(image.x), to_string(image.w), planes));
      ASSERT_NO_FATAL_FAILURE(check(c));
    }
}

/// A fourth channel that is zeros by a condition on the channel alone.
TEST(DirectRows, OfChannelsThatAreNone) {
  for (const bool planes : {true, false}) {
    Case c;
    const NodeId x = c.input({1, 3, 16, 20}, DType::bf16);
    if (!planes) c.layouts[x] = ordered({1, 3, 16, 20}, {0, 2, 3, 1});
    const auto d = [](int i) { return ir::Expr(ir::Var{i}); };
    const ir::Expr y = d(2) + d(5) - ir::Expr(1), z = d(3) + d(6) - ir::Expr(1);
    const prim::Access image{{d(0), d(4), y, z}, {{d(4), 0, 3}, {y, 0, 16}, {z, 0, 20}}},
        filter{{d(1), d(4), d(5), d(6)}, {}};
    c.output(c.b.contract(x, c.constant({16, 4, 3, 3}, DType::bf16), {1, 16, 16, 20}, {4, 3, 3},
                          image, filter, DType::f32));
    c.tolerance = 1e-3;
    SCOPED_TRACE(planes);
    c.on_tiles();
    c.tuning = {{"pieces", 1}};
    ASSERT_NO_FATAL_FAILURE(check(c));
  }
}

/// A number that is none stays with the windows that have it: nothing is multiplied by zeros.
TEST(DirectRows, NothingBehindALine) {
  for (const Shape& shape : {Shape{1, 3, 9, 20}, Shape{1, 6, 9, 20}}) {
    Case c;
    const NodeId x = c.input(shape, DType::bf16);
    c.layouts[x] = ordered(shape, {0, 2, 3, 1});
    const NodeId y = c.b.conv(x, c.constant({16, shape[1], 3, 3}, DType::bf16), conv(2, 1, 1));
    c.output(c.b.transpose(y, {0, 2, 3, 1}));  // as memory has it
    c.tolerance = 2e-2;
    ASSERT_NO_FATAL_FAILURE(check_direct(c, {}, "box"));
    for (std::int64_t i = 0; i < c.inputs[0].count(); i += 131) c.inputs[0].set(i, NAN);
    const Tensor got = output_of(c), want = (*prim::interpret(c.g, c.inputs))[0];
    for (std::int64_t i = 0; i < want.count(); ++i)
      ASSERT_EQ(std::isnan(got.at(i)), std::isnan(want.at(i))) << to_string(shape) << " " << i;
  }
}

/// Rows of terms that are no whole tiles, where they lie.
TEST(DirectRows, OfNarrowSteps) {
  for (const std::int64_t terms : {16, 24, 40, 48, 90, 144}) {
    Case c;
    const NodeId x = c.input({37, terms}, DType::bf16);
    c.output(c.b.matmul(x, c.constant({terms, 33}, DType::bf16)));
    c.tolerance = 2e-2;
    SCOPED_TRACE(terms);
    ASSERT_NO_FATAL_FAILURE(check_direct(c, {}, "in-place"));
  }
}

TEST(DirectRows, OfImagesInBf16) {
  for (const Image& image : kImages) {
    if (image.source != "box") continue;  // copied to a box as well: it is converted on the way
    ASSERT_NO_FATAL_FAILURE(check_image(image, DType::bf16, DType::bf16, true));
  }
}

TEST(DirectRows, OfImagesInBytes) {
  for (const Image& image : kImages)
    for (const DType a : {DType::u8, DType::i8})
      ASSERT_NO_FATAL_FAILURE(check_image(image, a, DType::i8, true));
}

}  // namespace
}  // namespace heddle::lower
