#include "plan/plan.h"

#include <gtest/gtest.h>

#include <random>
#include <regex>
#include <set>

#include "plan/select.h"
#include "plan/test_graphs.h"
#include "prim/builder.h"

namespace heddle::plan {
namespace {

using test::Mini, test::planned;

Region whole(const Facts& f) {
  Region r;
  for (NodeId id : f.live) {
    if (!f.is_leaf(id)) r.nodes.push_back(id);
  }
  for (NodeId id : r.nodes) {
    if (f.is_output(id)) r.outputs.push_back(id);
  }
  return r;
}

/// Can the kernels run in some order that makes the outputs? Written without the planner's help.
bool runs(const Region& r, const std::vector<Candidate>& all, unsigned choice) {
  std::set<NodeId> made;
  std::set<NodeId> inside(r.nodes.begin(), r.nodes.end());
  unsigned done = 0;
  for (bool again = true; again;) {
    again = false;
    for (std::size_t k = 0; k < all.size(); ++k) {
      if (!(choice >> k & 1) || done >> k & 1) continue;
      bool ready = true;
      for (NodeId in : all[k].inputs) ready = ready && (!inside.count(in) || made.count(in));
      if (!ready) continue;
      made.insert(all[k].cluster.outputs.begin(), all[k].cluster.outputs.end());
      done |= 1u << k;
      again = true;
    }
  }
  for (NodeId o : r.outputs) {
    if (!made.count(o)) return false;
  }
  return done == choice;
}

double exhaustive(const Region& r, const std::vector<Candidate>& all) {
  double best = 1e300;
  for (unsigned choice = 0; choice < 1u << all.size(); ++choice) {
    double cost = 0;
    for (std::size_t k = 0; k < all.size(); ++k) cost += choice >> k & 1 ? all[k].cost.us : 0;
    if (cost < best && runs(r, all, choice)) best = cost;
  }
  return best;
}

Candidate kernel(const prim::Graph& g, std::vector<NodeId> nodes, std::vector<NodeId> outputs,
                 double us) {
  Candidate c;
  c.cluster = {std::move(nodes), std::move(outputs)};
  for (NodeId in : reads_of(g, c.cluster)) {
    if (!std::holds_alternative<prim::Input>(g[in].op)) c.inputs.push_back(in);
  }
  c.cost.us = us;
  return c;
}

TEST(Orchestrate, KernelsThatWaitForEachOtherAreNeverChosen) {
  Mini m;
  NodeId a = m.map(ir::ScalarFn::exp, {m.input({8})}), b = m.map(ir::ScalarFn::exp, {a});
  NodeId c = m.map(ir::ScalarFn::exp, {m.input({8})}), d = m.map(ir::ScalarFn::exp, {c});
  m.output(b);
  m.output(d);
  std::vector<Candidate> all;
  for (NodeId id : {a, b, c, d}) all.push_back(kernel(m.g, {id}, {id}, 10));
  all.push_back(kernel(m.g, {a, d}, {a, d}, 1));
  all.push_back(kernel(m.g, {b, c}, {b, c}, 1));
  const Facts f = facts_of(m.g, structural_legality());
  const Region r = whole(f);
  auto s = solve(f, r, all, {});
  ASSERT_TRUE(s) << s.error().message;
  EXPECT_FALSE(std::count(s->chosen.begin(), s->chosen.end(), 4) &&
               std::count(s->chosen.begin(), s->chosen.end(), 5) && s->chosen.size() == 2);
  EXPECT_GE(s->cut_rows, 1);
  EXPECT_DOUBLE_EQ(s->cost_us, exhaustive(r, all));
  EXPECT_DOUBLE_EQ(s->cost_us, 12);  // one of them, and the other's values made first: a or c
}

TEST(Orchestrate, CyclesOfThreeAreCutToo) {
  Mini m;
  std::vector<NodeId> first, second;
  for (int i = 0; i < 3; ++i) {
    first.push_back(m.map(ir::ScalarFn::exp, {m.input({8})}));
    second.push_back(m.map(ir::ScalarFn::exp, {first.back()}));
    m.output(second.back());
  }
  std::vector<Candidate> all;
  for (NodeId id : first) all.push_back(kernel(m.g, {id}, {id}, 10));
  for (NodeId id : second) all.push_back(kernel(m.g, {id}, {id}, 10));
  for (std::size_t i = 0; i < 3; ++i) {
    std::vector<NodeId> both = {first[i], second[(i + 1) % 3]};
    std::sort(both.begin(), both.end());
    all.push_back(kernel(m.g, both, both, 1));
  }
  const Facts f = facts_of(m.g, structural_legality());
  auto s = solve(f, whole(f), all, {});
  ASSERT_TRUE(s) << s.error().message;
  EXPECT_DOUBLE_EQ(s->cost_us, exhaustive(whole(f), all));
  EXPECT_GT(s->cost_us, 3);
}

/// A random graph of maps, reductions and spreads over one matrix shape.
Mini random_graph(std::mt19937& random) {
  Mini m;
  const Shape shape = {256, 512};
  std::vector<NodeId> values = {m.input(shape), m.input(shape)};
  const int n = 3 + static_cast<int>(random() % 3);
  for (int i = 0; i < n; ++i) {
    NodeId a = values[random() % values.size()], b = values[random() % values.size()];
    switch (random() % 4) {
      case 0:
        values.push_back(m.map(ir::ScalarFn::exp, {a}));
        break;
      case 1:
        values.push_back(m.add(a, b));
        break;
      case 2:
        values.push_back(m.mul(a, b));
        break;
      default: {
        const int axis = static_cast<int>(random() % 2);
        values.push_back(m.spread(m.sum(a, {axis}), shape, {axis}));
      }
    }
  }
  m.output(m.add(values.back(), values[values.size() - 2]));
  m.output(m.map(ir::ScalarFn::tanh, {values[values.size() / 2]}));
  return m;
}

TEST(Orchestrate, EqualsExhaustiveSearchOnRandomGraphs) {
  std::mt19937 random(11);
  int compared = 0, with_several_outputs = 0;
  for (int trial = 0; trial < 150 && compared < 60; ++trial) {
    Mini m = random_graph(random);
    Options options;
    options.cuts_per_node = 3;
    const Facts f = facts_of(m.g, options.legality);
    const Region r = whole(f);
    CostModel cost(f, options.machine);
    const auto all = enumerate(f, r, options, cost);
    if (all.size() > 15) continue;
    ++compared;
    for (const Candidate& c : all) with_several_outputs += c.cluster.outputs.size() > 1;
    auto s = solve(f, r, all, options);
    ASSERT_TRUE(s) << s.error().message;
    const double best = exhaustive(r, all);
    EXPECT_NEAR(s->cost_us, best, 1e-6 * best) << "trial " << trial;
    EXPECT_LE(s->lower_bound_us, best * (1 + 1e-9)) << "trial " << trial;
    EXPECT_GE(s->lower_bound_us, best * 0.999) << "trial " << trial;
    EXPECT_TRUE(feasible(f, r, all, s->chosen));
  }
  EXPECT_GE(compared, 30);
  EXPECT_GT(with_several_outputs, 0);
}

TEST(Orchestrate, RandomCostsEqualExhaustiveSearch) {
  std::mt19937 random(5);
  int compared = 0;
  for (int trial = 0; trial < 200 && compared < 60; ++trial) {
    Mini m = random_graph(random);
    Options options;
    options.cuts_per_node = 3;
    const Facts f = facts_of(m.g, options.legality);
    const Region r = whole(f);
    CostModel cost(f, options.machine);
    auto all = enumerate(f, r, options, cost);
    if (all.size() > 15) continue;
    ++compared;
    for (Candidate& c : all) c.cost.us = 1 + static_cast<double>(random() % 1000) / 10;
    auto s = solve(f, r, all, options);
    ASSERT_TRUE(s) << s.error().message;
    EXPECT_NEAR(s->cost_us, exhaustive(r, all), 1e-6) << "trial " << trial;
  }
  EXPECT_GE(compared, 30);
}

struct NormCase {
  Mini m;
  NodeId mean, centred, deviation, result;
  NormCase() {
    NodeId x = m.input({32, 224, 224});
    NodeId y = m.normalize(x, {1, 2}, 0, m.input({32}), m.input({32}));
    result = m.pad(m.relu(y), 1);
    m.output(result);
    for (std::int32_t i = 0; i < m.g.size(); ++i) {
      const auto* map = std::get_if<prim::Map>(&m.g[NodeId{i}].op);
      if (!map) continue;
      if (map->fn == ir::ScalarFn::sub) centred = NodeId{i};
      if (map->fn == ir::ScalarFn::sqrt) deviation = NodeId{i};
      if (map->fn == ir::ScalarFn::mul && !mean) mean = NodeId{i};
    }
  }
};

/// The cone of `root` down to `stops`.
Cluster cone(const prim::Graph& g, NodeId root, const std::set<NodeId>& stops) {
  std::set<NodeId> nodes;
  std::vector<NodeId> work = {root};
  while (!work.empty()) {
    NodeId id = work.back();
    work.pop_back();
    if (!nodes.insert(id).second) continue;
    for (NodeId a : g[id].args) {
      const bool leaf = std::holds_alternative<prim::Input>(g[a].op) || g.constant_of(a);
      if (!leaf && !stops.count(a)) work.push_back(a);
    }
  }
  return {{nodes.begin(), nodes.end()}, {root}};
}

TEST(Orchestrate, InstanceNormIsCheaperThanKorchsFourKernels) {
  NormCase c;
  const Options options;
  // Korch's figure 12b: {mean} {sub} {square, variance, epsilon, root} {quotient … pad}.
  double korch = 0;
  for (const Cluster& k :
       {cone(c.m.g, c.mean, {}), cone(c.m.g, c.centred, {c.mean}),
        cone(c.m.g, c.deviation, {c.centred}), cone(c.m.g, c.result, {c.centred, c.deviation})}) {
    ASSERT_TRUE(options.legality.supports(c.m.g, k));
    korch += cost_of(c.m.g, k, options).us;
  }
  auto plan = planned(c.m.g, Strategy::full);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_LT(plan->cost_us, 0.75 * korch);
  EXPECT_NEAR(plan->gap(), 0, 1e-9);
  // The explanation: what was given up, and what it would have cost.
  ASSERT_FALSE(plan->kernels[0].rejected.empty());
  EXPECT_GT(plan->kernels[0].rejected[0].plan_delta_us, 0);
  EXPECT_NE(plan->kernels[0].rejected[0].reason.find("kernel"), std::string::npos);
}

/// Every reason names all that the difference consists of.
TEST(Orchestrate, PartsOfAReasonAddUp) {
  NormCase norm;
  Mini m;
  const NodeId x = m.input({128, 768});
  m.output(test::transformer_layer(m, x, 12, 3072, m.input({128})));
  int reasons = 0, signs = 0;
  for (const prim::Graph* g : {&norm.m.g, &m.g}) {
    const auto plan = planned(*g, Strategy::full);
    ASSERT_TRUE(plan) << plan.error().message;
    for (const Kernel& k : plan->kernels)
      for (const Rejected& r : k.rejected) {
        static const std::regex kPart("([+-][0-9.]+) us");
        double sum = 0;
        bool up = false, down = false;
        for (std::sregex_iterator i(r.reason.begin(), r.reason.end(), kPart), end; i != end; ++i) {
          const double part = std::stod((*i)[1]);
          sum += part;
          (part > 0 ? up : down) = true;
        }
        EXPECT_NEAR(sum, r.plan_delta_us, 0.151) << r.reason;  // three parts, each rounded to 0.1
        ++reasons;
        signs += up && down ? 1 : 0;
      }
  }
  EXPECT_GT(reasons, 5);
  EXPECT_GT(signs, 0);
}

TEST(Orchestrate, EachStepOfTheAblationIsAtLeastAsGood) {
  Mini m;
  NodeId x = m.input({128, 768});
  m.output(test::transformer_layer(m, x, 12, 3072, m.input({128})));
  double last = 1e300;
  for (Strategy s : {Strategy::single, Strategy::operators, Strategy::greedy, Strategy::partition,
                     Strategy::recompute, Strategy::full}) {
    auto plan = planned(m.g, s);
    ASSERT_TRUE(plan) << plan.error().message;
    EXPECT_LE(plan->cost_us, last * (1 + 1e-9)) << name_of(s);
    last = plan->cost_us;
  }
}

TEST(Orchestrate, RecomputesWhatIsCheapAndStoresWhatIsNot) {
  for (bool dear : {false, true}) {
    Mini m;
    NodeId x = m.input({2048, 2048});
    NodeId y = m.add(x, x);
    // erf of erf of …: hundreds of operations an element.
    for (int i = 0; dear && i < 12; ++i) y = m.map(ir::ScalarFn::erf, {y});
    m.output(m.sum(y, {0}));
    m.output(m.map(ir::ScalarFn::neg, {m.sum(y, {1})}));
    auto plan = planned(m.g, Strategy::recompute);
    ASSERT_TRUE(plan) << plan.error().message;
    EXPECT_EQ(plan->kernels.size(), dear ? 3u : 2u);
  }
}

TEST(Orchestrate, LongRowsHaveNoTile) {
  // Columns are too long for a tile: what their sums and the results both want is stored. A row's
  // own sum leaves it there.
  for (const bool alone : {false, true}) {
    Mini m;
    const NodeId x = m.map(ir::ScalarFn::tanh, {m.map(ir::ScalarFn::exp, {m.input({16384, 64})})});
    const NodeId sums = m.sum(x, {alone ? 1 : 0});
    m.output(m.map(ir::ScalarFn::mul, {x, m.broadcast(sums, {16384, 64}, {alone ? 0 : 1})}));
    const auto plan = planned(m.g, Strategy::full);
    ASSERT_TRUE(plan) << plan.error().message;
    double flops = 0;
    for (const Kernel& k : plan->kernels) flops += k.cost.flops;
    EXPECT_EQ(plan->kernels.size(), alone ? 1U : 2U);
    EXPECT_LT(flops, 5.1 * 16384 * 64);
  }
}

TEST(Orchestrate, ManyInputsAreInNoCache) {
  // Weights and moments of a step: each would fit a cache, all of them do not.
  for (const int count : {1, 160}) {
    Mini m;
    for (int i = 0; i < count; ++i) m.output(m.add(m.input({64, 512}), m.input({64, 512})));
    const auto plan = planned(m.g, Strategy::recompute);
    ASSERT_TRUE(plan) << plan.error().message;
    const MachineModel machine;
    for (const Kernel& k : plan->kernels) {
      const double from_memory = k.cost.bytes / (machine.dram_gbs * 1e3);
      EXPECT_EQ(k.cost.memory_us > 0.99 * from_memory, count > 1);
    }
  }
}

TEST(Orchestrate, ValuesOfAKernelShareTheSecondLevel) {
  // Each of 32 KB would stay there, but not all that a kernel reads.
  const MachineModel machine;
  for (const int count : {2, 16}) {
    Mini m;
    std::vector<NodeId> values, sums;
    for (int i = 0; i < count; ++i)
      values.push_back(m.map(ir::ScalarFn::tanh, {m.input({64, 128})}));
    for (const NodeId v : values) sums.push_back(sums.empty() ? v : m.add(sums.back(), v));
    m.output(sums.back());
    const Facts f = facts_of(m.g, structural_legality());
    const Cost cost = CostModel(f, machine)({{sums.begin() + 1, sums.end()}, {sums.back()}});
    EXPECT_EQ(cost.bytes, (count + 1) * 32768);
    const double gbs = count == 2 ? machine.l2_gbs : machine.l3_gbs;
    EXPECT_NEAR(cost.memory_us, cost.bytes / (gbs * 1e3 * machine.threads), 0.01 * cost.memory_us);
  }
}

TEST(Orchestrate, ResidualSumIsStoredOnTheWayToTheNorm) {
  // s = x + y is needed again after its norm: one kernel, two outputs.
  Mini m;
  NodeId s = m.add(m.input({512, 1024}), m.input({512, 1024}));
  m.output(m.normalize(s, {1}, 1, m.input({1024}), m.input({1024})));
  m.output(s);
  auto plan = planned(m.g, Strategy::full);
  ASSERT_TRUE(plan) << plan.error().message;
  ASSERT_EQ(plan->kernels.size(), 1u);
  EXPECT_EQ(plan->kernels[0].cluster.outputs.size(), 2u);
  auto without = planned(m.g, Strategy::recompute);
  ASSERT_TRUE(without);
  EXPECT_EQ(without->kernels.size(), 2u);
  EXPECT_GT(without->cost_us, plan->cost_us);
}

TEST(Orchestrate, WeightAndMomentsAreUpdatedTogether) {
  // AdamW beside the product that makes the gradient: its terms could all be stored on the way.
  Mini m;
  const Shape shape{3072, 768};
  const auto number = [&] { return m.spread(m.input({1}), shape, {0, 1}); };
  const NodeId g = m.matmul(m.input({3072, 128}), m.input({128, 768}));
  const NodeId mean = m.add(m.mul(m.input(shape), number()), m.mul(g, number()));
  const NodeId square = m.add(m.mul(m.input(shape), number()), m.mul(m.mul(g, g), number()));
  const NodeId root = m.add(m.mul(m.map(ir::ScalarFn::sqrt, {square}), number()), number());
  const NodeId step = m.mul(m.map(ir::ScalarFn::div, {mean, root}), number());
  m.output(mean);
  m.output(square);
  m.output(m.map(ir::ScalarFn::sub, {m.mul(m.input(shape), number()), step}));
  Options options;
  options.strategy = Strategy::full;
  options.legality = lowering_legality();
  const auto plan = orchestrate(m.g, options);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->kernels.size(), 2u);
}

TEST(Orchestrate, ConvolutionTakesBiasResidualAndActivation) {
  Mini m;
  m.output(test::bottleneck(m, m.input({1, 256, 56, 56}), 64));
  auto plan = planned(m.g, Strategy::full);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->kernels.size(), 3u);
}

