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

class Evaluator;

/// One reduction at one position: term(r) combined over all r in `extents`.
struct Reduction {
  ir::Monoid fn = ir::Monoid::sum;
  DType type = DType::f32;  ///< a compute type
  Shape extents;
  std::function<kernel::Value(Evaluator& values, const std::vector<ir::Expr>& r)> term;
  /// What the position depends on: the variables of these are bound where the result is used.
  std::vector<ir::Expr> depends;
  NodeId node;  ///< none: not a node's own reduction
};

/// Values of primitives at symbolic positions, as kernel expressions: maps and views inside the
/// cluster are substituted, what lies in memory is loaded through its layout. Equal positions give
/// the same node, so shared subexpressions are computed once.
class Evaluator {
 public:
  using Index = std::vector<ir::Expr>;
  using Conditions = std::vector<ir::Condition>;
  /// The value of a node at a position that is used only where `conditions` hold.
  using Binding = std::function<kernel::Value(Evaluator& values, const Index& index,
                                              const Conditions& conditions)>;
  /// Turns a reduction into a value: emits loops, or only looks at the terms.
  using Combine = std::function<kernel::Value(const Reduction&)>;
  /// Sees every value that is computed under no condition.
  using Observer = std::function<void(NodeId node, const Index& index, const kernel::Value& value)>;
  /// Asked before a node is computed; a value (not null) is used instead.
  using Lookup = std::function<kernel::Value(NodeId node, const Index& index)>;

  explicit Evaluator(const prim::Graph& g) : g_(g) {}

  /// `node` lies in memory.
  void place(NodeId node, kernel::BufferId buffer, Layout layout);
  bool placed(NodeId node) const { return places_.contains(node); }
  /// `node` is given by `f`, whatever its definition.
  void bind(NodeId node, Binding f) { bound_[node] = std::move(f); }
  void set_combine(Combine f) { combine_ = std::move(f); }
  kernel::Value reduce(const Reduction& r) { return combine_(r); }
  void set_observer(Observer f) { observer_ = std::move(f); }
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
  /// Forgets all but the values of reductions: the others may be given differently from now on.
  void forget_pointwise() { memo_.clear(); }
  /// Same places, bindings and ranges; nothing built, no hooks.
  Evaluator blank() const;

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
  std::optional<NodeId> before_bytes(NodeId id) const;
  kernel::Value view(const prim::View& v, const prim::Node& node, const Index& index,
                     const Conditions& under);
  kernel::Value gather(const prim::Gather& x, const prim::Node& node, const Index& index,
                       const Conditions& under);
  Conditions needed(NodeId node, const Index& index, const Conditions& conditions) const;

  const prim::Graph& g_;
  ir::Ranges ranges_;
  std::map<NodeId, Place> places_;
  std::map<NodeId, Binding> bound_;
  Combine combine_;
  Observer observer_;
  Lookup lookup_;
  using Memo = std::unordered_map<Key, kernel::Value, KeyHash>;
  Memo memo_, reduced_;
  std::map<std::pair<kernel::BufferId, ir::Expr>, kernel::Value> loads_;
};

kernel::Value index_value(ir::Expr e);
/// `v` as `type`; `v` itself if it is that already.
kernel::Value cast_to(kernel::Value v, DType type);

/// A value as the next argument of `out`; its buffer is made in `kernel`, which becomes out.kernel.
kernel::BufferId add_argument(const prim::Graph& g, NodeId node, const Layout& layout, bool written,
                              kernel::Kernel& kernel, Lowered& out);
/// What `cluster` reads from memory as arguments, placed where `values` reads it.
void add_inputs(const Request& request, const Cluster& cluster, kernel::Kernel& kernel,
                Lowered& out, Evaluator& values);

}  // namespace heddle::lower
