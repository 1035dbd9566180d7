#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "driver/driver.h"
#include "onnx/reader.h"

namespace heddle::driver {

onnx::ImportOptions import_options(const CompileOptions& options);

/// compile_file without the program cache: graph, plan and kernels are there.
Result<Compiled> compile_fresh(const std::string& path, const CompileOptions& options);

/// plan_only from a file.
Result<Compiled> plan_file(const std::string& path, const CompileOptions& options);

struct CacheListing {
  int objects = 0, programs = 0;
  std::int64_t bytes = 0;
};
CacheListing list_cache(const std::string& folder);
/// Removes entries whose checksum is wrong; returns how many.
int verify_cache(const std::string& folder);
/// Removes entries not read or written for `days`; returns how many.
int prune_cache(const std::string& folder, int days);
/// Removes the programs not used for longest until the others take at most `bytes`; the one used
/// last stays. Returns how many went. Sessions made from one are not disturbed.
int bound_programs(const std::string& folder, std::int64_t bytes);

}  // namespace heddle::driver
