#include "driver/stage_tuning.h"

#include <gtest/gtest.h>

#include <random>

#include "driver/mode.h"
#include "prim/builder.h"
#include "runtime/artefact.h"
#include "runtime/schedule.h"

namespace heddle::driver {
namespace {

/// The same in all turns.
AlikeEdges took(std::vector<StageEdge> edges, std::vector<double> seconds) {
  return {std::move(edges), {seconds, seconds}};
}

// Each stage takes the grain that its edges take least with, each edge of it counters or a barrier;
// what is as good stays as it is.
TEST(StageTuning, StagesChooseByTheirEdges) {
  StageTuning tuned;
  tuned.groups = {took({{0, 1}, {2, 3}}, {10, 9, 12, 20}),  // a barrier
                  took({{1, 2}}, {10, 10, 10, 25}),
                  took({{3, 4}, {4, 5}}, {10, 9.9, 4, 11}),  // small items
                  took({{6, 7}}, {10, 10, 10, 5})};          // one worker
  choose_stages(tuned, 9);
  std::vector<runtime::StageChoice> want(9);
  want[1].meets = {0};
  for (const std::size_t s : {3, 4, 5}) want[s].grain = 4;
  for (const std::size_t s : {6, 7}) want[s].grain = 0;
  EXPECT_EQ(tuned.own, want);
  const std::string text = to_string(tuned);
  EXPECT_NE(text.find("5 edges by counters, 1 by barriers; 4 stages of grain 1, 3 stages of grain "
                      "4, 2 stages on one worker"),
            std::string::npos)
      << text;
}

// A barrier that is faster in one half of the turns only, or by less than a clock shows, is none.
TEST(StageTuning, ChanceMakesNoBarrier) {
  StageTuning tuned;
  tuned.groups = {{{{0, 1}}, {{{10, 9, 10, 10}, {10, 10, 10, 10}}}},
                  took({{1, 2}}, {1e-6, 9.5e-7, 1e-6, 1e-6})};
  choose_stages(tuned, 3);
  EXPECT_EQ(tuned.own, std::vector<runtime::StageChoice>(3));
}

// Edges between the same code are one group.
TEST(StageTuning, EdgesBetweenTheSameCodeAreAlike) {
  runtime::Program program;
  for (const char* symbol : {"a", "b", "a", "b", "c"}) {
    runtime::Launch& launch = program.launches.emplace_back();
    launch.args = {{runtime::Slot::Kind::arena, 0}};
    launch.phases.emplace_back();
    launch.phases[0].symbol = symbol;
    launch.phases[0].tasks = 1;
  }
  const auto groups = alike_edges(program);
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_EQ(groups[0].edges, (std::vector<StageEdge>{{0, 1}, {2, 3}}));
  EXPECT_EQ(groups[1].edges, (std::vector<StageEdge>{{1, 2}}));
  EXPECT_EQ(groups[2].edges, (std::vector<StageEdge>{{3, 4}}));
}

/// A session that takes as long as it likes: which stages ran, and how they were laid out.
class Recorder final : public runtime::Session {
 public:
  explicit Recorder(std::shared_ptr<const runtime::Program> program)
      : Session(std::move(program)) {}
  Status use(const std::optional<runtime::StageLayout>& layout,
             std::span<const int> only) override {
    layout_ = *layout, only_.assign(only.begin(), only.end());
    return Ok{};
  }
  Result<std::vector<runtime::ItemTime>> timeline(std::span<const Tensor>) override {
    seen.push_back(only_);
    const runtime::StageChoice& second = layout_.own[static_cast<std::size_t>(only_[1])];
    // A barrier is best between the first and the second stage, and nowhere else.
    const double seconds = second.meets.empty() ? 2 : only_[1] == 1 ? 1 : 3;
    return std::vector<runtime::ItemTime>{{0, only_[0], 0, 0, 1, 0, 5, 5 + seconds / 2},
                                          {0, only_[1], 0, 0, 1, 0, 5, 5 + seconds}};
  }
  std::vector<std::vector<int>> seen;

 protected:
  Status execute(std::span<const Tensor>, std::span<Tensor>,
                 std::vector<runtime::LaunchTime>*) override {
    return Ok{};
  }

 private:
  runtime::StageLayout layout_;
  std::vector<int> only_;
};

// Each group's two stages run alone, and nothing else does.
TEST(StageTuning, TimesPairsAlone) {
  auto program = std::make_shared<runtime::Program>();
  for (const char* symbol : {"a", "b", "a", "b"}) {
    runtime::Launch& launch = program->launches.emplace_back();
    launch.args = {{runtime::Slot::Kind::arena, 0}};
    launch.phases.emplace_back();
    launch.phases[0].symbol = symbol;
    launch.phases[0].tasks = 1;
  }
  Recorder session(program);
  const auto tuned = tune_stages(*program, session, {}, 1e-3);
  ASSERT_TRUE(tuned.ok()) << tuned.error().message;
  EXPECT_EQ(tuned->runs, std::ssize(session.seen));
  EXPECT_EQ(session.seen.size() % edge_choices().size(), 0u);
  for (const auto& pair : session.seen)
    EXPECT_TRUE(pair == (std::vector<int>{0, 1}) || pair == (std::vector<int>{1, 2}));
  std::vector<runtime::StageChoice> want(4);
  want[1].meets = {0};
  want[3].meets = {2};
  EXPECT_EQ(tuned->own, want);
  EXPECT_NEAR(tuned->naive_log10, 3 * std::log10(4.0), 1e-9);
  EXPECT_NEAR(tuned->reduced_log10, std::log10(8.0), 1e-9);
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
  wrong = *compiled->program;
  wrong.monolith->own.front().meets = {0};  // not before it
  ASSERT_TRUE(runtime::write_artefact(wrong, path));
  EXPECT_FALSE(runtime::read_artefact(path));
}

}  // namespace
}  // namespace heddle::driver
