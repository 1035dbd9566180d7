#pragma once
#include <span>
#include <string_view>

#include "prim/graph.h"

namespace heddle::prim {

/// `equal` computes the same value as `node`, in another way that may be cheaper or dearer: the
/// orchestrator chooses.
struct Alternative {
  NodeId node, equal;
  std::string_view rule;
};

/// A way to compute values differently: adds nodes to the graph and says which equal which.
struct AlternativeRule {
  std::string_view name;
  std::string_view statement;
  std::vector<Alternative> (*find)(Graph& g);
};
std::span<const AlternativeRule> alternative_rules();
/// The row that multiplies zeros with what a position does not read, which strict accuracy does
/// without (an infinity there is not a number).
inline constexpr std::string_view kPositionsAsColumns = "positions-as-columns";
std::vector<Alternative> separable_extremes(Graph& g);
std::vector<Alternative> positions_as_columns(Graph& g);

/// Applies every row but those named in `disable`. The graph is only extended: existing ids and
/// outputs stay as they are.
std::vector<Alternative> find_alternatives(Graph& g, std::string_view disable = {});

/// Representative of each node's class (by id), for plan::Options::class_of. An alternative of an
/// alternative is in the same class.
std::vector<NodeId> classes_of(const Graph& g, std::span<const Alternative> alternatives);

}  // namespace heddle::prim
