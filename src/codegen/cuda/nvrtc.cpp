#include "codegen/cuda/nvrtc.h"

#include <unistd.h>

#include <atomic>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "codegen/cuda/nvrtc_library.h"
#include "support/hash.h"
#include "support/log.h"

namespace heddle::codegen::cuda {
namespace {

using nlohmann::json;

std::vector<std::string> flags_for(const CompileOptions& options) {
  // -default-device: helper functions need no __device__; no fast math: f32 functions are accurate.
  return {"--gpu-architecture=" + options.arch, "--std=c++20", "-default-device",
          "--generate-line-info", "--ptxas-options=-v"};
}

std::string key_of(const std::string& text, const std::vector<std::string>& flags,
                   const Nvrtc& nvrtc) {
  std::string all =
      fmt::format("{}\n{}\n{}\n{}", nvrtc.path, nvrtc.version, fmt::join(flags, " "), text);
  for (const Header& header : prelude()) all += header.text;
  return to_string(hash_bytes(all));
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    out.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

Cubin described(std::string bytes, std::string log) {
  Cubin cubin{std::move(bytes), std::move(log), {}, {}};
  cubin.functions = functions_from_log(cubin.log);
  for (const std::string& line : lines_of(cubin.log))
    // C7519 only says that the compiler added a wgmma_fence.
    if (line.find("(C7") != std::string::npos && line.find("(C7519)") == std::string::npos)
      cubin.notes.push_back(line);
  return cubin;
}

/// First line: JSON with checksum and log; the rest: the cubin.
std::optional<Cubin> read_cached(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string line;
  if (!file || !std::getline(file, line)) return std::nullopt;
  const json j = json::parse(line, nullptr, false);
  std::string bytes(std::istreambuf_iterator<char>(file), {});
  try {
    if (!j.is_discarded() && j.at("checksum") == to_string(hash_bytes(bytes)))
      return described(std::move(bytes), j.at("log").get<std::string>());
  } catch (const json::exception&) {
  }
  log(LogLevel::warning, "{}: damaged cache entry, compiled again", path);
  return std::nullopt;
}

void write_cached(const std::string& path, const Cubin& cubin) {
  static std::atomic<int> unique{0};
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  const std::string temporary = fmt::format("{}.{}.{}.tmp", path, ::getpid(), unique++);
  const json j = {{"checksum", to_string(hash_bytes(cubin.bytes))}, {"log", cubin.log}};
  std::ofstream file(temporary, std::ios::binary);
  file << j.dump(-1, ' ', false, json::error_handler_t::replace) << '\n' << cubin.bytes;
  file.close();
  if (file) std::filesystem::rename(temporary, path, error);
  if (!file || error) std::filesystem::remove(temporary, error);
}

/// A string that a pair of "size" and "get" functions give, without the terminating zero.
template <class Size, class Get>
std::string text_from(Size size, Get get, NvrtcProgram* program) {
  std::size_t bytes = 0;
  if (size(program, &bytes) != 0 || bytes == 0) return {};
  std::string out(bytes, '\0');
  return get(program, out.data()) == 0 ? out : std::string{};
}

Result<Cubin> compile_now(const std::string& text, const std::vector<std::string>& flags,
                          const Nvrtc& nvrtc) {
  std::vector<const char*> names, texts, options;
  for (const Header& header : prelude()) names.push_back(header.name), texts.push_back(header.text);
  for (const std::string& flag : flags) options.push_back(flag.c_str());
  NvrtcProgram* created = nullptr;
  if (const int code =
          nvrtc.CreateProgram(&created, text.c_str(), "kernel.cu", static_cast<int>(texts.size()),
                              texts.data(), names.data()))
    return fail("NVRTC: cannot create a program: {}", nvrtc.GetErrorString(code));
  const auto destroy = [&](NvrtcProgram* p) { nvrtc.DestroyProgram(&p); };
  const std::unique_ptr<NvrtcProgram, decltype(destroy)> program(created, destroy);
  const int code =
      nvrtc.CompileProgram(program.get(), static_cast<int>(options.size()), options.data());
  std::string log = text_from(nvrtc.GetProgramLogSize, nvrtc.GetProgramLog, program.get());
  while (!log.empty() && log.back() == '\0') log.pop_back();
  if (code != 0) return fail("NVRTC: {}: {}", nvrtc.GetErrorString(code), log);
  std::string bytes = text_from(nvrtc.GetCUBINSize, nvrtc.GetCUBIN, program.get());
  if (bytes.empty()) return fail("NVRTC: found no cubin for {}", flags[0]);
  return described(std::move(bytes), std::move(log));
}

/// The number before `what` in a line such as "Used 26 registers, 32 bytes smem".
int number_before(std::string_view line, std::string_view what) {
  const std::size_t end = line.find(what);
  if (end == std::string_view::npos) return 0;
  std::size_t begin = end;
  while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
  int value = 0;
  std::from_chars(line.data() + begin, line.data() + end, value);
  return value;
}

}  // namespace

std::vector<FunctionInfo> functions_from_log(std::string_view log) {
  std::vector<FunctionInfo> out;
  std::size_t entry = 0, current = 0;  // device functions follow the kernel that calls them
  const auto name_after = [](const std::string& line, std::size_t begin, char end) {
    return line.substr(begin, line.find_first_of(std::string{end, '\r'}, begin) - begin);
  };
  for (const std::string& line : lines_of(log)) {
    constexpr std::string_view kEntry = "Compiling entry function '";
    if (const std::size_t at = line.find(kEntry); at != std::string::npos) {
      out.push_back({name_after(line, at + kEntry.size(), '\'')});
      entry = current = out.size() - 1;
    }
    if (out.empty()) continue;
    constexpr std::string_view kFunction = "Function properties for ";
    if (const std::size_t at = line.find(kFunction); at != std::string::npos) {
      const std::string name = name_after(line, at + kFunction.size(), ' ');
      current = static_cast<std::size_t>(std::ranges::find(out, name, &FunctionInfo::symbol) -
                                         out.begin());
      if (current == out.size()) out.push_back({name});
    }
    FunctionInfo& f = out[line.find(" registers") != std::string::npos ? entry : current];
    if (line.find("bytes stack frame") != std::string::npos) {
      f.stack_bytes = number_before(line, " bytes stack frame");
      f.spill_bytes =
          number_before(line, " bytes spill stores") + number_before(line, " bytes spill loads");
    }
    if (line.find(" registers") != std::string::npos && f.registers == 0) {
      f.registers = number_before(line, " registers");
      f.shared_bytes = number_before(line, " bytes smem");
    }
  }
  return out;
}

bool cached_cubin_is_sound(const std::string& path) { return read_cached(path).has_value(); }

Result<Cubin> compile(const std::string& text, const CompileOptions& options) {
  const std::shared_ptr<const Nvrtc> nvrtc = HEDDLE_TRY(load_nvrtc(options.library));
  const std::vector<std::string> flags = flags_for(options);
  const std::string path =
      options.cache_dir.empty()
          ? std::string{}
          : fmt::format("{}/cubins/{}.cubin", options.cache_dir, key_of(text, flags, *nvrtc));
  if (!path.empty())
    if (std::optional<Cubin> cached = read_cached(path)) return *std::move(cached);
  Cubin cubin = HEDDLE_TRY(compile_now(text, flags, *nvrtc));
  if (!path.empty()) write_cached(path, cubin);
  return cubin;
}

}  // namespace heddle::codegen::cuda
