#pragma once
#include <functional>
#include <optional>

#include "plan/facts.h"

namespace heddle::plan {

/// A convolution of each channel alone, its filter constant, as CPUs have kernels for; the image is
/// the argument returned.
std::optional<NodeId> image_of_channels(const Facts& f, NodeId contract);
/// Whether a value is read from memory as what it is or as fewer bits of the same numbers, perhaps
/// padded, in a kernel that makes what is `local`.
bool is_stored(const Facts& f, const std::function<bool(NodeId)>& local, NodeId id);
/// What lower::contract::lower_depthwise takes, where the image lies channels-last.
bool is_depthwise(const Facts& f, const Cluster& c);

}  // namespace heddle::plan
