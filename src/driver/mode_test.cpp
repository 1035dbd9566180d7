// Modes: the same bits however the kernels run.
#include "driver/mode.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <random>
#include <thread>

#include "prim/builder.h"
#include "runtime/artefact.h"
#include "runtime/schedule.h"

namespace heddle::driver {
namespace {

using prim::Builder;
using prim::NodeId;

CompileOptions options(const std::string& mode, int threads) {
  CompileOptions o;
  o.mode = mode;
  o.threads = threads;
  return o;
}

Tensor random_tensor(const TensorType& type, std::mt19937& rng) {
  Tensor t(type);
  std::normal_distribution<double> normal;
  for (std::int64_t i = 0; i < t.count(); ++i) t.set(i, normal(rng));
  return t;
}

/// Two towers of products, softmax and sums that meet, with several outputs: kernels of many kinds,
/// memory that is used again, work that can run side by side.
prim::Graph towers(std::mt19937& rng) {
  prim::Graph g;
  Builder b(g);
  const NodeId x = g.add_input("x", {DType::f32, {67, 45}});
  std::vector<NodeId> ends;
  for (const int seed : {0, 1}) {
    NodeId h = x;
    for (int layer = 0; layer < 4; ++layer) {
      const NodeId w = b.constant(random_tensor({DType::f32, {45, 45}}, rng));
      h = b.tanh(b.mul(b.matmul(h, w), 0.2 + seed));
      const NodeId e = b.exp(h);
      h = b.div(e, b.broadcast(b.reduce_sum(e, {1}, true), {67, 45}));
    }
    ends.push_back(h);
    g.outputs.push_back({seed == 0 ? "left" : "right", b.reduce_sum(h, {0})});
  }
  g.outputs.push_back({"both", b.matmul(ends[0], b.transpose(ends[1], {1, 0}))});
  return g;
}

bool same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  for (std::size_t i = 0; i < a.size(); ++i)
    if (std::memcmp(a[i].data(), b[i].data(), static_cast<std::size_t>(a[i].bytes())) != 0)
      return false;
  return a.size() == b.size();
}

const char* const kModes[] = {"monolith",
                              "monolith:whole=1000000",
                              "monolith:whole=1",
                              "monolith:grain=5,depth",
                              "monolith:barriers",
                              "monolith:tuned",
                              "auto"};

TEST(Mode, EveryLayoutGivesTheSameBits) {
  std::mt19937 rng(5);
  const prim::Graph g = towers(rng);
  const std::vector<Tensor> inputs = {random_tensor(g.inputs[0].type, rng)};
  for (const int threads : {1, 2, 3, 7}) {
    // Of the plan for so many threads, which one thread runs to the same bits.
    const auto plain = compile(g, options("kernels", threads));
    ASSERT_TRUE(plain) << plain.error().message;
    EXPECT_FALSE(plain->program->monolith);
    const auto want = (*load(plain->program, options("kernels", 1)))->run(inputs);
    ASSERT_TRUE(want);
    for (const char* mode : kModes) {
      const auto compiled = compile(g, options(mode, threads));
      ASSERT_TRUE(compiled) << compiled.error().message;
      if (std::string(mode) != "auto") {
        EXPECT_TRUE(compiled->program->monolith);
      } else if (!compiled->program->monolith) {
        EXPECT_EQ(compiled->program->arena_bytes, plain->program->arena_bytes);
      }
      const auto session = *load(compiled->program, options(mode, threads));
      for (int run = 0; run < 3; ++run) {
        const auto got = session->run(inputs);
        ASSERT_TRUE(got);
        EXPECT_TRUE(same(*got, *want)) << mode << ", " << threads << " threads, run " << run;
      }
    }
  }
}

TEST(Mode, RunsAtTheSameTimeDoNotDisturbEachOther) {
  std::mt19937 rng(6);
  const prim::Graph g = towers(rng);
  const auto compiled = compile(g, options("monolith:grain=2,depth", 3));
  ASSERT_TRUE(compiled) << compiled.error().message;
  const auto session = *load(compiled->program, options("monolith", 3));
  std::vector<std::vector<Tensor>> inputs, want;
  for (int i = 0; i < 3; ++i) {
    inputs.push_back({random_tensor(g.inputs[0].type, rng)});
    want.push_back(*session->run(inputs.back()));
  }
  std::vector<int> wrong(3);
  std::vector<std::thread> callers;
  for (std::size_t c = 0; c < 3; ++c)
    callers.emplace_back([&, c] {
      for (int run = 0; run < 50; ++run) wrong[c] += !same(*session->run(inputs[c]), want[c]);
    });
  for (std::thread& t : callers) t.join();
  EXPECT_EQ(wrong, std::vector<int>(3));
}

// An output is told once, when all that use it have run.
TEST(Mode, TellsOutputsOnce) {
  std::mt19937 rng(8);
  const prim::Graph g = towers(rng);
  for (const char* mode : {"kernels", "monolith:grain=3,depth", "monolith:whole=1000000"}) {
    const auto compiled = compile(g, options(mode, 2));
    const auto session = *load(compiled->program, options(mode, 2));
    const std::vector<Tensor> inputs = {random_tensor(g.inputs[0].type, rng)};
    const auto want = *session->run(inputs);
    std::vector<Tensor> outputs;
    for (const runtime::Port& port : compiled->program->outputs) outputs.emplace_back(port.type);
    std::vector<std::atomic<int>> told(outputs.size());
    std::atomic<int> early{0};
    const auto ready = [&](std::size_t o) {
      ++told[o];
      early += std::memcmp(outputs[o].data(), want[o].data(),
                           static_cast<std::size_t>(want[o].bytes())) != 0;
    };
    ASSERT_TRUE(session->run_into(inputs, outputs, ready));
    for (const auto& count : told) EXPECT_EQ(count, 1) << mode;
    EXPECT_EQ(early, 0) << mode;
  }
}

/// What was to be summed, in order, and whether it was there by then.
class Sums final : public runtime::Communicator {
 public:
  explicit Sums(const std::vector<Tensor>& want) : want_(want) {}
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void start_sum(float* data, std::int64_t) override {
    for (std::size_t o = 0; o < want_.size(); ++o)
      if (std::memcmp(data, want_[o].data(), static_cast<std::size_t>(want_[o].bytes())) == 0)
        started.push_back(o);
  }
  Status wait() override { return Ok{}; }
  Times times() const override { return {}; }
  void abort(int) override {}
  std::vector<std::size_t> started;

