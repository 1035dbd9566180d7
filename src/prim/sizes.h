#pragma once
#include <span>
#include <string>
#include <vector>

#include "prim/graph.h"
#include "support/result.h"

namespace heddle::prim {

/// What a graph for several sizes is given beside the model's own inputs: extents, and constants
/// that are not the same for every size.
struct SizeInput {
  std::string name;
  std::vector<Tensor> values;  ///< by case
};
struct Sizes {
  Graph graph;
  std::vector<SizeInput> given;  ///< the last inputs of the graph, in order
};
/// Why there is none, and the first case that does not fit.
struct Misfit {
  Error error;
  std::size_t case_number = 0;
};

/// One graph of static shapes for a model at several sizes of its inputs. `cases` are the model's
/// graphs at these sizes; `largest` is the one whose extents are nowhere exceeded. In the result
/// every value has the largest extents and holds, in its first positions along each dimension, what
/// the graph of the case that the size inputs are of computes; the rest is padding, which no
/// position before it depends on: where values are summed, searched, sorted or read beyond the end,
/// padding is replaced by what does not count.
///
/// Nothing is assumed about how extents depend on sizes: the cases themselves are compared, node by
/// node, so what holds for them is proven, and cases that differ in more than extents, numbers and
/// constants do not fit.
Result<Sizes> merge_sizes(std::span<const Graph> cases, std::size_t largest, Misfit* misfit);

}  // namespace heddle::prim
