#pragma once
#include <string>
#include <vector>

#include "prim/graph.h"

namespace heddle::conformance {

/// What the standard promises of the outputs of a case that draws random numbers: they are possible
/// values, and over many seeds their means are the right ones (6 standard errors). The means are
/// those of the graph's interpreter, which `found`, the engine's outputs, must agree with.
/// `arguments`: of the graph's inputs; `inputs`: the model's, by position.
Status check_drawn(const std::string& name, const prim::Graph& graph,
                   const std::vector<Tensor>& arguments, const std::vector<Tensor>& inputs,
                   const std::vector<Tensor>& found);

}  // namespace heddle::conformance
