#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "driver/driver.h"

namespace heddle::driver {

/// What has been fused with what, as EVT tells it of a training step: kernels and operators
/// (forward, backward), what is computed for the value of the loss alone, and where reductions, the
/// statistics of normalisations and the updates are computed. All of it counted in the plan.
nlohmann::json fusion_of(const Compiled& compiled);
/// The same as sentences; none unless the program is a training step.
std::vector<std::string> fusion_lines(const nlohmann::json& fusion);

}  // namespace heddle::driver
