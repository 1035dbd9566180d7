#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "driver/driver.h"

namespace heddle::driver {

/// What has been fused with what, as EVT tells it of a training step: operators (forward, backward,
/// loss, update) and kernels, where reductions and the statistics of normalisations are computed,
/// and whether any kernel computes the loss alone.
nlohmann::json fusion_of(const Compiled& compiled);
/// The same as lines of text; empty unless the program is a training step.
std::string fusion_text(const nlohmann::json& fusion);

}  // namespace heddle::driver