TEST(Orchestrate, IsDeterministic) {
  Mini m;
  m.output(test::transformer_layer(m, m.input({64, 256}), 4, 512, m.input({64})));
  auto a = planned(m.g, Strategy::full), b = planned(m.g, Strategy::full);
  ASSERT_TRUE(a && b);
  EXPECT_EQ(print(m.g, *a), print(m.g, *b));
}

TEST(Orchestrate, ZeroBudgetIsTheCover) {
  Mini m;
  m.output(test::transformer_layer(m, m.input({128, 768}), 12, 3072, m.input({128})));
  Options options;
  options.node_budget = 0;
  auto quick = orchestrate(m.g, options);
  ASSERT_TRUE(quick) << quick.error().message;
  EXPECT_TRUE(verify(m.g, *quick));
  EXPECT_EQ(quick->stats.solver_nodes, 0);
  auto best = planned(m.g, Strategy::full);
  ASSERT_TRUE(best);
  EXPECT_LE(best->cost_us, quick->cost_us * (1 + 1e-9));
}

TEST(Orchestrate, OutputsThatAreLeavesNeedCopies) {
  Mini m;
  NodeId x = m.input({4, 4});
  m.output(x);
  m.output(m.transpose(x, {1, 0}));
  auto plan = orchestrate(m.g);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().message, "output 'y0' is an input or a constant, want a copy of it");
  const prim::Graph copied = with_copied_outputs(m.g);
  auto good = orchestrate(copied);
  ASSERT_TRUE(good) << good.error().message;
  EXPECT_TRUE(verify(copied, *good));
  EXPECT_EQ(copied.outputs[0].name, "y0");
}

