#pragma once
#include <string>
#include <vector>

#include "prim/graph.h"

namespace heddle::prim {

/// Makes primitive nodes with inferred types. Arguments must already fit (the operator library
/// reports user errors before it calls the builder); a misfit is a bug and throws InternalError.
/// Elementwise functions broadcast their arguments as NumPy does, by inserting views.
class Builder {
 public:
  explicit Builder(Graph& graph) : graph_(graph) {}
  Graph& graph() { return graph_; }
  const TensorType& type(NodeId id) const { return graph_[id].type; }
  const Shape& shape(NodeId id) const { return graph_[id].type.shape; }
  DType dtype(NodeId id) const { return graph_[id].type.dtype; }
  int rank(NodeId id) const { return static_cast<int>(shape(id).size()); }

  // Leaves.
  NodeId constant(const Tensor& value) { return graph_.add_constant(value); }
  NodeId scalar(DType type, double value);            ///< shape []
  NodeId scalar_int(DType type, std::int64_t value);  ///< shape []
  NodeId full(TensorType type, double value);         ///< broadcast scalar
  NodeId iota(TensorType type, int axis);
  NodeId random(TensorType type, Random::Kind kind, std::uint64_t seed);
  NodeId all_reduce(NodeId x);  ///< on the next channel

  // Elementwise (broadcasting). Result dtype: that of the arguments, b1 for comparisons.
  NodeId map(ir::ScalarFn fn, std::vector<NodeId> args);
  NodeId cast(NodeId x, DType to);     ///< identity when the type is already `to`
  NodeId bitcast(NodeId x, DType to);  ///< ir::can_bitcast must hold
  NodeId select(NodeId condition, NodeId a, NodeId b);
  NodeId add(NodeId a, NodeId b) { return map(ir::ScalarFn::add, {a, b}); }
  NodeId sub(NodeId a, NodeId b) { return map(ir::ScalarFn::sub, {a, b}); }
  NodeId mul(NodeId a, NodeId b) { return map(ir::ScalarFn::mul, {a, b}); }
  NodeId div(NodeId a, NodeId b) { return map(ir::ScalarFn::div, {a, b}); }
  NodeId min(NodeId a, NodeId b) { return map(ir::ScalarFn::min, {a, b}); }
  NodeId max(NodeId a, NodeId b) { return map(ir::ScalarFn::max, {a, b}); }
  NodeId exp(NodeId x) { return map(ir::ScalarFn::exp, {x}); }
  NodeId log(NodeId x) { return map(ir::ScalarFn::log, {x}); }
  NodeId sqrt(NodeId x) { return map(ir::ScalarFn::sqrt, {x}); }
  NodeId tanh(NodeId x) { return map(ir::ScalarFn::tanh, {x}); }
  NodeId erf(NodeId x) { return map(ir::ScalarFn::erf, {x}); }
  NodeId neg(NodeId x) { return map(ir::ScalarFn::neg, {x}); }
  NodeId relu(NodeId x);
  NodeId sigmoid(NodeId x);  ///< 1 / (1 + exp(-x))
  /// Same, with a scalar of x's type: add(x, 1e-5), mul(x, 0.5).
  NodeId add(NodeId a, double b) { return add(a, scalar(dtype(a), b)); }
  NodeId sub(NodeId a, double b) { return sub(a, scalar(dtype(a), b)); }
  NodeId mul(NodeId a, double b) { return mul(a, scalar(dtype(a), b)); }
  NodeId div(NodeId a, double b) { return div(a, scalar(dtype(a), b)); }

  // Views. Axes may be negative in none of these: normalise first.
  NodeId view(NodeId x, Shape shape, Access access, double fill = 0);
  NodeId reshape(NodeId x, Shape shape);
  NodeId transpose(NodeId x, std::vector<int> order);
  NodeId broadcast(NodeId x, Shape shape);            ///< NumPy rules, aligned at the right
  NodeId unsqueeze(NodeId x, std::vector<int> axes);  ///< axes of the result, sorted
  NodeId squeeze(NodeId x, std::vector<int> axes);
  /// out[i] = x[start + i*step] per dimension; step may be negative, never 0.
  NodeId slice(NodeId x, Shape start, Shape size, Shape step);
  NodeId slice_axis(NodeId x, int axis, std::int64_t start, std::int64_t size,
                    std::int64_t step = 1);
  NodeId pad(NodeId x, Shape before, Shape after, double fill);
  NodeId concat(std::vector<NodeId> parts, int axis);
  NodeId stack(std::vector<NodeId> parts, int axis);
  NodeId flip(NodeId x, std::vector<int> axes);

  // Reductions. `keep` leaves extents of 1. mean and variance are two-pass (safe).
  NodeId reduce(ir::Monoid fn, NodeId x, std::vector<int> axes, bool keep = true);
  NodeId reduce_sum(NodeId x, std::vector<int> axes, bool keep = true) {
    return reduce(ir::Monoid::sum, x, std::move(axes), keep);
  }
  NodeId reduce_max(NodeId x, std::vector<int> axes, bool keep = true) {
    return reduce(ir::Monoid::max, x, std::move(axes), keep);
  }
  NodeId mean(NodeId x, std::vector<int> axes, bool keep = true);
  /// (x - mean) / sqrt(var + epsilon) over axes.
  NodeId normalize(NodeId x, std::vector<int> axes, double epsilon);
  NodeId softmax(NodeId x, std::vector<int> axes);  ///< max-subtracted

  // Contractions.
  /// General: `out` shape, reduction extents, accesses over (out dims, reductions).
  NodeId contract(NodeId lhs, NodeId rhs, Shape out, Shape reduced, Access lhs_access,
                  Access rhs_access, DType type);
  /// NumPy matmul with batch broadcasting; ranks ≥ 1.
  NodeId matmul(NodeId a, NodeId b);
  struct Conv {
    std::vector<std::int64_t> strides, dilations, pads_begin, pads_end;  ///< one per spatial dim
    std::int64_t groups = 1;
  };
  /// x [N, C, spatial…], w [O, C/groups, kernel…] → [N, O, spatial…]; pads are zeros.
  NodeId conv(NodeId x, NodeId w, const Conv& conv);
  /// w [C, O/groups, kernel…]; `out_spatial` fixes the output extents.
  NodeId conv_transpose(NodeId x, NodeId w, const Conv& conv, Shape out_spatial);
  /// Windows of x [N, C, spatial…] → [N, C, out spatial…, kernel…], `fill` outside.
  NodeId windows(NodeId x, Shape kernel, const Conv& conv, Shape out_spatial, double fill);

  // Data-dependent.
  NodeId gather(NodeId data, std::vector<NodeId> indices, Gather g, Shape out);
  /// ONNX Gather: data with `axis` replaced by the shape of `indices`; negative indices wrap.
  NodeId take(NodeId data, NodeId indices, int axis);
  /// ONNX GatherElements.
  NodeId take_along(NodeId data, NodeId indices, int axis);
  NodeId scatter(NodeId data, NodeId updates, std::vector<NodeId> indices, Scatter s);
  NodeId scan(ir::Monoid fn, NodeId x, int axis, bool exclusive, bool reverse);
  NodeId sort_indices(NodeId x, int axis, bool descending, std::int64_t count);

 private:
  Graph& graph_;
};

/// Infers what can be inferred and checks the rest: arity, dtype rules, shapes, accesses in bounds
/// by range analysis, topological order. The message names node, found and wanted.
Status verify(const Graph& g);

}  // namespace heddle::prim
