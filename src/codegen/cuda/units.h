#pragma once
#include <functional>
#include <map>
#include <memory>

#include "codegen/cuda/nvrtc.h"

namespace heddle::codegen::cuda {

/// Headers that units include, besides CUTLASS's own.
std::span<const Header> unit_headers();

/// What compiles units: nvcc, and the folder that holds CUTLASS's include/.
struct UnitTools {
  std::string nvcc, cutlass;
  std::string version;  ///< of CUTLASS: "4.2.0"
};
/// `nvcc` and `cutlass` if not empty, else what is found: nvcc in the toolkit's folders, in an
/// environment's nvidia packages or on the path; CUTLASS beside the program (build/cutlass), in
/// /usr/local, or as the package nvidia-cutlass. Errors: missing, with what and where was looked.
Result<UnitTools> find_unit_tools(const std::string& nvcc, const std::string& cutlass);

/// One product as it is written in a unit. `group`: only products of one group share a unit.
struct UnitEntry {
  std::string group, name, text;
};
struct UnitOptions {
  UnitTools tools;
  std::string arch = "sm_90a";
  std::string cache_dir;  ///< units are kept in its folder "units"; empty: no cache
  std::function<void(int done, int units)> progress = {};
  std::function<void(const std::string& log)> compiled = {};  ///< told what nvcc and ptxas say
};
/// Shared objects by the name of a product; products of one compilation share theirs.
using UnitObjects = std::map<std::string, std::shared_ptr<const std::string>>;
/// Compiles what is not known from before: one unit for each group, a minute and 4 GB each. A
/// product that the compiler refuses is left out, with a warning.
UnitObjects compile_units(std::span<const UnitEntry> products, const UnitOptions& options);
/// The text of a unit of products of one group.
std::string unit_text(std::span<const UnitEntry> products);

/// True if the cache entry at `path` matches its checksum.
bool cached_unit_is_sound(const std::string& path);

}  // namespace heddle::codegen::cuda
