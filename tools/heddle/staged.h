#pragma once
#include <string>

#include "common.h"
#include "onnx/stages.h"

/// Models with host operators (on strings): they run in stages, compiled here and now.
namespace heddle::tool {

Result<bool> is_staged(const std::string& model);
Status run_staged(const ModelFlags& flags, const std::string& save);
/// Which operators run on the host, and what waits for them.
Status explain_staged(const ModelFlags& flags);

}  // namespace heddle::tool
