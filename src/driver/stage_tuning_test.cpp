#include "driver/stage_tuning.h"

#include <gtest/gtest.h>

#include <random>

#include "driver/mode.h"
#include "prim/builder.h"
#include "runtime/artefact.h"
#include "runtime/schedule.h"

namespace heddle::driver {
namespace {

// Alike stages choose together, by what they add on average; what is as good stays as it is.
TEST(StageTuning, GroupsChooseAlone) {
  const std::vector<std::vector<double>> added = {
      {10, 5, 10, 7}, {9, 6, 8, 7}, {12, 4, 12, 6.99}, {20, 9, 5, 9}};
  const StageTuning tuned = choose_stages(added, {0, 1, 0, 2});
  ASSERT_EQ(tuned.groups.size(), 3u);
  EXPECT_EQ(tuned.groups[0].stages, (std::vector<std::size_t>{0, 2}));
  EXPECT_EQ(tuned.groups[0].seconds, (std::vector<double>{10, 8.5, 12, 12.5}));
  const std::vector<runtime::StageChoice> want = {{1, true}, {4, false}, {1, true}, {1, false}};
  EXPECT_EQ(tuned.own(), want);
  EXPECT_NEAR(tuned.naive_log10, 4 * std::log10(4.0), 1e-9);
  EXPECT_NEAR(tuned.reduced_log10, std::log10(12.0), 1e-9);
  const std::string text = to_string(tuned);
  EXPECT_NE(text.find("1 counters; 2 barrier; 1 counters, grain=4; 0 one worker"),
            std::string::npos)
      << text;
}

// Stages side by side add what they are complete later than all before them; on one worker, all
// that they take.
TEST(StageTuning, WhatStagesAdd) {
  runtime::Program program;
  program.launches.resize(2);
  program.launches[0].phases.resize(2);
  program.launches[1].phases.resize(2);
  const std::vector<runtime::ItemTime> items = {{0, 0, 0, 0, 1, 0, 0.0, 3.0},
                                                {1, 0, 1, 0, 1, 0, 0.0, 2.0},
                                                {1, 1, 0, 0, 1, 0, 2.0, 3.5},
                                                {0, 1, 0, 1, 2, 0, 3.0, 4.0},
                                                {0, 1, 1, 0, 1, 0, 4.0, 4.5}};
  EXPECT_EQ(added_by_stage(program, items, {1}), (std::vector<double>{3, 0, 1, 0.5}));
  EXPECT_EQ(added_by_stage(program, items, {0}), (std::vector<double>{3, 2, 2.5, 0.5}));
}

TEST(StageTuning, RunsAndIsKept) {
  std::mt19937 rng(3);
  std::normal_distribution<double> normal;
  const auto constant = [&](prim::Builder& b) {
    Tensor t(TensorType{DType::f32, {48, 48}});
    for (std::int64_t i = 0; i < t.count(); ++i) t.set(i, normal(rng));
    return b.constant(t);
  };
  prim::Graph g;
  prim::Builder b(g);
  prim::NodeId h = g.add_input("x", {DType::f32, {64, 48}});
  for (int layer = 0; layer < 6; ++layer) h = b.tanh(b.matmul(h, constant(b)));
  g.outputs.push_back({"y", h});
  CompileOptions options;
  options.threads = 2;
  options.mode = "monolith:tuned";
  const auto compiled = compile(g, options);
  ASSERT_TRUE(compiled) << compiled.error().message;
  EXPECT_EQ(compiled->mode.chosen, "monolith:tuned");
  EXPECT_NE(compiled->mode.tuning.find("choices together"), std::string::npos);
  const auto& layout = compiled->program->monolith;
  ASSERT_TRUE(layout);
  EXPECT_EQ(layout->own.size(), runtime::stages_of(*compiled->program).size());
  const std::string path = testing::TempDir() + "stage_tuning_test.heddle";
  ASSERT_TRUE(runtime::write_artefact(*compiled->program, path));
  const auto read = runtime::read_artefact(path);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->monolith, layout);
  runtime::Program wrong = *compiled->program;
  wrong.monolith->own.pop_back();
  ASSERT_TRUE(runtime::write_artefact(wrong, path));
  EXPECT_FALSE(runtime::read_artefact(path));
}

}  // namespace
}  // namespace heddle::driver
