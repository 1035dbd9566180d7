#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include <llvm/ADT/StringMap.h>
#include <llvm/Config/llvm-config.h>
#include <llvm/MC/MCSubtargetInfo.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/TargetParser/Host.h>

#include "codegen/cpu/target.h"

namespace heddle::codegen::cpu {
namespace {

/// Vector width and count from the features that the processor name and feature list imply.
void read_vectors(const llvm::MCSubtargetInfo& info, Machine& m) {
  const bool x86 = llvm::StringRef(m.triple).starts_with("x86_64");
  const bool avx512 = x86 && info.checkFeatures("+avx512f") && info.checkFeatures("+avx512vl") &&
                      info.checkFeatures("+avx512bw") && info.checkFeatures("+avx512dq");
  const bool avx = x86 && info.checkFeatures("+avx2");
  m.vector_bytes = avx512 ? 64 : avx ? 32 : 16;
  m.vector_registers = x86 && !avx512 ? 16 : 32;
}

Result<Machine> complete(Machine m) {
  initialize_llvm();
  std::string error;
  const llvm::Target* target = llvm::TargetRegistry::lookupTarget(m.triple, error);
  if (!target) return fail("target '{}': {}", m.triple, error);
  std::unique_ptr<llvm::MCSubtargetInfo> any(target->createMCSubtargetInfo(m.triple, "", ""));
  if (!any || !any->isCPUStringValid(m.cpu)) {
    return fail(ErrorCode::usage, "processor '{}' is not known for {}", m.cpu, m.triple);
  }
  std::unique_ptr<llvm::MCSubtargetInfo> info(
      target->createMCSubtargetInfo(m.triple, m.cpu, m.features));
  read_vectors(*info, m);
  // Zen 4 computes 512 bits in two halves.
  m.fma_rate = m.cpu == "znver4" && m.vector_bytes == 64 ? 1 : 2;
  m.quads = info->checkFeatures("+avx512vnni,+avx512vl") ||
            (m.vector_bytes <= 32 && info->checkFeatures("+avxvnni"));
  m.byte_tables = m.vector_bytes == 64 && info->checkFeatures("+avx512vbmi");
  m.tiles = info->checkFeatures("+amx-tile,+amx-bf16,+amx-int8,+avx512bf16,+avx512vl");
  m.bf16_pairs = info->checkFeatures("+avx512bf16,+avx512vl");
  std::unique_ptr<llvm::MCSubtargetInfo> named(target->createMCSubtargetInfo(m.triple, m.cpu, ""));
  m.fast_pairs = m.bf16_pairs && !named->checkFeatures("+amx-tile");
  const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
  // Some systems report the sum over all chiplets; one core sees no more than this.
  constexpr std::int64_t kMost = std::int64_t{32} << 20;
  m.stream_bytes = cache > 0 ? std::min<std::int64_t>(cache, kMost) : kMost;
  return m;
}

/// Hypervisors may mask the model: a processor with AMX is no Rocket Lake, which schedules are
/// shipped by and LLVM orders instructions for.
std::string host_name(const std::string& triple, const llvm::StringMap<bool>& features) {
  std::string name = llvm::sys::getHostCPUName().str();
  if (!features.lookup("amx-tile")) return name;
  initialize_llvm();
  std::string error;
  const llvm::Target* target = llvm::TargetRegistry::lookupTarget(triple, error);
  if (!target) return name;
  const std::unique_ptr<llvm::MCSubtargetInfo> named(
      target->createMCSubtargetInfo(triple, name, ""));
  return named && named->checkFeatures("+amx-tile") ? name : "sapphirerapids";
}

}  // namespace

bool tiles_permitted() {
#if defined(__x86_64__) && defined(SYS_arch_prctl)
  constexpr int kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  static const bool permitted = ::syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
  return permitted;
#else
  return false;
#endif
}

Machine host_machine() {
  Machine m;
  m.triple = llvm::sys::getProcessTriple();
  llvm::StringMap<bool> features = llvm::sys::getHostCPUFeatures();
  m.cpu = host_name(m.triple, features);
  if (features.lookup("amx-tile") && !tiles_permitted())
    for (const char* f : {"amx-tile", "amx-bf16", "amx-int8"}) features[f] = false;
  std::vector<std::string> sorted;
  for (const auto& f : features) sorted.push_back((f.second ? "+" : "-") + f.first().str());
  std::sort(sorted.begin(), sorted.end());
  for (const std::string& f : sorted) m.features += (m.features.empty() ? "" : ",") + f;
  Result<Machine> out = complete(std::move(m));
  HEDDLE_CHECK(out.ok(), "host machine: {}", out.error().message);
  return *out;
}

std::string llvm_version() { return LLVM_VERSION_STRING; }

Result<Machine> machine_named(const std::string& name) {
  if (name.empty() || name == "host") return host_machine();
  // The levels of the x86-64 psABI.
  constexpr std::pair<std::string_view, std::string_view> kLevels[] = {
      {"sse", "x86-64-v2"}, {"avx2", "x86-64-v3"}, {"avx512", "x86-64-v4"}};
  Machine m;
  m.triple = llvm::sys::getProcessTriple();
  m.cpu = name;
  for (const auto& [level, cpu] : kLevels)
    if (name == level) m.cpu = cpu;
  return complete(std::move(m));
}

}  // namespace heddle::codegen::cpu
