#include <algorithm>

#include "lower/contract/test_util.h"

namespace heddle::lower {
namespace {

void check_pieces(Case& c, Tuning tuning = {}) {
  c.on_tiles();
  c.tuning = std::move(tuning);
  c.tuning.emplace_back("pieces", 1);
  ASSERT_NO_FATAL_FAILURE(check(c));
  EXPECT_TRUE(c.schedule.starts_with("pieces")) << c.schedule;
}

struct TiledRow {
  std::int64_t m, k, n;
  Tuning tuning;
};

/// Tiles that lack rows, columns, terms; several tasks, tiles of two sizes, one accumulator and
/// many, columns' tiles that share a register, blocks of the reduction.
const TiledRow kOnTiles[] = {
    {16, 32, 16, {}},
    {5, 7, 19, {}},
    {33, 40, 48, {{"mr", 17}, {"nv", 2}, {"tiles", 1}}},
    {70, 48, 100, {{"mr", 32}, {"nv", 2}, {"panels", 2}}},
    {50, 65, 80, {{"mr", 40}, {"nv", 1}}},
    {20, 100, 120, {{"mr", 16}, {"nv", 6}}},
    {64, 512, 33, {{"mr", 32}, {"nv", 2}, {"tiles", 1}, {"depth", 2}}},
    {37, 768, 64, {{"mr", 19}, {"nv", 2}, {"depth", 3}}},
};

TEST(Pieces, Products) {
  for (const TiledRow& row : kOnTiles)
    for (const bool constant : {true, false}) {
      Case c;
      const NodeId x = c.input({row.m, row.k});
      c.output(c.b.matmul(x, constant ? c.constant({row.k, row.n}) : c.input({row.k, row.n})));
      SCOPED_TRACE(fmt::format("{}x{}x{} {}", row.m, row.n, row.k, constant));
      ASSERT_NO_FATAL_FAILURE(check_pieces(c, row.tuning));
    }
}

/// Something is computed of the rows, several results, one of them transposed.
TEST(Pieces, PrologueAndEpilogue) {
  for (const TiledRow& row : kOnTiles) {
    Case c;
    const NodeId x = c.b.mul(c.input({row.m, row.k}), 0.5);
    const NodeId w = c.b.transpose(c.constant({row.n, row.k}), {1, 0});
    const NodeId sum = c.b.add(c.b.matmul(x, w), c.input({row.m, row.n}));
    c.output(sum);
    c.output(c.b.transpose(c.b.relu(sum), {1, 0}));
    c.output(c.b.mul(c.b.tanh(sum), c.b.sigmoid(sum)));
    SCOPED_TRACE(fmt::format("{}x{}x{}", row.m, row.n, row.k));
    ASSERT_NO_FATAL_FAILURE(check_pieces(c, row.tuning));
  }
}

/// Results that take long are computed beside the next tile's products: tiles of two sizes, panels
/// that lack columns, a last task with fewer tiles or panels, a single turn in the end.
TEST(Pieces, ResultsBesideProducts) {
  const TiledRow rows[] = {{70, 96, 64, {{"mr", 32}, {"nv", 2}}},
                           {70, 100, 64, {{"mr", 32}, {"nv", 2}, {"tiles", 2}}},
                           {64, 64, 100, {{"mr", 32}, {"nv", 2}, {"panels", 3}}},
                           {96, 70, 33, {{"mr", 32}, {"nv", 2}, {"tiles", 2}}},
                           {50, 160, 96, {{"mr", 17}, {"nv", 2}, {"tiles", 1}}}};
  for (const TiledRow& row : rows)
    for (const bool constant : {true, false}) {
      Case c;
      const NodeId x = c.input({row.m, row.k});
      const NodeId y =
          c.b.matmul(x, constant ? c.constant({row.k, row.n}) : c.input({row.k, row.n}));
      const NodeId z = c.b.mul(c.b.tanh(y), c.b.sigmoid(y));
      c.output(z);
      c.output(c.b.transpose(y, {1, 0}));
      c.output(c.b.reduce_sum(z, {0}, false));
      c.tolerance = 5e-5;
      SCOPED_TRACE(fmt::format("{}x{}x{} {}", row.m, row.n, row.k, constant));
      ASSERT_NO_FATAL_FAILURE(check_pieces(c, row.tuning));
      const std::string text = kernel::to_string(contract::lower(request_of(c))->kernel);
      EXPECT_NE(text.find(" along d"), std::string::npos) << text;
    }
}

/// The next tile's rows are split beside the products of this one: tiles of two sizes, one and two
/// vectors of terms that are left over, less than one, fewer steps than rows, a last task with
/// fewer tiles, results beside them or after.
TEST(Pieces, RowsBesideProducts) {
  const TiledRow rows[] = {{70, 96, 64, {{"mr", 32}, {"nv", 2}}},
                           {70, 100, 64, {{"mr", 32}, {"nv", 2}, {"tiles", 2}}},
                           {128, 48, 100, {{"mr", 32}, {"nv", 2}, {"tiles", 2}, {"panels", 2}}},
                           {96, 90, 33, {{"mr", 17}, {"nv", 2}, {"tiles", 5}}},
                           {150, 40, 200, {{"mr", 16}, {"nv", 1}, {"tiles", 3}}}};
  for (const TiledRow& row : rows)
    for (const bool constant : {true, false})
      for (const bool long_results : {true, false}) {
        Case c;
        const NodeId x =
            c.b.add(c.input({row.m, row.k}), c.b.broadcast(c.input({row.m, 1}), {row.m, row.k}));
        const NodeId y =
            c.b.matmul(x, constant ? c.constant({row.k, row.n}) : c.input({row.k, row.n}));
        const NodeId z = long_results ? c.b.mul(c.b.tanh(y), c.b.sigmoid(y)) : y;
        c.output(z);
        c.output(c.b.reduce_sum(z, {0}, false));
        Tuning tuning = row.tuning;
        tuning.emplace_back("beside", 1);
        SCOPED_TRACE(fmt::format("{}x{}x{} {} {}", row.m, row.n, row.k, constant, long_results));
        ASSERT_NO_FATAL_FAILURE(check_pieces(c, tuning));
        EXPECT_TRUE(c.schedule.ends_with(" beside")) << c.schedule;
      }
}

/// Denormals, and numbers whose last piece is one, count for nothing and change no neighbour.
TEST(Pieces, DenormalsTouchNothingElse) {
  for (const double small : {2.28e-41, 1e-36, -4.6e-41, 7e-34, 1.2e-38}) {
    Case c;
    Tensor x = c.random_tensor({DType::f32, {20, 40}}), w = c.random_tensor({DType::f32, {40, 24}});
    for (std::int64_t k = 1; k < 40; k += 2)
      for (std::int64_t n = 0; n < 24; ++n) w.set(k * 24 + n, small);
    for (std::int64_t m = 0; m < 20; m += 3)
      for (std::int64_t k = 0; k < 40; k += 2) x.set(m * 40 + k, small);
    const NodeId a = c.input({20, 40}), b = c.input({40, 24});
    c.output(c.b.matmul(a, b));
    c.inputs = {x, w};
    c.tolerance = 1e-5;
    SCOPED_TRACE(small);
    ASSERT_NO_FATAL_FAILURE(check_pieces(c));
  }
}

/// Memory runs along rows or columns, not terms: blocks of 16 by 16, and what is left of them.
TEST(Pieces, OperandsAcrossMemory) {
  for (const TiledRow& row : kOnTiles)
    for (const bool rows : {false, true})
      for (const bool columns : {false, true}) {
        Case c;
        const NodeId a =
            rows ? c.b.transpose(c.input({row.k, row.m}), {1, 0}) : c.input({row.m, row.k});
        const NodeId b =
            columns ? c.b.transpose(c.input({row.n, row.k}), {1, 0}) : c.input({row.k, row.n});
        c.output(c.b.matmul(a, b));
        SCOPED_TRACE(fmt::format("{}x{}x{} {} {}", row.m, row.n, row.k, rows, columns));
        ASSERT_NO_FATAL_FAILURE(check_pieces(c, row.tuning));
      }
}

/// Lines of a window that are no vectors of terms: zeros keep them apart.
TEST(Pieces, LinesOfAWindow) {
  struct Image {
    Shape x, w;
    Builder::Conv conv;
    Tuning tuning;
  };
  const Image images[] = {{{1, 12, 9, 9}, {32, 12, 3, 3}, conv(2, 1, 1), {}},
                          {{2, 3, 20, 21}, {40, 3, 7, 7}, conv(2, 2, 3), {{"mr", 17}}},
                          {{1, 8, 9, 11}, {24, 8, 5, 5}, conv(2, 1, 2), {{"nv", 1}}},
                          {{1, 3, 15, 17}, {16, 3, 3, 3}, conv(2, 2, 1), {}},
                          {{1, 5, 12, 12}, {19, 5, 3, 3}, conv(2, 1, 1), {{"mr", 16}}}};
  for (const Image& image : images)
    for (const bool last : {true, false})
      for (const DType type : {DType::f32, DType::bf16}) {
        Case c;
        const NodeId x = c.input(image.x, type);
        if (last) c.layouts[x] = ordered(image.x, {0, 2, 3, 1});
        c.output(c.b.relu(c.b.conv(x, c.constant(image.w, type), image.conv)));
        SCOPED_TRACE(fmt::format("{} {} {} {}", to_string(image.x), to_string(image.w), last,
                                 name_of(type)));
        ASSERT_NO_FATAL_FAILURE(check_pieces(c, image.tuning));
      }
}

TEST(Pieces, GradientsOfWeights) {
  for (const std::int64_t tokens : {16, 48, 37}) {
    Case c;  // sums over sentences and their tokens
    const NodeId x = c.b.reshape(c.input({3, tokens, 64}), {3 * tokens, 64});
    const NodeId y = c.b.reshape(c.input({3, tokens, 50}), {3 * tokens, 50});
    c.output(c.b.matmul(c.b.transpose(x, {1, 0}), y));
    SCOPED_TRACE(tokens);
    ASSERT_NO_FATAL_FAILURE(check_pieces(c));
  }
}

TEST(Pieces, BatchesAndHeads) {
  for (const bool transposed : {false, true}) {
    Case c;  // heads between rows and terms in memory
    const NodeId q = c.b.transpose(c.input({2, 21, 3, 32}), {0, 2, 1, 3});
    const NodeId k = c.b.transpose(c.input({2, 35, 3, 32}), {0, 2, 3, 1});
    NodeId y = c.b.matmul(q, k);
    if (transposed) y = c.b.transpose(y, {0, 2, 1, 3});
    c.output(y);
    ASSERT_NO_FATAL_FAILURE(check_pieces(c));
  }
}

/// Windows are copied for each tap; rows of several images are one axis. Channels last, where rows
/// lie along the terms, and channels first, where those of one image's row lie along each other.
TEST(Pieces, Convolutions) {
  struct Image {
    Shape x, w;
    Builder::Conv conv;
    Tuning tuning;
    bool first = false;
  };
  const Image images[] = {{{1, 32, 9, 7}, {40, 32, 1, 1}, conv(2, 1, 0), {}},
                          {{2, 48, 9, 7}, {24, 48, 1, 1}, conv(2, 2, 0), {}},
                          {{1, 32, 8, 8}, {32, 16, 1, 1}, conv(2, 1, 0, 1, 2), {}},
                          {{2, 16, 9, 7}, {40, 16, 3, 3}, conv(2, 1, 1), {}},
                          {{3, 32, 8, 5}, {33, 32, 3, 3}, conv(2, 2, 1), {}},
                          {{1, 96, 9, 9}, {16, 96, 3, 3}, conv(2, 1, 2, 2), {{"depth", 3}}},
                          {{1, 288, 5, 6}, {16, 288, 3, 3}, conv(2, 1, 1), {{"depth", 9}}},
                          {{1, 64, 8, 8}, {32, 32, 3, 3}, conv(2, 1, 1, 1, 2), {{"mr", 17}}},
                          {{2, 16, 4, 33}, {24, 16, 1, 1}, conv(2, 1, 0), {}, true}};
  for (const Image& image : images)
    for (const bool constant : {true, false}) {
      Case c;
      const NodeId x = c.input(image.x);
      if (!image.first) c.layouts[x] = ordered(image.x, {0, 2, 3, 1});
      const NodeId w = constant ? c.constant(image.w) : c.input(image.w);
      c.output(c.b.relu(c.b.conv(x, w, image.conv)));
      SCOPED_TRACE(fmt::format("{} {} {}", to_string(image.x), to_string(image.w), constant));
      ASSERT_NO_FATAL_FAILURE(check_pieces(c, constant ? image.tuning : Tuning{}));
    }
}

/// The image under the filter is the columns, or (of many positions) the rows, whose channels lie
/// along each other in memory or far apart; strides, windows that begin outside, rows of positions
/// that are no multiple of a vector, blocks of the reduction.
TEST(Pieces, GradientsOfFilters) {
  struct Shapes {
    FilterGradient filter;
    Tuning tuning;
  };
  const Shapes shapes[] = {{{2, 16, 24, 8, 16, 3, 1, 1}, {}},
                           {{3, 5, 16, 9, 7, 3, 1, 1}, {}},
                           {{2, 16, 33, 8, 9, 3, 2, 1}, {{"mr", 17}}},
                           {{4, 16, 4, 32, 32, 3, 1, 1}, {{"depth", 4}, {"rows", 2}}},
                           {{9, 17, 5, 63, 32, 2, 2, 0}, {{"mr", 17}, {"nv", 1}}}};
  int checked = 0;
  for (const auto& [filter, tuning] : shapes)
    for (const bool update : {false, true})
      for (const int last : {0, 1, 2, 3}) {  // whose channels lie last
        const bool many = filter.images * filter.height > 100;
        if (many && (update || last != 3)) continue;
        SCOPED_TRACE(fmt::format("{}x{}x{} to {}, stride {}, {} {}", filter.in, filter.height,
                                 filter.width, filter.out, filter.stride, update, last));
        Case c;
        const NodeId gradient = filter_gradient(c, filter, last >= 2);
        for (const std::size_t side : {0, 1}) {
          const NodeId arg = c.g[gradient].args[side];
          if (last >> side & 1) c.layouts[arg] = ordered(c.g[arg].type.shape, {0, 2, 3, 1});
        }
        const NodeId weight = c.input({filter.out, filter.in, filter.taps, filter.taps});
        c.output(update ? c.b.sub(weight, c.b.mul(gradient, 0.01)) : gradient);
        c.row_major_outputs = update;
        c.tolerance = 1e-4;
        c.on_tiles();
        c.tuning = tuning;
        c.tuning.emplace_back("pieces", 1);
        if (!contract::lower(request_of(c)).ok()) continue;  // rows whose terms are no vectors
        ASSERT_NO_FATAL_FAILURE(check(c));
        EXPECT_TRUE(c.schedule.starts_with("pieces")) << c.schedule;
        ++checked;
      }
  EXPECT_GE(checked, 14);
}

/// bf16 is taken as it is: one product of tiles, or three beside f32.
TEST(Pieces, OfBf16) {
  for (const DType a : {DType::bf16, DType::f32})
    for (const DType b : {DType::bf16, DType::f32})
      for (const bool constant : {true, false}) {
        Case c;
        const NodeId x = c.input({37, 96}, a);
        const NodeId w = constant ? c.constant({96, 50}, b) : c.input({96, 50}, b);
        const auto f32 = [&](NodeId id, DType t) {
          return t == DType::f32 ? id : c.b.cast(id, DType::f32);
        };
        c.output(a == b ? c.b.matmul(x, w) : c.b.matmul(f32(x, a), f32(w, b)));
        SCOPED_TRACE(fmt::format("{} {} {}", name_of(a), name_of(b), constant));
        ASSERT_NO_FATAL_FAILURE(check_pieces(c));
        const auto lowered = contract::lower(request_of(c));
        const std::string text = kernel::to_string(lowered->kernel);
        if (a == DType::bf16 && b == DType::bf16) {
          EXPECT_NE(text.find("depth 96 terms 0 0"), std::string::npos) << text;
          EXPECT_EQ(text.find("terms 0 0,"), std::string::npos) << text;
        }
      }
}

/// A slice of a panel's columns meets all rows before the next one does: rows that lie where they
/// are, windows in a box, computed ones; results after the last slice or beside its products, tiles
/// of two sizes, a last task or panel with less, columns that a phase packs.
TEST(Pieces, Slices) {
  struct Row {
    std::int64_t slices;
    Shape x, w;  // of an image, or a matrix
    Tuning tuning;
  };
  const Row rows[] = {{2, {70, 192}, {192, 80}, {}},
                      {3, {70, 192}, {192, 100}, {{"mr", 32}, {"nv", 2}, {"tiles", 2}}},
                      {6, {64, 192}, {192, 96}, {{"mr", 16}, {"nv", 3}, {"panels", 1}}},
                      {2, {40, 100}, {100, 64}, {{"mr", 17}, {"nv", 2}}},
                      {4, {2, 64, 9, 7}, {40, 64, 2, 2}, {}},
                      {3, {1, 64, 10, 8}, {33, 64, 3, 3}, {{"nv", 2}}},
                      {9, {1, 32, 10, 8}, {70, 32, 3, 3}, {}},
                      {3, {1, 80, 10, 8}, {33, 80, 3, 3}, {{"nv", 2}, {"direct", 1}}},
                      {2, {2, 48, 7, 9}, {20, 48, 4, 4}, {{"mr", 9}, {"direct", 1}}},
                      {2, {1, 128, 12, 8}, {64, 128, 1, 1}, {{"tiles", 3}}}};
  for (const Row& row : rows)
    for (const bool constant : {true, false})
      for (const bool computed : {true, false})
        for (const bool long_results : {true, false}) {
          const bool image = row.x.size() > 2;
          if (image && !constant) continue;
          Case c;
          const NodeId in = c.input(row.x, DType::bf16);
          if (image) c.layouts[in] = ordered(row.x, {0, 2, 3, 1});
          const NodeId x = computed ? c.b.relu(in) : in;
          const NodeId w = constant ? c.constant(row.w, DType::bf16) : c.input(row.w, DType::bf16);
          const int pad = image && row.w[2] > 1 ? 1 : 0;
          const NodeId y = image ? c.b.conv(x, w, conv(2, 1, pad)) : c.b.matmul(x, w);
          c.output(long_results ? c.b.mul(c.b.tanh(y), c.b.sigmoid(y)) : y);
          c.tolerance = 2e-2;  // results are of bf16
          Tuning tuning = row.tuning;
          tuning.emplace_back("slices", row.slices);
          c.on_tiles();
          c.tuning = tuning;
          c.tuning.emplace_back("pieces", 1);
          SCOPED_TRACE(fmt::format("{} {} {} {} {}", to_string(row.x), to_string(row.w), constant,
                                   computed, long_results));
          const auto lowered = contract::lower(request_of(c));
          if (!constant && lowered->schedule.find("b=phase") == std::string::npos) continue;
          ASSERT_NO_FATAL_FAILURE(check_pieces(c, tuning));
          EXPECT_NE(c.schedule.find(fmt::format(" slices={}", row.slices)), std::string::npos)
              << c.schedule;
        }
}

/// Slices begin where lines of windows do.
TEST(Pieces, NoSlicesAcrossLines) {
  Case c;
  const NodeId x = c.input({1, 64, 10, 8}, DType::bf16);
  c.layouts[x] = ordered({1, 64, 10, 8}, {0, 2, 3, 1});
  c.output(c.b.conv(x, c.constant({33, 64, 3, 3}, DType::bf16), conv(2, 1, 1)));
  c.on_tiles();
  c.tuning = {{"pieces", 1}, {"direct", 1}, {"slices", 2}};
  EXPECT_FALSE(contract::lower(request_of(c)).ok());
}

/// Bytes of either sign: convolutions whose channels are words, matrices, rows of several tasks.
TEST(Pieces, OfBytes) {
  struct Row {
    Shape x, w;
    Builder::Conv conv;
    Tuning tuning;
  };
  const Row rows[] = {
      {{1, 64, 8, 9}, {20, 64, 3, 3}, conv(2, 1, 1), {}},
      {{2, 128, 7, 7}, {34, 64, 3, 3}, conv(2, 2, 1, 1, 2), {{"mr", 17}}},
      {{1, 24, 9, 11}, {40, 24, 1, 1}, conv(2, 1, 0), {{"nv", 1}}},
      {{1, 32, 9, 11}, {40, 32, 3, 3}, conv(2, 1, 1), {}},
      {{2, 80, 9, 8}, {33, 80, 3, 3}, conv(2, 1, 0), {{"nv", 2}}},
      {{1, 48, 9, 9}, {20, 48, 5, 5}, conv(2, 2, 2), {{"mr", 17}}},
      {{2, 48, 11, 9}, {20, 48, 5, 5}, conv(2, 1, 2), {{"direct", 1}}},
      {{1, 160, 9, 8}, {33, 160, 3, 3}, conv(2, 2, 1), {{"direct", 1}}},
      {{1, 128, 9, 9}, {20, 128, 3, 3}, conv(2, 1, 1), {{"direct", 1}, {"slices", 3}}},
      {{1, 200, 10, 10}, {70, 200, 1, 1}, conv(2, 1, 0), {{"tiles", 1}}},
      {{1, 2048, 6, 6}, {48, 2048, 1, 1}, conv(2, 1, 0), {{"depth", 2}}},
      {{1, 256, 9, 9}, {40, 256, 1, 1}, conv(2, 1, 0), {{"slices", 2}}},
      {{1, 192, 16, 16}, {96, 192, 1, 1}, conv(2, 1, 0), {{"beside", 1}}}};
  for (const Row& row : rows)
    for (const DType a : {DType::u8, DType::i8})
      for (const DType b : {DType::u8, DType::i8})
        for (const bool constant : {true, false}) {
          if (!constant && row.w[2] > 1) continue;  // channels that are not the last reduction
          Case c;
          c.target.quads = true;
          const NodeId x = c.input(row.x, a);
          c.layouts[x] = ordered(row.x, {0, 2, 3, 1});
          const NodeId w = constant ? c.constant(row.w, b) : c.input(row.w, b);
          const prim::Node n =
              c.g[c.b.conv(c.b.cast(x, DType::i32), c.b.cast(w, DType::i32), row.conv)];
          for (Tensor& t : c.inputs)
            for (std::int64_t i = 0; i < t.count(); ++i) t.set_int(i, i * 7919 % 256);
          const NodeId y = c.g.add(n.op, {x, w}, {DType::i32, n.type.shape});
          c.output(c.b.mul(c.b.cast(y, DType::f32), 0.01));
          SCOPED_TRACE(fmt::format("{} {} {} {} {}", to_string(row.x), to_string(row.w), name_of(a),
                                   name_of(b), constant));
          ASSERT_NO_FATAL_FAILURE(check_pieces(c, constant ? row.tuning : Tuning{}));
        }
}

TEST(Pieces, SumsInTheEpilogue) {
  for (const bool rows : {false, true}) {
    Case c;
    const NodeId y = c.b.matmul(c.input({45, 64}), c.constant({64, 70}));
    c.output(y);
    c.output(c.b.reduce(ir::Monoid::sum, y, {rows ? 1 : 0}, false));
    SCOPED_TRACE(rows);
    c.tolerance = 1e-4;
    ASSERT_NO_FATAL_FAILURE(check_pieces(c));
  }
}

/// Infinities become NaN in their own row, and nothing else is touched.
TEST(Pieces, RowsKeepToThemselves) {
  for (const double value : {1e30, 3.4028234e38, -3.4e38, -double{INFINITY}, double{NAN}}) {
    Case c;
    c.on_tiles();
    Tensor x = c.random_tensor({DType::f32, {20, 40}}), w = c.random_tensor({DType::f32, {40, 24}});
    x.set(3 * 40 + 5, value);
    for (std::int64_t n = 0; n < 24; ++n) w.set(5 * 24 + n, w.at(5 * 24 + n) / 4);  // no overflow
    w.set(7 * 24 + 11, value);
    c.output(c.b.matmul(c.input({20, 40}), c.b.constant(w)));
    x.set(3 * 40 + 7, 0.25);
    c.inputs[0] = x;
    c.tuning = {{"pieces", 1}};
    const Tensor got = output_of(c), want = (*prim::interpret(c.g, c.inputs))[0];
    for (std::int64_t i = 0; i < want.count(); ++i) {
      if (std::isfinite(want.at(i))) {
        EXPECT_NEAR(got.at(i), want.at(i), 1e-5 * std::max(1.0, std::abs(want.at(i)))) << i;
      } else {
        EXPECT_FALSE(std::isfinite(got.at(i))) << i;
      }
    }
  }
}

TEST(Pieces, OnlyWhereTheyApply) {
  const auto kind = [](Case& c, bool tiles) {
    c.on_tiles();
    c.target.tiles = tiles;
    const auto lowered = contract::lower(request_of(c));
    return lowered.ok() ? lowered->schedule.substr(0, 6) : lowered.error().message;
  };
  Case large;
  large.output(large.b.matmul(large.input({256, 512}), large.constant({512, 512})));
  EXPECT_EQ(kind(large, true), "pieces");
  EXPECT_NE(kind(large, false), "pieces");
  large.tuning = {{"mr", 14}, {"nv", 2}};  // a schedule of before
  EXPECT_NE(kind(large, true), "pieces");
  Case row;
  row.output(row.b.matmul(row.input({1, 512}), row.constant({512, 512})));
  EXPECT_NE(kind(row, true), "pieces");
  Case wide;
  wide.output(
      wide.b.matmul(wide.input({64, 512}, DType::f64), wide.constant({512, 512}, DType::f64)));
  wide.tuning = {{"pieces", 1}};
  EXPECT_NE(kind(wide, true), "pieces");
}

/// Of a convolution of many channels whose window mostly lies outside the image.
std::string schedule_of_dilated(std::int64_t taps, int dilation, Tuning tuning) {
  Case c;
  c.on_tiles();
  c.target.l2_bytes = 2 << 20;
  c.tuning = std::move(tuning);
  const NodeId x = c.input({1, 960, 14, 14});
  c.layouts[x] = ordered({1, 960, 14, 14}, {0, 2, 3, 1});
  c.output(c.b.conv(x, c.constant({256, 960, taps, taps}),
                    conv(2, 1, dilation * static_cast<int>(taps / 2), dilation)));
  const auto lowered = contract::lower(request_of(c));
  return lowered.ok() ? lowered->schedule : lowered.error().message;
}

// A panel of all terms would come anew for every tile.
TEST(Pieces, PanelsOfManyTermsStayNear) {
  const std::string schedule = schedule_of_dilated(3, 12, {{"pieces", 1}, {"nv", 4}});
  EXPECT_NE(schedule.find("depth=18"), std::string::npos) << schedule;
}

// The other kernels leave out what is padding.
TEST(Pieces, NotOfPadding) {
  EXPECT_TRUE(schedule_of_dilated(5, 13, {}).starts_with("contract"))
      << schedule_of_dilated(5, 13, {});
  EXPECT_TRUE(schedule_of_dilated(3, 2, {}).starts_with("pieces")) << schedule_of_dilated(3, 2, {});
}

TEST(Pieces, AreOfferedWhereTheyGain) {
  const auto works = [](std::int64_t m, std::int64_t k, std::int64_t n, DType type) {
    Case c;
    c.on_tiles();
    const NodeId y = c.b.matmul(c.input({m, k}, type), c.constant({k, n}, type));
    std::vector<double> out;
    for (const auto& a : contract::algorithms(c.g, y, c.target)) out.push_back(a.work);
    return *std::min_element(out.begin(), out.end());
  };
  EXPECT_LT(works(512, 512, 512, DType::f32), 0.6);
  EXPECT_LT(works(512, 512, 512, DType::bf16), 0.2);
  EXPECT_EQ(works(1, 512, 512, DType::f32), 1);
}

TEST(Pieces, SchedulesToMeasureNameThem) {
  Case c;
  c.on_tiles();
  c.output(c.b.matmul(c.input({256, 512}), c.constant({512, 512})));
  bool pieces = false, written = false;
  for (const Tuning& tuning : contract::tuning_space(request_of(c))) {
    c.tuning = tuning;
    const auto lowered = contract::lower(request_of(c));
    ASSERT_TRUE(lowered.ok()) << lowered.error().message;
    const bool now = lowered->schedule.starts_with("pieces");
    const auto named = std::find(tuning.begin(), tuning.end(),
                                 std::pair<std::string, std::int64_t>{"pieces", now});
    EXPECT_NE(named, tuning.end()) << lowered->schedule;
    (now ? pieces : written) = true;
  }
  EXPECT_TRUE(pieces && written);
}

}  // namespace
}  // namespace heddle::lower
