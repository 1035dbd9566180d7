#include "lower/stitch/test_cases.h"

namespace heddle::lower {
namespace {

using cases::Case;
using prim::Builder;

class Stitch : public testing::TestWithParam<Case> {};

TEST_P(Stitch, AgreesWithTheReference) {
  std::mt19937 rng(7);
  for (int round = 0; round < 4; ++round) {
    prim::Graph g;
    Builder b(g);
    GetParam().build(g, b);
    CheckOptions options;
    options.random_layouts = round > 0;
    options.free_outputs = round % 2 == 1;
    options.target.threads = 2;
    if (round == 3) options.target.vector_bytes = 64;
    ASSERT_EQ(check(g, rng, options), "") << GetParam().name << " round " << round;
  }
}

/// The same by blocks of threads; the kernel interpreter finds races between them.
TEST_P(Stitch, AgreesOnAGpu) {
  std::mt19937 rng(7);
  for (int round = 0; round < 4; ++round) {
    prim::Graph g;
    Builder b(g);
    GetParam().build(g, b);
    CheckOptions options;
    options.random_layouts = round > 0;
    options.free_outputs = round % 2 == 1;
    options.target = gpu_target(round < 3 ? 4 : 132);
    const std::string problem = check(g, rng, options);
    ASSERT_EQ(problem, "") << GetParam().name << " round " << round;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Stitch, testing::ValuesIn(cases::kCases), [](const auto& info) {
  std::string name(info.param.name);
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !std::isalnum(c); }, '_');
  return name;
});

}  // namespace
}  // namespace heddle::lower
