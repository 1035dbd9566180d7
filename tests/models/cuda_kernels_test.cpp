// The kernels that `compile --device cuda` makes for every network of the zoo and every light
// network compile for the GPU named, and no register is spilled beyond what cuda_spills.txt says.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>

#include "codegen/cuda/cuda.h"
#include "codegen/cuda/nvrtc.h"
#include "driver/cuda_code.h"
#include "driver/driver.h"
#include "driver/platform.h"
#include "onnx/reader.h"
#include "support/thread_pool.h"

namespace heddle::driver {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBatch = 8;  // kernels that share the prelude's cost
constexpr int kLight = 9;          // light networks
constexpr int kThreads = 2;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Folders of the zoo and of the light networks, and the trained ones where they are
/// (scripts/zoo.sh --trained).
std::vector<std::string> networks() {
  std::vector<std::string> out;
  for (const auto& entry : fs::directory_iterator(HEDDLE_SOURCE_DIR "/zoo"))
    if (fs::exists(entry.path() / "graph.onnx") || fs::exists(entry.path() / "graph.onnx.xz"))
      out.push_back(HEDDLE_SOURCE_DIR "/build/zoo/" + entry.path().filename().string());
  std::error_code error;
  for (const char* folder : {HEDDLE_SOURCE_DIR "/build/light", HEDDLE_SOURCE_DIR "/build/trained"})
    for (const auto& entry : fs::directory_iterator(folder, error))
      if (fs::is_directory(entry)) out.push_back(entry.path().string());
  std::sort(out.begin(), out.end());
  return out;
}

struct Found {
  KernelCode code;
  std::string where;  ///< a network that has it, and its schedule
};
/// Distinct kernels by text, which are equal wherever they compute the same.
struct Kernels {
  std::map<std::string, Found> distinct;
  std::size_t count = 0;
};

CompileOptions options_for(const std::string& arch) {
  CompileOptions options;
  options.device = "cuda";
  options.arch = arch;
  options.options.cuda_driver = "/nonexistent/libcuda.so.1";  // plans do not depend on this machine
  options.options.cache_dir = HEDDLE_SOURCE_DIR "/build/cache";
  return options;
}

/// Two networks are planned at a time.
void plan_all(const std::vector<std::string>& paths, const std::string& arch, Kernels& out) {
  std::mutex mutex;
  ThreadPool pool(kThreads);
  pool.for_each(static_cast<std::int64_t>(paths.size()), [&](std::int64_t i) {
    const std::string& path = paths[static_cast<std::size_t>(i)];
    const double begin = now();
    auto graph = onnx::import(path + "/model.onnx", {});
    const auto planned =
        graph ? plan_only(*std::move(graph), options_for(arch)) : Result<Compiled>(graph.error());
    const std::lock_guard lock(mutex);
    ASSERT_TRUE(planned.ok()) << path << ": " << planned.error().message;
    const std::string name = fs::path(path).filename().string();
    for (const CompiledKernel& kernel : planned->kernels) {
      ++out.count;
      out.distinct.try_emplace(kernel.code.source,
                               Found{kernel.code, name + ": " + kernel.lowered.schedule});
    }
    fmt::print("{} {}: {} kernels, planned in {:.1f} s\n", arch, name, planned->kernels.size(),
               now() - begin);
    std::fflush(stdout);
  });
}

/// "sm_90a SYMBOL BYTES # where": what the assembler keeps in memory, recorded when it was looked
/// at.
std::map<std::string, int> recorded_spills(const std::string& arch) {
  std::map<std::string, int> out;
  std::ifstream file(HEDDLE_SOURCE_DIR "/tests/models/cuda_spills.txt");
  EXPECT_TRUE(file.good());
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string on, symbol;
    int bytes = 0;
    if (words >> on >> symbol >> bytes && on == arch) out[symbol] = bytes;
  }
  return out;
}

