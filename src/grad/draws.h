#pragma once
#include <cstdint>
#include <string_view>

#include "prim/graph.h"

namespace heddle::grad {

/// The graph with random numbers that differ from draw to draw: each Random node becomes a function
/// of its seed, `seed` and a new input (i64, shape []) of this name, the number of the draw. It has
/// one value within a graph, so what a forward and a backward pass read agree wherever they compute
/// it. A graph that draws nothing is returned as it is.
prim::Graph with_draws(const prim::Graph& g, std::uint64_t seed, std::string_view input);

}  // namespace heddle::grad
