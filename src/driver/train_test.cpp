// Compiled training steps against the reference interpreter of the same graph, step after step.
#include "driver/train.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>

#include "driver/safetensors.h"
#include "driver/verify.h"
#include "lower/lower.h"
#include "prim/interpret.h"

namespace heddle::driver {
namespace {

using prim::Builder;
using prim::NodeId;

Tensor random_of(const TensorType& type, std::mt19937& rng, double scale) {
  Tensor t(type);
  std::normal_distribution<double> normal;
  for (std::int64_t i = 0; i < t.count(); ++i)
    if (is_float(type.dtype))
      t.set(i, scale * normal(rng));
    else
      t.set_int(i, rng() % 3);
  return t;
}

/// A model made of primitives, with parameters drawn at random.
struct Maker {
  onnx::TrainingModel model;
  Builder b{model.graph};
  std::mt19937 rng{11};

  NodeId input(const std::string& name, Shape shape) {
    return model.graph.add_input(name, {DType::f32, std::move(shape)});
  }
  NodeId parameter(const std::string& name, Shape shape) {
    const TensorType type{DType::f32, std::move(shape)};
    const double fan = type.shape.size() < 2 ? 1
                                             : static_cast<double>(element_count(type.shape)) /
                                                   static_cast<double>(type.shape[0]);
    model.parameters.push_back({name, random_of(type, rng, std::sqrt(1 / fan))});
    return model.graph.add_input(name, type);
  }
  onnx::TrainingModel done(NodeId y) {
    model.graph.outputs = {{"y", y}};
    model.outputs = 1;
    return std::move(model);
  }
};

onnx::TrainingModel perceptron() {
  Maker m;
  const NodeId x = m.input("x", {6, 5});
  const NodeId h =
      m.b.relu(m.b.add(m.b.matmul(x, m.parameter("w1", {5, 7})), m.parameter("b1", {7})));
  return m.done(m.b.add(m.b.matmul(h, m.parameter("w2", {7, 3})), m.parameter("b2", {3})));
}

onnx::TrainingModel convolutions() {
  Maker m;
  const NodeId x = m.input("x", {4, 2, 6, 6});
  Builder& b = m.b;
  const auto scale = [&](NodeId v) { return b.reshape(v, {1, 4, 1, 1}); };
  NodeId y = b.conv(x, m.parameter("w1", {4, 2, 3, 3}), {{1, 1}, {1, 1}, {1, 1}, {1, 1}, 1});
  y = b.normalize(y, {0, 2, 3}, 1e-5);
  y = b.relu(b.add(b.mul(y, scale(m.parameter("g", {4}))), scale(m.parameter("c", {4}))));
  const NodeId w = b.windows(y, {2, 2}, {{2, 2}, {1, 1}, {0, 0}, {0, 0}, 1}, {3, 3}, -INFINITY);
  y = b.reduce_max(w, {4, 5}, false);
  y = b.conv(y, m.parameter("w2", {3, 4, 3, 3}), {{2, 2}, {1, 1}, {1, 1}, {1, 1}, 1});
  return m.done(b.mean(y, {2, 3}, false));
}

onnx::TrainingModel attention() {
  Maker m;
  Builder& b = m.b;
  const NodeId x = m.input("x", {6, 4, 8});
  const NodeId n =
      b.add(b.mul(b.normalize(x, {2}, 1e-5), m.parameter("g", {8})), m.parameter("c", {8}));
  const NodeId q = b.matmul(n, m.parameter("q", {8, 8})), k = b.matmul(n, m.parameter("k", {8, 8}));
  const NodeId v = b.matmul(n, m.parameter("v", {8, 8}));
  const NodeId p = b.softmax(b.mul(b.matmul(q, b.transpose(k, {0, 2, 1})), 0.35), {2});
  const NodeId y = b.add(x, b.matmul(p, v));
  return m.done(b.matmul(b.mean(y, {1}, false), m.parameter("o", {8, 3})));
}

/// Maxima of sums that kernels might add up again in another order.
onnx::TrainingModel extremes() {
  Maker m;
  Builder& b = m.b;
  const NodeId x = m.input("x", {2, 2, 8});
  const NodeId highest = b.reduce_max(b.matmul(x, m.parameter("w1", {8, 1})), {1}, false);
  return m.done(b.add(b.matmul(highest, m.parameter("u", {1, 3})), m.parameter("c", {3})));
}

/// A hidden layer of which a quarter is dropped, another one in each step.
onnx::TrainingModel dropping() {
  Maker m;
  Builder& b = m.b;
  const NodeId h = b.relu(b.matmul(m.input("x", {6, 5}), m.parameter("w1", {5, 16})));
  const NodeId u = b.random({DType::f32, {6, 16}}, prim::Random::Kind::uniform, 1);
  const NodeId kept = b.map(ir::ScalarFn::greater_equal, {u, b.scalar(DType::f32, 0.25)});
  const NodeId d = b.select(kept, b.mul(h, 1 / 0.75), b.scalar(DType::f32, 0));
  const NodeId noise = b.random({DType::f32, {6, 16}}, prim::Random::Kind::normal, 2);
  return m.done(b.matmul(b.add(d, b.mul(noise, 0.1)), m.parameter("w2", {16, 3})));
}

/// Gradients of tables are rows added up where positions repeat: of whole vectors, and of more.
onnx::TrainingModel embedding() {
  Maker m;
  Builder& b = m.b;
  const NodeId ids = b.cast(b.map(ir::ScalarFn::abs, {m.input("x", {6, 4})}), DType::i64);
  const NodeId wide = b.take(m.parameter("wide", {5, 64}), ids, 0);
  const NodeId odd = b.take(m.parameter("odd", {5, 40}), ids, 0);
  return m.done(b.add(b.matmul(b.mean(wide, {1}, false), m.parameter("u", {64, 3})),
                      b.matmul(b.mean(odd, {1}, false), m.parameter("v", {40, 3}))));
}

/// Gradients of strided convolutions read every other element.
onnx::TrainingModel strided() {
  Maker m;
  Builder& b = m.b;
  NodeId y = m.input("x", {2, 3, 8, 8});
  y = b.relu(b.conv(y, m.parameter("w1", {8, 3, 3, 3}), {{1, 1}, {1, 1}, {1, 1}, {1, 1}, 1}));
  y = b.relu(b.conv(y, m.parameter("w2", {16, 8, 3, 3}), {{2, 2}, {1, 1}, {1, 1}, {1, 1}, 1}));
  y = b.conv(y, m.parameter("w3", {8, 16, 1, 1}), {{2, 2}, {1, 1}, {0, 0}, {0, 0}, 1});
  return m.done(b.matmul(b.mean(y, {2, 3}, false), m.parameter("o", {8, 3})));
}

CompileOptions two_threads(DType precision = DType::f32) {
  CompileOptions options;
  options.precision = precision;
  options.threads = 2;
  options.options.cache_dir.clear();
  return options;
}

/// Runs the step's graph in the interpreter, feeding back as the trainer does.
class Reference {
 public:
  Reference(onnx::TrainingModel model, const grad::StepOptions& options) {
    std::vector<std::string> names;
    for (const auto& p : model.parameters) names.push_back(p.name);
    auto step = grad::training_step(model.graph, names, options);
    EXPECT_TRUE(step) << step.error().message;
    step_ = *std::move(step);
    for (const auto& in : step_.graph.inputs) {
      inputs_.emplace_back(in.type);
      for (const auto& p : model.parameters)
        if (p.name == in.name) inputs_.back() = p.value;
      for (const auto& s : step_.states)
        if (s.name == in.name && s.initial != 0) inputs_.back().set(0, s.initial);
    }
  }
  double step(const std::vector<Tensor>& batch, double rate) {
    ++steps_;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      const std::string& name = step_.graph.inputs[i].name;
      if (name == "x") inputs_[i] = batch[0];
      if (name == "target") inputs_[i] = batch[1];
      if (name == "learning_rate") inputs_[i].set(0, rate);
      if (name == "step") inputs_[i].set(0, steps_);
      if (name == "draw") inputs_[i].set_int(0, steps_ - 1);
    }
    const auto out = prim::interpret(step_.graph, inputs_);
    EXPECT_TRUE(out);
    for (const auto& f : step_.feedback) inputs_[f.to] = (*out)[f.from];
    return (*out)[0].at(0);
  }
  Tensor value(const std::string& name) const {
    for (std::size_t i = 0; i < inputs_.size(); ++i)
      if (step_.graph.inputs[i].name == name) return inputs_[i];
    return {};
  }