/// The assembler's notes on products that it serialises; the texts as compile_cuda() puts them
/// together, which finds the cubins made here.
void expect_no_notes(const std::vector<KernelCode>& kernels, const std::string& arch,
                     ThreadPool& pool) {
  const codegen::cuda::CompileOptions options{arch, "", HEDDLE_SOURCE_DIR "/build/cache"};
  const std::size_t batches = (kernels.size() + kBatch - 1) / kBatch;
  std::vector<std::string> problems(batches);
  pool.for_each(static_cast<std::int64_t>(batches), [&](std::int64_t batch) {
    const auto b = static_cast<std::size_t>(batch);
    std::string text = codegen::cuda::unit_header();
    for (std::size_t k = b * kBatch; k < std::min((b + 1) * kBatch, kernels.size()); ++k)
      text += kernels[k].source;
    const auto cubin = codegen::cuda::compile(text, options);
    if (!cubin)
      problems[b] = cubin.error().message.substr(0, 2000);
    else if (!cubin->notes.empty())
      problems[b] = fmt::format("{}", fmt::join(cubin->notes, "\n"));
  });
  for (const std::string& problem : problems) EXPECT_EQ(problem, "");
}

void compile_all(const Kernels& kernels, const std::string& arch) {
  std::vector<KernelCode> codes;
  std::vector<std::string> where;
  for (const auto& [text, found] : kernels.distinct) {
    codes.push_back(found.code);
    where.push_back(found.where);
  }
  ThreadPool pool(kThreads);
  expect_no_notes(codes, arch, pool);
  const CompileOptions options = options_for(arch);
  const auto platform = platform_for(options);
  ASSERT_TRUE(platform.ok());
  const auto objects = compile_cuda(codes, *platform, options.options, pool, {});
  ASSERT_TRUE(objects.ok()) << objects.error().message.substr(0, 2000);
  const std::map<std::string, int> recorded = recorded_spills(arch);
  std::size_t phases = 0, together = 0;
  for (std::size_t k = 0; k < codes.size(); ++k) {
    ASSERT_EQ(codes[k].functions.size(), codes[k].phases.size()) << where[k];
    phases += codes[k].phases.size();
    together += codes[k].phases[0].grid.cooperative;
    for (const codegen::cuda::FunctionInfo& f : codes[k].functions) {
      if (f.spill_bytes == 0) continue;
      const std::string line = fmt::format("{} {} {}  # {} registers, {}", arch, f.symbol,
                                           f.spill_bytes, f.registers, where[k]);
      const auto known = recorded.find(f.symbol);
      EXPECT_TRUE(known != recorded.end() && f.spill_bytes <= known->second)
          << "not in tests/models/cuda_spills.txt: " << line;
    }
  }
  fmt::print("{}: {} functions, {} kernels with grid barriers\n", arch, phases, together);
}

void kernels_compile(const std::string& arch) {
  ASSERT_NE(codegen::cuda::find_library("nvrtc", ""), "") << "scripts/venv.sh installs NVRTC";
  const std::vector<std::string> found = networks();
  ASSERT_EQ(std::ranges::count_if(found, [](const auto& f) { return f.find("/light/") + 1; }),
            kLight)
      << "scripts/venv.sh fetches the light networks";
  for (const std::string& path : found)
    ASSERT_TRUE(fs::exists(path + "/model.onnx")) << path << ": scripts/zoo.sh makes it";
  const double begin = now();
  Kernels kernels;
  plan_all(found, arch, kernels);
  fmt::print("{}: {} networks, {} kernels, {} distinct, planned in {:.0f} s\n", arch, found.size(),
             kernels.count, kernels.distinct.size(), now() - begin);
  std::fflush(stdout);
  compile_all(kernels, arch);
  fmt::print("{}: {:.0f} s\n", arch, now() - begin);
}

TEST(CudaNetworks, KernelsCompileForHopper) { kernels_compile("sm_90a"); }
TEST(CudaNetworks, KernelsCompileForAmpere) { kernels_compile("sm_80"); }

}  // namespace
}  // namespace heddle::driver
