// CUDA text to a shared object, by the C++ compiler.
#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <regex>
#include <unordered_map>

#include "codegen/cuda/nvrtc.h"
#include "emulation/module.h"
#include "support/hash.h"
#include "support/process.h"

namespace heddle::emulation {
namespace {

namespace fs = std::filesystem;

Status write(const fs::path& path, std::string_view text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) return fail("emulation: cannot write {}", path.string());
  return Ok{};
}

/// Removed when the process ends.
struct OwnFolder {
  fs::path path;
  OwnFolder() {
    std::string name = (fs::temp_directory_path() / "heddle-emulation-XXXXXX").string();
    if (::mkdtemp(name.data())) path = name;
  }
  ~OwnFolder() {
    std::error_code ignored;
    if (!path.empty()) fs::remove_all(path, ignored);
  }
};

Result<fs::path> folder_for(const CompileOptions& options) {
  if (!options.cache_dir.empty()) {
    std::error_code error;
    const fs::path path = fs::path(options.cache_dir) / "emulation";
    fs::create_directories(path, error);
    if (error) return fail("emulation: cannot make {}", path.string());
    return path;
  }
  static const OwnFolder own;
  if (own.path.empty()) return fail("emulation: cannot make a temporary folder");
  return own.path;
}

/// The table of the text's kernels, which the loader reads.
std::string table_of(const std::string& text) {
  static const std::regex kernel(
      R"(__global__\s+(?:void\s+)?(?:__launch_bounds__\s*\(\s*(\d+)[^)]*\)\s*)?)"
      R"((?:__cluster_dims__\s*\([^)]*\)\s*)?(?:void\s+)?(?!__)([A-Za-z_]\w*)\s*\()");
  std::string calls, rows;
  int count = 0;
  for (std::sregex_iterator at(text.begin(), text.end(), kernel), end; at != end; ++at) {
    const std::string name = (*at)[2], bound = (*at)[1].matched ? std::string((*at)[1]) : "0";
    calls += fmt::format("void call_{0}(void** a) {{ emu::call({0}, a); }}\n", name);
    rows += fmt::format("    emu::entry(\"{0}\", call_{0}, {1}, {0}),\n", name, bound);
    ++count;
  }
  return fmt::format(
      "using namespace hd;\n"
      "extern \"C\" unsigned char __start_emu_shared[] __attribute__((weak, "
      "visibility(\"hidden\")));\n"
      "extern \"C\" unsigned char __stop_emu_shared[] __attribute__((weak, "
      "visibility(\"hidden\")));\n"
      "namespace emu_table {{\n{}const emu::Entry entries[] = {{\n{}    {{}}}};\n}}\n"
      "extern \"C\" __attribute__((visibility(\"default\"))) emu::ModuleInfo "
      "heddle_emulation_module() "
      "{{\n  return {{emu_table::entries, {}, __start_emu_shared, __stop_emu_shared, &emu::self, "
      "&emu::runtime}};\n}}\n",
      calls, rows, count);
}

std::vector<std::string> flags_of(const CompileOptions& options) {
  std::vector<std::string> flags = {"-std=c++20",
                                    "-O1",
                                    "-g1",
                                    "-gdwarf-4",
                                    "-fPIC",
                                    "-shared",
                                    "-w",
                                    "-fvisibility=hidden",
                                    "-DHEDDLE_EMULATE",
                                    "-ffp-contract=off"};
  // The instrumentation's calls go to the emulator, so the sanitizer's library is not linked.
  if (options.races)
    flags.insert(flags.end(),
                 {"-fsanitize=thread,alignment", "--param=tsan-instrument-func-entry-exit=0",
                  "-DHEDDLE_EMULATE_RACES"});
  if (options.undefined) flags.insert(flags.end(), {"-fsanitize=undefined", "-DHEDDLE_EMULATE_UB"});
#if defined(__SANITIZE_ADDRESS__)
  // The program has the address sanitizer's library, so its kernels may be checked by it as well.
  if (!options.races) flags.push_back("-fsanitize=address");
#endif
  if (options.races || options.undefined) flags.insert(flags.end(), {"-nostdlib"});
  return flags;
}

std::vector<codegen::cuda::Header> headers() {
  std::vector<codegen::cuda::Header> all(codegen::cuda::prelude().begin(),
                                         codegen::cuda::prelude().end());
  for (const codegen::cuda::Header& h : language()) all.push_back(h);
  return all;
}

Status build(const std::string& text, const std::vector<std::string>& command_head,
             const fs::path& target) {
  static std::atomic<int> unique{0};
  const fs::path folder = fmt::format("{}.{}.{}", target.string(), ::getpid(), unique++);
  std::error_code error;
  fs::create_directories(folder, error);
  for (const codegen::cuda::Header& h : headers()) HEDDLE_TRY(write(folder / h.name, h.text));
  HEDDLE_TRY(write(folder / "kernel.cu", text));
  HEDDLE_TRY(write(folder / "unit.cpp",
                   "#include \"heddle.cuh\"\n#include \"instrument.h\"\n"
                   "#include \"kernel.cu\"\n" +
                       table_of(text)));
  std::vector<std::string> command = command_head;
  const fs::path made = folder / "module.so";
  // Names in messages do not depend on the folder.
  command.insert(command.end(),
                 {"-ffile-prefix-map=" + folder.string() + "/=", "-I", folder.string(),
                  (folder / "unit.cpp").string(), "-o", made.string(), "-lm", "-lc"});
  auto ran = run_process(command);
  if (ran && ran->status == 0) fs::rename(made, target, error);
  fs::remove_all(folder, error);
  if (!ran) return fail(ran.error().code, "emulation: {}", ran.error().message);
  if (ran->status != 0) {
    std::string log = ran->output;
    for (std::size_t at; (at = log.find(folder.string() + "/")) != std::string::npos;)
      log.erase(at, folder.string().size() + 1);
    return fail("emulation: the C++ compiler refuses the text: {}", log);
  }
  return Ok{};
}

/// The memory that a loaded module takes.
void find_extent(ModuleState& module, const void* inside) {
  std::pair<ModuleState*, const std::byte*> wanted{&module, static_cast<const std::byte*>(inside)};
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        auto& [state, at] = *static_cast<decltype(wanted)*>(data);
        const std::byte *low = nullptr, *high = nullptr;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& part = info->dlpi_phdr[i];
          if (part.p_type != PT_LOAD) continue;
          const auto* begin = reinterpret_cast<const std::byte*>(info->dlpi_addr + part.p_vaddr);
          if (!low || begin < low) low = begin;
          high = std::max(high, begin + part.p_memsz);
        }
        if (at < low || at >= high) return 0;
        state->begin = low;
        state->end = high;
        return 1;
      },
      &wanted);
}

