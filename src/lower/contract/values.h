#pragma once
#include "lower/contract/problem.h"
#include "lower/evaluate.h"

namespace heddle::lower::contract {

/// Sum and difference of two values of a type.
inline kernel::Value plus(const kernel::Value& x, const kernel::Value& y) {
  return kernel::apply(ir::ScalarFn::add, {x, y}, x->dtype);
}
inline kernel::Value minus(const kernel::Value& x, const kernel::Value& y) {
  return kernel::apply(ir::ScalarFn::sub, {x, y}, x->dtype);
}

/// The cluster's values at symbolic positions, with its inputs in buffers of the kernel.
class Values {
 public:
  Values(const Request& request, kernel::Kernel& kernel, const ir::Ranges& ranges);

  /// `node` at any position is given by `f` instead of by its definition.
  using Binding = std::function<kernel::Value(const std::vector<ir::Expr>& index)>;
  void bind(NodeId node, Binding f);
  /// In the compute type of the node.
  kernel::Value at(NodeId node, const std::vector<ir::Expr>& index);
  /// The same under conditions, zero elsewhere. With `parts` several integers or values of bf16, as
  /// kernel::packed.
  kernel::Value at(NodeId node, const prim::Access& access, std::optional<PartsOf> parts = {});

  struct Input {
    NodeId node;
    kernel::BufferId buffer;
    Layout layout;
  };
  const std::vector<Input>& inputs() const { return inputs_; }

 private:
  /// Zero where the access's own conditions do not hold; `around`: those that do.
  kernel::Value guarded(NodeId node, const prim::Access& access,
                        const std::vector<ir::Condition>& around);
  /// True if storing the value as bf16 loses nothing.
  bool is_bf16(const kernel::Value& v) const;
  kernel::Value part_of_word(kernel::Value v) const;
  const prim::Graph& g_;
  Evaluator evaluator_;
  std::vector<Input> inputs_;
};

}  // namespace heddle::lower::contract
