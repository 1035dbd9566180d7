// Every kernel of every network of the zoo and of the light networks lowers for a GPU and compiles.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <numeric>
#include <set>

#include "codegen/cuda/cuda.h"
#include "codegen/cuda/nvrtc.h"
#include "driver/planning.h"
#include "lower/lower.h"
#include "onnx/reader.h"
#include "plan/calibrate.h"
#include "prim/alternatives.h"
#include "support/hash.h"
#include "support/thread_pool.h"

namespace heddle::driver {
namespace {

namespace fs = std::filesystem;
using prim::NodeId;

// What the assembler spilled when this was written; a larger number needs a look at the kernel.
constexpr int kSpillBytes80 = 0, kSpillBytes90 = 0;
constexpr std::size_t kSample = 6;  // of the kernels, one in so many is compiled for sm_80 too
constexpr std::size_t kBatch = 8;   // kernels that share the prelude's cost

/// Networks of the zoo whose kernels have been counted so far; it holds more.
constexpr std::string_view kCounted[] = {"resnet50", "mobilenetv2",  "bert-base", "minilm-l6",
                                         "vit-b16",  "segformer-b0", "candy",     "mlp"};

std::vector<std::string> networks() {
  std::vector<std::string> out;
  for (const char* folder : {HEDDLE_SOURCE_DIR "/build/zoo", HEDDLE_SOURCE_DIR "/build/light"}) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder, error))
      if (fs::exists(entry.path() / "model.onnx") &&
          (std::string_view(folder).ends_with("light") ||
           std::find(std::begin(kCounted), std::end(kCounted), entry.path().filename().string()) !=
               std::end(kCounted)))
        out.push_back(entry.path().string());
  }
  std::sort(out.begin(), out.end());
  return out;
}

lower::Target gpu() {
  lower::Target target;
  target.device = lower::Device::cuda;
  target.vector_bytes = 16;
  return target;
}

struct OneKernel {
  std::string text, schedule;
  std::size_t phases = 0;
  std::int64_t shared_bytes = 0;
};
/// Distinct kernels by text, and what had none.
struct Kernels {
  std::map<std::string, OneKernel> all;
  std::vector<std::string> refused;
  std::size_t count = 0;
};

Result<OneKernel> text_of(const lower::Lowered& lowered) {
  kernel::Kernel nameless = lowered.kernel;
  nameless.name = "k";
  for (std::int32_t i = 0; i < nameless.buffers.size(); ++i)
    nameless.buffers[kernel::BufferId{i}].name = fmt::format("b{}", i);
  const std::string prefix = "k" + to_string(hash_bytes(kernel::to_string(nameless))).substr(0, 16);
  const auto text = HEDDLE_TRY(codegen::cuda::to_text(nameless, prefix));
  OneKernel out{text.text, lowered.schedule, text.phases.size(), 0};
  for (const auto& phase : text.phases)
    out.shared_bytes = std::max(out.shared_bytes, phase.shared_bytes);
  return out;
}

Status add_network(const std::string& path, Kernels& out) {
  const CompileOptions options;
  Dumper dumper(options.options);
  prim::Graph graph = HEDDLE_TRY(onnx::import(path + "/model.onnx", {}));
  graph =
      plan::with_copied_outputs(HEDDLE_TRY(run_graph_passes(std::move(graph), options, dumper)));
  plan::Options planning;
  planning.legality = plan::lowering_legality();
  planning.machine = plan::default_machine(2, 32);
  planning.class_of = prim::classes_of(graph, prim::find_alternatives(graph, ""));
  const plan::Plan plan = HEDDLE_TRY(plan::orchestrate(graph, planning));
  std::unordered_map<NodeId, NodeId> instead;
  for (const plan::Substitute& s : plan.substitutes) instead[s.wanted] = s.instead;
  std::unordered_map<NodeId, lower::Layout> layouts;
  std::set<NodeId> outputs;
  for (const prim::GraphOutput& o : graph.outputs) outputs.insert(o.node);
  const auto layout_of = [&](NodeId node) {
    const auto other = instead.find(node);
    const auto known = layouts.find(other == instead.end() ? node : other->second);
    return known != layouts.end() ? known->second : lower::row_major(graph[node].type.shape);
  };
  const auto required = [&](NodeId node) -> std::optional<lower::Layout> {
    if (!outputs.contains(node)) return std::nullopt;
    return lower::row_major(graph[node].type.shape);
  };
  for (const plan::Kernel& k : plan.kernels) {
    ++out.count;
    const auto lowered = lower::lower({&graph, k.cluster, gpu(), layout_of, required, {}});
    auto one = lowered ? text_of(*lowered) : Result<OneKernel>(lowered.error());
    if (!one) {
      out.refused.push_back(fmt::format("{}: {}", path, one.error().message));
      continue;
    }
    EXPECT_LE(one->shared_bytes, gpu().shared_bytes) << path << ": " << one->schedule;
    for (std::size_t o = 0; o < k.cluster.outputs.size(); ++o)
      layouts[k.cluster.outputs[o]] = lowered->output_layouts[o];
    out.all.emplace(one->text, *one);
  }
  return Ok{};
}

