// Attention as one kernel, as CUDA text under the emulation: it agrees with the primitives, has no
// races, and every synchronisation in it is needed.
#include "cuda_emulation/device.h"
#include "cuda_emulation/mutants.h"
#include "cuda_emulation/run.h"
#include "lower/attention/test_cases.h"

namespace heddle {
namespace {

using emulation::Order;
using lower::Case;

struct AttentionKernel {
  std::unique_ptr<Case> graph = std::make_unique<Case>();
  std::string name;
  lower::Lowered lowered;
  codegen::cuda::KernelText text;
};

/// All cases, in two units that are compiled at the same time.
struct Attentions {
  Attentions() {
    for (const lower::AttentionCase& c : lower::kAttentions) {
      AttentionKernel one;
      one.name = c.name;
      one.graph->target = lower::gpu_target(4);
      c.build(*one.graph);
      lower::Request request = lower::request_of(*one.graph);
      const auto cluster = lower::attention::cluster_at(one.graph->g, one.graph->g.outputs[0].node,
                                                        one.graph->target);
      if (cluster) request.cluster = *cluster;
      auto lowered = lower::attention::lower(request);
      if (!lowered) {
        problems += one.name + ": " + lowered.error().message + "\n";
        continue;
      }
      one.lowered = *std::move(lowered);
      auto text = codegen::cuda::to_text(one.lowered.kernel, fmt::format("k{}", all.size()));
      if (!text) {
        problems += one.name + ": " + text.error().message + "\n";
        continue;
      }
      one.text = *std::move(text);
      all.push_back(std::move(one));
    }
  }
  std::vector<AttentionKernel> all;
  std::string problems;
};

const Attentions& attentions() {
  static const Attentions one;
  return one;
}

std::string run(const emulation::Module& module, const AttentionKernel& one,
                const codegen::cuda::KernelText& text, Order order) {
  return lower::run(*one.graph, one.lowered,
                    [&](std::vector<std::vector<std::byte>>& memory) -> Status {
                      memory = HEDDLE_TRY(emulate(module, text, memory, order));
                      return Ok{};
                    });
}

void run_all(const emulation::CompileOptions& options, std::initializer_list<Order> orders) {
  ASSERT_EQ(attentions().problems, "");
  std::vector<std::string> units(2, codegen::cuda::unit_header());
  const auto& all = attentions().all;
  for (std::size_t i = 0; i < all.size(); ++i) units[i % 2] += all[i].text.text;
  std::vector<emulation::Module> modules;
  ASSERT_EQ(compile_all(units, options, modules), "");
  for (std::size_t i = 0; i < all.size(); ++i)
    for (Order order : orders)
      EXPECT_EQ(run(modules[i % 2], all[i], all[i].text, order), "") << all[i].name << "\n"
                                                                     << all[i].text.text;
}

TEST(AttentionEmulation, Agrees) { run_all({}, {Order::forward, Order::reverse, Order::random}); }
TEST(AttentionEmulation, HasNoRaces) { run_all({.races = true}, {Order::forward, Order::random}); }
SANITIZED_TEST(AttentionEmulation) { run_all({.undefined = true}, {Order::forward}); }

TEST(AttentionEmulation, EverySynchronisationIsNeeded) {
  struct Broken {
    const AttentionKernel* kernel;
    codegen::cuda::KernelText text;
    std::string what;
  };
  std::vector<Broken> broken;
  std::string unit = codegen::cuda::unit_header();
  for (const AttentionKernel& one : attentions().all) {
    if (one.name != "causal bf16" && one.name != "offset f32") continue;
    const std::string stem =
        one.text.phases[0].symbol.substr(0, one.text.phases[0].symbol.find('_') + 1);
    for (const Mutant& m : mutants_of(one.text.text, kSynchronisations)) {
      const std::string own = fmt::format("m{}_", broken.size());
      Broken b{&one, one.text, one.name + " without " + m.what};
      b.text.text = renamed(m.text, " " + stem, " " + own);
      for (auto& phase : b.text.phases) phase.symbol = renamed(phase.symbol, stem, own);
      unit += b.text.text;
      broken.push_back(std::move(b));
    }
  }
  ASSERT_GE(broken.size(), 10u);
  std::vector<emulation::Module> modules;
  ASSERT_EQ(compile_all({unit}, {.races = true}, modules), "");
  for (const Broken& b : broken)
    EXPECT_NE(first_notice([&](Order order) { return run(modules[0], *b.kernel, b.text, order); }),
              "")
        << b.what << b.text.text;
}

}  // namespace
}  // namespace heddle
