#include "prim/text.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "prim/random_graph.h"
#include "prim/rewrite.h"
#include "prim/test_util.h"

namespace heddle::prim {
namespace {

/// Without dead nodes, so that ids are those that print() shows.
Graph compact(const Graph& g) {
  return rebuild(g,
                 [](Graph& out, const Node& n, NodeId) { return out.add(n.op, n.args, n.type); });
}

TEST(Text, RandomGraphsRoundTrip) {
  std::mt19937 rng(23);
  for (int i = 0; i < 300; ++i) {
    Graph g = compact(random_graph(rng, 10));
    if (i % 2) g = canonicalize(g);
    const std::string text = print(g);
    const auto parsed = parse_graph(text, large_constants(g));
    ASSERT_TRUE(parsed) << parsed.error().message << "\n" << text;
    ASSERT_EQ(*parsed, g) << text;
    ASSERT_EQ(print(*parsed), text);
  }
}

Graph every_kind() {
  Graph g;
  Builder b(g);
  const NodeId x = g.add_input("x \"quoted\"\n", {DType::f32, {4, 3}});
  g.set_origin(Origin{"Sort", "s/1"});
  const NodeId order = b.sort_indices(x, 0, true, 2);
  const NodeId sorted = b.take_along(x, order, 0);
  const NodeId rows = b.constant(ints({2, 3}, {0, 1, 2, 3, 0, -9223372036854775807 - 1}));
  g.set_origin(OriginId{});
  const Scatter s{{0}, {ir::Expr(0), ir::Var{1}}, Scatter::Combine::max};
  const NodeId scattered = b.scatter(x, sorted, {rows}, s);
  g.outputs = {{"a", b.scan(ir::Monoid::prod, scattered, 1, true, true)},
               {"b", b.iota({DType::u8, {3, 5}}, 1)},
               {"c", b.random({DType::f16, {2}}, Random::Kind::normal, ~std::uint64_t{0})},
               {"d", b.pad(x, {1, 0}, {0, 1}, -INFINITY)},
               {"e", b.cast(x, DType::b1)},
               {"f", b.reduce(ir::Monoid::argmin, x, {1})},
               {"g", b.matmul(x, b.constant(floats({3, 1}, {0.1f, -1e-20f, 3})))}};
  return compact(g);
}

TEST(Text, EveryKindRoundTrips) {
  const Graph g = every_kind();
  const auto parsed = parse_graph(print(g));
  ASSERT_TRUE(parsed) << parsed.error().message << "\n" << print(g);
  EXPECT_EQ(*parsed, g);
  EXPECT_EQ(print(*parsed), print(g));
}

TEST(Text, ConstantsTravelInAFile) {
  Graph g;
  Builder b(g);
  std::mt19937 rng(1);
  const NodeId w = b.constant(random_tensor({DType::f32, {10, 10}}, rng));
  g.outputs = {{"y", b.exp(w)}};
  const std::string path =
      (std::filesystem::temp_directory_path() / "heddle_text_test.hedc").string();
  ASSERT_TRUE(save_constants(large_constants(g), path));
  const auto loaded = load_constants(path);
  ASSERT_TRUE(loaded) << loaded.error().message;
  const auto parsed = parse_graph(print(g), *loaded);
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(*parsed, g);
  EXPECT_FALSE(parse_graph(print(g)));  // without its constants
  std::filesystem::resize_file(path, 200);
  EXPECT_FALSE(load_constants(path));
  std::ofstream(path) << "hedc1\n00000000000000000000000000000000 f32[1000000,10000]\n";
  EXPECT_FALSE(load_constants(path));
  std::filesystem::remove(path);
}

TEST(Text, DamagedTextIsAnErrorNeverACrash) {
  const std::string good = print(every_kind());
  std::mt19937 rng(9);
  int rejected = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string bad = good;
    for (unsigned edit = 0; edit <= rng() % 3; ++edit) {
      const std::size_t at = rng() % bad.size();
      switch (rng() % 4) {
        case 0:
          bad.resize(at + 1);
          break;
        case 1:
          bad[at] = static_cast<char>(32 + rng() % 95);
          break;
        case 2:
          bad.erase(at, 1 + rng() % 8);
          break;
        default:
          bad.insert(at, std::to_string(rng()));
          break;
      }
      if (bad.empty()) bad = " ";
    }
    if (!parse_graph(bad)) ++rejected;
  }
  EXPECT_GT(rejected, 1500);
}

TEST(Text, ErrorsSayWhereAndWhat) {
  struct Case {
    const char* text;
    const char* message;
  };
  const Case cases[] = {
      {"", "line 1, column 1: found the end, want an output"},
      {"%0 = map exp %1 : f32[2]",
       "line 1, column 17: found ':', want a value defined earlier, not '%1', before this"},
      {"%0 = iota axis 0 : f33[2]",
       "line 1, column 23: found '[', want an element type before this, not 'f33'"},
      {"%0 = iota axis 3 : f32[2]\noutput \"y\" = %0", "%0 iota: axis 3 is outside [2]"},
      {"%0 = constant {1, 2} : i32[3]\n",
       "line 2, column 1: found the end, want 3 elements before this, not 2"},
  };
  for (const Case& c : cases) {
    const auto parsed = parse_graph(c.text);
    ASSERT_FALSE(parsed) << c.text;
    EXPECT_EQ(parsed.error().message, c.message);
  }
}

}  // namespace
}  // namespace heddle::prim
