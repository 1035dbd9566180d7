#include "grad/step.h"

#include <algorithm>

#include "grad/draws.h"
#include "grad/grad.h"
#include "grad/losses.h"
#include "prim/collectives.h"
#include "prim/precision.h"

namespace heddle::grad {
namespace {

using ir::ScalarFn;
using Names = std::vector<std::string>;

constexpr std::string_view kGood = "loss_scale:good_steps";
constexpr double kGrowth = 2;
constexpr std::string_view kLoss = "loss";

/// A step under construction.
class Maker {
 public:
  explicit Maker(const StepOptions& options) : options_(options), b_(step_.graph) {}

  /// Prediction, loss and gradients; "loss" becomes the first output.
  Status forward_backward(prim::Graph forward, const Names& names) {
    for (const auto& in : forward.inputs)
      if (is_own_name(in.name))
        return fail("input '{}' of the model: training steps use this name themselves", in.name);
    if (forward.outputs.empty()) return fail("the model has no output to compare with a target");
    // Before values are stored in halves: random numbers are made in f32.
    step_.graph = with_draws(forward, options_.seed, kDraw);
    if (options_.precision != DType::f32)
      step_.graph = prim::with_storage(step_.graph, options_.precision);
    for (std::size_t slot = 0; slot < g().inputs.size(); ++slot)
      g().add(prim::Input{static_cast<int>(slot)}, {}, g().inputs[slot].type);
    forward_outputs_ = std::exchange(g().outputs, {});
    for (const std::string& name : names) parameters_.push_back(node_of(HEDDLE_TRY(slot_of(name))));
    const NodeId value = HEDDLE_TRY(loss());
    NodeId seed = b_.full(b_.type(value), 1);
    if (scaled()) scale_ = state(kScale, options_.loss_scale);
    if (scaled()) seed = b_.cast(*scale_, b_.dtype(value));
    const std::vector<Seed> seeds = {{value, seed}};
    gradients_ = HEDDLE_TRY(gradients(g(), seeds, parameters_));
    // What no adjoint reaches has zeros (gradients()).
    const auto none = [&](std::size_t i) {
      return gradients_[i] == b_.full(b_.type(parameters_[i]), 0);
    };
    std::size_t still = 0;
    while (still < names.size() && none(still)) ++still;
    if (still == names.size())
      return fail(
          "loss {}: no parameter moves it by a path with a derivative (those of Round, "
          "ArgMax, comparisons and casts to integers are 0)",
          options_.loss);
    g().outputs.push_back({std::string(kLoss), value});
    return Ok{};
  }

  /// Outputs of the forward graph that are inputs of the next one. They move in skipped steps, too,
  /// as PyTorch's do, but never to what overflowed: nothing would bring them back.
  void statistics() {
    for (std::size_t i = 1; i < forward_outputs_.size(); ++i)
      if (const auto slot = slot_of(forward_outputs_[i].name)) {
        const NodeId now = forward_outputs_[i].node;
        feed_back(*slot, scaled() ? b_.select(finite(now), now, node_of(*slot)) : now);
      }
  }

  /// Adds each gradient to the sum over the batches before it.
  void accumulate(const Names& names) {
    g().set_origin(prim::Origin{"Accumulate", "gradients"});
    for (std::size_t i = 0; i < names.size(); ++i) {
      const TensorType type = b_.type(gradients_[i]);
      gradients_[i] = b_.add(state(std::string(kGradient) + names[i], 0, type), gradients_[i]);
    }
  }

  /// Sums each gradient over processes.
  void share(const Names& names) {
    for (std::size_t i = 0; i < names.size(); ++i) {
      step_.sums.push_back(std::string(kGradient) + names[i]);
      g().set_origin(prim::Origin{"AllReduce", step_.sums.back()});
      gradients_[i] = b_.all_reduce(gradients_[i]);
    }
  }

  Status update(const Names& names) {
    const Optimizer& optimizer = *HEDDLE_TRY(optimizer_named(options_.optimizer));
    rate_ = g().add_input(std::string(kRate), {DType::f32, {}});
    count_ = g().add_input(std::string(kStep), {DType::f32, {}});
    g().set_origin(prim::Origin{"Optimizer", std::string(optimizer.name)});
    average();
    if (options_.clip_norm > 0 || scaled()) norm_ = squares();
    if (scaled()) check_finite();
    if (options_.clip_norm > 0) clip();
    for (std::size_t i = 0; i < names.size(); ++i) update_one(optimizer, i, names[i]);
    return Ok{};
  }

  Step take() { return std::move(step_); }

 private:
  prim::Graph& g() { return step_.graph; }
  bool scaled() const { return options_.precision == DType::f16; }

