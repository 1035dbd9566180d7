#include "prim/text.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "ir/text.h"
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

/// Adds nodes of the kinds that random_graph() leaves out, over one of its values.
void add_rare_kinds(Graph& g, std::mt19937& rng) {
  Builder b(g);
  const auto pick = [&](int n) { return static_cast<int>(rng() % static_cast<unsigned>(n)); };
  for (int i = 0; i < 8; ++i) {
    const NodeId x{pick(g.size())};
    if (b.rank(x) == 0 || !is_float(b.dtype(x)) || element_count(b.shape(x)) == 0) continue;
    const int axis = pick(b.rank(x));
    const std::int64_t extent = b.shape(x)[static_cast<std::size_t>(axis)];
    g.set_origin(
        Origin{fmt::format("Op{}", pick(3)), std::string(1, static_cast<char>(pick(256)))});
    const NodeId order = b.sort_indices(x, axis, pick(2), 1 + pick(static_cast<int>(extent)));
    const NodeId sorted = b.take_along(x, order, axis);
    const Scatter at{{axis},
                     [&] {
                       std::vector<ir::Expr> base;
                       for (int k = 0; k < b.rank(x); ++k)
                         base.push_back(k == axis ? ir::Expr(0) : ir::Expr(ir::Var{k}));
                       return base;
                     }(),
                     static_cast<Scatter::Combine>(pick(5))};
    const NodeId values[] = {
        sorted,
        b.scatter(x, sorted, {order}, at),
        b.scan(pick(2) ? ir::Monoid::sum : ir::Monoid::max, x, axis, pick(2), pick(2)),
        b.iota({pick(2) ? DType::i32 : DType::f16, b.shape(x)}, axis),
        b.random(b.type(x), pick(2) ? Random::Kind::normal : Random::Kind::uniform, rng()),
        b.reduce(pick(2) ? ir::Monoid::argmax : ir::Monoid::argmin, x, {axis}),
        b.cast(x, pick(2) ? DType::bf16 : DType::u8)};
    g.outputs.push_back({fmt::format("rare \"{}\"", i), values[pick(7)]});
  }
}

