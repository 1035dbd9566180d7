#include "driver/code_cache.h"

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>

#include "support/hash.h"
#include "support/json.h"
#include "support/log.h"

namespace heddle::driver {
namespace {

using codegen::cpu::KernelInfo;
using codegen::cpu::Machine;
using codegen::cpu::Object;
using nlohmann::json;

json info_json(const KernelInfo& info) {
  json phases = json::array();
  for (const auto& phase : info.phases) phases.push_back({phase.symbol, phase.tasks});
  return {{"phases", phases}, {"scratch", info.scratch_bytes}, {"local", info.local_bytes}};
}

KernelInfo info_from(const json& j) {
  KernelInfo info;
  for (const json& phase : j.at("phases"))
    info.phases.push_back({phase.at(0).get<std::string>(), phase.at(1).get<std::int64_t>()});
  info.scratch_bytes = j.at("scratch").get<std::int64_t>();
  info.local_bytes = j.at("local").get<std::vector<std::int64_t>>();
  return info;
}

/// First line: JSON with the kernels and the object's checksum; the rest: the object.
std::optional<Object> read_cached(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string line;
  if (!file || !std::getline(file, line)) return std::nullopt;
  const std::optional<json> j = parse_whole_json(line);
  Object object;
  object.bytes.assign(std::istreambuf_iterator<char>(file), {});
  try {
    if (!j || j->at("checksum") != to_string(hash_bytes(object.bytes))) {
      log(LogLevel::warning, "{}: damaged cache entry, compiled again", path);
      return std::nullopt;
    }
    for (const json& info : j->at("kernels")) object.kernels.push_back(info_from(info));
  } catch (const json::exception&) {
    return std::nullopt;
  }
  return object;
}

void write_cached(const std::string& path, const Object& object) {
  json infos = json::array();
  for (const KernelInfo& info : object.kernels) infos.push_back(info_json(info));
  const json j = {{"checksum", to_string(hash_bytes(object.bytes))}, {"kernels", infos}};
  static std::atomic<int> unique{0};
  const std::string temporary = fmt::format("{}.{}.{}.tmp", path, ::getpid(), unique++);
  std::ofstream file(temporary, std::ios::binary);
  file << j.dump() << '\n' << object.bytes;
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(temporary, path, error);
  if (!file || error) std::filesystem::remove(temporary, error);
}

}  // namespace

bool cached_object_is_sound(const std::string& path) { return read_cached(path).has_value(); }

kernel::Kernel without_names(kernel::Kernel k) {
  k.name = "k";
  for (std::int32_t i = 0; i < k.buffers.size(); ++i) k.buffers[kernel::BufferId{i}].name.clear();
  return k;
}

KernelCode to_code(const KernelInfo& info) {
  KernelCode code;
  for (const auto& phase : info.phases) code.phases.push_back({phase.symbol, phase.tasks, {}});
  code.scratch_bytes = info.scratch_bytes;
  code.local_bytes = info.local_bytes;
  return code;
}

std::string build_id() {
  static const std::string id = [] {
    // Block by block: the whole program at once would be the peak of a small model's memory.
    std::ifstream self("/proc/self/exe", std::ios::binary);
    std::string block(std::size_t{1} << 20, '\0');
    Hash hash;
    while (self.read(block.data(), static_cast<std::streamsize>(block.size())), self.gcount() > 0) {
      block.resize(static_cast<std::size_t>(self.gcount()));
      hash = hash_bytes(to_string(hash) + to_string(hash_bytes(block)));
    }
    return fmt::format("{}-{}", HEDDLE_VERSION, to_string(hash).substr(0, 12));
  }();
  return id;
}

Result<Code> generate_code(const std::vector<kernel::Kernel>& kernels, const Machine& machine,
                           const std::string& cache_dir, ThreadPool& pool,
                           const std::function<void(double share)>& progress,
                           std::size_t batch_size) {
  Code code;
  const std::size_t batches = (kernels.size() + batch_size - 1) / batch_size;
  code.kernels.resize(kernels.size());
  code.objects.resize(batches);
  std::string folder;
  if (!cache_dir.empty()) {
    folder = cache_dir + "/objects";
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) log(LogLevel::warning, "cache {}: {}; not used", folder, error.message());
    if (error) folder.clear();
  }
  std::mutex mutex;
  std::optional<Error> failure;
  std::size_t done = 0;
  pool.for_each(static_cast<std::int64_t>(batches), [&](std::int64_t b) {
    const std::size_t begin = static_cast<std::size_t>(b) * batch_size;
    const std::span<const kernel::Kernel> batch(&kernels[begin],
                                                std::min(batch_size, kernels.size() - begin));
    const Hash key = hash_bytes(codegen::cpu::cache_key(batch, machine) + build_id());
    const std::string path = folder.empty() ? "" : fmt::format("{}/{}.o", folder, to_string(key));
    std::optional<Object> object = path.empty() ? std::nullopt : read_cached(path);
    if (object && object->kernels.size() != batch.size()) object.reset();
    const bool reused = object.has_value();
    if (!object) {
      try {
        Result<Object> made = codegen::cpu::compile(batch, machine, "k" + to_string(key) + "_");
        const std::lock_guard lock(mutex);
        if (!made) failure = made.error();
        if (made) object = *std::move(made);
      } catch (const std::exception& e) {
        const std::lock_guard lock(mutex);
        failure = fail("code generation: {}", e.what());
      }
      if (object && !path.empty()) write_cached(path, *object);
    }
    const std::lock_guard lock(mutex);
    if (!object) return;
    (reused ? code.reused : code.compiled) += 1;
    for (std::size_t i = 0; i < batch.size(); ++i) code.kernels[begin + i] = object->kernels[i];
    code.objects[static_cast<std::size_t>(b)] = std::move(object->bytes);
    if (progress) progress(static_cast<double>(++done) / static_cast<double>(batches));
  });
  if (failure) return *failure;
  return code;
}

}  // namespace heddle::driver
