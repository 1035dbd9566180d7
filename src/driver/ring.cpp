#include "driver/ring.h"

#include <algorithm>

#include "kernel/strip.h"
#include "kernel/traverse.h"
#include "runtime/cuda/ring.h"

namespace heddle::driver {
namespace {

constexpr int kPageBytes = 16 << 10;
constexpr std::int64_t kPageAlign = 128;
constexpr std::int64_t kReserved = 1024;  // of each block, for the system
/// A step on its way while another one is read.
constexpr int kLeastPages = 2;

/// Of the large constants. Not measured.
constexpr double kLeastShare = 0.25;
constexpr std::string_view kNoRing = "no ring: ";

struct PagedCandidate {
  runtime::Paged paged;
  std::int64_t bytes = 0;
  std::string name;
};

std::string name_of_argument(const lower::Lowered& lowered, int argument) {
  const lower::Argument& a = lowered.arguments[static_cast<std::size_t>(argument)];
  return a.kind == lower::Argument::Kind::packed ? fmt::format("packed %{}", a.node.value)
                                                 : fmt::format("%{}", a.node.value);
}

/// The constants that a phase goes through in order, the largest first; of the others a note.
std::vector<PagedCandidate> candidates(const lower::Lowered& lowered, const kernel::For& phase,
                                       const prim::Graph& graph, std::int64_t least,
                                       std::size_t number, Paging& paging) {
  const kernel::Kernel& k = lowered.kernel;
  kernel::Kernel one = k;
  one.body = {kernel::Stmt{phase}};
  const std::vector<bool> used = kernel::used_buffers(one);
  std::vector<PagedCandidate> out;
  for (std::int32_t i = 0; i < k.buffers.size(); ++i) {
    const kernel::Buffer& b = k.buffers[kernel::BufferId{i}];
    if (b.argument < 0 || !used[static_cast<std::size_t>(i)]) continue;
    const lower::Argument& a = lowered.arguments[static_cast<std::size_t>(b.argument)];
    const bool constant = a.kind == lower::Argument::Kind::packed || graph.constant_of(a.node);
    const std::int64_t width = size_of(b.dtype), bytes = b.size * width;
    if (!constant || bytes < least) continue;
    paging.large_bytes += bytes;
    const std::string name = name_of_argument(lowered, b.argument);
    if (const auto strip = kernel::strip_of(k, phase, kernel::BufferId{i}))
      out.push_back({{b.argument, strip->begin * width, strip->step * width, strip->count * width},
                     bytes,
                     name});
    else
      paging.notes.push_back(fmt::format("phase {}: {} of {} bytes is read where it is: {}", number,
                                         name, bytes, strip.error().message));
  }
  std::ranges::stable_sort(out, std::greater{}, &PagedCandidate::bytes);
  return out;
}

}  // namespace

Paging paging_of(const lower::Lowered& lowered, const prim::Graph& graph,
                 const Platform& platform) {
  Paging out;
  if (!platform.persistent || platform.ring_least == 0) return out;
  const std::int64_t blocks =
      std::int64_t{platform.gpu.multiprocessors} * platform.persistent->blocks;
  for (const kernel::Stmt& s : lowered.kernel.body) {
    const auto* phase = std::get_if<kernel::For>(&s.op);
    if (phase == nullptr) continue;
    const std::size_t number = out.phases.size();
    const std::int64_t least = platform.ring_least * std::min<std::int64_t>(blocks, phase->end);
    std::vector<runtime::Paged>& paged = out.phases.emplace_back();
    for (const PagedCandidate& c : candidates(lowered, *phase, graph, least, number, out)) {
      const bool room = paged.size() < runtime::kMostPaged;
      if (room) paged.push_back(c.paged), out.ring_bytes += c.bytes;
      out.notes.push_back(
          room ? fmt::format("phase {}: {} of {} bytes comes through the ring, {} bytes a task",
                             number, c.name, c.bytes, c.paged.bytes)
               : fmt::format("phase {}: {} of {} bytes is read where it is: {} others of the stage "
                             "are larger",
                             number, c.name, c.bytes, runtime::kMostPaged));
    }
  }
  return out;
}

Paging paging_of(const KernelCode& code) {
  Paging out;
  for (const runtime::Phase& phase : code.phases) out.phases.push_back(phase.grid.paged);
  out.notes = code.ring_notes;
  out.ring_bytes = code.ring_bytes, out.large_bytes = code.large_bytes;
  return out;
}

Result<runtime::Ring> ring_for(const std::vector<KernelCode*>& kernels, const Platform& platform,
                               std::int64_t shared_bytes) {
  std::int64_t through = 0, all = 0;
  for (const KernelCode* kernel : kernels)
    through += kernel->ring_bytes, all += kernel->large_bytes;
  if (static_cast<double>(through) < kLeastShare * static_cast<double>(all))
    return unsupported("it would bring {} of {} bytes of large constants", through, all);
  const runtime::cuda::Device& gpu = platform.gpu;
  const Platform::Persistent& setting = *platform.persistent;
  if ((setting.threads + runtime::Ring::kThreads) * setting.blocks > gpu.threads_per_multiprocessor)
    return unsupported("{} blocks of {} threads leave no room for a warp more", setting.blocks,
                       setting.threads);
  runtime::Ring ring{0, kPageBytes, (shared_bytes + kPageAlign - 1) / kPageAlign * kPageAlign};
  const std::int64_t most = std::min<std::int64_t>(
      gpu.shared_per_block, gpu.shared_per_multiprocessor / setting.blocks - kReserved);
  constexpr std::int64_t kBarriers = 16;
  const std::int64_t pages = (most - ring.at) / (kPageBytes + kBarriers);
  if (pages < kLeastPages)
    return unsupported("the stages need {} of {} bytes of shared memory", shared_bytes, most);
  ring.pages = static_cast<int>(pages);
  return ring;
}

void drop_what_does_not_fit(KernelCode& code, const runtime::Ring& ring) {
  for (std::size_t p = 0; p < code.phases.size(); ++p) {
    std::vector<runtime::Paged>& paged = code.phases[p].grid.paged;
    const std::int64_t pages = runtime::cuda::pages_of_task(paged, ring.page_bytes);
    if (pages <= ring.pages) continue;
    paged.clear();
    const std::string prefix = fmt::format("phase {}: ", p);
    std::erase_if(code.ring_notes, [&](const std::string& note) {
      return note.starts_with(prefix) && note.find("through the ring") != note.npos;
    });
    code.ring_notes.push_back(
        fmt::format("{}constants are read where they are: a task needs {} pages of {}", prefix,
                    pages, ring.pages));
  }
}

void note_no_ring(std::vector<KernelCode*>& kernels, const std::string& why) {
  for (KernelCode* kernel : kernels)
    if (!kernel->ring_notes.empty()) kernel->ring_notes = {std::string(kNoRing) + why};
}

std::string ring_summary(const Compiled& compiled) {
  const auto noted = std::ranges::find_if(
      compiled.kernels, [](const CompiledKernel& k) { return !k.code.ring_notes.empty(); });
  if (noted == compiled.kernels.end()) return "";
  const auto& persistent = noted->code.persistent;
  if (!persistent) return "";
  if (persistent->ring.pages == 0) {
    const std::string& note = noted->code.ring_notes.front();
    return note.starts_with(kNoRing) ? "none: " + note.substr(kNoRing.size())
                                     : "none: tasks go through no large constant in order";
  }
  std::size_t stages = 0, paged = 0;
  for (const CompiledKernel& k : compiled.kernels)
    for (const runtime::Phase& phase : k.code.phases) {
      ++stages;
      paged += !phase.grid.paged.empty();
    }
  return fmt::format("{} pages of {} bytes; {} of {} stages get weights through them",
                     persistent->ring.pages, persistent->ring.page_bytes, paged, stages);
}

}  // namespace heddle::driver
