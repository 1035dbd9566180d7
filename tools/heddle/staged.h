#pragma once
#include <set>
#include <string>

#include "common.h"
#include "driver/verify.h"
#include "onnx/stages.h"

/// Models with host operators (on strings): they run in stages, compiled here and now.
namespace heddle::tool {

Result<bool> is_staged(const std::string& model);
Status run_staged(const ModelFlags& flags, const std::string& save);
/// Which operators run on the host, and what waits for them; or what `node` becomes.
Status explain_staged(const ModelFlags& flags, const std::string& node);

/// All stages on the model's test data or --input files. Host operators are plain code, with
/// nothing to be compared with.
struct StagedVerification {
  driver::Verification all;  ///< kernels and outputs of every stage
  std::size_t stages = 0;
  std::set<std::string> host;      ///< operators that ran on the host, "Op 'name'"
  std::optional<double> expected;  ///< largest error against test data, as a share of the scale
};
Result<StagedVerification> verify_staged(const ModelFlags& flags, const Tolerance& tolerance);

}  // namespace heddle::tool