/// The channels of a convolution, its vectors, lie far apart in a row-major image: it may be copied
/// there, also where it is an output twice, and read again. A product's rows are rows.
TEST(Orchestrate, ScatteredOutputsMayBeCopied) {
  prim::Graph g;
  prim::Builder b(g);
  const NodeId x = g.add_input("x", {DType::f32, {1, 8, 32, 32}});
  Tensor w({DType::f32, {8, 8, 1, 1}});
  const NodeId y = b.relu(b.conv(x, b.constant(w), {{1, 1}, {1, 1}, {0, 0}, {0, 0}, 1}));
  const NodeId rows = b.matmul(g.add_input("r", {DType::f32, {64, 64}}),
                               b.constant(Tensor({DType::f32, {64, 64}})));
  g.outputs = {{"y", y}, {"again", y}, {"sum", b.reduce_sum(y, {2, 3}, false)}, {"rows", rows}};
  EXPECT_TRUE(is_scattered(g, y));
  EXPECT_FALSE(is_scattered(g, rows));
  // Few channels of many terms come as the rows of the image do; not of few terms, nor of planes.
  const auto few = [&](std::int64_t terms, bool given) {
    const NodeId image = g.add_input("image", {DType::f32, {1, terms, 40, 40}});
    const NodeId filter = b.constant(Tensor({DType::f32, {3, terms, 1, 1}}));
    return b.conv(given ? image : b.relu(image), filter, {{1, 1}, {1, 1}, {0, 0}, {0, 0}, 1});
  };
  EXPECT_FALSE(is_scattered(g, few(64, false)));
  EXPECT_TRUE(is_scattered(g, few(16, false)));
  EXPECT_TRUE(is_scattered(g, few(64, true)));
  const prim::Graph copied = with_copied_outputs(g);
  std::set<NodeId> different;
  for (const prim::GraphOutput& o : copied.outputs) different.insert(o.node);
  EXPECT_EQ(different.size(), 4U);
  EXPECT_TRUE(std::holds_alternative<prim::View>(copied[copied.outputs[0].node].op));
  EXPECT_FALSE(std::holds_alternative<prim::View>(copied[copied.outputs[3].node].op));
  auto plan = orchestrate(copied);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_TRUE(verify(copied, *plan));
}

