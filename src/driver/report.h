#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "driver/platform.h"

namespace heddle::driver {

/// What `explain` shows, kept in the artefact so that a compiled file explains itself: plan totals,
/// and per kernel its sources, schedule, cost with provenance, traffic, and rejected alternatives.
nlohmann::json report_of(const Compiled& compiled, const Platform& platform);
/// The report as text for a terminal. `node`: only kernels that cover this source node, in detail.
/// `top`: only that many, dearest first (0: all, in execution order).
Result<std::string> explain_text(const nlohmann::json& report, const std::string& node, int top);
/// The operators that a kernel of the report covers, "Conv + Relu +1 more" of `limit` at most.
std::string sources_text(const nlohmann::json& kernel, std::size_t limit);
/// "4 concatenations stored part by part, without a kernel"; empty where there are none.
std::string joins_text(const nlohmann::json& report);
/// A self-contained page: the plan's picture, a table of kernels, details on demand.
std::string explain_html(const nlohmann::json& report);

}  // namespace heddle::driver
