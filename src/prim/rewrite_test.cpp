// Every row is tried on its own example and on random graphs, and compared through the reference
// interpreter; the comparison is itself shown to catch wrong rows.
#include "prim/rewrite.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "prim/fold.h"
#include "prim/interpret.h"
#include "prim/random_graph.h"
#include "prim/test_util.h"
#include "prim/text.h"

namespace heddle::prim {
namespace {

Graph example_of(const RewriteRule& rule) {
  Graph g;
  Builder b(g);
  const NodeId y = rule.example(b);
  g.outputs = {{"y", y}};
  return g;
}

/// Largest difference relative to the largest value; NaN and infinity must be equal.
double difference(const Tensor& a, const Tensor& b) {
  double scale = 1, worst = 0;
  for (std::int64_t i = 0; i < a.count(); ++i)
    if (std::isfinite(a.at(i))) scale = std::max(scale, std::fabs(a.at(i)));
  for (std::int64_t i = 0; i < a.count(); ++i) {
    const double x = a.at(i), y = b.at(i);
    if (std::isfinite(x) && std::isfinite(y))
      worst = std::max(worst, std::fabs(x - y));
    else if (!(x == y || (std::isnan(x) && std::isnan(y))))
      return INFINITY;
  }
  return worst / scale;
}

/// Empty if both graphs compute the same; else what differs.
std::string compare(const Graph& before, const Graph& after, std::mt19937& rng) {
  if (const Status s = verify(after); !s) return s.error().message;
  const auto inputs = random_inputs(before, rng);
  const auto a = interpret(before, inputs), b = interpret(after, inputs);
  if (!a) return a.error().message;
  if (!b) return b.error().message;
  for (std::size_t i = 0; i < a->size(); ++i) {
    if ((*a)[i].type() != (*b)[i].type()) return "type of output " + std::to_string(i);
    const bool exact = !is_float((*a)[i].type().dtype);
    if (const double d = difference((*a)[i], (*b)[i]); d > (exact ? 0 : 1e-5))
      return fmt::format("output {} differs by {}", i, d);
  }
  return {};
}

/// How often the row fired on random graphs, or what it broke there or on its example.
Result<int> try_rule(const RewriteRule& rule, int graphs) {
  std::mt19937 rng(5);
  const RewriteRule* rows[] = {&rule};
  int total = 0;
  for (int i = 0; i <= graphs; ++i) {
    const Graph g = i == 0       ? example_of(rule)
                    : i % 4 == 0 ? random_graph(rng, 8)
                                 : random_algebra(rng, 1 + i % 6);
    RewriteCounts counts;
    const Graph after = rewrite_once(g, rows, &counts);
    if (i > 0) total += counts[rule.name];
    if (counts[rule.name] == 0) continue;
    if (const std::string wrong = compare(g, after, rng); !wrong.empty())
      return fail("{}: {} (graph {})", rule.name, wrong, i);
  }
  return total;
}

TEST(RewriteRules, AreSoundAndFire) {
  for (const RewriteRule* rule : rewrite_rules()) {
    const auto fired = try_rule(*rule, 4000);
    EXPECT_TRUE(fired) << fired.error().message;
    if (fired) {
      // Its own example proves little: the row was written for it.
      EXPECT_GE(*fired, 5) << rule->name;
      RecordProperty(std::string(rule->name), *fired);
    }
  }
}

TEST(RewriteRules, FireOnTheirExample) {
  for (const RewriteRule* rule : rewrite_rules()) {
    const RewriteRule* rows[] = {rule};
    RewriteCounts counts;
    rewrite_once(example_of(*rule), rows, &counts);
    EXPECT_GE(counts[rule->name], 1) << rule->name;
  }
}

TEST(RewriteRules, CheckerCatchesWrongRows) {
  const RewriteRule wrong[] = {
      {"bad-neg", "-x -> x",
       [](RewriteContext&, const Node& n) -> std::optional<NodeId> {
         const auto* m = std::get_if<Map>(&n.op);
         if (m == nullptr || m->fn != ir::ScalarFn::neg) return std::nullopt;
         return n.args[0];
       },
       [](Builder& b) {
         return b.neg(b.graph().add_input("x", {DType::f32, {3}}));
       }},
      {"bad-fill", "view(view(x)) -> view(x) with the outer fill, as if inner were never outside",
       [](RewriteContext& c, const Node& n) -> std::optional<NodeId> {
         const auto* v = std::get_if<View>(&n.op);
         if (v == nullptr || v->pieces.size() != 1) return std::nullopt;
         const Node inner = c.g[n.args[0]];
         const auto* w = std::get_if<View>(&inner.op);
         if (w == nullptr || w->pieces.size() != 1) return std::nullopt;
         Access a;
         for (const auto& e : w->pieces[0].index)
           a.index.push_back(ir::substitute(e, v->pieces[0].index));
         for (const auto& k : w->pieces[0].inside)
           a.inside.push_back({ir::substitute(k.expr, v->pieces[0].index), k.low, k.high});
         a.inside.insert(a.inside.end(), v->pieces[0].inside.begin(), v->pieces[0].inside.end());
         return add_view(c.b, inner.args, {a}, v->fill, n.type);
       },
       [](Builder& b) {
         const NodeId x = b.graph().add_input("x", {DType::f32, {3}});
         return b.flip(b.pad(x, {1}, {1}, 7), {0});
       }},
      {"bad-mean", "sum(broadcast x) -> sum(x), forgetting the repeats",
       [](RewriteContext& c, const Node& n) -> std::optional<NodeId> {
         const auto* r = std::get_if<Reduce>(&n.op);
         if (r == nullptr || plain_view(c.g, n.args[0]) == nullptr || n.type.shape.size() != 0)
           return std::nullopt;
         const NodeId x = c.g[n.args[0]].args[0];
         std::vector<int> axes;
         for (int k = 0; k < c.b.rank(x); ++k) axes.push_back(k);
         return c.b.reduce(r->fn, x, axes, false);
       },
       [](Builder& b) {
         const NodeId x = b.graph().add_input("x", {DType::f32, {3}});
         return b.reduce_sum(b.broadcast(x, {2, 3}), {0, 1}, false);
       }},
  };
  for (const RewriteRule& rule : wrong) EXPECT_FALSE(try_rule(rule, 50)) << rule.name;
}

TEST(Canonicalize, KeepsTheMeaningOfRandomGraphs) {
  std::mt19937 rng(17);
  RewriteCounts counts;
  for (int i = 0; i < 600; ++i) {
    const Graph g = random_graph(rng, 3 + i % 14);
    const Graph after = canonicalize(g, {}, &counts);
    ASSERT_EQ(compare(g, after, rng), "") << "graph " << i;
    ASSERT_EQ(print(canonicalize(after)), print(after)) << "graph " << i;
    // One row left out at a time must not break the others.
    const auto& all = rewrite_rules();
    const Graph partial = canonicalize(g, all[static_cast<std::size_t>(i) % all.size()]->name);
    ASSERT_EQ(compare(g, partial, rng), "") << "graph " << i;
  }
  // Random graphs reach most rows, not only their own examples.
  EXPECT_GE(counts.size(), 20u);
}

/// Live nodes by kind and function: "add:2 contract:1".
std::map<std::string, int> census(const Graph& g) {
  std::map<std::string, int> count;
  for (const NodeId id : live_nodes(g)) {
    const auto* m = std::get_if<Map>(&g[id].op);
    ++count[std::string(m != nullptr ? ir::info(m->fn).name : kind_name(g[id].op))];
  }
  return count;
}

/// A table has what the operators' own types make of each integer: e^90 is infinite in f32, and is
/// not in f64. Integers that wrap on the way are not looked up.
TEST(RewriteRules, TablesAreOfTheTypesThatCompute) {
  for (const DType type : {DType::f32, DType::f64}) {
    Graph g;
    Builder b(g);
    const NodeId q = g.add_input("q", {DType::u8, {3}});
    const NodeId e = b.exp(b.cast(q, type));
    g.outputs = {{"y", b.cast(b.cast(b.map(ir::ScalarFn::isinf, {e}), type), DType::u8)}};
    g = canonicalize(g);
    ASSERT_EQ(census(g)["gather"], 1) << print(g);
    Tensor x({DType::u8, {3}});
    for (const auto& [i, v] : {std::pair{0, 80}, {1, 90}, {2, 255}}) x.set_int(i, v);
    const Tensor y = (*interpret(g, {x}))[0];
    EXPECT_EQ(y.int_at(0), 0);
    EXPECT_EQ(y.int_at(1), type == DType::f32);
    EXPECT_EQ(y.int_at(2), type == DType::f32);
  }
  Graph g;
  Builder b(g);
  const NodeId q = b.cast(g.add_input("q", {DType::u8, {3}}), DType::i64);
  const NodeId far = b.add(q, b.scalar_int(DType::i64, std::numeric_limits<std::int64_t>::max()));
  const NodeId y = b.mul(b.sigmoid(b.mul(b.cast(far, DType::f32), 1e-18)), 255.0);
  g.outputs = {{"y", b.cast(b.map(ir::ScalarFn::round, {b.max(b.min(y, b.scalar(DType::f32, 255)),
                                                              b.scalar(DType::f32, 0))}),
                            DType::u8)}};
  EXPECT_EQ(census(canonicalize(g))["gather"], 0);
}

/// What quantises the gate of x·hard_sigmoid(x) and then the product is worth a lookup; what only
/// quantises a byte anew is not.
TEST(RewriteRules, LongFunctionsOfBytesAreTables) {
  Graph g;
  Builder b(g);
  const auto number = [&](double v) { return b.scalar(DType::f32, v); };
  const auto clip = [&](NodeId x, double most) { return b.max(b.min(x, number(most)), number(0)); };
  const auto quantised = [&](NodeId x, double scale) {
    return b.cast(clip(b.map(ir::ScalarFn::round, {b.mul(x, scale)}), 255), DType::u8);
  };
  const NodeId q = g.add_input("q", {DType::u8, {256}});
  const NodeId x = b.mul(b.sub(b.cast(q, DType::f32), 100.0), 0.07);
  const NodeId gate = quantised(clip(b.add(b.mul(x, 1.0 / 6), number(0.5)), 1), 255);
  g.outputs = {{"y", quantised(b.mul(x, b.mul(b.cast(gate, DType::f32), 1.0 / 255)), 20)},
               {"again", quantised(b.relu(x), 13)}};
  const Graph after = canonicalize(g);
  EXPECT_EQ(census(after)["gather"], 1) << print(after);
  Tensor all({DType::u8, {256}});
  for (std::int64_t i = 0; i < 256; ++i) all.set_int(i, i);
  const auto before = *interpret(g, {all}), now = *interpret(after, {all});
  for (std::size_t k = 0; k < 2; ++k)
    for (std::int64_t i = 0; i < 256; ++i) EXPECT_EQ(now[k].int_at(i), before[k].int_at(i)) << i;
}

/// Sums of bytes are in 16 bits as long as these hold them; signed ones reach twice as far.
TEST(RewriteRules, SumsOfIntegersThatSixteenBitsHold) {
  for (const auto& [type, terms, narrow] :
       {std::tuple{DType::u8, 128, true}, std::tuple{DType::u8, 129, false},
        std::tuple{DType::i8, 255, true}, std::tuple{DType::i8, 257, false}}) {
    Graph g;
    Builder b(g);
    const NodeId q = g.add_input("q", {type, {4, terms + 1}});
    const NodeId x = b.mul(b.cast(q, DType::f32), 0.25);
    const ir::Expr at = ir::Expr(ir::Var{1}) + ir::Expr(ir::Var{2});
    const NodeId window = b.view(x, {4, 2, terms}, {{ir::Var{0}, at}, {}}, 0);
    g.outputs = {{"y", b.reduce(ir::Monoid::sum, window, {2}, false)}};
    const Graph after = canonicalize(g);
    bool in_16_bits = false;
    for (const NodeId id : live_nodes(after))
      in_16_bits |=
          std::holds_alternative<Reduce>(after[id].op) && after[id].type.dtype == DType::i16;
    EXPECT_EQ(in_16_bits, narrow) << terms << print(after);
    for (const std::int64_t each : {std::int64_t{-128}, std::int64_t{127}, std::int64_t{255}}) {
      if (type == DType::u8 ? each < 0 : each > 127) continue;
      Tensor t({type, {4, terms + 1}});
      for (std::int64_t i = 0; i < t.count(); ++i) t.set_int(i, each);
      EXPECT_EQ((*interpret(after, {t}))[0].at(0), (*interpret(g, {t}))[0].at(0)) << each;
    }
  }
}

/// A third is rounded; f16 does not hold 2^24: x * 2^24 would be infinite where x / 2^-24 is 16.
TEST(RewriteRules, DivisorsWithoutReciprocalStay) {
  for (const auto& [type, divisor, stays] :
       {std::tuple{DType::f16, 0x1p-24, true}, std::tuple{DType::f16, 0x1p-13, false},
        std::tuple{DType::f32, 0x1p-140, true}, std::tuple{DType::f32, 3.0, true}}) {
    Graph g;
    Builder b(g);
    g.outputs = {{"y", b.div(g.add_input("x", {type, {3}}), b.scalar(type, divisor))}};
    EXPECT_EQ(census(canonicalize(g)).count("div"), stays ? 1u : 0u) << divisor;
  }
}

TEST(Canonicalize, ConvBatchNormReluBecomesContractBiasRelu) {
  Graph g;
  Builder b(g);
  std::mt19937 rng(1);
  const auto weight = [&](Shape s) { return b.constant(random_tensor({DType::f32, s}, rng)); };
  NodeId x = g.add_input("x", {DType::f32, {1, 8, 6, 6}});
  const NodeId skip = x;
  for (int i = 0; i < 2; ++i) {
    x = b.conv(x, weight({8, 8, 3, 3}), {{1, 1}, {1, 1}, {1, 1}, {1, 1}, 1});
    if (i == 1) x = b.add(x, b.reshape(weight({8}), {1, 8, 1, 1}));  // a bias of its own
    const auto channel = [&] { return b.reshape(weight({8}), {1, 8, 1, 1}); };
    const NodeId deviation = b.sqrt(b.add(b.map(ir::ScalarFn::abs, {channel()}), 1e-5));
    x = b.add(b.mul(b.div(b.sub(x, channel()), deviation), channel()), channel());
    if (i == 1) x = b.add(x, skip);
    x = b.relu(x);
  }
  const NodeId pooled = b.mean(x, {2, 3}, true);
  const NodeId flat = b.reshape(pooled, {1, 8});
  g.outputs = {{"y", b.add(b.matmul(flat, b.transpose(weight({10, 8}), {1, 0})), weight({10}))}};
  const Graph c = canonicalize(g);
  EXPECT_EQ(compare(g, c, rng), "");
  const auto n = census(c);
  // Views: two biases and the relu's zero; nothing between the operations.
  const std::map<std::string, int> want = {{"add", 4},   {"constant", 7}, {"contract", 3},
                                           {"input", 1}, {"max", 2},      {"reduce", 1},
                                           {"view", 3}};
  EXPECT_EQ(n, want) << ::testing::PrintToString(n);
}

/// Of one pixel every result gets one tap; with a stride every result gets its phase's taps.
TEST(Canonicalize, TransposedConvolutionsSumWhatCounts) {
  struct Row {
    std::int64_t in, stride, pad, out, terms;
  };
  for (const Row& row : {Row{1, 1, 0, 4, 3}, Row{4, 2, 1, 8, 12}, Row{3, 3, 2, 7, 12}}) {
    Graph g;
    Builder b(g);
    std::mt19937 rng(3);
    const NodeId x = g.add_input("x", {DType::f32, {1, 3, row.in, row.in}});
    const NodeId w = g.add_input("w", {DType::f32, {3, 16, 4, 4}});
    g.outputs = {
        {"y",
         b.conv_transpose(
             x, w, {{row.stride, row.stride}, {1, 1}, {row.pad, row.pad}, {row.pad, row.pad}, 1},
             {row.out, row.out})}};
    const Graph after = canonicalize(g, kBytesInHalves);
    SCOPED_TRACE(row.in);
    EXPECT_EQ(compare(g, after, rng), "");
    std::int64_t products = 0;
    for (const NodeId id : live_nodes(after))
      if (const auto* k = std::get_if<Contract>(&after[id].op))
        products += element_count(k->reduced) * element_count(after[id].type.shape);
    EXPECT_LE(products, row.terms * 16 * row.out * row.out);
    EXPECT_GT(products, 0);
  }
}

/// Dequantised u8 with a zero point by i8 weights: padded, strided, of three channels, shuffled,
/// with reflected borders.
TEST(Canonicalize, QuantisedConvolutionsAreProductsOfBytes) {
  struct Row {
    std::int64_t channels, stride, pad, shuffled;
    bool reflected = false;
  };
  for (const Row& row : {Row{8, 1, 1, 0}, Row{8, 2, 1, 0}, Row{3, 2, 3, 0}, Row{8, 1, 0, 2},
                         Row{8, 1, 0, 0, true}, Row{3, 2, 0, 0, true}}) {
    Graph g;
    Builder b(g);
    std::mt19937 rng(3);
    NodeId q = g.add_input("q", {DType::u8, {1, row.channels, 9, 7}});
    NodeId x = b.sub(b.cast(q, DType::i32), b.scalar_int(DType::i32, 113));
    x = b.mul(b.cast(x, DType::f32), 0.04);
    if (row.shuffled > 0) {
      const std::int64_t s = row.shuffled;
      x = b.transpose(b.reshape(x, {1, s, row.channels / s, 9, 7}), {0, 2, 1, 3, 4});
      x = b.reshape(x, {1, row.channels, 9, 7});
    }
    if (row.reflected) {
      const auto at = [](int d, std::int64_t extent) {
        const ir::Expr from = ir::Expr(ir::Var{d}) - 1, e = ir::max(from, from * ir::Expr(-1));
        return ir::min(e, ir::Expr(2 * extent - 2) - e);
      };
      x = b.view(x, {1, row.channels, 11, 9}, {{ir::Var{0}, ir::Var{1}, at(2, 9), at(3, 7)}, {}});
    }
    Tensor weights({DType::i8, {12, row.channels, 3, 3}});
    for (std::int64_t i = 0; i < weights.count(); ++i) weights.set_int(i, i * 37 % 255 - 127);
    const NodeId w = b.mul(b.cast(b.constant(weights), DType::f32), 0.01);
    Builder::Conv geometry;
    geometry.strides = {row.stride, row.stride};
    geometry.dilations = {1, 1};
    geometry.pads_begin = geometry.pads_end = {row.pad, row.pad};
    g.outputs = {{"y", b.conv(x, w, geometry)}};
    const Graph after = canonicalize(g, kBytesInHalves);
    SCOPED_TRACE(fmt::format("{} channels, stride {}", row.channels, row.stride));
    EXPECT_EQ(compare(g, after, rng), "");
    bool bytes = false, fours = false;
    for (const NodeId id : live_nodes(after))
      if (const auto* k = std::get_if<Contract>(&after[id].op)) {
        bytes |= after[after[id].args[0]].type.dtype == DType::u8 &&
                 after[after[id].args[1]].type.dtype == DType::i8;
        fours |= std::ranges::any_of(k->reduced, [](std::int64_t n) { return n % 4 == 0; });
      }
    EXPECT_TRUE(bytes);
    EXPECT_TRUE(fours);
  }
}

/// Terms that are no multiple of four, and groups of channels taken in turn.
TEST(Canonicalize, QuantisedProductsOfOddNumbersAreOfBytes) {
  struct Row {
    std::int64_t channels, groups;
    std::vector<std::int64_t> reduced;
  };
  for (const Row& row :
       {Row{58, 1, {58}}, Row{37, 1, {37}}, Row{116, 2, {116}}, Row{36, 3, {36}}}) {
    Graph g;
    Builder b(g);
    std::mt19937 rng(3);
    const NodeId q = g.add_input("q", {DType::u8, {1, row.channels, 5, 4}});
    NodeId x = b.mul(b.cast(q, DType::f32), 0.04);
    x = b.reshape(x, {1, row.groups, row.channels / row.groups, 5, 4});
    x = b.reshape(b.transpose(x, {0, 2, 1, 3, 4}), {1, row.channels, 5, 4});
    Tensor weights({DType::i8, {12, row.channels, 1, 1}});
    for (std::int64_t i = 0; i < weights.count(); ++i) weights.set_int(i, i * 37 % 255 - 127);
    const NodeId w = b.mul(b.cast(b.constant(weights), DType::f32), 0.01);
    g.outputs = {{"y", b.conv(x, w, {{1, 1}, {1, 1}, {0, 0}, {0, 0}, 1})}};
    const Graph after = canonicalize(g, kBytesInHalves);
    SCOPED_TRACE(fmt::format("{} channels in {} groups", row.channels, row.groups));
    EXPECT_EQ(compare(g, after, rng), "");
    for (const NodeId id : live_nodes(after))
      if (const auto* k = std::get_if<Contract>(&after[id].op)) {
        EXPECT_EQ(k->reduced, row.reduced);
        EXPECT_EQ(after[after[id].args[0]].type.dtype, DType::u8);
        EXPECT_EQ(after[after[id].args[1]].type.dtype, DType::i8);
      }
  }
}

/// A padded maximum of dequantised bytes, quantised again with the same scale.
TEST(Canonicalize, MaximaOfQuantisedValuesAreOfBytes) {
  Graph g;
  Builder b(g);
  std::mt19937 rng(3);
  const NodeId x = b.mul(b.cast(g.add_input("q", {DType::u8, {1, 3, 9, 7}}), DType::f32), 0.04);
  const auto at = [](int d) { return ir::Expr(ir::Var{d}) * 2 + ir::Expr(ir::Var{d + 2}) - 1; };
  const NodeId windows =
      b.view(x, {1, 3, 5, 4, 3, 3},
             {{ir::Var{0}, ir::Var{1}, at(2), at(3)}, {{at(2), 0, 9}, {at(3), 0, 7}}}, -INFINITY);
  const NodeId most = b.reduce_max(windows, {4, 5}, false);
  const NodeId q = b.map(ir::ScalarFn::round, {b.div(most, 0.04)});
  const NodeId bounded = b.min(b.max(q, b.scalar(DType::f32, 0)), b.scalar(DType::f32, 255));
  g.outputs = {{"y", b.cast(bounded, DType::u8)}};
  const Graph after = canonicalize(g);
  EXPECT_EQ(compare(g, after, rng), "");
  for (const NodeId id : live_nodes(after)) EXPECT_EQ(after[id].type.dtype, DType::u8) << id.value;
}

TEST(Canonicalize, AttentionReadsItsOperandsWhereTheyLie) {
  Graph g;
  Builder b(g);
  std::mt19937 rng(1);
  const std::int64_t s = 6, h = 2, d = 4;
  const auto weight = [&](Shape s) { return b.constant(random_tensor({DType::f32, s}, rng)); };
  const NodeId x = g.add_input("x", {DType::f32, {1, s, h * d}});
  const auto heads = [&](bool key) {
    const NodeId y = b.add(b.matmul(x, weight({h * d, h * d})), weight({h * d}));
    return b.transpose(b.reshape(y, {1, s, h, d}),
                       key ? std::vector<int>{0, 2, 3, 1} : std::vector<int>{0, 2, 1, 3});
  };
  const NodeId scores = b.matmul(b.mul(heads(false), 0.35), b.mul(heads(true), 0.35));
  const NodeId context = b.matmul(b.softmax(scores, {3}), heads(false));
  const NodeId merged = b.reshape(b.transpose(context, {0, 2, 1, 3}), {1, s, h * d});
  g.outputs = {{"y", b.matmul(merged, weight({h * d, h * d}))}};
  const Graph c = canonicalize(g);
  EXPECT_EQ(compare(g, c, rng), "");
  for (const NodeId id : live_nodes(c)) {
    const auto* k = std::get_if<Contract>(&c[id].op);
    if (k == nullptr) continue;
    for (const NodeId a : c[id].args)
      EXPECT_FALSE(std::holds_alternative<View>(c[a].op)) << "%" << id.value;
    for (const Access* a : {&k->lhs, &k->rhs})
      for (const auto& e : a->index)
        EXPECT_EQ(ir::to_string(e).find_first_of("/%"), std::string::npos) << ir::to_string(e);
  }
  EXPECT_EQ(census(c)["contract"], 6);
}

/// As slices (a focus layer) and as SpaceToDepth writes it: a convolution of the image itself, with
/// twice as many taps each way, in steps of two.
TEST(Canonicalize, ConvolutionsOfSpaceToDepthAreOfTheImage) {
  for (const bool sliced : {false, true}) {
    Graph g;
    Builder b(g);
    std::mt19937 rng(4);
    const NodeId x = g.add_input("x", {DType::f32, {1, 3, 12, 10}});
    const auto slice = [&](std::int64_t y, std::int64_t z) {
      return b.slice(x, {0, 0, y, z}, {1, 3, 6, 5}, {1, 1, 2, 2});
    };
    const NodeId digits = b.transpose(b.reshape(x, {1, 3, 6, 2, 5, 2}), {0, 3, 5, 1, 2, 4});
    const NodeId deep = sliced ? b.concat({slice(0, 0), slice(1, 0), slice(0, 1), slice(1, 1)}, 1)
                               : b.reshape(digits, {1, 12, 6, 5});
    const NodeId w = b.constant(random_tensor({DType::f32, {8, 12, 3, 3}}, rng));
    g.outputs = {{"y", b.conv(deep, w, {{1, 1}, {1, 1}, {1, 1}, {1, 1}, 1})}};
    const Graph after = canonicalize(g);
    EXPECT_EQ(compare(g, after, rng), "");
    const auto* k = std::get_if<Contract>(&after[after.outputs[0].node].op);
    ASSERT_NE(k, nullptr) << sliced;
    EXPECT_EQ(census(after)["view"], 0) << sliced;
    Shape taps = k->reduced;
    std::ranges::sort(taps);
    EXPECT_EQ(taps, (Shape{3, 6, 6})) << sliced;
  }
}

TEST(FoldConstants, FoldsWhatDoesNotGrow) {
  Graph g;
  Builder b(g);
  std::mt19937 rng(2);
  const NodeId w = b.constant(random_tensor({DType::f32, {8, 8}}, rng));
  const NodeId folded = b.matmul(w, b.exp(w));
  const NodeId wide = b.broadcast(w, {100, 8, 8});
  const NodeId iota = b.iota({DType::i64, {5}}, 0);
  const NodeId x = g.add_input("x", {DType::f32, {8, 8}});
  g.outputs = {{"a", b.add(folded, x)}, {"b", wide}, {"c", b.add(iota, iota)}, {"d", x}};
  const Graph f = fold_constants(g);
  std::mt19937 other(3);
  EXPECT_EQ(compare(g, f, other), "");
  EXPECT_TRUE(std::holds_alternative<View>(f[f.outputs[1].node].op));
  const Tensor* doubled = f.constant_of(f.outputs[2].node);
  ASSERT_NE(doubled, nullptr);
  EXPECT_EQ(doubled->int_at(4), 8);
  EXPECT_EQ(census(f)["contract"], 0);
  EXPECT_EQ(evaluate_constant(g, x), std::nullopt);
  EXPECT_EQ(evaluate_constant(g, wide, {.max_bytes = 1000}), std::nullopt);
  // A constant in another shape is no copy, however large; its transpose is one.
  const NodeId matrix = b.constant(Tensor({DType::f32, {30, 20}}));
  const auto same = evaluate_constant(g, b.reshape(matrix, {10, 60}), {.max_bytes = 1000});
  ASSERT_TRUE(same);
  EXPECT_EQ(same->data(), g.constant_of(matrix)->data());
  EXPECT_EQ(evaluate_constant(g, b.transpose(matrix, {1, 0}), {.max_bytes = 1000}), std::nullopt);
}

}  // namespace
}  // namespace heddle::prim
