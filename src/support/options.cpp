#include "support/options.h"

#include <charconv>
#include <cstdlib>
#include <limits>

namespace heddle {
namespace {

Status set_bool(bool& field, std::string_view name, std::string_view text) {
  if (text == "1" || text == "true" || text == "on" || text.empty()) return field = true, Ok{};
  if (text == "0" || text == "false" || text == "off") return field = false, Ok{};
  return fail(ErrorCode::usage, "{}: found '{}', want 0 or 1", name, text);
}

Status set_int(std::int64_t& field, std::string_view name, std::string_view text,
               std::int64_t least, std::int64_t most) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most)
    return fail(ErrorCode::usage, "{}: found '{}', want an integer from {} to {}", name, text,
                least, most);
  return field = value, Ok{};
}

template <std::string Options::*field>
Status set_text(Options& options, std::string_view text) {
  options.*field = std::string(text);
  return Ok{};
}
template <std::string Options::*field>
std::string get_text(const Options& options) {
  return options.*field;
}

Status set_dump(Options& options, std::string_view text) {
  constexpr std::string_view kLevels = "prim,plan,kernel,source";
  for (std::string_view left = text; !left.empty();) {
    const std::size_t comma = left.find(',');
    const std::string_view level = left.substr(0, comma);
    left = comma == std::string_view::npos ? std::string_view() : left.substr(comma + 1);
    if (!lists(kLevels, level))
      return fail(ErrorCode::usage, "dump: found '{}', want levels of {}", level, kLevels);
  }
  return set_text<&Options::dump>(options, text);
}

Status set_accuracy(Options& options, std::string_view text) {
  if (text != "standard" && text != "strict")
    return fail(ErrorCode::usage, "accuracy: found '{}', want standard or strict", text);
  return set_text<&Options::accuracy>(options, text);
}

Status set_ring(Options& options, std::string_view text) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  std::int64_t least = 0;
  if (text != "auto" && text != "off" && !set_int(least, "ring", text, 1, kMost))
    return fail(ErrorCode::usage, "ring: found '{}', want auto, off, or bytes from 1 to {}", text,
                kMost);
  return set_text<&Options::ring>(options, text);
}

constexpr std::int64_t kMostMegabytes = 1 << 30;  // a petabyte

