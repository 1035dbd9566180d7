#pragma once
#include <span>
#include <string>
#include <vector>

#include "prim/graph.h"
#include "support/result.h"

namespace heddle::prim {

/// Live collectives in the order of their channels.
std::vector<NodeId> collectives(const Graph& g);

/// An error that names the first collective among `nodes`: kernels are of one process.
Status want_no_collective(const Graph& g, std::span<const NodeId> nodes);

/// A graph in two at its collectives, each a program of one process.
struct SplitGraph {
  /// Outputs: those that no collective reaches, then what collectives sum, by channel.
  Graph before;
  /// The other outputs; sums are inputs. What both need is computed in both.
  Graph after;
  std::vector<std::size_t> summed;  ///< outputs of `before` that are to be summed
};
/// `names`: of the sums, in the order of collectives(). An input that neither needs is before's.
/// Error: a collective that needs another one's sum.
Result<SplitGraph> split_at_collectives(const Graph& g, std::span<const std::string> names);

/// interpret() in several processes at once, each with inputs of its own: what each gives. Sums are
/// over all of them; interpret() itself is a process alone.
Result<std::vector<std::vector<Tensor>>> interpret_ranks(
    const Graph& g, const std::vector<std::vector<Tensor>>& inputs);

}  // namespace heddle::prim
