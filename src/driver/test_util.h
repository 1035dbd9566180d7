#pragma once
#include <fmt/format.h>

#include "prim/graph.h"

namespace heddle::driver {

/// The graph's next input.
inline prim::NodeId in(prim::Graph& g, Shape shape, DType type = DType::f32) {
  return g.add_input(fmt::format("x{}", g.inputs.size()), {type, std::move(shape)});
}

}  // namespace heddle::driver