  Result<std::size_t> slot_of(const std::string& name) const {
    for (std::size_t slot = 0; slot < step_.graph.inputs.size(); ++slot)
      if (step_.graph.inputs[slot].name == name) return slot;
    return fail("'{}' is no input of the graph", name);
  }
  NodeId node_of(std::size_t slot) {
    return g().add(prim::Input{static_cast<int>(slot)}, {}, g().inputs[slot].type);
  }
  NodeId state(std::string_view name, double initial, TensorType type = {DType::f32, {}}) {
    step_.states.push_back({std::string(name), initial});
    return g().add_input(std::string(name), std::move(type));
  }
  void feed_back(std::size_t slot, NodeId node) {
    step_.feedback.push_back({g().outputs.size(), slot});
    g().outputs.push_back({g().inputs[slot].name, node});
  }

  NodeId finite(NodeId value) {
    const NodeId infinity = b_.full(b_.type(value), INFINITY);
    return b_.map(ScalarFn::less, {b_.map(ScalarFn::abs, {value}), infinity});
  }

  Result<NodeId> loss() {
    const Loss& loss = *HEDDLE_TRY(loss_named(options_.loss));
    const auto& output = forward_outputs_[0];
    g().set_origin(prim::Origin{"Loss", std::string(loss.name)});
    const TensorType& found = g()[output.node].type;
    if (!is_float(found.dtype))
      return fail("loss {} of output '{}': its type is {}, want a floating one", loss.name,
                  output.name, name_of(found.dtype));
    if (element_count(found.shape) == 0)
      return fail("loss {} of output '{}': shape {}: the batch is empty", loss.name, output.name,
                  to_string(found.shape));
    const auto type = loss.target(g()[output.node].type);
    if (!type)
      return fail("loss {} of output '{}': {}", loss.name, output.name, type.error().message);
    std::optional<NodeId> target;
    if (*type) target = g().add_input(std::string(kTarget), **type);
    if (options_.ignore_index) return loss_of_some(loss, output.node, target);
    return loss.value(b_, output.node, target.value_or(output.node));
  }
  /// Without the targets to ignore: classes that no prediction has add nothing.
  Result<NodeId> loss_of_some(const Loss& loss, NodeId prediction, std::optional<NodeId> target) {
    if (!target || b_.dtype(*target) != DType::i64)
      return fail(ErrorCode::usage, "loss {}: has no classes to ignore", loss.name);
    const TensorType type = b_.type(*target);
    const NodeId index =
        b_.broadcast(b_.scalar_int(DType::i64, *options_.ignore_index), type.shape);
    const NodeId none = b_.broadcast(b_.scalar_int(DType::i64, -1), type.shape);
    const NodeId ignored = b_.map(ir::ScalarFn::equal, {*target, index});
    const NodeId value = loss.value(b_, prediction, b_.select(ignored, none, *target));
    const TensorType number{b_.dtype(value), type.shape};
    const NodeId kept = b_.select(ignored, b_.full(number, 0), b_.full(number, 1));
    std::vector<int> axes;
    for (int d = 0; d < b_.rank(kept); ++d) axes.push_back(d);
    // Where all are ignored the loss is 0, and so are its gradients.
    const NodeId count = b_.max(b_.reduce_sum(kept, axes, false), b_.scalar(number.dtype, 1));
    const NodeId share =
        b_.div(b_.scalar(number.dtype, static_cast<double>(element_count(type.shape))), count);
    return b_.mul(value, share);
  }

  /// Sums over batches, times the loss's scale, become means.
  void average() {
    if (!scaled() && options_.parts == 1) return;
    NodeId share = b_.scalar(DType::f32, 1.0 / options_.parts);
    if (scaled()) share = b_.div(share, *scale_);
    for (NodeId& gradient : gradients_)
      gradient = b_.mul(gradient, b_.cast(share, b_.dtype(gradient)));
  }

  /// Of all elements of all gradients, their sum, in f64 if one of them is.
  NodeId squares() {
    const bool doubles = std::ranges::any_of(
        gradients_, [&](NodeId gradient) { return b_.dtype(gradient) == DType::f64; });
    const DType type = doubles ? DType::f64 : DType::f32;
    std::optional<NodeId> sum;
    for (const NodeId gradient : gradients_) {
      std::vector<int> axes;
      for (int k = 0; k < b_.rank(gradient); ++k) axes.push_back(k);
      const NodeId wide = b_.cast(gradient, type);
      const NodeId square = b_.reduce_sum(b_.mul(wide, wide), axes, false);
      sum = sum ? b_.add(*sum, square) : square;
    }
    return sum.value_or(b_.scalar(type, 0));
  }

  /// Every gradient times min(1, limit / (common norm + 1e-6)), as torch's clip_grad_norm_.
  void clip() {
    const DType type = b_.dtype(*norm_);
    const NodeId limit = b_.scalar(type, options_.clip_norm);
    const NodeId share = b_.min(b_.div(limit, b_.add(b_.sqrt(*norm_), 1e-6)), b_.scalar(type, 1));
    for (NodeId& gradient : gradients_)
      gradient = b_.mul(gradient, b_.cast(share, b_.dtype(gradient)));
  }

