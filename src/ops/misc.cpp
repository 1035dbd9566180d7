#include <algorithm>

#include "ops/families.h"
#include "ops/util.h"

/// Random numbers, losses, optimiser steps.
namespace heddle::ops {
namespace {

using ir::ScalarFn;

/// The seed attribute, or one that differs between nodes but not between runs.
std::uint64_t seed_of(const Call& call) {
  if (call.has_attribute("seed")) {
    const double given = call.attribute_float("seed", 0);
    std::uint64_t bits = 0;
    std::memcpy(&bits, &given, sizeof(bits));
    return bits;
  }
  return hash_bytes(call.op + "/" + call.name).low;
}

Result<NodeId> random_values(const Call& call, Builder& b, const Shape& shape, DType type,
                             bool normal) {
  if (!is_float(type)) return call.error("dtype is {}, want a floating type", name_of(type));
  const Shape out = HEDDLE_TRY(checked(call, shape, type));
  const auto kind = normal ? prim::Random::Kind::normal : prim::Random::Kind::uniform;
  const NodeId x = b.random({type, out}, kind, seed_of(call));
  if (normal) {
    return b.add(b.mul(x, call.attribute_float("scale", 1)), call.attribute_float("mean", 0));
  }
  const double low = call.attribute_float("low", 0), high = call.attribute_float("high", 1);
  return b.add(b.mul(x, high - low), low);
}

Result<Values> random_op(const Call& call, Builder& b, bool normal) {
  const DType type = HEDDLE_TRY(attribute_dtype(call, "dtype", DType::f32));
  return Values{HEDDLE_TRY(random_values(call, b, call.attribute_ints("shape", {}), type, normal))};
}
Result<Values> random_normal(const Call& call, Builder& b) { return random_op(call, b, true); }
Result<Values> random_uniform(const Call& call, Builder& b) { return random_op(call, b, false); }

Result<Values> random_like(const Call& call, Builder& b, bool normal) {
  const DType own = b.dtype(call.in(0));
  const DType type = HEDDLE_TRY(attribute_dtype(call, "dtype", is_float(own) ? own : DType::f32));
  return Values{HEDDLE_TRY(random_values(call, b, b.shape(call.in(0)), type, normal))};
}
Result<Values> random_normal_like(const Call& call, Builder& b) {
  return random_like(call, b, true);
}
Result<Values> random_uniform_like(const Call& call, Builder& b) {
  return random_like(call, b, false);
}

/// 1 with probability x.
Result<Values> bernoulli(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  const DType type = HEDDLE_TRY(attribute_dtype(call, "dtype", b.dtype(call.in(0))));
  const NodeId u =
      b.random({DType::f32, b.shape(call.in(0))}, prim::Random::Kind::uniform, seed_of(call));
  const NodeId p = b.cast(call.in(0), DType::f32);
  return Values{b.cast(b.map(ScalarFn::less, {u, p}), type)};
}

/// argmax(x + Gumbel noise) is a draw from softmax(x).
Result<Values> multinomial(const Call& call, Builder& b) {
  HEDDLE_TRY(want_rank(call, b, 0, 2, 2));
  HEDDLE_TRY(want_float(call, b, 0));
  const DType type = HEDDLE_TRY(attribute_dtype(call, "dtype", DType::i32));
  const std::int64_t samples = call.attribute_int("sample_size", 1);
  const Shape in = b.shape(call.in(0));
  if (samples < 1 || in[1] < 1)
    return call.error("sample_size is {}, input 0 has shape {}", samples, to_string(in));
  const Shape space = HEDDLE_TRY(checked(call, {in[0], samples, in[1]}, DType::f32));
  const NodeId u = b.random({DType::f32, space}, prim::Random::Kind::uniform, seed_of(call));
  const NodeId gumbel = b.neg(b.log(b.neg(b.log(b.add(b.mul(u, 1 - 2e-7), 1e-7)))));
  const NodeId x = b.unsqueeze(b.cast(call.in(0), DType::f32), {1});
  return Values{b.cast(b.reduce(ir::Monoid::argmax, b.add(x, gumbel), {2}, false), type)};
}

/// The weighted, reduced negative log likelihood: logp [N, C, d…], target [N, d…], weight [C].
Result<NodeId> likelihood_loss(const Call& call, Builder& b, NodeId logp) {
  const Shape in = b.shape(logp);
  if (in.size() < 2) return call.error("input 0 has shape {}, want rank 2 or more", to_string(in));
  HEDDLE_TRY(want_int(call, b, 1));
  Shape space = in;
  space.erase(space.begin() + 1);
  HEDDLE_TRY(want_shape(call, b, 1, space));
  if (call.has(2)) {
    HEDDLE_TRY(want_shape(call, b, 2, {in[1]}));
    HEDDLE_TRY(want_type(call, b, 2, b.dtype(logp)));
  }
  const int reduction = HEDDLE_TRY(choice(call, "reduction", "mean", {"none", "sum", "mean"}));
  if (element_count(in) == 0)
    return call.error("input 0 has shape {}: no class to choose from", to_string(in));
  NodeId target = b.cast(call.in(1), DType::i64);
  std::optional<NodeId> counts;  // the weight of each target, 0 where ignored
  if (call.has_attribute("ignore_index")) {
    const NodeId kept =
        compare(b, ScalarFn::not_equal, target, call.attribute_int("ignore_index", 0));
    target = b.select(kept, target, b.scalar_int(DType::i64, 0));
    counts = b.cast(kept, b.dtype(logp));
  }
  const NodeId chosen = b.squeeze(b.take_along(logp, b.unsqueeze(target, {1}), 1), {1});
  if (call.has(2)) {
    const NodeId weight = b.take(call.in(2), target, 0);
    counts = counts ? b.mul(*counts, weight) : weight;
  }
  NodeId loss = b.neg(chosen);
  if (counts) loss = b.mul(loss, *counts);
  if (reduction == 0) return loss;
  std::vector<int> all;
  for (int i = 0; i < static_cast<int>(space.size()); ++i) all.push_back(i);
  const NodeId total = b.reduce_sum(loss, all, false);
  if (reduction == 1) return total;
  if (counts) return b.div(total, b.reduce_sum(*counts, all, false));
  return b.div(total, static_cast<double>(element_count(space)));
}

Result<Values> nll_loss(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  return Values{HEDDLE_TRY(likelihood_loss(call, b, call.in(0)))};
}

/// Cross entropy of softmax(scores): log_softmax is x - max - log(sum(exp(x - max))).
Result<Values> softmax_cross_entropy(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  HEDDLE_TRY(want_rank(call, b, 0, 2, 64));
  const NodeId x = call.in(0);
  if (element_count(b.shape(x)) == 0) {
    return call.error("input 0 has shape {}: no class to choose from", to_string(b.shape(x)));
  }
  const NodeId centred = b.sub(x, b.reduce_max(x, {1}));
  const NodeId logp = b.sub(centred, b.log(b.reduce_sum(b.exp(centred), {1})));
  Values out{HEDDLE_TRY(likelihood_loss(call, b, logp))};
  if (call.outputs > 1) out.push_back(logp);
  return out;
}

// Optimisers (ai.onnx.preview.training): inputs R (rate), T (step count), then groups of tensors
// X…, G…, and the state tensors; outputs are the new X… and states in the same order.

struct Step {
  std::size_t tensors = 0;
  NodeId rate, count;
  std::vector<std::vector<NodeId>> groups;  ///< [group][tensor]
};
Result<Step> read_step(const Call& call, Builder& b, std::size_t groups) {
  const std::size_t given = call.args.size() - 2;
  if (call.args.size() < 2 + groups || given % groups != 0) {
    return call.error("{} inputs given, want 2 and a multiple of {}", call.args.size(), groups);
  }
  Step s;
  s.tensors = given / groups;
  for (int i = 0; i < static_cast<int>(call.args.size()); ++i) {
    if (!call.has(i)) return call.error("input {} is missing", i);
  }
  for (std::size_t i = 0; i < given; ++i) {
    const int arg = static_cast<int>(2 + i), first = static_cast<int>(2 + i % s.tensors);
    HEDDLE_TRY(want_float(call, b, arg));
    HEDDLE_TRY(want_shape(call, b, arg, b.shape(call.in(first))));
    HEDDLE_TRY(want_type(call, b, arg, b.dtype(call.in(2))));
    if (i % s.tensors == 0) s.groups.emplace_back();
    s.groups.back().push_back(call.in(arg));
  }
  for (int i = 0; i < 2; ++i) {
    if (element_count(b.shape(call.in(i))) != 1) {
      return call.error("input {} has shape {}, want one element", i,
                        to_string(b.shape(call.in(i))));
    }
  }
  s.rate = b.cast(b.reshape(call.in(0), {}), b.dtype(call.in(2)));
  s.count = b.cast(b.reshape(call.in(1), {}), b.dtype(call.in(2)));
  return s;
}

NodeId regularised(const Call& call, Builder& b, NodeId g, NodeId x) {
  const double norm = call.attribute_float("norm_coefficient", 0);
  return norm == 0 ? g : b.add(g, b.mul(x, norm));
}

Result<Values> adagrad(const Call& call, Builder& b) {
  const Step s = HEDDLE_TRY(read_step(call, b, 3));
  const double decay = call.attribute_float("decay_factor", 0);
  const double epsilon = call.attribute_float("epsilon", 1e-6);
  const NodeId rate = b.div(s.rate, b.add(b.mul(s.count, decay), 1.0));
  Values xs, hs;
  for (std::size_t i = 0; i < s.tensors; ++i) {
    const NodeId x = s.groups[0][i], g = regularised(call, b, s.groups[1][i], x);
    const NodeId h = b.add(s.groups[2][i], b.mul(g, g));
    xs.push_back(b.sub(x, b.div(b.mul(g, rate), b.add(b.sqrt(h), epsilon))));
    hs.push_back(h);
  }
  xs.insert(xs.end(), hs.begin(), hs.end());
  return xs;
}

Result<Values> adam(const Call& call, Builder& b) {
  const Step s = HEDDLE_TRY(read_step(call, b, 4));
  const double alpha = call.attribute_float("alpha", 0.9);
  const double beta = call.attribute_float("beta", 0.999);
  const double epsilon = call.attribute_float("epsilon", 1e-6);
  const double post = call.attribute_float("norm_coefficient_post", 0);
  const DType type = b.dtype(s.rate);
  const NodeId one = b.scalar(type, 1);
  const auto correction = [&](double base) {
    return b.sub(one, b.map(ScalarFn::pow, {b.scalar(type, base), s.count}));
  };
  // The first step (count 0) is not corrected.
  const NodeId corrected = b.div(b.mul(s.rate, b.sqrt(correction(beta))), correction(alpha));
  const NodeId rate =
      b.select(b.map(ScalarFn::greater, {s.count, b.scalar(type, 0)}), corrected, s.rate);
  Values xs, vs, hs;
  for (std::size_t i = 0; i < s.tensors; ++i) {
    const NodeId x = s.groups[0][i], g = regularised(call, b, s.groups[1][i], x);
    const NodeId v = b.add(b.mul(s.groups[2][i], alpha), b.mul(g, 1 - alpha));
    const NodeId h = b.add(b.mul(s.groups[3][i], beta), b.mul(b.mul(g, g), 1 - beta));
    const NodeId next = b.sub(x, b.div(b.mul(v, rate), b.add(b.sqrt(h), epsilon)));
    xs.push_back(post == 0 ? next : b.mul(next, 1 - post));
    vs.push_back(v);
    hs.push_back(h);
  }
  xs.insert(xs.end(), vs.begin(), vs.end());
  xs.insert(xs.end(), hs.begin(), hs.end());
  return xs;
}

Result<Values> momentum(const Call& call, Builder& b) {
  const Step s = HEDDLE_TRY(read_step(call, b, 3));
  const int nesterov = HEDDLE_TRY(choice(call, "mode", "standard", {"standard", "nesterov"}));
  const double alpha = call.attribute_float("alpha", 0);
  const double beta = call.attribute_float("beta", 0);
  const DType type = b.dtype(s.rate);
  // At the first step the gradient counts in full.
  const NodeId scale = b.select(b.map(ScalarFn::greater, {s.count, b.scalar(type, 0)}),
                                b.scalar(type, beta), b.scalar(type, 1));
  Values xs, vs;
  for (std::size_t i = 0; i < s.tensors; ++i) {
    const NodeId x = s.groups[0][i], g = regularised(call, b, s.groups[1][i], x);
    const NodeId v = b.add(b.mul(s.groups[2][i], alpha), b.mul(g, scale));
    const NodeId direction = nesterov != 0 ? b.add(g, b.mul(v, alpha)) : v;
    xs.push_back(b.sub(x, b.mul(direction, s.rate)));
    vs.push_back(v);
  }
  xs.insert(xs.end(), vs.begin(), vs.end());
  return xs;
}

Result<Values> refuse_sequence(const Call& call, Builder&) {
  return call.unsupported("sequence and optional values are not supported, want tensors");
}
/// The scores as they are, a column for each label: there are no maps here. Who wants maps zips
/// them with the labels, as python/heddle does.
Result<Values> zip_map(const Call& call, Builder& b) {
  HEDDLE_TRY(want_type(call, b, 0, DType::f32));
  HEDDLE_TRY(want_rank(call, b, 0, 1, 2));
  const auto labels = HEDDLE_TRY(labels_of(call, "classlabels_int64s", "classlabels_strings"));
  const Shape& shape = b.shape(call.in(0));
  if (static_cast<std::int64_t>(labels.size()) != shape.back())
    return call.error("found {} columns, want one for each of {} labels", shape.back(),
                      labels.size());
  return Values{call.in(0)};
}

constexpr OpDef kMiscOps[] = {
    {"RandomNormal", 1, 0, 0, random_normal},
    {"RandomUniform", 1, 0, 0, random_uniform},
    {"RandomNormalLike", 1, 1, 1, random_normal_like},
    {"RandomUniformLike", 1, 1, 1, random_uniform_like},
    {"Bernoulli", 15, 1, 1, bernoulli},
    {"Multinomial", 7, 1, 1, multinomial},
    {"NegativeLogLikelihoodLoss", 12, 2, 3, nll_loss},
    {"SoftmaxCrossEntropyLoss", 12, 2, 3, softmax_cross_entropy},
    {"ai.onnx.preview.training::Adagrad", 1, 3, -1, adagrad},
    {"ai.onnx.preview.training::Adam", 1, 3, -1, adam},
    {"ai.onnx.preview.training::Momentum", 1, 3, -1, momentum},
    {"SequenceConstruct", 11, 0, -1, refuse_sequence},
    {"SequenceEmpty", 11, 0, -1, refuse_sequence},
    {"SequenceAt", 11, 0, -1, refuse_sequence},
    {"SequenceErase", 11, 0, -1, refuse_sequence},
    {"SequenceInsert", 11, 0, -1, refuse_sequence},
    {"SequenceLength", 11, 0, -1, refuse_sequence},
    {"SplitToSequence", 11, 0, -1, refuse_sequence},
    {"ConcatFromSequence", 11, 0, -1, refuse_sequence},
    {"Optional", 15, 0, -1, refuse_sequence},
    {"OptionalGetElement", 15, 0, -1, refuse_sequence},
    {"OptionalHasElement", 15, 0, -1, refuse_sequence},
    {"ai.onnx.ml::ZipMap", 1, 1, 1, zip_map},
};

}  // namespace

std::span<const OpDef> misc_ops() { return kMiscOps; }

}  // namespace heddle::ops
