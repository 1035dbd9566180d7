// Every stitched kernel of the cases, as CUDA text, agrees with the primitives' reference under the
// emulation.
#include <gtest/gtest.h>

#include "cuda_emulation/device.h"
#include "cuda_emulation/stitched.h"

namespace heddle {
namespace {

const Stitched& stitched() {
  static const Stitched one;
  return one;
}

void check(const emulation::Module& module, const StitchedKernel& one, emulation::Order order,
           unsigned seed = 1) {
  const auto got = emulate(module, one.text, one.prepared.bytes, order, seed);
  const std::string bad =
      got ? lower::wrong_output(one.graph, one.prepared, *got) : got.error().message;
  EXPECT_EQ(bad, "") << one.name << one.text.text;
}

/// Compiles all units, then runs each kernel in the order given.
void run_all(const emulation::CompileOptions& options, emulation::Order order) {
  const Stitched& kernels = stitched();
  ASSERT_EQ(kernels.problems, "");
  ASSERT_GT(kernels.all.size(), 2 * std::size(lower::cases::kCases));
  std::vector<std::string> units;
  for (int u = 0; u < Stitched::kUnits; ++u) units.push_back(kernels.unit(u));
  std::vector<emulation::Module> modules;
  ASSERT_EQ(compile_all(units, options, modules), "");
  for (std::size_t i = 0; i < kernels.all.size(); ++i)
    check(modules[i % Stitched::kUnits], *kernels.all[i], order, static_cast<unsigned>(i));
}

TEST(StitchedEmulation, PhasesShareALaunch) {
  const auto count = [](auto&& of) {
    return std::count_if(stitched().all.begin(), stitched().all.end(), of);
  };
  EXPECT_GE(count([](const auto& one) { return one->prepared.lowered.kernel.resident; }), 12);
  EXPECT_EQ(count([](const auto& one) { return one->text.phases.size() > 1; }), 0);
}
TEST(StitchedEmulation, AgreesInForwardOrder) { run_all({}, emulation::Order::forward); }
TEST(StitchedEmulation, AgreesInReverseOrder) { run_all({}, emulation::Order::reverse); }
TEST(StitchedEmulation, AgreesInRandomOrder) { run_all({}, emulation::Order::random); }
TEST(StitchedEmulation, HasNoRaces) {
  run_all({.races = true}, emulation::Order::forward);
  run_all({.races = true}, emulation::Order::random);
}
/// What is one number for all terms of a team is no row that its members keep together.
TEST(StitchedEmulation, HasNoRacesWithTeamsOfColumns) {
  StitchedKernel one{.name = "columns", .graph = {}, .prepared = {}, .text = {}};
  prim::Builder b(one.graph);
  out(one.graph, lower::cases::log_sum_exp_of_columns(b, in(one.graph, {256, 64})));
  std::mt19937 rng(3);
  lower::CheckOptions options;
  options.target = lower::gpu_target(132);
  auto prepared = lower::prepare(one.graph, rng, options);
  ASSERT_TRUE(prepared.ok()) << prepared.error().message;
  one.prepared = *std::move(prepared);
  auto text = codegen::cuda::to_text(one.prepared.lowered.kernel, "k");
  ASSERT_TRUE(text.ok()) << text.error().message;
  one.text = *std::move(text);
  const auto module =
      emulation::compile(codegen::cuda::unit_header() + one.text.text, {.races = true});
  ASSERT_TRUE(module.ok()) << module.error().message;
  check(*module, one, emulation::Order::forward);
}
// Checks of undefined behaviour take the compiler long: the first layouts only.
SANITIZED_TEST(StitchedEmulation) {
  std::vector<std::string> units(2, codegen::cuda::unit_header());
  std::vector<const StitchedKernel*> some;
  for (const auto& one : stitched().all)
    if (one->name.ends_with("round 0")) some.push_back(one.get());
  for (std::size_t i = 0; i < some.size(); ++i) units[i % 2] += some[i]->text.text;
  std::vector<emulation::Module> modules;
  ASSERT_EQ(compile_all(units, {.undefined = true}, modules), "");
  for (std::size_t i = 0; i < some.size(); ++i)
    check(modules[i % 2], *some[i], emulation::Order::forward);
}

}  // namespace
}  // namespace heddle
