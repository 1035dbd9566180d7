#pragma once
#include <functional>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "lower/lower.h"

namespace heddle::lower {

/// The literal that stands for a constant node: scalars, and small tensors of one repeated element.
/// Such nodes are no arguments of a kernel.
std::optional<kernel::Value> inlined_constant(const prim::Graph& g, NodeId id);

/// Values of primitives at symbolic positions, as kernel expressions: maps and views inside the
/// cluster are substituted, what lies in memory is loaded through its layout. Equal positions give
/// the same node, so shared subexpressions are computed once.
class Evaluator {
 public:
  using Index = std::vector<ir::Expr>;
  using Conditions = std::vector<ir::Condition>;
  /// The value of a node at a position that is used only where `conditions` hold.
  using Binding = std::function<kernel::Value(const Index& index, const Conditions& conditions)>;
  /// The value of a node that is no pointwise function of others (Reduce, Contract).
  using Reducer =
      std::function<kernel::Value(NodeId node, const Index& index, const Conditions& conditions)>;
  /// Sees every pointwise value that is computed; may put another in its place.
  using Observer =
      std::function<kernel::Value(NodeId node, const Index& index, const kernel::Value& value)>;

  explicit Evaluator(const prim::Graph& g) : g_(g) {}

  /// `node` lies in memory.
  void place(NodeId node, kernel::BufferId buffer, Layout layout);
  bool placed(NodeId node) const { return places_.contains(node); }
  /// `node` is given by `f`, whatever its definition.
  void bind(NodeId node, Binding f) { bound_[node] = std::move(f); }
  void set_reducer(Reducer f) { reducer_ = std::move(f); }
  void set_observer(Observer f) { observer_ = std::move(f); }
  /// Called before a pointwise node is evaluated; a value ends the evaluation there.
  using Lookup = std::function<kernel::Value(NodeId node, const Index& index)>;
  void set_lookup(Lookup f) { lookup_ = std::move(f); }

  /// Ranges of the kernel's variables, used to simplify what is built from now on.
  ir::Ranges& ranges() { return ranges_; }
  const ir::Ranges& ranges() const { return ranges_; }
  ir::Expr simplified(const ir::Expr& e) const { return ir::simplify(e, ranges_); }

  /// The value in the node's compute type.
  kernel::Value at(NodeId node, const Index& index);
  kernel::Value at(NodeId node, const Index& index, const Conditions& conditions);
  /// A load from the place of `node`.
  kernel::Value load(NodeId node, const Index& index,
                     std::vector<kernel::Load::Dynamic> dynamic = {},
                     const std::vector<bool>& dynamic_dimension = {});
  /// Forgets what was built: the next values are new nodes.
  void clear();

 private:
  struct Key {
    NodeId node;
    Index index;
    Conditions conditions;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& k) const;
  };
  struct Place {
    kernel::BufferId buffer;
    Layout layout;
  };
  kernel::Value compute(NodeId node, const Index& index, const Conditions& under);
  kernel::Value view(const prim::View& v, const prim::Node& node, const Index& index,
                     const Conditions& under);
  kernel::Value gather(const prim::Gather& x, const prim::Node& node, const Index& index,
                       const Conditions& under);
  bool in_range(NodeId node, const Index& index) const;

  const prim::Graph& g_;
  ir::Ranges ranges_;
  std::map<NodeId, Place> places_;
  std::map<NodeId, Binding> bound_;
  Reducer reducer_;
  Observer observer_;
  Lookup lookup_;
  std::unordered_map<Key, kernel::Value, KeyHash> memo_;
  std::map<std::pair<kernel::BufferId, ir::Expr>, kernel::Value> loads_;
};

kernel::Value index_value(ir::Expr e);
/// `v` as `type`; `v` itself if it is that already.
kernel::Value cast_to(kernel::Value v, DType type);

}  // namespace heddle::lower