TEST(Text, RandomGraphsRoundTrip) {
  std::mt19937 rng(23);
  for (int i = 0; i < 300; ++i) {
    Graph g = random_graph(rng, 10);
    add_rare_kinds(g, rng);
    g = compact(g);
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

TEST(Text, ConstantsKeepTheirBits) {
  std::mt19937 rng(5);
  for (const DType type : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i8, DType::u8,
                           DType::i32, DType::i64, DType::b1}) {
    Tensor t({type, {29}});
    for (std::int64_t i = 0; i < t.bytes(); ++i)
      t.mutable_data()[i] = static_cast<std::byte>(rng());
    Graph g;
    g.outputs = {{"y", g.add_constant(t)}};
    for (const PrintOptions& options :
         {PrintOptions{}, PrintOptions{.max_inline = 0, .embed = true}}) {
      const std::string text = print(g, options);
      const auto parsed = parse_graph(text);
      ASSERT_TRUE(parsed) << parsed.error().message << text;
      EXPECT_EQ(*parsed, g) << text;
    }
  }
  for (const double value : {-0.0, 0.1, 5e-324, 1e308, 9007199254740993.0, -1e15}) {
    Tensor t({DType::f64, {}});
    t.set(0, value);
    Graph g;
    g.outputs = {{"y", g.add_constant(t)}};
    EXPECT_NE(print(g).find('{'), std::string::npos);  // as a number, not as bytes
    EXPECT_EQ(*parse_graph(print(g)), g) << print(g);
  }
}

TEST(Text, RandomConstants) {
  const auto g = parse_graph("%0 = constant random 3 : f32[50]\noutput \"y\" = %0");
  ASSERT_TRUE(g);
  const Tensor& t = *g->constant_of(NodeId{0});
  double low = 1, high = -1;
  for (const float x : t.as<float>())
    low = std::min<double>(low, x), high = std::max<double>(high, x);
  EXPECT_GE(low, -1);
  EXPECT_LT(low, -0.5);
  EXPECT_GT(high, 0.5);
  EXPECT_LT(high, 1);
  // Together they are as bounded as one.
  EXPECT_FALSE(
      parse_graph("%0 = constant random 3 : i8[1000]\n%1 = constant random 3 : "
                  "i8[67108000]\noutput \"y\" = %1"));
}

TEST(Text, OriginsRoundTrip) {
  const Graph g = every_kind();
  const auto parsed = parse_graph(print(g));
  ASSERT_TRUE(parsed);
  for (const NodeId id : live_nodes(g)) {
    const auto name = [id](const Graph& of) {
      return of.origin_id(id) ? of.origin(of.origin_id(id)) : Origin{};
    };
    EXPECT_EQ(name(*parsed), name(g)) << print_node(g, id);
  }
}

TEST(Text, SeveralOriginsRoundTrip) {
  const std::string text =
      "input \"x\" : f32[4]\n"
      "%0 = input 0 : f32[4]\n"
      "origin \"Relu\" \"r\", \"Conv\" \"c\", \"Mul\" \"m\"\n"
      "%1 = map neg %0 : f32[4]\n"
      "origin \"\" \"\"\n"
      "%2 = map abs %1 : f32[4]\n"
      "origin \"Mul\" \"m\", \"Relu\" \"r\"\n"
      "%3 = map exp %2 : f32[4]\n"
      "output \"y\" = %3\n";
  const auto g = parse_graph(text);
  ASSERT_TRUE(g) << g.error().message;
  EXPECT_EQ(print(*g), text);
  EXPECT_EQ(g->origins().size(), 3);
  EXPECT_EQ(g->origins_of(NodeId{1}).size(), 3u);
  EXPECT_EQ(g->origins_of(NodeId{3}).size(), 2u);
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
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('\x55');
  }
  const auto damaged = load_constants(path);
  ASSERT_TRUE(damaged);
  EXPECT_FALSE(parse_graph(print(g), *damaged));  // not the bytes that the hash names
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

/// Well-formed tokens in the wrong places reach deeper than damaged characters.
TEST(Text, ShuffledTokensAreAnErrorNeverACrash) {
  std::mt19937 rng(31);
  std::vector<std::string> pool = {"9223372036854775807",
                                   "-1",
                                   "0",
                                   "d0",
                                   "d7",
                                   "(",
                                   ")",
                                   "%",
                                   "/",
                                   "*",
                                   "max",
                                   "min",
                                   "f32[0]",
                                   "b1[]",
                                   "i64[1099511627776]"};
  int accepted = 0;
  for (int i = 0; i < 1500; ++i) {
    Graph g = random_graph(rng, 6);
    add_rare_kinds(g, rng);
    const std::string text = print(g);
    std::vector<std::string_view> tokens;
    ir::Lexer in(text);
    while (!in.at_end()) tokens.push_back(in.next().text);
    if (pool.size() < 2000) pool.insert(pool.end(), tokens.begin(), tokens.end());
    std::string bad;
    for (std::size_t at = 0; at < tokens.size(); ++at) {
      const auto dice = rng() % (2 * tokens.size());
      if (dice == 0) continue;
      bad += (dice < 3 ? pool[rng() % pool.size()] : std::string(tokens[at])) + " ";
    }
    if (const auto parsed = parse_graph(bad)) {
      ++accepted;
      EXPECT_TRUE(verify(*parsed)) << bad;
      EXPECT_EQ(*parse_graph(print(*parsed), large_constants(*parsed)), compact(*parsed)) << bad;
    }
  }
  EXPECT_GT(accepted, 100);
  EXPECT_LT(accepted, 1400);
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
      {"%0 = iota axis 3 : f32[2]\noutput \"y\" = %0", "line 1: %0 iota: axis 3 is outside [2]"},
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
