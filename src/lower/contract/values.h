#pragma once
#include <map>

#include "lower/lower.h"

namespace heddle::lower::contract {

/// Values of primitives at symbolic positions, as kernel expressions: maps and views inside the
/// cluster are substituted, inputs are loads from argument buffers with their layouts.
class Values {
 public:
  Values(const Request& request, kernel::Kernel& kernel, const ir::Ranges& ranges)
      : request_(request), g_(*request.graph), kernel_(kernel), ranges_(ranges) {}

  /// `node` at any position is given by `f` instead of by its definition.
  using Binding = std::function<kernel::Value(const std::vector<ir::Expr>& index)>;
  void bind(NodeId node, Binding f) { bound_[node] = std::move(f); }
  void set_ranges(const ir::Ranges& ranges) { ranges_ = ranges; }

  /// Converted to the compute type of the node.
  kernel::Value at(NodeId node, const std::vector<ir::Expr>& index);
  /// The same under conditions, zero elsewhere.
  kernel::Value at(NodeId node, const prim::Access& access);

  struct Input {
    NodeId node;
    kernel::BufferId buffer;
    Layout layout;
  };
  const std::vector<Input>& inputs() const { return inputs_; }

 private:
  bool inside(NodeId node) const;
  kernel::Value compute(NodeId node, const std::vector<ir::Expr>& index);
  kernel::Value view(const prim::View& v, const prim::Node& node, const std::vector<ir::Expr>& index);
  kernel::Value gather(const prim::Gather& x, const prim::Node& node,
                       const std::vector<ir::Expr>& index);
  kernel::Value input(NodeId node, const std::vector<ir::Expr>& index,
                      std::vector<kernel::Load::Dynamic> dynamic,
                      const std::vector<int>& dynamic_axes);
  const Input& input_of(NodeId node);

  const Request& request_;
  const prim::Graph& g_;
  kernel::Kernel& kernel_;
  ir::Ranges ranges_;
  std::map<NodeId, Binding> bound_;
  std::map<std::pair<NodeId, std::vector<ir::Expr>>, kernel::Value> memo_;
  std::vector<Input> inputs_;
};

}  // namespace heddle::lower::contract