 private:
  grad::Step step_;
  std::vector<Tensor> inputs_;
  int steps_ = 0;
};

/// Every kernel of the step alone.
void expect_right_kernels(const Compiled& compiled, const CompileOptions& options) {
  std::mt19937 rng(6);
  std::vector<Tensor> inputs;
  for (const auto& port : compiled.program->inputs) {
    inputs.push_back(random_of(port.type, rng, 1));
    // Second moments are no less than 0, and steps are counted from 1.
    for (std::int64_t i = 0; i < inputs.back().count(); ++i)
      if (port.name.starts_with("variance:") || port.name == "step")
        inputs.back().set(i, 1 + std::fabs(inputs.back().at(i)));
  }
  const auto result = verify(compiled, inputs, 1e-4, 1e-4, options);
  ASSERT_TRUE(result) << result.error().message;
  for (const KernelCheck& k : result->kernels)
    EXPECT_TRUE(k.equal) << k.name << " " << k.sources << ": " << k.error;
}

struct TrainingCase {
  const char* name;
  onnx::TrainingModel (*model)();
  const char* loss;
  const char* optimizer;
  double clip = 0;
  DType precision = DType::f32;
};
class Training : public testing::TestWithParam<TrainingCase> {};

TEST_P(Training, FollowsTheReference) {
  const TrainingCase& c = GetParam();
  grad::StepOptions options;
  options.loss = c.loss;
  options.optimizer = c.optimizer;
  options.settings.weight_decay = 0.01;
  options.clip_norm = c.clip;
  options.loss_scale = 64;  // no gradient is infinite: the reference's values never are
  auto trainer = Trainer::create(c.model(), {.step = options}, two_threads(c.precision));
  ASSERT_TRUE(trainer) << trainer.error().message;
  options.precision = c.precision;
  Reference reference(c.model(), options);
  std::mt19937 rng(5);
  const bool halves = c.precision != DType::f32;
  // Where values between kernels are halves, sums of the same numbers differ by roundings of those.
  const double of_loss = halves ? 2e-2 : 1e-4, of_weights = halves ? 2e-2 : 2e-4;
  if (!halves) expect_right_kernels(trainer->compiled(), two_threads());
  for (int step = 0; step < 6; ++step) {
    std::vector<Tensor> batch;
    for (const auto& port : trainer->batch_ports()) batch.push_back(random_of(port.type, rng, 1));
    const auto loss = trainer->step(batch, 0.01);
    ASSERT_TRUE(loss) << loss.error().message;
    EXPECT_NEAR(*loss, reference.step(batch, 0.01), of_loss) << "step " << step;
  }
  for (const auto& [name, value] : trainer->weights()) {
    const Tensor want = reference.value(name);
    double worst = 0;
    for (std::int64_t i = 0; i < want.count(); ++i)
      worst = std::max(worst, std::fabs(value.at(i) - want.at(i)));
    EXPECT_LT(worst, of_weights) << name;
  }
}
const TrainingCase kTrainingCases[] = {
    {"perceptron_sgd", perceptron, "cross_entropy", "sgd"},
    {"perceptron_clipped", perceptron, "mse", "momentum", 0.1},
    {"perceptron_binary", perceptron, "bce_logits", "adam"},
    {"convolutions", convolutions, "cross_entropy", "momentum"},
    {"convolutions_adamw", convolutions, "cross_entropy", "adamw"},
    {"attention", attention, "l1", "momentum"},
    {"attention_nesterov", attention, "mse", "nesterov"},
    {"dropping", dropping, "cross_entropy", "adamw"},
    {"perceptron_bf16", perceptron, "cross_entropy", "sgd", 0, DType::bf16},
    {"perceptron_f16", perceptron, "cross_entropy", "sgd", 0, DType::f16},
    {"convolutions_bf16", convolutions, "cross_entropy", "momentum", 0, DType::bf16},
    {"attention_f16", attention, "l1", "momentum", 1, DType::f16},
    {"embedding", embedding, "cross_entropy", "sgd"},
    {"extremes", extremes, "cross_entropy", "sgd"},
    {"strided_convolutions", strided, "cross_entropy", "sgd"},
};
INSTANTIATE_TEST_SUITE_P(Cases, Training, testing::ValuesIn(kTrainingCases),
                         [](const auto& info) { return std::string(info.param.name); });

/// Two halves of a batch, one after another, give the step of the whole.
TEST(Accumulation, IsOneStepOfAllBatches) {
  const auto with_rows = [](std::int64_t rows) {
    Maker m;
    const NodeId x = m.input("x", {rows, 5});
    const NodeId h = m.b.relu(m.b.matmul(x, m.parameter("w1", {5, 7})));
    return m.done(m.b.matmul(h, m.parameter("w2", {7, 3})));
  };
  TrainOptions options;
  options.step.clip_norm = 0.5;
  auto whole = Trainer::create(with_rows(8), options, two_threads());
  options.accumulate = 2;
  auto parts = Trainer::create(with_rows(4), options, two_threads());
  ASSERT_TRUE(whole && parts);
  std::mt19937 rng(5);
  for (int step = 0; step < 5; ++step) {
    Batch batch;
    std::vector<Batch> halves(2);
    for (std::size_t i = 0; i < 2; ++i) {
      const runtime::Port& port = whole->batch_ports()[i];
      batch.push_back(random_of(port.type, rng, 1));
      for (std::size_t k = 0; k < 2; ++k) {
        Tensor t(parts->batch_ports()[i].type);
        std::memcpy(t.mutable_data(), batch[i].data() + k * static_cast<std::size_t>(t.bytes()),
                    static_cast<std::size_t>(t.bytes()));
        halves[k].push_back(t);
      }
    }
    const auto a = whole->step(batch, 0.01), b = parts->step(halves, 0.01);
    ASSERT_TRUE(a && b);
    EXPECT_NEAR(*a, *b, 1e-6);
  }
  const auto want = whole->weights();
  for (const auto& [name, value] : parts->weights())
    for (std::int64_t i = 0; i < value.count(); ++i)
      EXPECT_NEAR(value.at(i), want.at(name).at(i), 2e-6) << name;
  EXPECT_FALSE(parts->step(Batch{}, 0.01));
}

TEST(Collectives, AreNeverInsideOfAKernel) {
  prim::Graph g;
  Builder b(g);
  const NodeId x = g.add_input("x", {DType::f32, {4}});
  g.set_origin(prim::Origin{"AllReduce", "gradient:w"});
  const NodeId sum = b.all_reduce(b.exp(x));
  g.outputs = {{"y", b.exp(sum)}};
  lower::Request request;
  request.graph = &g;
  request.cluster = {{sum}, {sum}};
  for (const auto& error :
       {compile(g, two_threads()).error().message, lower::lower(request).error().message}) {
    EXPECT_NE(error.find("all_reduce"), std::string::npos) << error;
    EXPECT_NE(error.find("AllReduce 'gradient:w'"), std::string::npos) << error;
    EXPECT_NE(error.find("outside of a distributed training step"), std::string::npos) << error;
  }
}

/// Layers whose activations cost little beside their products.
onnx::TrainingModel deep() {
  Maker m;
  Builder& b = m.b;
  NodeId h = m.input("x", {64, 32});
  for (int layer = 0; layer < 4; ++layer) {
    const std::int64_t from = layer == 0 ? 32 : 256;
    h = b.matmul(h, m.parameter(fmt::format("w{}", layer), {from, 256}));
    // Nothing that a plan without a bound would compute twice.
    for (int k = 0; k < 3; ++k) h = b.map(ir::ScalarFn::tanh, {b.map(ir::ScalarFn::sin, {h})});
  }
  return m.done(b.matmul(h, m.parameter("o", {256, 3})));
}

/// Products only: nothing to compute again but products.
onnx::TrainingModel products() {
  Maker m;
  NodeId h = m.input("x", {512, 32});
  for (int layer = 0; layer < 8; ++layer)
    h = m.b.relu(m.b.matmul(h, m.parameter(fmt::format("w{}", layer), {32, 32})));
  return m.done(m.b.matmul(h, m.parameter("o", {32, 3})));
}

/// What is cheap is computed again where memory is short, and the step is the same.
void expect_same_within(onnx::TrainingModel (*model)(), double share) {
  CompileOptions bound = two_threads();
  bound.mode = "kernels";  // a monolith's small values share no memory
  auto plain = Trainer::create(model(), {}, bound);
  ASSERT_TRUE(plain) << plain.error().message;
  const MemoryReport needs = plain->compiled().memory;
  bound.memory_limit =
      needs.bytes - static_cast<std::int64_t>(share * static_cast<double>(needs.arena));
  auto small = Trainer::create(model(), {}, bound);
  ASSERT_TRUE(small) << small.error().message;
  const MemoryReport& found = small->compiled().memory;
  EXPECT_LE(found.bytes, bound.memory_limit);
  EXPECT_EQ(found.bytes, memory_of(*small->compiled().program, 2).bytes);
  EXPECT_TRUE(found.again > 0 || found.us_per_byte > 0);
  std::mt19937 rng(5);
  for (int step = 0; step < 3; ++step) {
    std::vector<Tensor> batch;
    for (const auto& port : plain->batch_ports()) batch.push_back(random_of(port.type, rng, 1));
    EXPECT_NEAR(*plain->step(batch, 0.01), *small->step(batch, 0.01), 1e-5);
  }
  const auto wanted = plain->weights(), got = small->weights();
  for (const auto& [name, want] : wanted)
    for (std::int64_t i = 0; i < want.count(); ++i)
      ASSERT_NEAR(got.at(name).at(i), want.at(i), 1e-4) << name;
}

TEST(Memory, ActivationsAreComputedAgain) { expect_same_within(deep, 0.25); }
TEST(Memory, ProductsAreComputedAgain) { expect_same_within(products, 0.2); }

TEST(Memory, WhatCannotFitIsAnError) {
  CompileOptions bound = two_threads();
  bound.memory_limit = 1000;
  const auto small = Trainer::create(perceptron(), {}, bound);
  ASSERT_FALSE(small);
  EXPECT_EQ(small.error().code, ErrorCode::out_of_memory);
  EXPECT_TRUE(small.error().message.starts_with(
      "--memory-limit: no program was found that needs less than 0.0 MB"))
      << small.error().message;
}

TEST(Checkpoints, ResumingRepeatsWhatWouldHaveHappened) {
  const std::string path =
      (std::filesystem::temp_directory_path() / fmt::format("heddle-{}.st", ::getpid())).string();
  grad::StepOptions options;
  const auto make = [&] { return Trainer::create(dropping(), {.step = options}, two_threads()); };
  auto whole = make(), half = make(), rest = make();
  ASSERT_TRUE(whole && half && rest);
  std::mt19937 rng(5);
  std::vector<std::vector<Tensor>> batches(6);
  for (auto& batch : batches)
    for (const auto& port : whole->batch_ports()) batch.push_back(random_of(port.type, rng, 1));
  std::vector<double> a, b;
  for (int i = 0; i < 6; ++i) a.push_back(*whole->step(batches[static_cast<std::size_t>(i)], 0.01));
  for (int i = 0; i < 3; ++i) b.push_back(*half->step(batches[static_cast<std::size_t>(i)], 0.01));
  ASSERT_TRUE(half->save(path));
  const Status resumed = rest->resume(path);
  ASSERT_TRUE(resumed) << resumed.error().message;
  EXPECT_EQ(rest->steps(), 3);
  for (int i = 3; i < 6; ++i) b.push_back(*rest->step(batches[static_cast<std::size_t>(i)], 0.01));
  EXPECT_EQ(a, b);
  options.optimizer = "sgd";
  auto other = make();
  ASSERT_TRUE(other);
  EXPECT_FALSE(other->resume(path));
  options = {};
  options.loss = "l1";
  auto loss = make();
  ASSERT_TRUE(loss);
  EXPECT_FALSE(loss->resume(path));
  auto twice = Trainer::create(dropping(), {.step = {}, .accumulate = 2}, two_threads());
  ASSERT_TRUE(twice);
  EXPECT_FALSE(twice->resume(path));
  EXPECT_NE(twice->kind_hash(), rest->kind_hash());
  EXPECT_EQ(whole->kind_hash(), rest->kind_hash());
  // Damaged files are errors, whatever bit it is.
  const auto size = std::filesystem::file_size(path);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  for (std::uintmax_t at = 0; at < size; ++at) {
    const auto place = static_cast<std::streamoff>(at);
    file.seekg(place);
    const char was = static_cast<char>(file.get());
    const auto put = [&](char c) { file.seekp(place).put(c).flush(); };
    put(static_cast<char>(was ^ (1 << at % 8)));
    EXPECT_FALSE(rest->resume(path)) << "byte " << at;
    put(was);
  }
  EXPECT_TRUE(rest->resume(path));
  file.seekp(0, std::ios::end).put('x').flush();
  const Status longer = rest->resume(path);
  EXPECT_TRUE(!longer && longer.error().message.find("damaged") != std::string::npos);
  file.close();
  for (const std::uintmax_t keep : {std::uintmax_t{0}, std::uintmax_t{7}, size / 2, size - 1}) {
    std::filesystem::resize_file(path, keep);
    EXPECT_FALSE(read_safetensors(path)) << keep;
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace heddle::driver