constexpr OptionRow kRows[] = {
    {"log", "HEDDLE_LOG", "log level: trace, debug, info, warning, error, off",
     set_text<&Options::log>, get_text<&Options::log>},
    {"dump", "HEDDLE_DUMP", "levels to write as text: prim, plan, kernel, source (comma-separated)",
     set_dump, get_text<&Options::dump>},
    {"dump-dir", "HEDDLE_DUMP_DIR", "folder for dumps", set_text<&Options::dump_dir>,
     get_text<&Options::dump_dir>},
    {"cache", "HEDDLE_CACHE_DIR",
     "folder of compiled kernels and tuning results; 'none' for no cache",
     set_text<&Options::cache_dir>, get_text<&Options::cache_dir>},
    {"cache-limit", "HEDDLE_CACHE_LIMIT",
     "MB of compiled programs to keep; those not used for longest go first (0: only the last)",
     [](Options& o, std::string_view text) {
       return set_int(o.cache_limit, "cache-limit", text, 0, kMostMegabytes);
     },
     [](const Options& o) { return std::to_string(o.cache_limit); }},
    {"disable", "HEDDLE_DISABLE", "passes or rewrite rows to leave out (comma-separated)",
     set_text<&Options::disable>, get_text<&Options::disable>},
    {"bisect", "HEDDLE_BISECT", "stop after this many passes (-1: run all)",
     [](Options& o, std::string_view text) {
       return set_int(o.bisect, "bisect", text, -1, std::numeric_limits<std::int32_t>::max());
     },
     [](const Options& o) { return std::to_string(o.bisect); }},
    {"verify-passes", "HEDDLE_VERIFY", "check the graph after every pass",
     [](Options& o, std::string_view text) { return set_bool(o.verify, "verify-passes", text); },
     [](const Options& o) { return std::string(o.verify ? "1" : "0"); }},
    {"cpu", "HEDDLE_CPU",
     "generate for this vector level: sse, avx2, avx512, or for a processor that LLVM knows "
     "(default: what the machine has)",
     set_text<&Options::cpu>, get_text<&Options::cpu>},
    {"accuracy", "HEDDLE_ACCURACY",
     "standard: algorithms that err by less than 1e-5 of the scale of a result, or of its row and "
     "column of a product, functions no more exact than the type that keeps them; strict: sums and "
     "functions as written, denormals kept",
     set_accuracy, get_text<&Options::accuracy>},
    {"schedules", "HEDDLE_SCHEDULES",
     "file of schedules that `heddle tune --save` wrote, used in place of those that this build "
     "has "
     "for the processor; 'none' for the lowering's own choice",
     set_text<&Options::schedules>, get_text<&Options::schedules>},
    {"nvrtc", "HEDDLE_NVRTC", "path of libnvrtc.so (default: looked for)",
     set_text<&Options::nvrtc>, get_text<&Options::nvrtc>},
    {"cublaslt", "HEDDLE_CUBLASLT", "path of libcublasLt.so (default: looked for)",
     set_text<&Options::cublaslt>, get_text<&Options::cublaslt>},
    {"nvcc", "HEDDLE_NVCC", "path of nvcc, for units of CUTLASS (default: looked for)",
     set_text<&Options::nvcc>, get_text<&Options::nvcc>},
    {"cutlass", "HEDDLE_CUTLASS", "folder with CUTLASS's include/ (default: looked for)",
     set_text<&Options::cutlass>, get_text<&Options::cutlass>},
    {"cuda-driver", "HEDDLE_CUDA_DRIVER",
     "path of the CUDA driver (default: the system's libcuda.so.1)",
     set_text<&Options::cuda_driver>, get_text<&Options::cuda_driver>},
    {"ring", "HEDDLE_RING",
     "monoliths on sm_90a: weights that a block streams come through a ring of pages in shared "
     "memory, ahead of their stages; auto: where a block reads at least 4096 bytes of them in a "
     "stage, a number: that many bytes, off: none",
     set_ring, get_text<&Options::ring>},
    {"cuda-graph", "HEDDLE_CUDA_GRAPH",
     "replay a captured graph in every run on a GPU (0: launch kernel by kernel)",
     [](Options& o, std::string_view text) { return set_bool(o.cuda_graph, "cuda-graph", text); },
     [](const Options& o) { return std::string(o.cuda_graph ? "1" : "0"); }},
};

std::string default_cache_dir() {
  if (const char* xdg = std::getenv("XDG_CACHE_HOME"); xdg != nullptr && *xdg != '\0')
    return std::string(xdg) + "/heddle";
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0')
    return std::string(home) + "/.cache/heddle";
  return {};
}

}  // namespace

std::span<const OptionRow> option_rows() { return kRows; }

Result<Options> options_from_environment() {
  Options options;
  options.cache_dir = default_cache_dir();
  for (const OptionRow& row : kRows) {
    const char* text = std::getenv(std::string(row.environment).c_str());
    if (text == nullptr) continue;
    if (Status status = row.set(options, text); !status)
      return fail(ErrorCode::usage, "environment variable {}: {}", row.environment,
                  status.error().message);
  }
  if (options.cache_dir == "none") options.cache_dir.clear();
  return options;
}

bool lists(std::string_view list, std::string_view item) {
  while (!list.empty()) {
    const std::size_t comma = list.find(',');
    if (list.substr(0, comma) == item) return true;
    if (comma == std::string_view::npos) return false;
    list.remove_prefix(comma + 1);
  }
  return false;
}

}  // namespace heddle