  /// Infinities and NaN make the sum of squares one: then nothing changes but the scale. Steps that
  /// are skipped do not count for the optimiser.
  void check_finite() {
    const NodeId one = b_.scalar(DType::f32, 1), zero = b_.scalar(DType::f32, 0);
    finite_ = finite(*norm_);
    const std::size_t first = g().inputs.size();
    const NodeId good = state(kGood, 0), skipped = state(kSkipped, 0);
    count_ = b_.sub(count_, skipped);
    const NodeId series = b_.add(good, one);
    const NodeId grows =
        b_.map(ScalarFn::greater_equal, {series, b_.scalar(DType::f32, options_.scale_interval)});
    const NodeId larger = b_.select(grows, b_.mul(*scale_, kGrowth), *scale_);
    feed_back(*slot_of(std::string(kScale)),
              b_.select(*finite_, larger, b_.mul(*scale_, 1 / kGrowth)));
    feed_back(first, b_.select(*finite_, b_.select(grows, zero, series), zero));
    feed_back(first + 1, b_.select(*finite_, skipped, b_.add(skipped, one)));
  }

  void update_one(const Optimizer& optimizer, std::size_t i, const std::string& name) {
    g().set_origin(prim::Origin{"Optimizer", name});
    const TensorType type = b_.type(parameters_[i]);
    Update u{
        parameters_[i], gradients_[i], {}, b_.cast(rate_, type.dtype), b_.cast(count_, type.dtype)};
    const std::size_t first = g().inputs.size();
    for (const std::string_view kept : optimizer.states)
      u.states.push_back(state(fmt::format("{}:{}", kept, name), 0, type));
    const Updated after = optimizer.update(b_, u, options_.settings);
    const auto unless_skipped = [&](NodeId now, NodeId before) {
      return finite_ ? b_.select(*finite_, now, before) : now;
    };
    feed_back(*slot_of(name), unless_skipped(after.parameter, u.parameter));
    for (std::size_t s = 0; s < after.states.size(); ++s)
      feed_back(first + s, unless_skipped(after.states[s], u.states[s]));
  }

  const StepOptions& options_;
  Step step_;
  Builder b_;
  std::vector<prim::GraphOutput> forward_outputs_;
  std::vector<NodeId> parameters_, gradients_;
  NodeId rate_, count_;
  std::optional<NodeId> scale_, norm_, finite_;
};

}  // namespace

bool is_own_name(std::string_view name) {
  for (const std::string_view own : {kTarget, kRate, kStep, kDraw, kScale, kGood, kSkipped, kLoss})
    if (name == own) return true;
  const std::string_view kind = name.substr(0, name.find(':') + 1);  // "" where there is none
  if (kind == kGradient) return true;
  return std::ranges::any_of(optimizers(), [&](const Optimizer& o) {
    return std::ranges::any_of(o.states,
                               [&](const auto& s) { return kind == std::string(s) + ":"; });
  });
}

Result<Step> training_step(prim::Graph forward, const Names& parameters,
                           const StepOptions& wanted) {
  StepOptions options = wanted;
  const bool doubles = std::ranges::all_of(forward.inputs, [&](const prim::GraphInput& in) {
    return std::ranges::find(parameters, in.name) == parameters.end() ||
           in.type.dtype == DType::f64;
  });
  if (doubles) options.precision = DType::f32;  // there is nothing to store in halves
  Maker maker(options);
  HEDDLE_TRY(maker.forward_backward(std::move(forward), parameters));
  if (options.accumulate) maker.accumulate(parameters);
  if (options.distributed) maker.share(parameters);
  HEDDLE_TRY(maker.update(parameters));
  maker.statistics();
  return maker.take();
}

namespace {

/// What is kept and fed back in one of the parts of a step.
Step part_of(const Step& whole, prim::Graph graph) {
  Step part;
  const auto slot_of = [&](const std::string& name) {
    return static_cast<std::size_t>(std::ranges::find(graph.inputs, name, &prim::GraphInput::name) -
                                    graph.inputs.begin());
  };
  for (const Step::State& s : whole.states)
    if (slot_of(s.name) < graph.inputs.size()) part.states.push_back(s);
  for (std::size_t o = 0; o < graph.outputs.size(); ++o)
    if (const std::size_t slot = slot_of(graph.outputs[o].name); slot < graph.inputs.size())
      part.feedback.push_back({o, slot});
  part.graph = std::move(graph);
  return part;
}

}  // namespace

Result<SplitStep> split_step(const Step& step) {
  prim::SplitGraph split = HEDDLE_TRY(prim::split_at_collectives(step.graph, step.sums));
  return SplitStep{part_of(step, std::move(split.before)), part_of(step, std::move(split.after)),
                   std::move(split.summed)};
}

}  // namespace heddle::grad
