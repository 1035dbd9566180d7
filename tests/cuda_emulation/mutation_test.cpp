// Deletes each synchronisation of kernels in turn: the emulation must find every deletion, by a
// race, a deadlock, another error or a wrong result.
#include "codegen/cuda/nvrtc.h"
#include "cuda_emulation/mutants.h"
#include "cuda_emulation/stitched.h"
#include "cuda_emulation/text_cases.h"

namespace heddle {
namespace {

using emulation::Order;

TEST(Mutations, OfHandWrittenKernelsAreFound) {
  EmulatedDevice device({.races = true});
  int count = 0;
  for (const TextCase& c : text_cases())
    for (const Mutant& m : mutants_of(c.text, kSynchronisations)) {
      const std::string said =
          first_notice([&](Order order) { return c.run(device, m.text, c.symbol, order); });
      EXPECT_NE(said, "") << c.symbol << " without " << m.what;
      EXPECT_EQ(said.find("compiler refuses"), std::string::npos) << said;
      ++count;
    }
  EXPECT_GE(count, 22);
}

/// A function of the prelude, put beside the kernel that calls it under another name.
std::string own_copy(const std::string& text, const std::string& name) {
  std::string header;
  for (const codegen::cuda::Header& h : codegen::cuda::prelude())
    if (std::string(h.name) == "collective.cuh") header = h.text;
  std::size_t begin = header.find(" " + name + "(");
  begin = header.rfind("\n}\n", begin) + 3;
  const std::size_t template_at = header.find("template", begin),
                    fn_at = header.find("HD_FN", begin);
  begin = std::min(template_at, fn_at);
  const std::size_t end = header.find("\n}\n", begin) + 3;
  const std::string call = "hd::" + name;
  std::string out = text;
  for (std::size_t at = 0; (at = out.find(call, at)) != std::string::npos;)
    out.replace(at, 4, "own::");
  const std::string include = "#include \"heddle.cuh\"\n";
  const std::size_t after = out.find(include) + include.size();
  return out.substr(0, after) + "namespace own {\nusing namespace hd;\n" +
         header.substr(begin, end - begin) + "}\n// end\n" + out.substr(after);
}

/// Deleted, or weakened to what orders nothing.
TEST(Mutations, OfTheGridBarrierAreFound) {
  const TextCase c{own_copy(read_text("persistent"), "grid_barrier"), "persistent", run_persistent};
  EmulatedDevice device({.races = true});
  ASSERT_EQ(first_notice([&](Order order) { return c.run(device, c.text, c.symbol, order); }), "");
  const std::size_t end = c.text.find("// end");
  std::vector<Mutant> mutants = mutants_of(c.text, R"(block_sync\(\);)", 0, end);
  ASSERT_EQ(mutants.size(), 2u);
  for (const auto& [from, to] :
       {std::pair("add_release(", "add_relaxed("), std::pair("load_acquire(", "load_relaxed(")}) {
    Mutant m{c.text, from};
    m.text.replace(m.text.find(from), std::strlen(from), to);
    mutants.push_back(m);
  }
  for (const Mutant& m : mutants)
    EXPECT_NE(first_notice([&](Order order) { return c.run(device, m.text, c.symbol, order); }), "")
        << m.what;
}

std::string run_reductions(TextDevice& device, const std::string& text, const std::string& symbol,
                           Order order) {
  std::vector<float> x(96);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 7 % 96);
  Buffer X(x), out = Buffer::zeros<float>(2);
  const Status status = device.run(text, symbol, {.block = {96}, .order = order}, {&X, &out});
  if (!status) return status.error().message;
  return compare({out.as<float>()[0], out.as<float>()[1]}, {95 * 48, 95}, 0);
}

TEST(Mutations, OfTheBlockReductionAreFound) {
  const std::string text = own_copy(R"(#include "heddle.cuh"
extern "C" __global__ void reductions(const float* x, float* out) {
  __shared__ float scratch[3];
  const float sum = hd::block_reduce<96>(x[threadIdx.x], hd::Sum{}, scratch);
  const float most = hd::block_reduce<96>(x[threadIdx.x], hd::Max{}, scratch);
  if (threadIdx.x == 0) out[0] = sum, out[1] = most;
})",
                                    "block_reduce");
  EmulatedDevice device({.races = true});
  const auto said = [&](const std::string& t) {
    return first_notice(
        [&](Order order) { return run_reductions(device, t, "reductions", order); });
  };
  ASSERT_EQ(said(text), "");
  const auto mutants = mutants_of(text, R"(block_sync\(\);)", 0, text.find("// end"));
  ASSERT_EQ(mutants.size(), 2u);
  for (const Mutant& m : mutants) EXPECT_NE(said(m.text), "") << m.what;
}

