// Deletes each synchronisation of kernels in turn: the emulation must find every deletion, by a race,
// a deadlock, another error or a wrong result.
#include <regex>

#include "codegen/cuda/nvrtc.h"
#include "cuda_emulation/stitched.h"
#include "cuda_emulation/text_cases.h"

namespace heddle {
namespace {

using emulation::Order;

constexpr const char* kSynchronisations =
    R"((hd::)?(block_sync|warp_sync|named_sync|named_arrive|copy_commit|copy_wait<[^>]*>|grid_barrier|cluster_sync|mbarrier_fence|mbarrier_arrive|mbarrier_arrive_expect|mbarrier_wait|fence_async|wgmma_fence|wgmma_commit|wgmma_wait<[^>]*>)\([^;]*\);)";

struct Mutant {
  std::string text;
  std::string what;  ///< "line 12: hd::block_sync();"
};

/// The text without one of what the pattern finds in [from, to), each in turn.
std::vector<Mutant> mutants_of(const std::string& text, const std::string& pattern,
                               std::size_t from = 0, std::size_t to = std::string::npos) {
  const std::regex expression(pattern);
  std::vector<Mutant> out;
  to = std::min(to, text.size());
  const auto begin = text.begin() + static_cast<long>(from), end = text.begin() + static_cast<long>(to);
  for (std::sregex_iterator at(begin, end, expression), last; at != last; ++at) {
    const std::size_t place = from + static_cast<std::size_t>(at->position());
    const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<long>(place), '\n');
    out.push_back({text.substr(0, place) + ";" + text.substr(place + static_cast<std::size_t>(at->length())),
                   fmt::format("line {}: {}", line, at->str())});
  }
  return out;
}

/// What the first order that notices says; "" if none does.
template <class Run>
std::string first_notice(Run&& run) {
  for (Order order : {Order::forward, Order::reverse, Order::random})
    if (std::string said = run(order); !said.empty()) return said;
  return "";
}

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
  begin = header.rfind("\n\n", begin);
  const std::size_t template_at = header.find("template", begin), fn_at = header.find("HD_FN", begin);
  begin = std::min(template_at, fn_at);
  const std::size_t end = header.find("\n}\n", begin) + 3;
  const std::string call = "hd::" + name;
  std::string out = text;
  for (std::size_t at = 0; (at = out.find(call, at)) != std::string::npos;) out.replace(at, 4, "own::");
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
  for (const auto& [from, to] : {std::pair("add_release(", "add_relaxed("), std::pair("load_acquire(", "load_relaxed(")}) {
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
})", "block_reduce");
  EmulatedDevice device({.races = true});
  const auto said = [&](const std::string& t) {
    return first_notice([&](Order order) { return run_reductions(device, t, "reductions", order); });
  };
  ASSERT_EQ(said(text), "");
  const auto mutants = mutants_of(text, R"(block_sync\(\);)", 0, text.find("// end"));
  ASSERT_EQ(mutants.size(), 2u);
  for (const Mutant& m : mutants) EXPECT_NE(said(m.text), "") << m.what;
}

/// A mutant of a generated kernel.
struct Generated {
  const StitchedKernel* kernel;
  codegen::cuda::KernelText text;  ///< with symbols of its own
  std::string what;
};

std::string renamed(std::string text, const std::string& from, const std::string& to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

std::string said_of(const emulation::Module& module, const Generated& g) {
  return first_notice([&](Order order) -> std::string {
    const auto got = emulate(module, g.text, g.kernel->prepared.bytes, order);
    if (!got) return got.error().message;
    return lower::wrong_output(g.kernel->graph, g.kernel->prepared, *got);
  });
}

TEST(Mutations, OfStitchedKernelsAreFound) {
  const Stitched kernels;
  std::vector<Generated> all;
  for (const auto& one : kernels.all) {
    const std::string prefix = one->text.phases.empty() ? "" : one->text.phases[0].symbol;
    for (const Mutant& m : mutants_of(one->text.text, R"(hd::(block|warp)_sync\(\);)")) {
      Generated g{one.get(), one->text, one->name + " without " + m.what};
      const std::string stem = prefix.substr(0, prefix.find('_') + 1), own = fmt::format("m{}_", all.size());
      g.text.text = renamed(m.text, " " + stem, " " + own);
      for (codegen::cuda::PhaseInfo& phase : g.text.phases) phase.symbol = renamed(phase.symbol, stem, own);
      all.push_back(std::move(g));
    }
  }
  ASSERT_FALSE(all.empty());
  std::vector<std::string> units(2, codegen::cuda::unit_header());
  for (std::size_t i = 0; i < all.size(); ++i) units[i % 2] += all[i].text.text;
  std::vector<emulation::Module> modules;
  ASSERT_EQ(compile_all(units, {.races = true}, modules), "");
  for (std::size_t i = 0; i < all.size(); ++i)
    EXPECT_NE(said_of(modules[i % 2], all[i]), "") << all[i].what << all[i].text.text;
}

/// The functions that generated text calls: a deletion must show in at least one kernel.
TEST(Mutations, OfTheGeneratedHelpersAreFound) {
  const Stitched kernels;
  const std::vector<Mutant> mutants =
      mutants_of(codegen::cuda::unit_header(), R"((block|warp)_sync\(\);)");
  ASSERT_GE(mutants.size(), 5u);
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
      return !said_of(modules[0], {one, one->text, ""}).empty();
    });
    EXPECT_TRUE(found) << m.what;
  }
}

}  // namespace
}  // namespace heddle
