#include "prim/passes.h"

#include <gtest/gtest.h>

#include <cmath>

#include "prim/alternatives.h"
#include "prim/random_graph.h"
#include "prim/rewrite.h"
#include "prim/test_util.h"

namespace heddle::prim {
namespace {

TEST(Passes, DisabledNamesAreKnownAndObeyed) {
  EXPECT_TRUE(check_disabled("").ok());
  EXPECT_TRUE(check_disabled("canonicalize,fold-constants").ok());
  const Status unknown = check_disabled("canonicalize,nosuchrow");
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.error().message.find("'nosuchrow'"), std::string::npos);
  // Each row fires on its own example, and not when it is left out.
  for (const RewriteRule* rule : rewrite_rules()) {
    Graph g;
    Builder b(g);
    const NodeId value = rule->example(b);
    g.outputs.push_back({"y", value});
    RewriteCounts with, without;
    canonicalize(g, "", &with);
    canonicalize(g, rule->name, &without);
    EXPECT_GT(with[rule->name], 0) << rule->name;
    EXPECT_EQ(without[rule->name], 0) << rule->name;
  }
}

TEST(Passes, NamesAreFoundAndUnknownOnesListed) {
  const auto list = parse_passes("canonicalize,drop-dead");
  ASSERT_TRUE(list);
  EXPECT_EQ(list->size(), 2u);
  const auto wrong = parse_passes("canonicalise");
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().message,
            "pass 'canonicalise': found no such pass, want one of canonicalize, fold-constants, "
            "moments-in-one-pass, "
            "drop-dead");
}

Graph relu_of_zero_sum() {
  Graph g;
  Builder b(g);
  const NodeId x = g.add_input("x", {DType::f32, {4}});
  b.exp(x);
  g.outputs = {{"y", b.relu(b.add(x, 0.0))}};
  return g;
}

TEST(Passes, RunnerComparesBisectsAndVerifies) {
  const auto list = *parse_passes("drop-dead,canonicalize,canonicalize");
  std::vector<std::string> changed;
  PassOptions options;
  options.verify_each = true;
  options.changed = [&](int n, std::string_view name, const Graph&) {
    changed.push_back(std::to_string(n) + std::string(name));
  };
  ASSERT_TRUE(run_passes(list, relu_of_zero_sum(), options));
  // The second canonicalize changes nothing, and that is found by comparing.
  EXPECT_EQ(changed, (std::vector<std::string>{"1drop-dead", "2canonicalize"}));
  options.bisect = 1;
  EXPECT_EQ(*run_passes(list, relu_of_zero_sum(), options), drop_dead(relu_of_zero_sum()));
  options.bisect = 0;
  EXPECT_EQ(*run_passes(list, relu_of_zero_sum(), options), relu_of_zero_sum());
  options.bisect = -1;
  options.disable = "canonicalize";
  EXPECT_EQ(*run_passes(list, relu_of_zero_sum(), options), drop_dead(relu_of_zero_sum()));
}

TEST(Passes, VerifierStopsAPassThatBreaksTheGraph) {
  const Pass bad{"bad", "", [](const Graph& g, std::string_view) {
                   Graph copy = g;
                   const TensorType wrong{DType::f32, {5}};
                   copy.outputs = {{"y", copy.add(Map{ir::ScalarFn::exp}, {NodeId{0}}, wrong)}};
                   return copy;
                 }};
  const Pass* list[] = {&bad};
  PassOptions options;
  options.verify_each = true;
  const auto result = run_passes(list, relu_of_zero_sum(), options);
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().message.find("after pass 1 (bad): "), std::string::npos);
}

/// The alternative must compute what the original does, in the same run.
void expect_equal(const Graph& g, std::span<const Alternative> all) {
  Graph both = g;
  both.outputs.clear();
  for (const Alternative& a : all) {
    EXPECT_EQ(g[a.node].type, g[a.equal].type) << a.rule;
    both.outputs.push_back({"a", a.node});
    both.outputs.push_back({"b", a.equal});
  }
  const Status ok = verify(both);
  ASSERT_TRUE(ok) << ok.error().message;
  std::mt19937 rng(4);
  const auto y = *interpret(both, random_inputs(g, rng));
  for (std::size_t i = 0; i < y.size(); i += 2)
    for (std::int64_t e = 0; e < y[i].count(); ++e)
      EXPECT_NEAR(y[i].at(e), y[i + 1].at(e), 1e-4 * std::max(1.0, std::fabs(y[i].at(e))))
          << all[i / 2].rule;
}

TEST(Alternatives, EqualOnRandomGraphs) {
  std::mt19937 rng(31);
  std::map<std::string_view, int> found;
  for (int i = 0; i < 200; ++i) {
    Graph g = canonicalize(random_graph(rng, 12));
    const auto all = find_alternatives(g);
    for (const Alternative& a : all) ++found[a.rule];
    expect_equal(g, all);
  }
  EXPECT_GE(found["sum-as-contraction"], 20);
}

