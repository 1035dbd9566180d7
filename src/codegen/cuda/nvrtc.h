#pragma once
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "support/result.h"

namespace heddle::codegen::cuda {

/// A header that kernels may include.
struct Header {
  const char* name;
  const char* text;
};
/// "heddle.cuh", the one header that generated kernels include, and its parts (prelude/).
std::span<const Header> prelude();

/// What the assembler says of one function.
struct FunctionInfo {
  std::string symbol;
  int registers = 0;     ///< of a thread
  int stack_bytes = 0;   ///< local memory of a thread (arrays, slow paths of sin and cos, spills)
  int spill_bytes = 0;   ///< registers stored to local memory: loads and stores
  int shared_bytes = 0;  ///< static
  bool operator==(const FunctionInfo&) const = default;
};
/// Machine code for one architecture.
struct Cubin {
  std::string bytes;
  std::string log;  ///< compiler's and assembler's notes
  std::vector<FunctionInfo> functions;
  /// Lines of the log that mean slow code: "(C7…)" notes, such as serialised wgmma.
  std::vector<std::string> notes;
};

struct CompileOptions {
  std::string arch = "sm_90a";
  std::string library;    ///< path of NVRTC; empty: found by find_nvrtc
  std::string cache_dir;  ///< cubins are kept in its folder "cubins"; empty: no cache
};
/// Compiles CUDA text that includes "heddle.cuh". Errors: missing (no NVRTC), failed (with the
/// compiler's log). Thread-safe.
Result<Cubin> compile(const std::string& text, const CompileOptions& options);

/// True if the cache entry at `path` matches its checksum.
bool cached_cubin_is_sound(const std::string& path);

/// Reads registers, spills and shared memory from the log of `ptxas -v`.
std::vector<FunctionInfo> functions_from_log(std::string_view log);

/// Where a library of the toolkit is: `wanted` if not empty, else the newest in the toolkit's
/// folders, the system's, or a Python environment's nvidia packages (build/venv, VIRTUAL_ENV,
/// site-packages). `stem`: "nvrtc", "cublasLt". Empty if nowhere; `tried` lists where was looked.
std::string find_library(const std::string& stem, const std::string& wanted,
                         std::vector<std::string>* tried = nullptr);
/// "13.0" of the library at `path` (empty: found); missing if it cannot be loaded.
Result<std::string> nvrtc_version(const std::string& path);
/// "13.0.2" of the library cuBLASLt at `path`; missing if it cannot be loaded.
Result<std::string> cublaslt_version(const std::string& path);

}  // namespace heddle::codegen::cuda
