#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "driver/driver.h"

namespace heddle::driver {

/// Says of each buffer which primitive's work it holds, where that is one: what values say is
/// theirs, else, for copies and tiles of products, the first contraction that needs what flows
/// there.
void name_origins(lower::Lowered& lowered, const lower::Cluster& cluster, const prim::Graph& graph);

/// Which lines of a kernel's text compute which primitive: {"lines": [[first, last, primitive], …],
/// "primitives": {"12": {"text": "Softmax 'attn'", "primitive": …, "sources": […]}}}; from line 1.
nlohmann::json source_map(const prim::Graph& graph, const std::vector<std::int32_t>& origins);
/// The text (as it is where there is no map) with "// %12 Softmax 'attn'" behind each first line of
/// a primitive.
std::string annotated(const std::string& source, const nlohmann::json& map);

}  // namespace heddle::driver