/// Two spatial dimensions of extents, kernels, strides, dilations and pads at random.
struct RandomWindows {
  Shape in, kernel, out;
  Builder::Conv conv;
  explicit RandomWindows(std::mt19937& rng) {
    const auto from = [&](std::int64_t low, std::int64_t high) {
      return low + static_cast<std::int64_t>(rng() % static_cast<std::uint64_t>(high - low + 1));
    };
    for (int d = 0; d < 2; ++d) {
      kernel.push_back(from(2, 7));
      conv.dilations.push_back(rng() % 3 == 0 ? 2 : 1);
      conv.strides.push_back(rng() % 3 == 0 ? 2 : 1);
      const std::int64_t reach = (kernel[d] - 1) * conv.dilations[d];
      conv.pads_begin.push_back(from(0, reach));
      conv.pads_end.push_back(from(0, reach));
      in.push_back(from(reach + 1, reach + 20));
      out.push_back((in[d] + conv.pads_begin[d] + conv.pads_end[d] - reach - 1) / conv.strides[d] +
                    1);
    }
  }
};

TEST(Alternatives, ExtremesOfWindowsAreTakenAxisByAxis) {
  std::mt19937 rng(17);
  int found = 0;
  for (int i = 0; i < 100; ++i) {
    const RandomWindows w(rng);
    Graph g;
    Builder b(g);
    const NodeId x = g.add_input("x", {DType::f32, {2, 3, w.in[0], w.in[1]}});
    const bool least = rng() % 4 == 0;
    // A fill that is no identity counts like any element.
    const double fill = rng() % 4 == 0 ? 0.25 : least ? INFINITY : -INFINITY;
    const NodeId windows = b.windows(x, w.kernel, w.conv, w.out, fill);
    g.outputs = {
        {"y", b.reduce(least ? ir::Monoid::min : ir::Monoid::max, windows, {4, 5}, false)}};
    if (rng() % 2) g = canonicalize(g);
    const auto all = find_alternatives(g, "positions-as-columns");
    found += static_cast<int>(all.size());
    expect_equal(g, all);
    for (const Alternative& a : all) EXPECT_EQ(a.rule, "separable-extremes");
  }
  EXPECT_GE(found, 30);
}

TEST(Alternatives, FewColumnsAreFilledWithPositions) {
  std::mt19937 rng(18);
  int found = 0, of_integers = 0;
  for (int i = 0; i < 200; ++i) {
    const RandomWindows w(rng);
    Graph g;
    Builder b(g);
    const std::int64_t channels = 12, columns = 1 + static_cast<std::int64_t>(rng() % 6);
    const DType type = i % 2 == 0 ? DType::i32 : DType::f32;
    const NodeId x = g.add_input("x", {type, {4, channels, w.in[0], w.in[1]}});
    Tensor filter = random_tensor({type, {columns, channels, w.kernel[0], w.kernel[1]}}, rng);
    g.outputs = {{"y", b.conv(x, b.constant(filter), w.conv)}};
    g = canonicalize(g);
    const auto all = find_alternatives(g, "sum-as-contraction");
    found += static_cast<int>(all.size());
    of_integers += type == DType::i32 ? static_cast<int>(all.size()) : 0;
    expect_equal(g, all);
    for (const Alternative& a : all) {
      EXPECT_EQ(a.rule, kPositionsAsColumns);
      const NodeId product = g[a.equal].args[0];
      EXPECT_GT(g[product].type.shape[1], columns);
    }
  }
  EXPECT_GE(found, 10);
  EXPECT_GE(of_integers, 3);
}

TEST(Alternatives, GroupsHaveColumnsOfTheirOwn) {
  Graph g;
  Builder b(g);
  std::mt19937 rng(19);
  const NodeId x = g.add_input("x", {DType::f32, {1, 16, 64, 64}});
  const NodeId w = b.constant(random_tensor({DType::f32, {16, 1, 9, 9}}, rng));
  g.outputs = {{"y", b.conv(x, w, {{1, 1}, {1, 1}, {4, 4}, {4, 4}, 16})}};
  g = canonicalize(g);
  EXPECT_TRUE(find_alternatives(g).empty());
}

TEST(Alternatives, SiblingsThatShareAnOperandMerge) {
  Graph g;
  Builder b(g);
  std::mt19937 rng(2);
  const auto weight = [&](Shape s) { return b.constant(random_tensor({DType::f32, s}, rng)); };
  const NodeId x = g.add_input("x", {DType::f32, {2, 5, 8}});
  const NodeId q = b.matmul(x, weight({8, 8})), k = b.matmul(x, weight({8, 8}));
  const NodeId v = b.matmul(x, weight({8, 4}));
  const NodeId other = b.matmul(b.exp(x), weight({8, 8}));
  g.outputs = {{"q", q}, {"k", k}, {"v", v}, {"o", other}};
  const auto all = find_alternatives(g);
  ASSERT_EQ(all.size(), 3u);
  expect_equal(g, all);
  const NodeId merged = g[all[0].equal].args[0];
  EXPECT_EQ(g[merged].type.shape, (Shape{2, 5, 20}));
  for (const Alternative& a : all) EXPECT_EQ(g[a.equal].args[0], merged);
  const auto classes = classes_of(g, all);
  EXPECT_EQ(classes[static_cast<std::size_t>(all[1].equal.value)], all[1].node);
  EXPECT_EQ(classes[static_cast<std::size_t>(other.value)], other);
  Graph again = g;
  EXPECT_TRUE(find_alternatives(again, "merge-contractions").empty());
}

}  // namespace
}  // namespace heddle::prim