// Each statement of kernel IR that orders threads, where it is needed: block and warp barriers, and
// sorting, which reads what others wrote and overwrites what others read.
constexpr std::string_view kExchanges = R"(kernel "exchanges" vars=2 {
  buffer b0 "x" f32[128] grid arg=0
  buffer b1 "y" f32[128] grid arg=1 written
  buffer b2 "z" i64[128] grid arg=2 written
  buffer b3 "s" f32[65] block
  buffer b4 "order" i64[65] block
  for grid d0 in 0..2 {
    for thread d1 in 0..64 {
      b3[d1 + 1] = load.f32 b0[d0*64 + d1]
      barrier block
      b1[d0*64 + d1] = load.f32 b3[d1]
      barrier block
      b3[d1 + 1] = load.f32 b0[d0*64 + d1]
      routine heddle_sort(b3, b4; 64, 64, 0, 0, 0)
      b2[d0*64 + d1] = load.i64 b4[d1 + 1]
      routine heddle_sort(b3, b4; 64, 64, 1, 0, 0)
      if 0 <= d1 < 32 {
        b2[d0*64 + d1] = load.i64 b4[d1]
      }
    }
  }
}
)";
constexpr std::string_view kWarpExchange = R"(kernel "warp_exchange" vars=2 {
  buffer b0 "x" f32[64] grid arg=0
  buffer b1 "y" f32[64] grid arg=1 written
  buffer b2 "s" f32[33] block
  for grid d0 in 0..2 {
    for thread d1 in 0..32 {
      b2[d1 + 1] = load.f32 b0[d0*32 + d1]
      barrier warp
      b1[d0*32 + d1] = load.f32 b2[d1]
    }
  }
}
)";

// Phases of one launch, whose blocks take several tasks and reuse their memory.
constexpr std::string_view kMeets = R"(kernel "meets" vars=4 resident {
  buffer b0 "x" f32[512] grid arg=0
  buffer b1 "y" f32[512] grid arg=1 written
  buffer b2 "t" f32[512] grid
  buffer b3 "s" f32[64] block
  for grid d0 in 0..8 {
    for thread d1 in 0..64 {
      b3[d1] = load.f32 b0[d0*64 + d1]
      barrier block
      b2[d0*64 + d1] = load.f32 b3[63 - d1]
    }
  }
  barrier grid
  for grid d2 in 0..8 {
    for thread d3 in 0..64 {
      b1[d2*64 + d3] = load.f32 b2[448 - d2*64 + d3]
    }
  }
}
)";

/// What is said of the text of a kernel without synchronisation number `gone` (-1: as it is), and
/// how many there are.
std::pair<std::string, std::size_t> said_without(std::string_view kernel, int gone) {
  const auto parsed = kernel::parse_kernel(kernel);
  if (!parsed) return {parsed.error().message, 0};
  auto text = codegen::cuda::to_text(*parsed, "k");
  if (!text) return {text.error().message, 0};
  const auto mutants =
      mutants_of(text->text, R"(hd::(block_sync|warp_sync|grid_barrier)\([a-z]*\);)");
  const std::string unit = codegen::cuda::unit_header() +
                           (gone < 0 ? text->text : mutants[static_cast<std::size_t>(gone)].text);
  const auto module = emulation::compile(unit, {.races = true});
  if (!module) return {module.error().message, 0};
  std::vector<std::vector<std::byte>> bytes;
  for (std::int32_t i = 0; i < parsed->arguments(); ++i)
    bytes.emplace_back(static_cast<std::size_t>(parsed->buffers[kernel::BufferId{i}].size * 8));
  return {first_notice([&](Order order) -> std::string {
            const auto got = emulate(*module, *text, bytes, order);
            return got ? "" : got.error().message;
          }),
          mutants.size()};
}

TEST(Mutations, OfWhatTheGeneratorEmitsAreFound) {
  for (const auto& [kernel, count] :
       {std::pair(kExchanges, 4), std::pair(kWarpExchange, 1), std::pair(kMeets, 3)}) {
    EXPECT_EQ(said_without(kernel, -1), (std::pair<std::string, std::size_t>("", count)));
    for (int gone = 0; gone < count; ++gone) {
      const std::string said = said_without(kernel, gone).first;
      const bool first_sort = count == 4 && gone == 2;
      // Sorting begins with a barrier of its own: the first one finds nobody to wait for.
      if (first_sort) continue;
      const bool grid = kernel == kMeets && gone == 2;
      EXPECT_NE(said.find(grid ? "race on global memory" : "race on shared memory"),
                std::string::npos)
          << gone << said;
    }
  }
}

std::string said_of(const emulation::Module& module, const StitchedKernel& one) {
  return first_notice([&](Order order) -> std::string {
    const auto got = emulate(module, one.text, one.prepared.bytes, order);
    if (!got) return got.error().message;
    return lower::wrong_output(one.graph, one.prepared, *got);
  });
}

/// The functions that generated text calls: a deletion must show in at least one kernel.
TEST(Mutations, OfTheGeneratedHelpersAreFound) {
  const Stitched kernels;
  const std::vector<Mutant> mutants =
      mutants_of(codegen::cuda::unit_header(), R"(((block|warp|cluster)_sync|meet)\(\);)");
  ASSERT_GE(mutants.size(), 8u);
  for (const Mutant& m : mutants) {
    std::string text = m.text;
    std::vector<const StitchedKernel*> used;
    for (const auto& one : kernels.all) {
      const bool calls = one->text.text.find("hdk::combine") != std::string::npos ||
                         one->text.text.find("hdk::sort") != std::string::npos;
      if (!calls || !one->name.ends_with("round 0")) continue;
      text += one->text.text;
      used.push_back(one.get());
    }
    std::vector<emulation::Module> modules;
    ASSERT_EQ(compile_all({text}, {.races = true}, modules), "");
    const bool found = std::any_of(used.begin(), used.end(), [&](const StitchedKernel* one) {
      return !said_of(modules[0], *one).empty();
    });
    EXPECT_TRUE(found) << m.what;
  }
}

}  // namespace
}  // namespace heddle
