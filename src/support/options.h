#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "support/result.h"

namespace heddle {

/// Settings that are not about one model; the only place that reads environment variables.
struct Options {
  std::string log = "warning";
  std::string dump;
  std::string dump_dir = "heddle-dump";
  std::string cache_dir;            ///< empty: no cache; default $XDG_CACHE_HOME/heddle
  std::int64_t cache_limit = 8192;  ///< MB of compiled programs that the cache keeps
  std::string disable;
  std::int64_t bisect = -1;
  bool verify = false;
  std::string cpu;
  std::string accuracy = "standard";
  std::string schedules;      ///< file of tuned schedules; empty: those of this build; none: none
  std::string nvrtc;          ///< path of NVRTC; empty: looked for
  std::string cublaslt;       ///< path of cuBLASLt; empty: looked for
  std::string nvcc;           ///< path of nvcc, which compiles units; empty: looked for
  std::string cutlass;        ///< folder with CUTLASS's include/; empty: looked for
  std::string ring = "auto";  ///< of a monolith's weights on sm_90a: auto, off, a number of bytes
  bool cuda_graph = true;     ///< runs on a GPU replay a captured graph
  std::string cuda_driver;    ///< path of the CUDA driver; empty: the system's libcuda.so.1
};

/// One setting: the same row feeds the environment, the command line's help and the docs.
struct OptionRow {
  std::string_view name;         ///< "dump-dir": flag --dump-dir
  std::string_view environment;  ///< "HEDDLE_DUMP_DIR"
  std::string_view help;
  Status (*set)(Options& options, std::string_view text);
  std::string (*get)(const Options& options);
};
std::span<const OptionRow> option_rows();
/// Defaults overlaid with HEDDLE_* variables; a malformed value is an error that names it.
Result<Options> options_from_environment();
/// True if `item` is one of the comma-separated names in `list`.
bool lists(std::string_view list, std::string_view item);

}  // namespace heddle
