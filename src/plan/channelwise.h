#pragma once
#include <optional>

#include "plan/facts.h"

namespace heddle::plan {

/// A convolution of each channel alone, its filter constant, as CPUs have kernels for; the image is
/// the argument returned.
std::optional<NodeId> image_of_channels(const Facts& f, NodeId contract);
/// What lower::contract::lower_depthwise takes, where the image lies channels-last.
bool is_depthwise(const Facts& f, const Cluster& c);

}  // namespace heddle::plan
