#include "ops/families.h"
#include "ops/window.h"

/// Normalisation, and dropout as it is at inference.
namespace heddle::ops {
namespace {

using ir::ScalarFn;

/// scale·(x - mean)/sqrt(var + ε) + bias with running statistics. From opset 14 on training_mode
/// normalises by the batch and gives updated statistics.
Result<Values> batch_normalization(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  HEDDLE_TRY(want_rank(call, b, 0, 2, 8));
  const NodeId x = call.in(0);
  const int rank = b.rank(x);
  for (int i = 1; i < 5; ++i) HEDDLE_TRY(want_channels(call, b, i, at(b.shape(x), 1)));
  if (call.opset < 9 && call.attribute_int("spatial", 1) == 0)
    return call.unsupported("spatial = 0 is not supported, want statistics per channel");
  const double epsilon = call.attribute_float("epsilon", 1e-5);
  const auto channel = [&](int i) { return per_channel(b, b.cast(call.in(i), b.dtype(x)), rank); };
  const bool training =
      call.opset >= 14
          ? call.attribute_int("training_mode", 0) != 0
          : call.opset < 7 && call.attribute_int("is_test", 0) == 0 && call.outputs > 1;
  NodeId mean = channel(3), variance = channel(4);
  Values extra;
  if (training) {
    std::vector<int> axes = axes_from(2, rank);
    axes.insert(axes.begin(), 0);
    const double momentum = call.attribute_float("momentum", 0.9);
    const NodeId batch_mean = b.mean(x, axes), centred = b.sub(x, batch_mean);
    const NodeId batch_variance = b.mean(b.mul(centred, centred), axes);
    const auto running = [&](NodeId old, NodeId now) {
      return b.reshape(b.add(b.mul(old, momentum), b.mul(now, 1 - momentum)), {at(b.shape(x), 1)});
    };
    extra = {running(mean, batch_mean), running(variance, batch_variance)};
    mean = batch_mean;
    variance = batch_variance;
  } else if (call.outputs > 1) {
    extra = {call.in(3), call.in(4), call.in(3), call.in(4)};
  }
  const NodeId factor = b.div(channel(1), b.sqrt(b.add(variance, epsilon)));
  // With running statistics factor and shift are per channel, so two operations per element.
  Values values{training ? b.add(b.mul(b.sub(x, mean), factor), channel(2))
                         : b.add(b.mul(x, factor), b.sub(channel(2), b.mul(mean, factor)))};
  values.insert(values.end(), extra.begin(), extra.end());
  return values;
}

Result<Values> instance_normalization(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  HEDDLE_TRY(want_rank(call, b, 0, 3, 8));
  const NodeId x = call.in(0);
  for (int i = 1; i < 3; ++i) {
    HEDDLE_TRY(want_channels(call, b, i, at(b.shape(x), 1)));
    HEDDLE_TRY(want_like(call, b, i));
  }
  const NodeId y = b.normalize(x, axes_from(2, b.rank(x)), call.attribute_float("epsilon", 1e-5));
  return Values{b.add(b.mul(y, per_channel(b, call.in(1), b.rank(x))),
                      per_channel(b, call.in(2), b.rank(x)))};
}

/// Scale and bias must broadcast to the input, not beyond it.
Result<NodeId> affine(const Call& call, Builder& b, NodeId y) {
  for (int i = 1; i < 3; ++i) {
    if (!call.has(i)) continue;
    const auto shape = broadcast_shapes(b.shape(call.in(i)), b.shape(y));
    if (!shape || *shape != b.shape(y))
      return call.error("input {} has shape {}, want one that broadcasts to {}", i,
                        to_string(b.shape(call.in(i))), to_string(b.shape(y)));
    const NodeId v = b.cast(call.in(i), b.dtype(y));
    y = i == 1 ? b.mul(y, v) : b.add(y, v);
  }
  return y;
}

/// The type that statistics are computed in: stash_type 1 asks for f32 at least.
DType stash_type(const Call& call, Builder& b) {
  const DType type = b.dtype(call.in(0));
  return call.attribute_int("stash_type", 1) == 1 && type != DType::f64 ? DType::f32 : type;
}

Result<Values> layer_normalization(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  HEDDLE_TRY(want_rank(call, b, 0, 1, 8));
  const NodeId x = b.cast(call.in(0), stash_type(call, b));
  const std::vector<int> axes = axes_from(HEDDLE_TRY(call.axis("axis", -1, b.rank(x))), b.rank(x));
  const NodeId mean = b.mean(x, axes), centred = b.sub(x, mean);
  const NodeId variance = b.mean(b.mul(centred, centred), axes);
  // One reciprocal per row instead of one division per element.
  const NodeId inverse =
      b.map(ScalarFn::recip, {b.sqrt(b.add(variance, call.attribute_float("epsilon", 1e-5)))});
  const NodeId y = b.cast(b.mul(centred, inverse), b.dtype(call.in(0)));
  Values values{HEDDLE_TRY(affine(call, b, y))};
  if (call.outputs > 1) values.push_back(mean);
  if (call.outputs > 2) values.push_back(inverse);
  return values;
}

/// Normalises groups of channels; scale and bias are per channel (opset 21) or per group (18).
Result<Values> group_normalization(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  HEDDLE_TRY(want_rank(call, b, 0, 2, 8));
  const NodeId input = call.in(0);
  const Shape shape = b.shape(input);
  const std::int64_t groups = call.attribute_int("num_groups", 0);
  if (groups < 1 || shape[1] % groups != 0)
    return call.error("num_groups is {} for {} channels", groups, shape[1]);
  const std::int64_t wanted = call.opset >= 21 ? shape[1] : groups;
  for (int i = 1; i < 3; ++i) HEDDLE_TRY(want_channels(call, b, i, wanted));
  const NodeId x = b.cast(input, stash_type(call, b));
  Shape grouped{shape[0], groups, shape[1] / groups};
  grouped.insert(grouped.end(), shape.begin() + 2, shape.end());
  NodeId y =
      b.cast(b.normalize(b.reshape(x, grouped), axes_from(2, static_cast<int>(grouped.size())),
                         call.attribute_float("epsilon", 1e-5)),
             b.dtype(input));
  if (call.opset >= 21) y = b.reshape(y, shape);
  const int rank = b.rank(y);
  y = b.add(b.mul(y, per_channel(b, b.cast(call.in(1), b.dtype(y)), rank)),
            per_channel(b, b.cast(call.in(2), b.dtype(y)), rank));
  return Values{b.reshape(y, shape)};
}

/// x / (bias + alpha/size · Σ over neighbouring channels of x²)^beta
Result<Values> lrn(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  HEDDLE_TRY(want_rank(call, b, 0, 2, 8));
  const NodeId x = call.in(0);
  const Shape shape = b.shape(x);
  const std::int64_t size = call.attribute_int("size", 0);
  if (size < 1 || size > (1 << 16)) return call.error("size is {}", size);
  const std::int64_t before = (size - 1) / 2;
  // Channels c-before … c-before+size-1 as a trailing window axis.
  Shape windows = shape;
  windows.push_back(size);
  prim::Access access{dims(static_cast<int>(shape.size())), {}};
  access.index[1] = dim(1) + dim(static_cast<int>(shape.size())) - ir::Expr(before);
  access.inside.push_back({access.index[1], 0, shape[1]});
  const NodeId squares = b.view(b.mul(x, x), windows, access, 0);
  const NodeId sum = b.reduce_sum(squares, {static_cast<int>(shape.size())}, false);
  const double alpha = call.attribute_float("alpha", 1e-4),
               beta = call.attribute_float("beta", 0.75), bias = call.attribute_float("bias", 1);
  const NodeId base = b.add(b.mul(sum, alpha / static_cast<double>(size)), bias);
  return Values{b.div(x, b.map(ScalarFn::pow, {base, b.scalar(b.dtype(x), beta)}))};
}

Result<Values> lp_normalization(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  const NodeId x = call.in(0);
  const int axis = HEDDLE_TRY(call.axis("axis", -1, b.rank(x)));
  const double p = static_cast<double>(call.attribute_int("p", 2));
  if (p != 1 && p != 2) return call.error("p is {}, want 1 or 2", p);
  const NodeId norm = lp_norm(b, x, {axis}, p, true), zero = b.scalar(b.dtype(x), 0);
  // A zero vector stays zero.
  return Values{
      b.div(x, b.select(b.map(ScalarFn::equal, {norm, zero}), b.scalar(b.dtype(x), 1), norm))};
}

Result<Values> mean_variance_normalization(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  const NodeId x = call.in(0);
  const std::vector<int> axes =
      HEDDLE_TRY(call.normalize_axes(call.attribute_ints("axes", {0, 2, 3}), b.rank(x)));
  const NodeId centred = b.sub(x, b.mean(x, axes));
  return Values{b.div(centred, b.add(b.sqrt(b.mean(b.mul(centred, centred), axes)), 1e-9))};
}

/// Before opset 9: over all of the batch, and per channel or not. As in ONNX Runtime; the
/// standard's text leaves the batch open.
Result<Values> mean_variance_1(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  HEDDLE_TRY(want_rank(call, b, 0, 2, 8));
  const NodeId x = call.in(0);
  const bool across = call.attribute_int("across_channels", 0) != 0;
  std::vector<int> axes = axes_from(across ? 1 : 2, b.rank(x));
  axes.insert(axes.begin(), 0);
  const NodeId centred = b.sub(x, b.mean(x, axes));
  if (call.attribute_int("normalize_variance", 1) == 0) return Values{centred};
  return Values{b.div(centred, b.add(b.sqrt(b.mean(b.mul(centred, centred), axes)), 1e-9))};
}

/// Training: each element is zero with probability `ratio`, or scaled so that the mean stays.
Result<Values> drop(const Call& call, Builder& b, double ratio) {
  const NodeId x = call.in(0);
  if (!(ratio >= 0 && ratio < 1)) return call.error("ratio is {}, want one in [0, 1)", ratio);
  HEDDLE_TRY(want_float(call, b, 0));
  const std::uint64_t seed = call.has_attribute("seed")
                                 ? static_cast<std::uint64_t>(call.attribute_int("seed", 0))
                                 : hash_bytes(call.op + "/" + call.name).low;
  const NodeId drawn = b.random({DType::f32, b.shape(x)}, prim::Random::Kind::uniform, seed);
  const NodeId kept = b.map(ScalarFn::greater_equal, {drawn, b.scalar(DType::f32, ratio)});
  const NodeId scaled = b.mul(x, 1 / (1 - ratio));
  return Values{b.select(kept, scaled, b.scalar(b.dtype(x), 0)), kept};
}

/// Inference: the identity, and a mask of ones. The attribute training_mode, which training sets,
/// drops whatever the model says.
Result<Values> dropout(const Call& call, Builder& b) {
  const bool wanted = call.attribute_int("training_mode", 0) != 0;
  const bool training = call.opset >= 12 && call.has(2);
  if (wanted) {
    double ratio = call.opset < 12 ? call.attribute_float("ratio", 0.5) : 0.5;
    if (call.opset >= 12 && call.has(1)) ratio = HEDDLE_TRY(constant_real(call, 1));
    if (ratio != 0) return drop(call, b, ratio);
  } else if (training) {
    const Tensor* mode = HEDDLE_TRY(call.constant_tensor(2));
    double ratio = 0.5;
    if (call.has(1)) ratio = HEDDLE_TRY(constant_real(call, 1));
    if (mode->count() == 1 && mode->int_at(0) != 0 && ratio != 0) return drop(call, b, ratio);
  }
  const NodeId x = call.in(0);
  Values values{x};
  const DType mask = call.opset >= 10 ? DType::b1 : b.dtype(x);
  if (call.outputs > 1) values.push_back(b.full({mask, b.shape(x)}, 1));
  return values;
}

constexpr OpDef kNormOps[] = {
    {"BatchNormalization", 1, 5, 5, batch_normalization},
    {"InstanceNormalization", 1, 3, 3, instance_normalization},
    {"LayerNormalization", 17, 2, 3, layer_normalization},
    {"GroupNormalization", 18, 3, 3, group_normalization},
    {"LRN", 1, 1, 1, lrn},
    {"LpNormalization", 1, 1, 1, lp_normalization},
    {"MeanVarianceNormalization", 1, 1, 1, mean_variance_1},
    {"MeanVarianceNormalization", 9, 1, 1, mean_variance_normalization},
    {"Dropout", 1, 1, 3, dropout},
};

}  // namespace

std::span<const OpDef> norm_ops() { return kNormOps; }

}  // namespace heddle::ops
