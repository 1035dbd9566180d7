#include "driver/cuda_code.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "codegen/cuda/cuda.h"
#include "codegen/cuda/tree_text.h"
#include "support/hash.h"

namespace heddle::driver {
namespace {

// Enough kernels to share the prelude's cost (about 40 ms), few enough that all threads have work.
constexpr std::size_t kBatch = 8;
constexpr int kMostThreads = 1024;
constexpr std::int64_t kMostBlocks = 2147483647;

runtime::Phase to_phase(const codegen::cuda::PhaseInfo& info) {
  runtime::Phase phase{info.symbol, info.tasks, {}};
  phase.grid.threads = info.threads;
  phase.grid.shared_bytes = info.shared_bytes;
  phase.grid.cluster = info.cluster;
  phase.grid.resident = info.resident;
  phase.grid.cooperative = info.cooperative;
  for (const codegen::cuda::TileMap& map : info.maps) {
    runtime::TensorMap& to = phase.grid.maps.emplace_back();
    to.arg = map.parameter;
    to.dtype = map.dtype;
    to.extents = map.extents;
    for (std::size_t d = 1; d < map.strides.size(); ++d)
      to.strides.push_back(map.strides[d] * size_of(map.dtype));
    to.box.assign(map.box.begin(), map.box.end());
    to.swizzle_bytes = 128;
  }
  return phase;
}

/// With the factor that group tuning has found for it.
Result<codegen::cuda::KernelText> stage_text(const kernel::Kernel& k, std::string prefix,
                                             const Platform::Persistent& setting,
                                             const Paging& paging) {
  codegen::cuda::StageForm form;
  for (std::size_t p = 0; p < paging.phases.size(); ++p) {
    std::vector<int>& paged = form.paged.emplace_back();
    for (const runtime::Paged& one : paging.phases[p]) paged.push_back(one.arg);
    if (!paged.empty()) prefix += fmt::format("p{}_{}", p, fmt::join(paged, "_"));
  }
  codegen::cuda::KernelText text = HEDDLE_TRY(codegen::cuda::to_stages(k, prefix, form));
  const auto factor = setting.factors.find(hash_bytes(text.text));
  if (factor == setting.factors.end() || factor->second == 1) return text;
  form.factor = factor->second;
  return codegen::cuda::to_stages(k, fmt::format("{}f{}", prefix, factor->second), form);
}

}  // namespace

Result<KernelCode> cuda_text(const kernel::Kernel& kernel, const Platform& platform,
                             const Paging& paging) {
  const kernel::Kernel nameless = without_names(kernel);
  const std::string prefix = "k" + to_string(hash_bytes(kernel::to_string(nameless))).substr(0, 16);
  codegen::cuda::KernelText text = HEDDLE_TRY(
      platform.persistent ? stage_text(nameless, "s" + prefix, *platform.persistent, paging)
                          : codegen::cuda::to_text(nameless, prefix));
  const int most_threads = platform.persistent ? platform.persistent->threads : kMostThreads;
  const std::int64_t most_shared = platform.target().shared_bytes;
  KernelCode code;
  code.source = std::move(text.text);
  code.lines = std::move(text.origins);
  code.local_bytes = std::move(text.local_bytes);
  for (const codegen::cuda::PhaseInfo& info : text.phases) {
    if (info.threads > most_threads || info.tasks > kMostBlocks || info.shared_bytes > most_shared)
      return unsupported(
          "a launch of {} blocks of {} threads with {} bytes of shared memory, {} has at most {} "
          "threads and {} bytes",
          info.tasks, info.threads, info.shared_bytes, platform.gpu.name, most_threads,
          most_shared);
    code.phases.push_back(to_phase(info));
    const std::size_t p = code.phases.size() - 1;
    if (p < paging.phases.size()) code.phases.back().grid.paged = paging.phases[p];
  }
  code.ring_notes = paging.notes;
  code.ring_bytes = paging.ring_bytes, code.large_bytes = paging.large_bytes;
  return code;
}

Result<std::vector<std::string>> compile_cuda(std::vector<KernelCode>& kernels,
                                              const Platform& platform, const Options& options,
                                              ThreadPool& pool,
                                              const std::function<void(double share)>& progress) {
  const codegen::cuda::CompileOptions how{platform.gpu.arch(), options.nvrtc, options.cache_dir};
  const std::size_t batches = (kernels.size() + kBatch - 1) / kBatch;
  std::vector<std::string> objects(batches);
  std::mutex mutex;
  std::optional<Error> failure;
  std::size_t done = 0;
  pool.for_each(static_cast<std::int64_t>(batches), [&](std::int64_t b) {
    const std::size_t begin = static_cast<std::size_t>(b) * kBatch;
    const std::size_t end = std::min(begin + kBatch, kernels.size());
    std::string text = codegen::cuda::unit_header();
    for (std::size_t k = begin; k < end; ++k) text += kernels[k].source;
    Result<codegen::cuda::Cubin> cubin = codegen::cuda::compile(text, how);
    const std::lock_guard lock(mutex);
    if (!cubin) {
      failure = cubin.error();
      return;
    }
    objects[static_cast<std::size_t>(b)] = std::move(cubin->bytes);
    for (std::size_t k = begin; k < end; ++k)
      for (const runtime::Phase& phase : kernels[k].phases)
        for (const codegen::cuda::FunctionInfo& f : cubin->functions)
          if (f.symbol == phase.symbol) kernels[k].functions.push_back(f);
    if (progress) progress(static_cast<double>(++done) / static_cast<double>(batches));
  });
  if (failure) return *failure;
  return objects;
}

namespace {

/// The text of the stages, equal functions once, and what the persistent kernel calls.
struct Stages {
  std::string text = codegen::cuda::unit_header();
  std::vector<codegen::cuda::StageCall> calls;
  std::int64_t shared_bytes = 0;
  bool paged = false;
};
Stages stages_of(std::vector<KernelCode*>& kernels) {
  Stages out;
  std::map<std::string, int> numbers;  // of functions
  for (KernelCode* kernel : kernels) {
    bool fresh = false;
    for (runtime::Phase& phase : kernel->phases) {
      const auto [at, added] =
          numbers.try_emplace(phase.symbol, static_cast<int>(out.calls.size()));
      const bool paged = !phase.grid.paged.empty();
      if (added) out.calls.push_back({phase.symbol, paged});
      fresh = added;
      phase.grid.function = at->second;
      phase.grid.threads = std::max(1, phase.grid.threads);
      out.shared_bytes = std::max(out.shared_bytes, phase.grid.shared_bytes);
      out.paged |= paged;
    }
    if (fresh) out.text += kernel->source;
  }
  return out;
}

struct PersistentCode {
  runtime::PersistentKernel kernel;
  codegen::cuda::Cubin cubin;
};
Result<PersistentCode> compile_with(const Stages& stages, const runtime::Ring& ring,
                                    const Platform& platform, const Options& options) {
  const Platform::Persistent& setting = *platform.persistent;
  PersistentCode out{{"", setting.threads, setting.blocks, stages.shared_bytes, ring}, {}};
  if (ring.pages > 0) out.kernel.shared_bytes = ring.end();
  const codegen::cuda::RingForm form{ring.pages, ring.page_bytes, ring.at};
  out.kernel.symbol = "monolith_" + to_string(hash_bytes(stages.text)).substr(0, 16);
  out.cubin = HEDDLE_TRY(codegen::cuda::compile(
      stages.text + codegen::cuda::monolith_text(stages.calls, out.kernel.symbol, setting.threads,
                                                 setting.blocks, form),
      {platform.gpu.arch(), options.nvrtc, options.cache_dir}));
  return out;
}

/// With a ring where stages have use for one and there is room.
Result<PersistentCode> compile_stages(std::vector<KernelCode*>& kernels, const Platform& platform,
                                      const Options& options) {
  const Stages stages = stages_of(kernels);
  if (!stages.paged || platform.ring_least == 0) return compile_with(stages, {}, platform, options);
  const auto ring = ring_for(kernels, platform, stages.shared_bytes);
  if (!ring) {
    note_no_ring(kernels, ring.error().message);
    return compile_with(stages, {}, platform, options);
  }
  for (KernelCode* kernel : kernels) drop_what_does_not_fit(*kernel, *ring);
  return compile_with(stages, *ring, platform, options);
}

int spills_of(const std::vector<KernelCode*>& kernels) {
  int bytes = 0;
  for (const KernelCode* kernel : kernels)
    for (const auto& f : kernel->functions) bytes += f.spill_bytes;
  return bytes;
}

}  // namespace

Result<std::vector<std::string>> compile_persistent(std::vector<KernelCode*>& kernels,
                                                    const Platform& platform,
                                                    const Options& options) {
  auto [persistent, cubin] = HEDDLE_TRY(compile_stages(kernels, platform, options));
  int registers = 0;
  for (const auto& f : cubin.functions)
    if (f.symbol == persistent.symbol) registers = f.registers;
  for (KernelCode* kernel : kernels) {
    kernel->persistent = persistent;
    for (const runtime::Phase& phase : kernel->phases) {
      auto info =
          std::ranges::find(cubin.functions, phase.symbol, &codegen::cuda::FunctionInfo::symbol);
      codegen::cuda::FunctionInfo own =
          info != cubin.functions.end() ? *info : codegen::cuda::FunctionInfo{phase.symbol};
      own.registers = registers;  // a kernel has as many as its hungriest function
      kernel->functions.push_back(std::move(own));
    }
  }
  return std::vector<std::string>{std::move(cubin.bytes)};
}

Status leave_spilling_ring(std::vector<KernelCode*>& kernels, std::vector<std::string>& objects,
                           const Platform& platform, const Options& options) {
  const int bytes = spills_of(kernels);
  if (bytes == 0 || !kernels.front()->persistent || kernels.front()->persistent->ring.pages == 0)
    return Ok{};
  std::vector<KernelCode> copies;
  for (const KernelCode* kernel : kernels) copies.push_back(*kernel);
  std::vector<KernelCode*> plain;
  for (KernelCode& copy : copies) {
    copy.functions.clear();
    plain.push_back(&copy);
  }
  Platform without = platform;
  without.ring_least = 0;
  std::vector<std::string> made = HEDDLE_TRY(compile_persistent(plain, without, options));
  if (spills_of(plain) >= bytes) return Ok{};
  note_no_ring(plain, fmt::format("for its warp's registers stages spill {} bytes", bytes));
  for (std::size_t i = 0; i < copies.size(); ++i) *kernels[i] = std::move(copies[i]);
  objects = std::move(made);
  return Ok{};
}

void add_units(std::span<CompiledKernel> kernels, std::vector<std::string>& objects,
               const Platform& platform, const CompileOptions& options) {
  std::vector<codegen::cuda::UnitEntry> entries;
  for (const CompiledKernel& kernel : kernels)
    if (kernel.lowered.tree) entries.push_back(codegen::cuda::tree_text(*kernel.lowered.tree));
  if (entries.empty()) return;
  const codegen::cuda::UnitObjects units = compile_units(entries, platform, options);
  std::map<const std::string*, int> places;
  std::size_t next = 0;
  for (CompiledKernel& kernel : kernels) {
    if (!kernel.lowered.tree) continue;
    const std::string& name = entries[next++].name;
    const auto found = units.find(name);
    if (found == units.end()) {
      constexpr std::string_view kWithout = "without it ";
      std::string& schedule = kernel.lowered.schedule;
      schedule.erase(0, schedule.find(kWithout) + kWithout.size());
      continue;
    }
    const auto [place, fresh] =
        places.try_emplace(found->second.get(), static_cast<int>(objects.size()));
    if (fresh) objects.push_back(*found->second);
    kernel.code.unit = codegen::cuda::unit_product(*kernel.lowered.tree, name);
    kernel.code.unit->object = place->second;
  }
}

codegen::cuda::UnitObjects compile_units(std::span<const codegen::cuda::UnitEntry> entries,
                                         const Platform& platform, const CompileOptions& options) {
  if (!platform.tools) return {};
  codegen::cuda::UnitOptions how{
      *platform.tools, platform.gpu.arch(), options.options.cache_dir, {}, {}};
  how.progress = [&](int done, int units) {
    if (options.progress)
      options.progress(fmt::format("compiling units of CUTLASS ({} of {})", done + 1, units),
                       static_cast<double>(done) / units);
  };
  return codegen::cuda::compile_units(entries, how);
}

}  // namespace heddle::driver
