// Whole networks as one persistent kernel, under the emulation and through the stand-in for the
// driver.
#include "monolith.h"

#include "codegen/cuda/nvrtc.h"
#include "cuda_emulation/mutants.h"
#include "runtime/artefact.h"
#include "runtime/schedule.h"

namespace heddle::driver {
namespace {

using emulation::Order;

struct Made {
  Network network;
  Compiled compiled;
  std::vector<runtime::Stage> stages;
  std::string text;
};
std::unique_ptr<Made> make(const NamedNetwork& which, int blocks) {
  auto made = std::make_unique<Made>();
  which.build(made->network);
  auto compiled = compile(made->network.g, stand_in("monolith"));
  EXPECT_TRUE(compiled.ok()) << which.name << ": " << compiled.error().message;
  if (!compiled) return nullptr;
  made->compiled = *std::move(compiled);
  EXPECT_TRUE(made->compiled.program->persistent.has_value());
  made->stages = runtime::cuda::spread(runtime::stages_of(*made->compiled.program), blocks);
  made->text = text_of(made->compiled.program->objects.at(0));
  return made;
}

TEST(Monolith, AgreesInEveryOrderWithoutRaces) {
  constexpr int kBlocks = 3;
  for (const NamedNetwork& which : kNetworks) {
    SCOPED_TRACE(which.name);
    const auto made = make(which, kBlocks);
    ASSERT_TRUE(made);
    EXPECT_GT(made->stages.size(), 3u);
    const runtime::Schedule schedule = runtime::schedule(made->stages, kBlocks, {});
    ASSERT_TRUE(runtime::validate(made->stages, schedule, 32).ok());
    const auto module = emulation::compile(made->text, {.races = true});
    ASSERT_TRUE(module.ok()) << module.error().message;
    EmulatedMonolith monolith(*made->compiled.program, runtime::cuda::tables_of(schedule, {}, 0),
                              kBlocks);
    unsigned seed = 0;
    for (Order order :
         {Order::forward, Order::reverse, Order::random, Order::random, Order::random}) {
      const auto inputs = inputs_of(made->network.g, ++seed);
      const auto wanted = prim::interpret(made->network.g, inputs);
      ASSERT_TRUE(wanted.ok());
      const auto found = monolith.run(*module, order, seed, inputs);
      ASSERT_TRUE(found.ok()) << found.error().message;
      EXPECT_EQ(difference(*found, *wanted), "");
    }
  }
}

}  // namespace
}  // namespace heddle::driver
