#include <numeric>

#include "ops/families.h"
#include "ops/util.h"

/// Activation functions and the softmax family, in numerically safe forms.
namespace heddle::ops {
namespace {

using ir::ScalarFn;

NodeId constant_like(Builder& b, NodeId x, double value) { return b.scalar(b.dtype(x), value); }
NodeId clamp01(Builder& b, NodeId x) {
  return b.min(b.max(x, constant_like(b, x, 0)), constant_like(b, x, 1));
}
NodeId positive(Builder& b, NodeId x) {
  return b.map(ScalarFn::greater, {x, constant_like(b, x, 0)});
}

Result<Values> relu(const Call& call, Builder& b) {
  HEDDLE_TRY(want_number(call, b, 0));
  return Values{b.relu(call.in(0))};
}

Result<Values> sigmoid(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  return Values{b.sigmoid(call.in(0))};
}

/// x where x > 0, else slope·x: at 0 the derivative is the slope, as PyTorch's is.
NodeId leaky(Builder& b, NodeId x, NodeId slope) {
  return b.select(b.map(ScalarFn::greater, {x, constant_like(b, x, 0)}), x, b.mul(x, slope));
}

Result<Values> leaky_relu(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  const NodeId x = call.in(0);
  return Values{leaky(b, x, constant_like(b, x, call.attribute_float("alpha", 0.01)))};
}

/// Before opset 7 the slope had one value per channel and no broadcast dimensions.
Result<Values> prelu(const Call& call, Builder& b) {
  HEDDLE_TRY(want_number(call, b, 0));
  NodeId x = call.in(0), slope = call.in(1);
  if (b.dtype(slope) != b.dtype(x))
    return call.error("input 1 is {}, want {}", name_of(b.dtype(slope)), name_of(b.dtype(x)));
  auto shape = broadcast_shapes(b.shape(slope), b.shape(x));
  if ((!shape || *shape != b.shape(x)) && b.rank(slope) == 1 && b.rank(x) >= 2 &&
      at(b.shape(slope), 0) == at(b.shape(x), 1)) {
    Shape per_channel(static_cast<std::size_t>(b.rank(x) - 1), 1);
    per_channel[0] = at(b.shape(slope), 0);
    slope = b.reshape(slope, per_channel);
    shape = b.shape(x);
  }
  if (!shape || *shape != b.shape(x))
    return call.error("input 1 has shape {}, want one that broadcasts to {}",
                      to_string(b.shape(slope)), to_string(b.shape(x)));
  return Values{leaky(b, x, slope)};
}

/// alpha·(exp(x) - 1) below zero and at it; the argument of exp is 0 above, so that no branch
/// overflows.
NodeId elu_like(Builder& b, NodeId x, double alpha, double inner) {
  const NodeId below = b.select(positive(b, x), constant_like(b, x, 0), x);
  const NodeId e = b.exp(b.mul(below, inner));
  return b.select(positive(b, x), x, b.mul(b.sub(e, 1.0), alpha));
}
Result<Values> elu(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  return Values{elu_like(b, call.in(0), call.attribute_float("alpha", 1), 1)};
}
Result<Values> celu(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  const double alpha = call.attribute_float("alpha", 1);
  if (alpha == 0) return call.error("alpha is 0");
  return Values{elu_like(b, call.in(0), alpha, 1 / alpha)};
}
Result<Values> selu(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  const double alpha = call.attribute_float("alpha", 1.67326319217681884765625),
               gamma = call.attribute_float("gamma", 1.05070102214813232421875);
  return Values{b.mul(elu_like(b, call.in(0), alpha, 1), gamma)};
}

Result<Values> hard_sigmoid(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  return Values{clamp01(b, b.add(b.mul(call.in(0), call.attribute_float("alpha", 0.2)),
                                 call.attribute_float("beta", 0.5)))};
}
Result<Values> hard_swish(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  return Values{b.mul(call.in(0), clamp01(b, b.add(b.mul(call.in(0), 1.0 / 6), 0.5)))};
}

/// log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|)), by choices whose derivatives are right at 0.
NodeId softplus_of(Builder& b, NodeId x) {
  const NodeId above = positive(b, x);
  const NodeId tail = b.log(b.add(b.exp(b.select(above, b.neg(x), x)), 1.0));
  return b.add(b.select(above, x, constant_like(b, x, 0)), tail);
}
Result<Values> softplus(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  return Values{softplus_of(b, call.in(0))};
}
/// Attributes alpha and beta, which ParametricSoftplus and ScaledTanh have no defaults for.
Status want_alpha_beta(const Call& call, Builder& b) {
  for (const char* key : {"alpha", "beta"})
    if (!call.has_attribute(key)) return call.error("attribute {} is missing", key);
  return want_float(call, b, 0);
}
Result<Values> parametric_softplus(const Call& call, Builder& b) {
  HEDDLE_TRY(want_alpha_beta(call, b));
  const NodeId inner = b.mul(call.in(0), call.attribute_float("beta", 1));
  return Values{b.mul(softplus_of(b, inner), call.attribute_float("alpha", 1))};
}
Result<Values> scaled_tanh(const Call& call, Builder& b) {
  HEDDLE_TRY(want_alpha_beta(call, b));
  const NodeId inner = b.mul(call.in(0), call.attribute_float("beta", 1));
  return Values{b.mul(b.tanh(inner), call.attribute_float("alpha", 1))};
}
Result<Values> softsign(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  return Values{b.div(call.in(0), b.add(b.map(ScalarFn::abs, {call.in(0)}), 1.0))};
}
Result<Values> mish(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  return Values{b.mul(call.in(0), b.tanh(softplus_of(b, call.in(0))))};
}
Result<Values> swish(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  return Values{b.mul(call.in(0), b.sigmoid(b.mul(call.in(0), call.attribute_float("alpha", 1))))};
}
Result<Values> thresholded_relu(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  const NodeId x = call.in(0), zero = constant_like(b, x, 0);
  const NodeId above =
      b.map(ScalarFn::greater, {x, constant_like(b, x, call.attribute_float("alpha", 1))});
  return Values{b.select(above, x, zero)};
}
Result<Values> shrink(const Call& call, Builder& b) {
  HEDDLE_TRY(want_number(call, b, 0));
  const NodeId x = call.in(0);
  const double lambda = call.attribute_float("lambd", 0.5), bias = call.attribute_float("bias", 0);
  const NodeId low = b.map(ScalarFn::less, {x, constant_like(b, x, -lambda)});
  const NodeId high = b.map(ScalarFn::greater, {x, constant_like(b, x, lambda)});
  return Values{
      b.select(low, b.add(x, bias), b.select(high, b.sub(x, bias), constant_like(b, x, 0)))};
}

/// x/2·(1 + erf(x/√2)), or the tanh approximation.
Result<Values> gelu(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  const NodeId x = call.in(0);
  const int approximate = HEDDLE_TRY(choice(call, "approximate", "none", {"none", "tanh"}));
  NodeId inner;
  if (approximate == 1) {
    const NodeId cube = b.mul(b.mul(x, x), x);
    inner = b.tanh(b.mul(b.add(x, b.mul(cube, 0.044715)), 0.7978845608028654));
  } else {
    inner = b.erf(b.mul(x, 0.7071067811865476));
  }
  return Values{b.mul(b.mul(x, 0.5), b.add(inner, 1.0))};
}

/// The axes of a softmax: one from opset 13 on; before, all from `axis` to the end.
Result<std::vector<int>> softmax_axes(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  const int rank = b.rank(call.in(0));
  if (rank == 0) return std::vector<int>{};
  const bool flattened = call.opset < 13;
  const std::int64_t given = call.attribute_int("axis", flattened ? 1 : -1);
  if (flattened && given == rank) return std::vector<int>{};  // each element its own group
  const int axis = HEDDLE_TRY(call.normalize_axis(given, rank));
  std::vector<int> axes(flattened ? static_cast<std::size_t>(rank - axis) : 1);
  std::iota(axes.begin(), axes.end(), axis);
  return axes;
}

Result<Values> softmax(const Call& call, Builder& b) {
  return Values{b.softmax(call.in(0), HEDDLE_TRY(softmax_axes(call, b)))};
}

/// x - max - log(sum(exp(x - max)))
Result<Values> log_softmax(const Call& call, Builder& b) {
  const std::vector<int> axes = HEDDLE_TRY(softmax_axes(call, b));
  const NodeId centred = b.sub(call.in(0), b.reduce_max(call.in(0), axes));
  return Values{b.sub(centred, b.log(b.reduce_sum(b.exp(centred), axes)))};
}

/// 1 at the first maximum along the axes, 0 elsewhere.
Result<Values> hardmax(const Call& call, Builder& b) {
  const NodeId x = call.in(0);
  const std::vector<int> axes = HEDDLE_TRY(softmax_axes(call, b));
  const Shape shape = b.shape(x);
  // The group becomes one axis, so that "first" is a position along it.
  Shape flat(shape.begin(),
             shape.end() - static_cast<std::ptrdiff_t>(axes.size() > 1 ? axes.size() : 0));
  if (axes.size() > 1)
    flat.push_back(
        element_count({shape.end() - static_cast<std::ptrdiff_t>(axes.size()), shape.end()}));
  const int axis = axes.size() == 1 ? axes[0] : static_cast<int>(flat.size()) - 1;
  if (axes.empty()) return Values{b.full(b.type(x), 1)};
  if (element_count(shape) == 0) return Values{x};
  const NodeId grouped = b.reshape(x, axes.size() > 1 ? flat : shape);
  const NodeId first = b.reduce(ir::Monoid::argmax, grouped, {axis}, true);
  const NodeId here = b.iota({DType::i64, b.shape(grouped)}, axis);
  return Values{b.reshape(b.cast(b.map(ScalarFn::equal, {here, first}), b.dtype(x)), shape)};
}

constexpr OpDef kActivationOps[] = {
    {"Relu", 1, 1, 1, relu},
    {"Sigmoid", 1, 1, 1, sigmoid},
    {"LeakyRelu", 1, 1, 1, leaky_relu},
    {"PRelu", 1, 2, 2, prelu},
    {"Elu", 1, 1, 1, elu},
    {"Celu", 12, 1, 1, celu},
    {"Selu", 1, 1, 1, selu},
    {"HardSigmoid", 1, 1, 1, hard_sigmoid},
    {"HardSwish", 14, 1, 1, hard_swish},
    {"Softplus", 1, 1, 1, softplus},
    {"ParametricSoftplus", 1, 1, 1, parametric_softplus},
    {"ScaledTanh", 1, 1, 1, scaled_tanh},
    {"Softsign", 1, 1, 1, softsign},
    {"Mish", 18, 1, 1, mish},
    {"Swish", 24, 1, 1, swish},
    {"ThresholdedRelu", 1, 1, 1, thresholded_relu},
    {"Shrink", 9, 1, 1, shrink},
    {"Gelu", 20, 1, 1, gelu},
    {"Softmax", 1, 1, 1, softmax},
    {"LogSoftmax", 1, 1, 1, log_softmax},
    {"Hardmax", 1, 1, 1, hardmax},
};

}  // namespace

std::span<const OpDef> activation_ops() { return kActivationOps; }

}  // namespace heddle::ops
