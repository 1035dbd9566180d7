// Losses and optimisers against PyTorch's numbers, and what steps do beside them: random numbers,
// sums over batches, scales of losses in f16.
#include "grad/step.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "grad/draws.h"
#include "grad/grad.h"
#include "grad/losses.h"
#include "prim/collectives.h"
#include "prim/interpret.h"
#include "prim/test_util.h"

namespace heddle::grad {
namespace {

using prim::Builder;
using prim::Graph;
using Values = std::vector<double>;

Tensor tensor_of(const TensorType& type, const Values& values) {
  Tensor t(type);
  for (std::int64_t i = 0; i < t.count(); ++i) t.set(i, values[static_cast<std::size_t>(i)]);
  return t;
}
Values values_of(const Tensor& t) {
  Values out;
  for (std::int64_t i = 0; i < t.count(); ++i) out.push_back(t.at(i));
  return out;
}

struct LossRow {
  const char* name;
  Values prediction, target;
  double value;
  Values gradient;
};
/// PyTorch 2.15 in f64, on predictions [2, 3].
const LossRow kLosses[] = {
    {"cross_entropy",
     {0.5, -1.25, 2, 1.5, 0.25, -0.75},
     {2, 0},
     0.281647296,
     {0.0884100911, 0.0153633702, -0.103773461, -0.140779829, 0.102918302, 0.0378615274}},
    {"nll", {0.5, -1.25, 2, 1.5, 0.25, -0.75}, {2, 0}, -1.75, {0, 0, -0.5, -0.5, 0, 0}},
    {"mse",
     {0.5, -1.25, 2, 1.5, 0.25, -0.75},
     {0, 1, 0.25, 0.5, 0.75, 1},
     2.11458333,
     {0.166666667, -0.75, 0.583333333, 0.333333333, -0.166666667, -0.583333333}},
    {"l1",
     {0.5, -1.25, 2, 1.5, 0.25, -0.75},
     {0, 1, 0.25, 0.5, 0.75, 1},
     1.29166667,
     {0.166666667, -0.166666667, 0.166666667, 0.166666667, -0.166666667, -0.166666667}},
    {"bce",
     {0.125, 0.5, 0.75, 0.9375, 0.25, 0.0625},
     {0, 1, 0.25, 0.5, 0.75, 1},
     1.20685225,
     {0.19047619, -0.333333333, 0.444444444, 1.24444444, -0.444444444, -2.66666667}},
    {"bce_logits",
     {0.5, -1.25, 2, 1.5, 0.25, -0.75},
     {0, 1, 0.25, 0.5, 0.75, 1},
     1.1382763,
     {0.103743222, -0.129549977, 0.105132846, 0.0529290794, -0.0313039165, -0.11319645}},
    {"kl",
     {0.5, -1.25, 2, 1.5, 0.25, -0.75},
     {0.2, 0.3, 0.5, 0.6, 0, 0.4},
     -1.51383234,
     {-0.1, -0.15, -0.25, -0.3, 0, -0.2}},
};

/// Value and gradient of a loss at f64.
std::pair<double, Values> evaluate(const LossRow& row) {
  const auto loss = loss_named(row.name);
  EXPECT_TRUE(loss);
  Graph g;
  Builder b(g);
  const NodeId x = g.add_input("x", {DType::f64, {2, 3}});
  const auto type = (*loss)->target(g[x].type);
  EXPECT_TRUE(type && *type);
  const NodeId value = (*loss)->value(b, x, g.add_input("t", **type));
  const std::vector<Seed> seeds = {{value, b.full(g[value].type, 1)}};
  const auto d = gradients(g, seeds, std::vector<NodeId>{x});
  EXPECT_TRUE(d);
  g.outputs = {{"l", value}, {"d", (*d)[0]}};
  const auto out =
      prim::interpret(g, {tensor_of(g[x].type, row.prediction), tensor_of(**type, row.target)});
  EXPECT_TRUE(out);
  return {(*out)[0].at(0), values_of((*out)[1])};
}

TEST(Losses, AreThoseOfPyTorch) {
  for (const LossRow& row : kLosses) {
    const auto [value, gradient] = evaluate(row);
    EXPECT_NEAR(value, row.value, 1e-7) << row.name;
    for (std::size_t i = 0; i < gradient.size(); ++i)
      EXPECT_NEAR(gradient[i], row.gradient[i], 1e-7) << row.name << " " << i;
  }
  EXPECT_EQ(std::size(kLosses) + 1, losses().size());  // and "output"
}

TEST(Losses, OfCertainProbabilitiesAreFinite) {
  const LossRow certain{"bce", {0.125, 0.5, 0.75, 1, 0.25, 0}, {0, 1, 0.25, 0.5, 0.75, 1}, 0, {}};
  EXPECT_NEAR(evaluate(certain).first, 25.5083269, 1e-6);
}

TEST(Losses, OfZeroScoresHaveTheirDerivatives) {
  const Values target{0, 1, 0.25, 0.5, 0.75, 1};
  const Values gradient = evaluate({"bce_logits", Values(6, 0), target, 0, {}}).second;
  for (std::size_t i = 0; i < target.size(); ++i)
    EXPECT_NEAR(gradient[i], (0.5 - target[i]) / 6, 1e-12) << i;
}

TEST(Losses, OfWhatIsNoNumberIsNone) {
  for (const char* name : {"bce", "bce_logits", "mse", "l1"}) {
    const LossRow row{name, {0.5, NAN, 0.5, 0.5, 0.5, 0.5}, {0, 1, 0, 1, 0, 1}, 0, {}};
    EXPECT_TRUE(std::isnan(evaluate(row).first)) << name;
  }
}

/// As the loss of the others alone, whether a prediction of that class exists or not.
TEST(Losses, IgnoreTargetsOfAClass) {
  for (const std::int64_t ignored : {-100, 1}) {
    Graph g;
    Builder b(g);
    const NodeId w = g.add_input("w", {DType::f32, {3, 2}});
    g.outputs = {{"y", b.neg(w)}};
    StepOptions options;
    options.loss = "nll";
    options.optimizer = "sgd";
    options.ignore_index = ignored;
    const auto step = training_step(std::move(g), std::vector<std::string>{"w"}, options);
    ASSERT_TRUE(step) << step.error().message;
    std::vector<Tensor> inputs;
    for (const auto& in : step->graph.inputs) {
      const double other = static_cast<double>(ignored);
      Values values(static_cast<std::size_t>(element_count(in.type.shape)), 1);
      if (in.name == "w") values = {3, 5, 7, 11, 13, 17};
      if (in.name == "target") values = {0, other, 0};
      inputs.push_back(tensor_of(in.type, values));
    }
    const auto out = prim::interpret(step->graph, inputs);
    ASSERT_TRUE(out) << out.error().message;
    const auto named = [&](const char* name) {
      for (std::size_t o = 0; o < out->size(); ++o)
        if (step->graph.outputs[o].name == name) return values_of((*out)[o]);
      return Values(6);
    };
    EXPECT_NEAR(named("loss")[0], 8, 1e-6);
    EXPECT_NEAR(named("w")[0], 2.5, 1e-6);
    EXPECT_NEAR(named("w")[3], 11, 1e-6);
    options.loss = "mse";
    Graph other;
    Builder c(other);
    other.outputs = {{"y", c.neg(other.add_input("w", {DType::f32, {3, 2}}))}};
    EXPECT_FALSE(training_step(std::move(other), std::vector<std::string>{"w"}, options));
  }
}

/// Runs a step again and again in the interpreter, as the trainer does.
class Runner {
 public:
  explicit Runner(Step step) : step_(std::move(step)) {
    for (const auto& s : step_.states) values_[s.name] = number(s.initial);
    for (const auto& in : step_.graph.inputs) {
      Tensor t(in.type);
      if (const auto at = values_.find(in.name); at != values_.end())
        for (std::int64_t i = 0; i < t.count(); ++i) t.set(i, at->second.at(0));
      values_[in.name] = t;
    }
  }
  bool takes(const std::string& name) const { return values_.contains(name); }
  void set(const std::string& name, const Values& v) {
    values_[name] = tensor_of(values_.at(name).type(), v);
  }
  void set(const std::string& name, const Tensor& t) { values_[name] = t; }
  double run() {
    std::vector<Tensor> inputs;
    for (const auto& in : step_.graph.inputs) inputs.push_back(values_.at(in.name));
    const auto out = prim::interpret(step_.graph, inputs);
    EXPECT_TRUE(out);
    for (const auto& f : step_.feedback) values_[step_.graph.inputs[f.to].name] = (*out)[f.from];
    return step_.graph.outputs[0].name == "loss" ? (*out)[0].at(0) : 0;
  }
  const Tensor& tensor(const std::string& name) const { return values_.at(name); }
  Values operator[](const std::string& name) const { return values_of(values_.at(name)); }

