#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "conformance/cases.h"

namespace heddle::conformance {

/// A set's report: {"title", "summary": {status: count, "total"}, "cases": […]}.
std::string markdown_of(const nlohmann::json& sets, const Settings& settings);

}  // namespace heddle::conformance
