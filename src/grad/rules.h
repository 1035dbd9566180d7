#pragma once
#include <optional>

#include "prim/builder.h"

namespace heddle::grad {

using prim::Builder;
using prim::NodeId;

/// What a rule sees: a node, its adjoint, and where the adjoints of its arguments go.
struct Context {
  prim::Graph& g;
  Builder b;
  NodeId id;       ///< the node
  prim::Node n;    ///< a copy: the graph grows meanwhile
  NodeId adjoint;  ///< of the node
  /// Adds to the adjoint of argument k (a value of its shape and type).
  std::function<void(std::size_t k, NodeId value)> add;
  /// The same for a value that the node depends on through others.
  std::function<void(NodeId id, NodeId value)> add_through;
  /// True if none is asked for that of a value between, which such a rule would pass by.
  bool may_go_through = true;
  /// True if argument k depends on what is differentiated for; work for others is wasted.
  std::function<bool(std::size_t k)> wanted;
};

// One rule for each kind of primitive. An error says what has no derivative.
Status differentiate(Context& c, const prim::Map& op);
Status differentiate(Context& c, const prim::View& op);
Status differentiate(Context& c, const prim::Contract& op);
Status differentiate(Context& c, const prim::Gather& op);
Status differentiate(Context& c, const prim::Scatter& op);
Status differentiate(Context& c, const prim::Reduce& op);
Status differentiate(Context& c, const prim::Scan& op);
Status differentiate(Context& c, const prim::AllReduce& op);

/// Of y = e / Σ e or e · 1/(Σ e), e = exp(t), straight to t: y · (d - Σ d·y), which reads y alone.
/// False if the node is no such product or quotient.
bool softmax(Context& c);

/// True if the result does not change when `extreme`, a maximum that is subtracted before exp in a
/// softmax or log-softmax, changes: its derivative is 0 and is not computed.
bool cancels(const prim::Graph& g, NodeId extreme,
             const std::vector<std::vector<NodeId>>& consumers);

}  // namespace heddle::grad