TEST(Plan, TextRoundTrips) {
  NormCase c;
  auto plan = planned(c.m.g, Strategy::greedy);
  ASSERT_TRUE(plan) << plan.error().message;
  const std::string text = print(c.m.g, *plan);
  auto again = parse(c.m.g, text);
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(print(c.m.g, *again), text);
  auto full = planned(c.m.g, Strategy::full);
  ASSERT_TRUE(full);
  again = parse(c.m.g, print(c.m.g, *full));
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(print(c.m.g, *again), print(c.m.g, *full));
}

TEST(Plan, BadTextIsRefused) {
  NormCase c;
  const char* head =
      "plan strategy=full cost=1 bound=1 nodes=1 regions=1 unique=1 candidates=1 "
      "solver_nodes=0 cut_rows=0\n";
  for (const char* bad : {"nonsense\n", "kernel\n", "kernel %1 -> cost=3\n", "plan strategy=best\n",
                          "kernel %99999 -> %99999 cost=1 modelled memory=1 compute=1 launch=1 "
                          "bytes=1 flops=1\n",
                          "not %1 -> %1 cost=1 modelled memory=1 compute=1 launch=1 bytes=1 "
                          "flops=1 delta=1 : x\n"}) {
    EXPECT_FALSE(parse(c.m.g, std::string(head) + bad)) << bad;
  }
  // A plan that makes nothing.
  EXPECT_FALSE(parse(c.m.g, head));
}

}  // namespace
}  // namespace heddle::plan
