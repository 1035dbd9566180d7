#include "driver/cache.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>

#include "driver/code_cache.h"
#include "driver/platform.h"
#include "runtime/artefact.h"
#include "support/file.h"
#include "support/hash.h"
#include "support/log.h"

namespace heddle::driver {
namespace {

namespace fs = std::filesystem;

/// Content of every file that the model is made of. Test data does not count.
Result<Hash> content_of(const std::string& path) {
  std::string hashes;
  for (const std::string& file : onnx::model_files(path)) {
    const auto bytes = HEDDLE_TRY(map_file(file));
    hashes += to_string(hash_bytes(bytes.view()));
  }
  return hash_bytes(hashes);
}

Result<Hash> program_key(const std::string& path, const CompileOptions& options) {
  const Platform platform = HEDDLE_TRY(platform_for(options));
  std::string key = to_string(HEDDLE_TRY(content_of(path)));
  key += fmt::format("|{}|{}|{}|{}|{}|{}|{}", build_id(), platform.cpu.triple, platform.cpu.cpu,
                     platform.cpu.features, platform.threads, options.budget, options.strategy);
  if (platform.cuda)
    key += fmt::format("|{}|{}|{}", platform.machine_name(), platform.gpu.l2_bytes,
                       options.options.nvrtc) +
           "|ring " + options.options.ring;
  key += fmt::format("|{}{}", name_of(options.precision), options.tf32 ? " tf32" : "");
  if (options.memory_limit > 0) key += fmt::format("|{} bytes", options.memory_limit);
  key += "|" + options.mode + "|" + options.options.accuracy + "|" + options.options.disable + "|" +
         std::to_string(options.options.bisect);
  key += "|" + platform.schedules_note;
  if (platform.schedules) key += to_string(hash_bytes(plan::print(*platform.schedules)));
  for (const auto& [name, shape] : options.shapes) key += "|" + name + heddle::to_string(shape);
  for (const auto& [name, expr] : options.facts) key += "|" + name + "=" + expr.text();
  return hash_bytes(key);
}

template <class F>
int remove_if(const std::string& folder, F&& test) {
  int removed = 0;
  std::error_code error;
  for (const char* sub : {"objects", "cubins", "units", "programs"})
    for (const fs::directory_entry& entry : fs::directory_iterator(fs::path(folder) / sub, error))
      if (entry.is_regular_file(error) && test(entry))
        removed += fs::remove(entry.path(), error) ? 1 : 0;
  return removed;
}

}  // namespace

onnx::ImportOptions import_options(const CompileOptions& options) {
  onnx::ImportOptions import;
  import.shapes = options.shapes;
  import.facts = options.facts;
  return import;
}

Result<Compiled> plan_file(const std::string& path, const CompileOptions& options) {
  return plan_only(HEDDLE_TRY(onnx::import(path, import_options(options))), options);
}

Result<Compiled> compile_fresh(const std::string& path, const CompileOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  prim::Graph graph = HEDDLE_TRY(onnx::import(path, import_options(options)));
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  Compiled compiled = HEDDLE_TRY(compile(std::move(graph), options));
  compiled.times.insert(compiled.times.begin(), {"import", seconds});
  return compiled;
}

Result<Compiled> compile_file(const std::string& path, const CompileOptions& options) {
  // Dumps want every level made, so nothing is taken from the cache then; a locked plan is made
  // from its file.
  CompileOptions once = options;
  once.keep_constants = false;
  if (options.options.cache_dir.empty() || !options.options.dump.empty() || !options.locked.empty())
    return compile_fresh(path, once);
  const auto start = std::chrono::steady_clock::now();
  const Hash key = HEDDLE_TRY(program_key(path, options));
  const std::string folder = options.options.cache_dir + "/programs";
  const std::string entry = fmt::format("{}/{}.heddle", folder, to_string(key));
  std::error_code error;
  if (fs::exists(entry, error)) {
    Result<runtime::Program> program = runtime::read_artefact(entry);
    if (program) {
      fs::last_write_time(entry, fs::file_time_type::clock::now(), error);
      Compiled compiled;
      compiled.program = std::make_shared<runtime::Program>(*std::move(program));
      compiled.from_cache = true;
      compiled.times.push_back(
          {"cache",
           std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()});
      return compiled;
    }
    log(LogLevel::warning, "{}; compiled again", program.error().message);
  }
  Compiled compiled = HEDDLE_TRY(compile_fresh(path, once));
  fs::create_directories(folder, error);
  if (Status status = runtime::write_artefact(*compiled.program, entry); !status)
    log(LogLevel::warning, "cache: {}", status.error().message);
  bound_programs(options.options.cache_dir, options.options.cache_limit << 20);
  return compiled;
}

CacheListing list_cache(const std::string& folder) {
  CacheListing listing;
  remove_if(folder, [&](const fs::directory_entry& entry) {
    std::error_code error;
    (entry.path().extension() == ".heddle" ? listing.programs : listing.objects) += 1;
    listing.bytes += static_cast<std::int64_t>(entry.file_size(error));
    return false;
  });
  return listing;
}

int verify_cache(const std::string& folder) {
  return remove_if(folder, [](const fs::directory_entry& entry) {
    const std::string path = entry.path().string();
    if (entry.path().extension() == ".heddle") return !runtime::read_artefact(path).ok();
    if (entry.path().extension() == ".cubin") return !codegen::cuda::cached_cubin_is_sound(path);
    if (entry.path().parent_path().filename() == "units")
      return !codegen::cuda::cached_unit_is_sound(path);
    return !cached_object_is_sound(path);
  });
}

int prune_cache(const std::string& folder, int days) {
  const auto oldest = fs::file_time_type::clock::now() - std::chrono::hours(24 * days);
  return remove_if(folder, [&](const fs::directory_entry& entry) {
    std::error_code error;
    return entry.last_write_time(error) < oldest;
  });
}

int bound_programs(const std::string& folder, std::int64_t bytes) {
  std::error_code error;
  // Read once: other processes touch and remove files meanwhile.
  struct Entry {
    fs::file_time_type used;
    std::int64_t bytes;
    fs::path path;
  };
  std::vector<Entry> entries;
  for (const fs::directory_entry& e :
       fs::directory_iterator(fs::path(folder) / "programs", error)) {
    std::error_code gone;
    const auto used = e.last_write_time(gone);
    const auto size = e.file_size(gone);
    if (e.is_regular_file(gone) && !gone)
      entries.push_back({used, static_cast<std::int64_t>(size), e.path()});
  }
  std::ranges::sort(entries, std::ranges::greater(), &Entry::used);
  std::int64_t kept = 0;
  int removed = 0;
  for (const Entry& e : entries) {
    kept += e.bytes;
    if (kept > bytes && &e != &entries.front()) removed += fs::remove(e.path, error) ? 1 : 0;
  }
  return removed;
}

}  // namespace heddle::driver
