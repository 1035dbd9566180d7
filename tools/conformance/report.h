#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "conformance/cases.h"

namespace heddle::conformance {

/// A set's report: {"title", "summary": {status: count, "total"}, "cases": […]}.
std::string markdown_of(const nlohmann::json& sets, const Settings& settings);
/// What python/backend_test.py --json has counted, as a section of the same document.
std::string runner_section(const nlohmann::json& report);

}  // namespace heddle::conformance