Result<std::shared_ptr<ModuleState>> load(const fs::path& path, bool races) {
  auto state = std::make_shared<ModuleState>();
  state->path = path;
  state->races = races;
  state->handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!state->handle) return fail("emulation: {}", ::dlerror());
  const auto info =
      reinterpret_cast<emu::ModuleInfo (*)()>(::dlsym(state->handle, "heddle_emulation_module"));
  if (!info) return fail("emulation: {} is not a module", path.string());
  state->info = info();
  find_extent(*state, reinterpret_cast<const void*>(info));
  for (int i = 0; i < state->info.entry_count; ++i) {
    const emu::Entry& e = state->info.entries[i];
    state->kernels.push_back(
        {e.symbol, {e.parameter_bytes, e.parameter_bytes + e.parameters}, e.max_threads, e.call});
  }
  return state;
}

}  // namespace

ModuleState::~ModuleState() {
  if (handle) ::dlclose(handle);
}

const Kernel* Module::find(const std::string& symbol) const {
  for (const Kernel& k : state_->kernels)
    if (k.symbol == symbol) return &k;
  return nullptr;
}
std::span<const Kernel> Module::kernels() const { return state_->kernels; }
std::size_t Module::static_shared_bytes() const {
  return static_cast<std::size_t>(state_->info.shared_end - state_->info.shared_begin);
}

Result<Module> compile(const std::string& text, const CompileOptions& options) {
  static std::mutex mutex;
  static std::unordered_map<std::string, std::weak_ptr<ModuleState>> loaded;
  std::vector<std::string> command = {options.compiler.empty() ? HEDDLE_CXX_COMPILER
                                                               : options.compiler};
  for (std::string& flag : flags_of(options)) command.push_back(std::move(flag));
  std::string all = fmt::format("{}\n{}", fmt::join(command, " "), text);
  for (const codegen::cuda::Header& h : headers()) all += h.text;
  const fs::path folder = HEDDLE_TRY(folder_for(options));
  const fs::path path = folder / (to_string(hash_bytes(all)) + ".so");
  {
    const std::lock_guard lock(mutex);
    if (auto known = loaded[path.string()].lock()) return Module(known);
  }
  if (!fs::exists(path)) HEDDLE_TRY(build(text, command, path));
  const std::lock_guard lock(mutex);
  std::weak_ptr<ModuleState>& known = loaded[path.string()];
  if (auto there = known.lock()) return Module(there);
  std::shared_ptr<ModuleState> state = HEDDLE_TRY(load(path, options.races));
  known = state;
  return Module(state);
}

std::string source_of(const ModuleState& module, const void* pc) {
  Dl_info info;
  if (!pc || !::dladdr(pc, &info)) return "an unknown place";
  // A return address: the call is before it.
  const auto offset = static_cast<const char*>(pc) - static_cast<const char*>(info.dli_fbase) - 1;
  const auto ran =
      run_process({"addr2line", "-i", "-e", module.path.string(), fmt::format("{:#x}", offset)});
  if (!ran || ran->status != 0) return fmt::format("offset {:#x}", offset);
  // Innermost first: helpers of the prelude, then the kernel that calls them.
  std::string inner, outer;
  for (std::string_view rest = ran->output; !rest.empty();) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (const std::size_t note = line.find(" (discriminator"); note != line.npos)
      line = line.substr(0, note);
    if (const std::size_t slash = line.rfind('/'); slash != line.npos)
      line.remove_prefix(slash + 1);
    if (inner.empty()) inner = line;
    if (line.starts_with("kernel.cu:")) outer = line;
  }
  if (outer.empty() || outer == inner) return inner;
  return fmt::format("{} ({})", outer, inner);
}

}  // namespace heddle::emulation