/// Total bytes that registers are spilled to.
int compile_all(const std::vector<OneKernel>& kernels, const std::string& arch) {
  const codegen::cuda::CompileOptions options{arch, "", HEDDLE_SOURCE_DIR "/build/cache"};
  const std::size_t batches = (kernels.size() + kBatch - 1) / kBatch;
  std::vector<std::string> problems(batches);
  std::vector<int> spilled(batches);
  ThreadPool pool(2);
  pool.for_each(static_cast<std::int64_t>(batches), [&](std::int64_t batch) {
    const auto b = static_cast<std::size_t>(batch);
    std::string text = codegen::cuda::unit_header();
    std::size_t phases = 0;
    for (std::size_t k = b * kBatch; k < std::min((b + 1) * kBatch, kernels.size()); ++k) {
      text += kernels[k].text;
      phases += kernels[k].phases;
    }
    const auto cubin = codegen::cuda::compile(text, options);
    if (!cubin) {
      problems[b] = cubin.error().message.substr(0, 2000);
      return;
    }
    if (cubin->functions.size() != phases)
      problems[b] = fmt::format("{} functions of {}", cubin->functions.size(), phases);
    for (const codegen::cuda::FunctionInfo& f : cubin->functions) {
      spilled[b] += f.spill_bytes;
      if (f.spill_bytes > 0)
        fmt::print("{} {}: {} registers, {} bytes spilled\n", arch, f.symbol, f.registers,
                   f.spill_bytes);
    }
  });
  for (const std::string& problem : problems) EXPECT_EQ(problem, "");
  return std::accumulate(spilled.begin(), spilled.end(), 0);
}

TEST(CudaNetworks, EveryKernelLowersAndCompiles) {
  ASSERT_FALSE(codegen::cuda::find_library("nvrtc", "").empty())
      << "no NVRTC: scripts/venv.sh installs it, tests run in the project's root";
  const std::vector<std::string> found = networks();
  if (found.empty()) GTEST_SKIP() << "no networks in build/zoo and build/light";
  Kernels kernels;
  for (const std::string& path : found) {
    const Status added = add_network(path, kernels);
    ASSERT_TRUE(added.ok()) << path << ": " << added.error().message;
  }
  EXPECT_EQ(fmt::format("{}", fmt::join(kernels.refused, "\n")), "");
  fmt::print("{} networks, {} kernels, {} distinct, {} refused\n", found.size(), kernels.count,
             kernels.all.size(), kernels.refused.size());
  std::vector<OneKernel> all, some;
  for (const auto& [text, one] : kernels.all) {
    // Clusters of blocks are for sm_90a only.
    const bool cluster = text.find("combine_cluster") != std::string::npos;
    if (all.size() % kSample == 0 && !cluster) some.push_back(one);
    all.push_back(one);
  }
  EXPECT_LE(compile_all(all, "sm_90a"), kSpillBytes90);
  EXPECT_LE(compile_all(some, "sm_80"), kSpillBytes80);
}

}  // namespace
}  // namespace heddle::driver
