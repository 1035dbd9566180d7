#include "lower/contract/depthwise.h"

#include "lower/contract/test_util.h"

namespace heddle::lower {
namespace {

struct Row {
  std::int64_t batch, channels, rows, columns, kernel, stride, pad, dilation;
  DType type = DType::f32;
};

/// Odd extents: tiles that overlap, no interior, channels that are no whole vectors, paddings
/// beyond the filter's middle; one row (a convolution along a line); more taps than are written
/// out.
TEST(Depthwise, AgreesWithThePrimitives) {
  for (const Row& row :
       {Row{1, 16, 7, 7, 3, 1, 1, 1}, Row{1, 37, 14, 13, 3, 2, 1, 1}, Row{2, 24, 9, 29, 5, 1, 2, 1},
        Row{1, 16, 11, 23, 5, 2, 3, 1}, Row{1, 20, 3, 40, 3, 1, 0, 1},
        Row{1, 20, 1, 800, 5, 1, 2, 1}, Row{1, 16, 12, 31, 3, 1, 4, 3},
        Row{1, 16, 1, 19, 3, 1, 1, 1}, Row{1, 33, 6, 9, 3, 1, 1, 1, DType::bf16},
        Row{1, 33, 14, 13, 5, 2, 2, 1, DType::bf16}, Row{2, 17, 9, 12, 4, 1, 3, 1, DType::bf16},
        Row{1, 20, 17, 19, 13, 1, 6, 1}, Row{2, 16, 15, 26, 13, 2, 4, 1, DType::bf16},
        Row{1, 17, 1, 150, 131, 1, 65, 1}, Row{1, 16, 3, 900, 200, 32, 100, 1}}) {
    for (const int threads : {1, 2, 3}) {
      Case c;
      c.target.vector_bytes = 32;
      c.target.threads = threads;
      c.target.bf16_pairs = threads == 2;        // words of two rows
      if (threads == 3) c.target.l1_bytes = 64;  // rows inside channels
      const NodeId x = c.input({row.batch, row.channels, row.rows, row.columns}, row.type);
      const std::int64_t down = std::min(row.kernel, row.rows);
      Builder::Conv geometry =
          conv(2, row.stride, row.pad, row.dilation, static_cast<int>(row.channels));
      if (down == 1) geometry.pads_begin[0] = geometry.pads_end[0] = 0;
      const NodeId w = c.constant({row.channels, 1, down, row.kernel}, row.type);
      const NodeId bias = c.constant({row.channels, 1, 1}, row.type);
      NodeId y = c.b.conv(x, w, geometry);
      y = c.b.relu(c.b.add(y, c.b.broadcast(bias, c.b.shape(y))));
      c.output(y);
      c.layouts[x] = ordered(c.b.shape(x), {0, 2, 3, 1});
      SCOPED_TRACE(fmt::format("{} channels, {}x{}, kernel {}", row.channels, row.rows, row.columns,
                               row.kernel));
      const auto lowered = contract::lower_depthwise(request_of(c));
      ASSERT_TRUE(lowered.ok()) << lowered.error().message;
      EXPECT_EQ(lowered->output_layouts[0].strides[1], 1);
      EXPECT_EQ(lowered->schedule.find("words") != std::string::npos,
                threads == 2 && row.type == DType::bf16 && row.kernel < 13);
      const auto status = kernel::verify(lowered->kernel);
      ASSERT_TRUE(status.ok()) << status.error().message;
      ASSERT_EQ(run(c, *lowered), "") << lowered->schedule;
    }
  }
}

/// Groups of fewer channels than a vector has lanes: as many to a group as it makes, and fewer;
/// strides, dilations, no interior, several images, a row of a filter; channels of f32, pairs of
/// bf16 and fours of bytes.
TEST(Depthwise, GroupsOfFewChannels) {
  struct Shape {
    std::int64_t batch, in, out, groups, rows, columns, kernel, stride, pad, dilation;
    int bytes;
  };
  for (const Shape& s :
       {Shape{1, 32, 32, 8, 7, 9, 3, 1, 1, 1, 64}, Shape{2, 64, 64, 8, 14, 13, 3, 2, 1, 1, 64},
        Shape{1, 32, 64, 8, 9, 21, 3, 1, 2, 2, 64}, Shape{1, 32, 32, 4, 6, 5, 3, 1, 2, 1, 64},
        Shape{1, 16, 16, 4, 3, 40, 3, 1, 0, 1, 32}, Shape{3, 24, 24, 6, 8, 8, 3, 2, 1, 1, 32},
        Shape{1, 48, 48, 12, 1, 33, 3, 1, 1, 1, 64}, Shape{1, 32, 32, 8, 5, 6, 1, 1, 0, 1, 64},
        Shape{1, 32, 32, 2, 6, 7, 3, 1, 1, 1, 64}})
    for (const DType type : {DType::f32, DType::bf16, DType::u8}) {
      Case c;
      // Of f32 a main loop has as many channels as lanes.
      const bool whole = s.out / s.groups == s.bytes / 4;
      if (whole && type == DType::f32) continue;
      c.target.vector_bytes = s.bytes;
      c.target.threads = 1 + static_cast<int>(s.rows % 3);
      c.target.bf16_pairs = c.target.quads = true;
      const bool bytes = type == DType::u8;
      const NodeId x = c.input({s.batch, s.in, s.rows, s.columns}, type);
      for (std::int64_t i = 0; bytes && i < c.inputs[0].count(); ++i)
        c.inputs[0].set_int(i, i * 91 % 256);
      const std::int64_t down = std::min(s.kernel, s.rows);
      Builder::Conv geometry = conv(2, s.stride, s.pad, s.dilation, static_cast<int>(s.groups));
      if (down == 1) geometry.pads_begin[0] = geometry.pads_end[0] = 0;
      const std::vector<std::int64_t> filter{s.out, s.in / s.groups, down, s.kernel};
      NodeId sums = c.b.conv(x, c.constant(filter, type), geometry);
      if (bytes)
        sums = c.g.add(c.g[sums].op, {x, c.constant(filter, DType::i8)},
                       {DType::i32, c.b.shape(sums)});
      const NodeId bias = c.b.broadcast(c.constant({s.out, 1, 1}), c.b.shape(sums));
      c.output(c.b.relu(c.b.add(c.b.cast(sums, DType::f32), bias)));
      c.layouts[x] = ordered(c.b.shape(x), {0, 2, 3, 1});
      SCOPED_TRACE(fmt::format("{} to {} channels in {} groups, {}x{}, {}", s.in, s.out, s.groups,
                               s.rows, s.columns, name_of(type)));
      const auto lowered = contract::lower(request_of(c));
      ASSERT_TRUE(lowered.ok()) << lowered.error().message;
      EXPECT_EQ(lowered->schedule.find("groups"), 0u) << lowered->schedule;
      EXPECT_EQ(lowered->output_layouts[0].strides[1], 1);
      const auto status = kernel::verify(lowered->kernel);
      ASSERT_TRUE(status.ok()) << status.error().message;
      ASSERT_EQ(run(c, *lowered), "") << lowered->schedule;
      EXPECT_LT(contract::algorithms(c.g, sums, c.target).back().work, whole ? 0.9 : 0.7);
    }
}

/// As networks have them after rewriting: groups and what each makes are two dimensions of the
/// result, and the height may be one; a channel's place in an output that joins them again.
TEST(Depthwise, GroupsAsDimensions) {
  using ir::Expr;
  using ir::Var;
  const auto v = [](int i) { return Expr(Var{i}); };
  for (const std::int64_t height : {1, 7}) {
    Case c;
    c.target.vector_bytes = 64;
    constexpr std::int64_t kWidth = 10;
    const NodeId x = c.input({1, 32, height, kWidth}), w = c.constant({32, 4, 3});
    const Expr column = v(4) + v(6) - Expr(1);
    const Shape out{1, 8, 4, height, kWidth};
    const NodeId y =
        c.b.contract(x, w, out, {4, 3},
                     {{Expr(0), v(1) * Expr(4) + v(5), height == 1 ? Expr(0) : v(3), column},
                      {{v(4) + v(6), 1, kWidth + 1}}},
                     {{v(1) * Expr(4) + v(2), v(5), v(6)}, {}}, DType::f32);
    c.output(c.b.reshape(c.b.relu(y), {1, 32, height, kWidth}));
    c.layouts[x] = ordered(c.b.shape(x), {0, 2, 3, 1});
    c.row_major_outputs = false;
    const auto lowered = contract::lower(request_of(c));
    ASSERT_TRUE(lowered.ok()) << lowered.error().message;
    EXPECT_EQ(lowered->schedule.find("groups"), 0u) << lowered->schedule;
    EXPECT_EQ(lowered->output_layouts[0].strides[1], 1);
    EXPECT_EQ(run(c, *lowered), "") << lowered->schedule;
  }
}

/// A vector of channels goes through the rows first where the rows of all would not stay in the
/// cache: the loop around its rows is a loop of vectors.
TEST(Depthwise, OrderOfRowsAndChannels) {
  for (const std::int64_t channels : {16, 1600}) {
    Case c;
    const NodeId x = c.input({1, channels, 20, 14});
    c.output(
        c.b.conv(x, c.constant({channels, 1, 3, 3}), conv(2, 1, 1, 1, static_cast<int>(channels))));
    c.layouts[x] = ordered(c.b.shape(x), {0, 2, 3, 1});
    const auto lowered = contract::lower_depthwise(request_of(c));
    ASSERT_TRUE(lowered.ok()) << lowered.error().message;
    const auto& task = std::get<kernel::For>(lowered->kernel.body[0].op);
    const auto& outer = std::get<kernel::For>(task.body->front().op);
    EXPECT_EQ(outer.end, channels == 16 ? 10 : channels / c.target.lanes(DType::f32))
        << kernel::to_string(lowered->kernel);
  }
}

/// What comes from memory is read as it lies there, where the second-level cache keeps a window;
/// what a band of layers left is not in memory. The next row of what does is asked for.
TEST(Depthwise, OrderOfWhatComesFromMemory) {
  for (const bool far : {false, true})
    for (const bool kept : {false, true})
      for (const bool band : {false, true}) {
        Case c;
        c.target.l3_bytes = far ? 1 << 20 : 32 << 20;
        c.target.l2_bytes = kept ? 1 << 20 : 64 << 10;
        const NodeId x = c.input({1, 1600, 20, 14});
        c.output(c.b.conv(x, c.constant({1600, 1, 3, 3}), conv(2, 1, 1, 1, 1600)));
        c.layouts[x] = ordered(c.b.shape(x), {0, 2, 3, 1});
        if (band) c.tuning = {{"rows", 10}};
        const auto lowered = contract::lower_depthwise(request_of(c));
        ASSERT_TRUE(lowered.ok()) << lowered.error().message;
        const auto& task = std::get<kernel::For>(lowered->kernel.body[0].op);
        const auto& outer = std::get<kernel::For>(task.body->front().op);
        const std::string text = kernel::to_string(lowered->kernel);
        EXPECT_EQ(outer.end <= 20, far && kept && !band) << text;
        EXPECT_EQ(text.find("prefetch") != std::string::npos, far) << text;
        if (outer.end <= 20) {
          EXPECT_EQ(run(c, *lowered), "");
        }
      }
}

/// Channels-last by a transpose of its own, of one image or several, under a map or padding.
TEST(Depthwise, ReadsTransposedImages) {
  for (const std::int64_t images : {1, 2})
    for (const auto& [mapped, turned] :
         {std::pair{false, false}, {true, false}, {false, true}, {true, true}}) {
      Case c;
      c.target.vector_bytes = 32;
      const NodeId x = c.input({images, 9, 11, 20});
      NodeId y = c.b.transpose(mapped ? c.b.relu(x) : x, {0, 3, 1, 2});
      if (mapped) y = c.b.mul(y, 0.5);
      y = c.b.conv(y, c.constant({20, 1, 7, 7}), conv(2, 1, 3, 1, 20));
      c.output(turned ? c.b.transpose(y, {0, 2, 3, 1}) : y);
      SCOPED_TRACE(fmt::format("{} {} {}", images, mapped, turned));
      const auto lowered = contract::lower_depthwise(request_of(c));
      ASSERT_TRUE(lowered.ok()) << lowered.error().message;
      EXPECT_EQ(lowered->output_layouts[0].strides[turned ? 3 : 1], 1);
      ASSERT_TRUE(kernel::verify(lowered->kernel).ok());
      ASSERT_EQ(run(c, *lowered), "") << lowered->schedule;
    }
}

/// Many taps of images that lie the other way, or have one column: a tile goes along the rows of
/// taps.
TEST(Depthwise, ManyTapsAcrossMemory) {
  for (const bool turned : {false, true}) {
    Case c;
    c.target.vector_bytes = 32;
    const NodeId x = c.input(turned ? Shape{1, 20, 19, 16} : Shape{1, 64, 3, 16});
    const NodeId w = c.constant(turned ? Shape{16, 1, 13, 13} : Shape{16, 1, 63, 3});
    Builder::Conv geometry = conv(2, 1, turned ? 6 : 31, 1, 16);
    if (!turned) geometry.pads_begin[1] = geometry.pads_end[1] = 0;
    const NodeId image =
        c.b.transpose(x, turned ? std::vector<int>{0, 3, 2, 1} : std::vector<int>{0, 3, 1, 2});
    c.output(c.b.conv(image, w, geometry));
    SCOPED_TRACE(turned);
    const auto lowered = contract::lower_depthwise(request_of(c));
    ASSERT_TRUE(lowered.ok()) << lowered.error().message;
    ASSERT_EQ(run(c, *lowered), "") << lowered->schedule;
  }
}

/// What the epilogue reads besides, and two outputs of which one uses the other.
TEST(Depthwise, HasEpilogues) {
  Case c;
  c.target.vector_bytes = 32;
  const NodeId x = c.input({1, 16, 6, 10}), more = c.input({1, 16, 6, 10});
  const NodeId y = c.b.add(c.b.conv(x, c.constant({16, 1, 3, 3}), conv(2, 1, 1, 1, 16)), more);
  c.output(y);
  c.output(c.b.map(ScalarFn::exp, {y}));
  for (const NodeId id : {x, more}) c.layouts[id] = ordered(c.b.shape(id), {0, 2, 3, 1});
  const auto lowered = contract::lower_depthwise(request_of(c));
  ASSERT_TRUE(lowered.ok()) << lowered.error().message;
  EXPECT_EQ(run(c, *lowered), "");
}

/// Bytes in whole numbers, by words of four rows of taps where an instruction multiplies these:
/// padding of zeros and, as quantised models have it, of another number; filters of up to two
/// words; strides, dilations, one row, more padding than filter, and more taps than are written
/// out.
TEST(Depthwise, MultipliesBytes) {
  struct Bytes {
    std::int64_t rows, columns, kernel, stride, pad, dilation = 1;
  };
  for (const Bytes& row :
       {Bytes{9, 11, 3, 1, 1}, Bytes{12, 31, 3, 2, 1}, Bytes{7, 9, 5, 1, 2}, Bytes{14, 15, 5, 2, 2},
        Bytes{8, 8, 4, 1, 1}, Bytes{9, 9, 3, 1, 0}, Bytes{5, 6, 3, 1, 3}, Bytes{16, 17, 7, 1, 3},
        Bytes{9, 13, 3, 1, 2, 2}, Bytes{1, 40, 3, 1, 1}, Bytes{20, 21, 13, 1, 6}})
    for (const std::int64_t zero : {0, 131})
      for (const bool quads : {false, true}) {
        Case c;
        c.target.vector_bytes = 32;
        c.target.quads = quads;
        const Shape shape{row.rows == 5 ? 2 : 1, 27, row.rows, row.columns};
        const std::int64_t down = std::min(row.kernel, row.rows);
        NodeId x = c.input(shape, DType::u8);
        Tensor w({DType::i8, {27, 1, down, row.kernel}});
        for (std::int64_t i = 0; i < c.inputs[0].count(); ++i) c.inputs[0].set_int(i, i * 91 % 256);
        for (std::int64_t i = 0; i < w.count(); ++i) w.set_int(i, i * 37 % 256 - 128);
        Builder::Conv geometry = conv(2, row.stride, row.pad, row.dilation, 27);
        if (down == 1) geometry.pads_begin[0] = geometry.pads_end[0] = 0;
        c.layouts[x] = ordered(shape, {0, 2, 3, 1});
        if (zero != 0) {
          const Shape pads{0, 0, geometry.pads_begin[0], row.pad};
          x = c.b.pad(x, pads, pads, static_cast<double>(zero));
          geometry.pads_begin = geometry.pads_end = {0, 0};
        }
        Tensor unsigned_weights({DType::u8, w.shape()});
        const NodeId bytes = c.b.conv(x, c.b.constant(unsigned_weights), geometry);
        const NodeId y =
            c.g.add(c.g[bytes].op, {x, c.b.constant(w)}, {DType::i32, c.b.shape(bytes)});
        c.output(c.b.mul(c.b.cast(y, DType::f32), 0.25));
        SCOPED_TRACE(fmt::format("{}x{}, kernel {}, stride {}, padded by {} of {}", row.rows,
                                 row.columns, row.kernel, row.stride, row.pad, zero));
        const auto lowered = contract::lower_depthwise(request_of(c));
        ASSERT_TRUE(lowered.ok()) << lowered.error().message;
        EXPECT_EQ(lowered->schedule.find("words") != std::string::npos, quads && row.kernel < 13)
            << lowered->schedule;
        const auto status = kernel::verify(lowered->kernel);
        ASSERT_TRUE(status.ok()) << status.error().message;
        ASSERT_EQ(run(c, *lowered), "") << lowered->schedule;
      }
}

/// Bytes that are read as signed ones are no bytes of an unsigned image.
TEST(Depthwise, MultipliesBytesReadAsSignedOnes) {
  Case c;
  c.target.vector_bytes = 32;
  c.target.quads = true;
  const NodeId q = c.input({1, 24, 9, 11}, DType::u8), w = c.constant({24, 1, 3, 3}, DType::i8);
  for (std::int64_t i = 0; i < c.inputs[0].count(); ++i) c.inputs[0].set_int(i, i * 91 % 256);
  const NodeId x = c.b.cast(q, DType::i8);
  const NodeId same = c.b.conv(x, w, conv(2, 1, 1, 1, 24));
  c.output(c.g.add(c.g[same].op, {x, w}, {DType::i32, c.b.shape(same)}));
  c.layouts[q] = ordered(c.b.shape(q), {0, 2, 3, 1});
  const auto lowered = contract::lower_depthwise(request_of(c));
  EXPECT_EQ(lowered.ok() ? run(c, *lowered) : lowered.error().message, "");
}

/// Rows that no window has are infinite, of which the nearest is read for the padding.
TEST(Depthwise, LeavesOutWhatLiesOutside) {
  Case c;
  c.target.vector_bytes = 32;
  c.target.bf16_pairs = true;
  const Shape shape{1, 16, 7, 9};
  const NodeId x = c.input(shape, DType::bf16);
  for (std::int64_t i = 0; i < c.inputs[0].count(); ++i)
    if (i / 9 % 7 % 3 == 0) c.inputs[0].set(i, HUGE_VAL);
  c.output(c.b.conv(x, c.constant({16, 1, 2, 2}, DType::bf16), conv(2, 3, 2, 1, 16)));
  c.layouts[x] = ordered(shape, {0, 2, 3, 1});
  const auto lowered = contract::lower_depthwise(request_of(c));
  ASSERT_TRUE(lowered.ok()) << lowered.error().message;
  EXPECT_NE(lowered->schedule.find("words"), std::string::npos);
  EXPECT_EQ(run(c, *lowered), "") << lowered->schedule;
}

/// Bytes that are widened where they are read, with a zero point or without: as they lie in memory.
TEST(Depthwise, WidensBytes) {
  for (const double zero : {0.0, 41.0})
    for (const std::int64_t stride : {1, 2}) {
      Case c;
      c.target.vector_bytes = 32;
      const NodeId q = c.input({2, 24, 9, 11}, DType::u8);
      NodeId x = c.b.cast(q, DType::f32);
      if (zero != 0) x = c.b.sub(x, zero);
      c.output(c.b.conv(x, c.constant({24, 1, 3, 3}), conv(2, stride, 1, 1, 24)));
      c.layouts[q] = ordered(c.b.shape(q), {0, 2, 3, 1});
      c.row_major_outputs = false;
      const auto lowered = contract::lower_depthwise(request_of(c));
      ASSERT_TRUE(lowered.ok()) << lowered.error().message;
      EXPECT_EQ(lowered->output_layouts[0].strides[1], 1);
      EXPECT_EQ(lowered->kernel.buffers[kernel::BufferId{0}].dtype, DType::u8);
      EXPECT_EQ(run(c, *lowered), "") << lowered->schedule;
    }
}

/// Channels that lie apart, fewer than a vector, or with several filters each.
TEST(Depthwise, RefusesOthers) {
  for (int which = 0; which < 4; ++which) {
    Case c;
    const std::int64_t channels = which == 1 ? 4 : 16, filters = which == 2 ? 2 : 1;
    const NodeId x = c.input({1, channels, 6, 10});
    const Shape shape = {channels * filters, 1, 3, 3};
    const NodeId w = which == 3 ? c.input(shape) : c.constant(shape);
    c.output(c.b.conv(x, w, conv(2, 1, 1, 1, static_cast<int>(channels))));
    if (which != 0) c.layouts[x] = ordered(c.b.shape(x), {0, 2, 3, 1});
    EXPECT_FALSE(contract::lower_depthwise(request_of(c)).ok()) << which;
  }
}

}  // namespace
}  // namespace heddle::lower