 private:
  const std::vector<Tensor>& want_;
};

// Sums over processes start in the order that is given, however the program is laid out.
TEST(Mode, SumsGoInTheOrderThatIsGiven) {
  std::mt19937 rng(8);
  const prim::Graph g = towers(rng);
  for (const char* mode : {"kernels", "monolith:grain=3,depth", "monolith:whole=1000000"}) {
    const auto compiled = compile(g, options(mode, 2));
    const auto session = *load(compiled->program, options(mode, 2));
    const std::vector<Tensor> inputs = {random_tensor(g.inputs[0].type, rng)};
    const auto want = *session->run(inputs);
    std::vector<std::size_t> order(want.size());
    std::iota(order.begin(), order.end(), 0);
    EXPECT_EQ(session->by_completion(order).size(), order.size());
    do {
      std::vector<Tensor> outputs;
      for (const runtime::Port& port : compiled->program->outputs) outputs.emplace_back(port.type);
      Sums sums(want);
      ASSERT_TRUE(session->run_sharing(inputs, outputs, order, sums));
      EXPECT_EQ(sums.started, order) << mode;
    } while (std::ranges::next_permutation(order).found);
  }
}

TEST(Mode, TimelineCoversEveryTask) {
  std::mt19937 rng(9);
  const prim::Graph g = towers(rng);
  for (const char* mode : {"monolith", "kernels"}) {
    SCOPED_TRACE(mode);
    const auto compiled = compile(g, options(mode, 2));
    const auto session = *load(compiled->program, options(mode, 2));
    const auto items = session->timeline({{random_tensor(g.inputs[0].type, rng)}});
    ASSERT_TRUE(items);
    std::vector<std::int64_t> tasks(compiled->program->launches.size());
    std::vector<double> end(2);
    for (const runtime::ItemTime& t : *items) {
      double& before = end[static_cast<std::size_t>(t.worker)];
      EXPECT_LE(before, t.begin - t.waited + 1e-9);
      EXPECT_LE(t.begin, t.end);
      EXPECT_GE(t.waited, 0);
      before = t.end;
      tasks[static_cast<std::size_t>(t.launch)] += t.last - t.first;
    }
    for (std::size_t l = 0; l < tasks.size(); ++l) {
      std::int64_t all = 0;
      for (const runtime::Phase& phase : compiled->program->launches[l].phases) all += phase.tasks;
      EXPECT_EQ(tasks[l], all);
    }
    EXPECT_GT(std::ranges::max(end), 0);
  }
}

// Towers that run one after another in the plan do not wait for each other's memory.
TEST(Mode, WhatDataAllowsMemoryAllows) {
  std::mt19937 rng(12);
  prim::Graph g;
  Builder b(g);
  const NodeId x = g.add_input("x", {DType::f32, {131, 128}});
  for (const int seed : {0, 1}) {
    NodeId h = x;
    for (int layer = 0; layer < 5; ++layer)
      h = b.matmul(h, b.constant(random_tensor({DType::f32, {128, 128}}, rng)));
    g.outputs.push_back({seed == 0 ? "left" : "right", h});
  }
  CompileOptions as_written = options("monolith:whole=1000000", 2);
  as_written.options.accuracy = "strict";  // the same kernels on every processor
  const auto compiled = compile(g, as_written);
  ASSERT_TRUE(compiled) << compiled.error().message;
  const auto stages = runtime::stages_of(*compiled->program);
  const runtime::Schedule s = runtime::schedule(stages, 2, {1, 1.0});
  EXPECT_EQ(s.items[0].size(), stages.size() / 2);
  EXPECT_TRUE(s.waits.empty());
  // Each tower in two places at most.
  EXPECT_LE(compiled->program->arena_bytes, 4 * 131 * 128 * 4 + 1024);
}

TEST(Mode, ArtefactKeepsTheSchedule) {
  std::mt19937 rng(10);
  const prim::Graph g = towers(rng);
  const auto compiled = compile(g, options("monolith:grain=3,whole=2.5,depth", 2));
  const std::string path = testing::TempDir() + "mode_test.heddle";
  ASSERT_TRUE(runtime::write_artefact(*compiled->program, path));
  const auto read = runtime::read_artefact(path);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->monolith, compiled->program->monolith);
  const auto stages = runtime::stages_of(*compiled->program);
  EXPECT_EQ(runtime::schedule(runtime::stages_of(*read), 2, *read->monolith),
            runtime::schedule(stages, 2, *compiled->program->monolith));
  // Towers do not wait for each other where stages are not split.
  const runtime::Schedule apart = runtime::schedule(stages, 2, {1, 1.0});
  EXPECT_FALSE(apart.items[0].empty());
  EXPECT_FALSE(apart.items[1].empty());
  EXPECT_LT(apart.waits.size(), 4U);
  std::filesystem::remove(path);
}

TEST(Mode, Texts) {
  EXPECT_TRUE(parse_mode("monolith:tuned")->tuned);
  for (const std::string text : {"monolith:grain=4,whole=2.5,depth", "monolith:barriers"})
    EXPECT_EQ(to_string(parse_mode(text)->layout), text);
  EXPECT_EQ(to_string(std::nullopt), "kernels");
  for (const char* text :
       {"", "kernel", "monolith:", "monolith:grain=", "monolith:grain=x", "monolith:grain=0",
        "monolith:grain=2.5", "monolith:grain=2000", "monolith:whole=-1", "monolith:deep",
        "monolith:grain=4,", "monolith:grain=0x10", "monolith:grain= 4", "monolith:grain=+4",
        "monolith:whole=inf", "monolith:whole=nan", "monolith:whole=1 "})
    EXPECT_FALSE(parse_mode(text)) << text;
  EXPECT_NE(parse_mode("monolith:").error().message.find("'monolith:', want kernels"),
            std::string::npos);
}

}  // namespace
}  // namespace heddle::driver