 private:
  static Tensor number(double v) { return tensor_of({DType::f64, {}}, {v}); }
  Step step_;
  std::map<std::string, Tensor> values_;
};

/// w itself is the prediction; f64, so that the numbers are PyTorch's.
Graph weights_alone() {
  Graph g;
  g.outputs = {{"y", g.add_input("w", {DType::f64, {3}})}};
  return g;
}

struct OptimizerRow {
  const char* name;
  double clip;
  Values after;
};
/// PyTorch 2.15 in f64: four steps of mse(w, (1, 0.5, -0.25) · step), rate 0.1, decay 0.01.
const OptimizerRow kOptimizers[] = {
    {"sgd", 0, {1.00085498, -0.444057063, 1.35541}},
    {"sgd", 0.5, {0.588726166, -0.885539864, 1.85865347}},
    {"momentum", 0, {1.3755203, 0.12656774, 0.610147025}},
    {"momentum", 0.5, {0.671002956, -0.740881297, 1.66209998}},
    {"nesterov", 0, {1.72146005, 0.455168722, 0.2590892}},
    {"nesterov", 0.5, {0.744747993, -0.653111596, 1.55713851}},
    {"adam", 0, {0.878204268, -0.599807749, 1.5990355}},
    {"adam", 0.5, {0.887526695, -0.600022367, 1.60493076}},
    {"adamw", 0, {0.875859811, -0.596448669, 1.59164215}},
    {"adamw", 0.5, {0.885614374, -0.596552024, 1.5977831}},
};

StepOptions options_of(const OptimizerRow& row) {
  StepOptions options;
  options.loss = "mse";
  options.optimizer = row.name;
  options.clip_norm = row.clip;
  options.settings.weight_decay = 0.01;
  return options;
}
Values target_at(int step) { return {1.0 * step, 0.5 * step, -0.25 * step}; }

TEST(Optimizers, AreThoseOfPyTorch) {
  for (const OptimizerRow& row : kOptimizers) {
    auto step = training_step(weights_alone(), {"w"}, options_of(row));
    ASSERT_TRUE(step) << step.error().message;
    Runner runner(*std::move(step));
    runner.set("w", {0.5, -1, 2});
    runner.set("learning_rate", {0.1});
    for (int i = 1; i <= 4; ++i) {
      runner.set("step", {1.0 * i});
      runner.set("target", target_at(i));
      runner.run();
    }
    // The rate is an f32.
    for (std::size_t i = 0; i < 3; ++i)
      EXPECT_NEAR(runner["w"][i], row.after[i], 1e-6) << row.name << " " << row.clip;
  }
  EXPECT_EQ(std::size(kOptimizers), 2 * optimizers().size());
}

TEST(SplitStep, IsOneStepOverAllBatches) {
  for (const OptimizerRow& row : kOptimizers) {
    StepOptions options = options_of(row);
    auto whole = training_step(weights_alone(), {"w"}, options);
    options.parts = 2;
    options.accumulate = options.distributed = true;
    auto joint = training_step(weights_alone(), {"w"}, options);
    ASSERT_TRUE(whole && joint);
    auto split = split_step(*joint);
    ASSERT_TRUE(split) << split.error().message;
    EXPECT_EQ(split->gradients.graph.outputs[split->summed.at(0)].name, "gradient:w");
    Runner one(*std::move(whole)), sums(split->gradients), update(split->update);
    one.set("w", {0.5, -1, 2});
    update.set("w", {0.5, -1, 2});
    for (int i = 1; i <= 3; ++i) {
      // Means of two targets: the gradient of mse is linear in them.
      one.set("target", target_at(i));
      sums.set("gradient:w", {0, 0, 0});
      for (const double part : {0.5, 1.5}) {
        Values target = target_at(i);
        for (double& v : target) v *= part;
        sums.set("target", target);
        sums.set("w", update.tensor("w"));
        sums.run();
      }
      update.set("gradient:w", sums.tensor("gradient:w"));
      for (Runner* r : {&one, &update}) {
        if (r->takes("step")) r->set("step", {1.0 * i});
        r->set("learning_rate", {0.1});
        r->run();
      }
    }
    for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(update["w"][i], one["w"][i], 1e-12) << row.name;
  }
}

/// prediction = x · w, its loss mse, the gradient's norm limited: the step of one of `ranks`.
Result<Step> shared_step(std::int64_t batch, int ranks) {
  Graph g;
  Builder b(g);
  const NodeId x = g.add_input("x", {DType::f64, {batch, 3}});
  const NodeId w = g.add_input("w", {DType::f64, {3, 2}}), c = g.add_input("c", {DType::f64, {2}});
  g.outputs = {{"y", b.tanh(b.add(b.matmul(x, w), c))}};
  StepOptions options;
  options.loss = "mse";
  options.optimizer = "adamw";
  options.clip_norm = 0.1;
  options.parts = ranks;
  options.distributed = ranks > 1;
  return training_step(std::move(g), {"w", "c"}, options);
}

/// Rows of a batch from `first` on, each a function of its number.
Tensor rows_of(const TensorType& type, std::int64_t first) {
  Tensor t(type);
  const std::int64_t width = type.shape[1];
  for (std::int64_t i = 0; i < t.count(); ++i)
    t.set(i, std::sin(static_cast<double>(7 * (first * width + i) + width)));
  return t;
}

/// Inputs of a process whose rows start at `first`.
std::vector<Tensor> inputs_of(const Graph& g, std::int64_t first) {
  std::vector<Tensor> all;
  for (const auto& in : g.inputs) {
    Tensor t(in.type);
    for (std::int64_t i = 0; i < t.count(); ++i)
      t.set(i, in.name == "step"            ? 1
               : in.name == "learning_rate" ? 0.25
                                            : 0.1 * static_cast<double>(i + 1));
    const bool state = in.name.find(':') != std::string::npos;
    if (state) t = Tensor(in.type);
    all.push_back(in.name == "x" || in.name == "target" ? rows_of(in.type, first) : std::move(t));
  }
  return all;
}

TEST(SharedStep, OfTwoProcessesWithHalvesIsThatOfOneWithAll) {
  const auto whole = shared_step(10, 1), half = shared_step(5, 2);
  ASSERT_TRUE(whole && half);
  EXPECT_EQ(half->sums, (std::vector<std::string>{"gradient:w", "gradient:c"}));
  EXPECT_EQ(prim::collectives(half->graph).size(), 2U);
  const auto one = prim::interpret(whole->graph, inputs_of(whole->graph, 0));
  const auto two =
      prim::interpret_ranks(half->graph, {inputs_of(half->graph, 0), inputs_of(half->graph, 5)});
  ASSERT_TRUE(one && two);
  ASSERT_EQ(one->size(), (*two)[0].size());
  EXPECT_NEAR((*one)[0].at(0), ((*two)[0][0].at(0) + (*two)[1][0].at(0)) / 2, 1e-12);
  for (std::size_t o = 1; o < one->size(); ++o)
    for (std::int64_t i = 0; i < (*one)[o].count(); ++i)
      for (const auto& rank : *two)
        EXPECT_NEAR(rank[o].at(i), (*one)[o].at(i), 1e-12) << whole->graph.outputs[o].name;
}

/// Σ over processes of Σ_i (Σ over processes of x_i²)² · k_i, by x of each process.
TEST(SharedStep, GradientOfASumOverProcessesIsOneToo) {
  Graph g;
  Builder b(g);
  const TensorType type{DType::f64, {3}};
  const NodeId x = g.add_input("x", type), k = g.add_input("k", type);
  const NodeId sum = b.all_reduce(b.mul(x, x));
  const NodeId loss = b.reduce_sum(b.mul(b.mul(sum, sum), k), {0}, false);
  const std::vector<Seed> seeds = {{loss, b.scalar(DType::f64, 1)}};
  const auto d = gradients(g, seeds, std::vector<NodeId>{x});
  ASSERT_TRUE(d);
  g.outputs = {{"loss", loss}, {"d", (*d)[0]}};
  EXPECT_EQ(prim::collectives(g).size(), 2U);
  std::vector<std::vector<Tensor>> inputs = {
      {tensor_of(type, {1, -2, 0.5}), tensor_of(type, {1, 2, 3})},
      {tensor_of(type, {0.25, 1, 3}), tensor_of(type, {-1, 0.5, 1})}};
  const auto total = [&] {
    const auto out = prim::interpret_ranks(g, inputs);
    return (*out)[0][0].at(0) + (*out)[1][0].at(0);
  };
  const auto found = prim::interpret_ranks(g, inputs);
  ASSERT_TRUE(found);
  constexpr double kMove = 1e-5;
  for (std::size_t r = 0; r < 2; ++r)
    for (std::int64_t i = 0; i < 3; ++i) {
      const Tensor kept = inputs[r][0];
      Values moved = values_of(kept);
      double& at = moved[static_cast<std::size_t>(i)];
      at += kMove;
      inputs[r][0] = tensor_of(type, moved);
      const double more = total();
      at -= 2 * kMove;
      inputs[r][0] = tensor_of(type, moved);
      const double less = total();
      inputs[r][0] = kept;
      EXPECT_NEAR((*found)[r][1].at(i), (more - less) / (2 * kMove), 1e-5) << r << " " << i;
    }
}

/// prediction = w · x in f16.
Step scaled_step(double interval) {
  Graph g;
  Builder b(g);
  const NodeId w = g.add_input("w", {DType::f32, {3}}), x = g.add_input("x", {DType::f32, {3}});
  g.outputs = {{"y", b.mul(w, x)}};
  StepOptions options;
  options.loss = "mse";
  options.optimizer = "adam";
  options.precision = DType::f16;
  options.loss_scale = 1024;
  options.scale_interval = interval;
  auto step = training_step(g, {"w"}, options);
  EXPECT_TRUE(step) << (step ? "" : step.error().message);
  return *std::move(step);
}

TEST(LossScale, FallsWhereAGradientIsInfiniteAndNothingElseChanges) {
  Runner runner(scaled_step(2));
  runner.set("w", {1, 2, 3});
  runner.set("learning_rate", {0.5});
  runner.set("step", {1});
  runner.set("x", {1, 1, 65000});
  runner.run();
  EXPECT_EQ(runner["w"], (Values{1, 2, 3}));
  EXPECT_EQ(runner["mean:w"], (Values{0, 0, 0}));
  EXPECT_EQ(runner["loss_scale"], (Values{512}));
  EXPECT_EQ(runner["loss_scale:skipped"], (Values{1}));
  // The first step that counts is Adam's first: it moves by the rate whatever the scale.
  runner.set("step", {2});
  runner.set("x", {1, 1, 1});
  runner.run();
  EXPECT_NEAR(runner["w"][0], 0.5, 1e-5);
  EXPECT_EQ(runner["loss_scale"], (Values{512}));
  runner.set("step", {3});
  runner.run();
  EXPECT_EQ(runner["loss_scale"], (Values{1024}));
}

/// A running mean, as of a batch normalisation, of a product that f16 may not hold.
TEST(LossScale, StatisticsNeverBecomeWhatOverflowed) {
  Graph g;
  Builder b(g);
  const NodeId w = g.add_input("w", {DType::f32, {3}}), x = g.add_input("x", {DType::f32, {3}});
  const NodeId mean = g.add_input("mean", {DType::f32, {3}});
  const NodeId y = b.mul(w, x);
  g.outputs = {{"y", y}, {"mean", b.add(b.mul(mean, 0.5), b.mul(y, 0.5))}};
  StepOptions options;
  options.loss = "mse";
  options.optimizer = "sgd";
  options.precision = DType::f16;
  auto step = training_step(g, {"w"}, options);
  ASSERT_TRUE(step) << step.error().message;
  Runner runner(*std::move(step));
  runner.set("w", {1, 2, 3});
  runner.set("mean", {4, 4, 4});
  runner.set("learning_rate", {0.5});
  runner.set("step", {1});
  runner.set("x", {2, 1, INFINITY});
  runner.run();
  EXPECT_EQ(runner["loss_scale:skipped"], (Values{1}));
  EXPECT_EQ(runner["mean"], (Values{3, 3, 4}));
}

TEST(LossScale, KeepsGradientsThatHalvesCannotHold) {
  Runner runner(scaled_step(100));
  runner.set("w", {1e-4, 1e-4, 1e-4});  // gradients near 1e-8: zeros in f16
  runner.set("x", {1e-2, 1e-2, 1e-2});
  runner.run();
  EXPECT_NEAR(runner["mean:w"][0] / (0.1 * 2 * 1e-4 * 1e-4 / 3), 1, 0.05);
}

TEST(Draws, DifferFromDrawToDrawAndAgreeWithinOne) {
  Graph g;
  Builder b(g);
  const NodeId x = g.add_input("x", {DType::f32, {40, 50}});
  const NodeId u = b.random({DType::f32, {40, 50}}, prim::Random::Kind::uniform, 7);
  const NodeId kept = b.map(ir::ScalarFn::greater_equal, {u, b.scalar(DType::f32, 0.25)});
  const NodeId y = b.select(kept, b.mul(x, 1 / 0.75), b.scalar(DType::f32, 0));
  const NodeId z = b.random({DType::f32, {40, 50}}, prim::Random::Kind::normal, 8);
  g.outputs = {{"y", y}, {"u", u}, {"z", z}};
  Graph drawn = with_draws(g, 3, "draw");
  const NodeId source = drawn.add(prim::Input{0}, {}, drawn.inputs[0].type);
  const NodeId out = drawn.outputs[0].node;
  const std::vector<Seed> seeds = {{out, Builder(drawn).full(drawn[out].type, 1)}};
  drawn.outputs.push_back({"dx", (*gradients(drawn, seeds, std::vector<NodeId>{source}))[0]});
  ASSERT_TRUE(prim::verify(drawn));
  const auto run = [&](const Graph& graph, int draw) {
    Tensor number(TensorType{DType::i64, {}}), ones(TensorType{DType::f32, {40, 50}});
    number.set_int(0, draw);
    for (int i = 0; i < 2000; ++i) ones.set(i, 1);
    const auto r = prim::interpret(graph, {ones, number});
    EXPECT_TRUE(r);
    return *r;
  };
  const auto first = run(drawn, 1), again = run(drawn, 1), second = run(drawn, 2);
  const auto other = run(with_draws(g, 4, "draw"), 1);
  EXPECT_EQ(values_of(first[0]), values_of(again[0]));
  EXPECT_EQ(values_of(first[0]), values_of(first[3]));  // x is 1: the mask, scaled
  const auto agreement = [](const Tensor& a, const Tensor& c) {
    double same = 0;
    for (int i = 0; i < 2000; ++i) same += (a.at(i) == 0) == (c.at(i) == 0);
    return same / 2000;
  };
  // Independent masks agree in 0.25² + 0.75² = 0.625 of their elements, give or take 0.011.
  EXPECT_NEAR(agreement(first[0], second[0]), 0.625, 0.05);
  EXPECT_NEAR(agreement(first[0], other[0]), 0.625, 0.05);
  double mean = 0, square = 0, kept_share = 0;
  for (int i = 0; i < 2000; ++i) {
    mean += first[2].at(i) / 2000;
    square += first[2].at(i) * first[2].at(i) / 2000;
    kept_share += (first[0].at(i) != 0) / 2000.0;
  }
  EXPECT_NEAR(mean, 0, 0.1);
  EXPECT_NEAR(square, 1, 0.15);
  EXPECT_NEAR(kept_share, 0.75, 0.05);
}

TEST(TrainingStep, ErrorsSayWhatIsWrong) {
  StepOptions options;
  options.loss = "output";
  const auto message = [&](Graph g) {
    const auto step = training_step(std::move(g), {"w"}, options);
    return step ? std::string() : step.error().message;
  };
  EXPECT_NE(message(weights_alone()).find("shape [3], want one number"), std::string::npos)
      << message(weights_alone());
  Graph named = weights_alone();
  named.add_input("step", {DType::f32, {}});
  EXPECT_NE(message(named).find("input 'step' of the model"), std::string::npos);
  Graph steps;
  Builder b(steps);
  const NodeId w = steps.add_input("w", {DType::f32, {3}});
  steps.outputs = {{"y", b.reduce_sum(b.map(ir::ScalarFn::round, {w}), {0}, false)}};
  EXPECT_NE(message(steps).find("no parameter moves it"), std::string::npos) << message(steps);
}

}  // namespace
}  // namespace heddle::grad
