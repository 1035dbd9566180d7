#include "grad/step.h"

#include "grad/grad.h"
#include "grad/losses.h"

namespace heddle::grad {
namespace {

/// The node of each graph input, added where nothing reads it.
std::vector<NodeId> input_nodes(prim::Graph& g) {
  std::vector<NodeId> nodes;
  for (std::size_t slot = 0; slot < g.inputs.size(); ++slot)
    nodes.push_back(g.add(prim::Input{static_cast<int>(slot)}, {}, g.inputs[slot].type));
  return nodes;
}

class Maker {
 public:
  Maker(prim::Graph forward, const StepOptions& options)
      : options_(options), b_(step_.graph), inputs_() {
    step_.graph = std::move(forward);
    inputs_ = input_nodes(step_.graph);
  }

  Result<Step> run(const std::vector<std::string>& names) {
    prim::Graph& g = step_.graph;
    if (g.outputs.empty()) return fail("the model has no output to compare with a target");
    const auto forward_outputs = std::exchange(g.outputs, {});
    const Loss& loss = *HEDDLE_TRY(loss_named(options_.loss));
    const Optimizer& optimizer = *HEDDLE_TRY(optimizer_named(options_.optimizer));
    const NodeId prediction = forward_outputs[0].node;
    const auto target_type = loss.target(g[prediction].type);
    if (!target_type)
      return fail("loss {} of output '{}': {}", loss.name, forward_outputs[0].name,
                  target_type.error().message);
    g.set_origin(prim::Origin{"Loss", std::string(loss.name)});
    const NodeId value = loss.value(b_, prediction, g.add_input("target", *target_type));
    const NodeId rate = g.add_input("learning_rate", {DType::f32, {}});
    const NodeId count = g.add_input("step", {DType::f32, {}});
    std::vector<NodeId> parameters;
    for (const std::string& name : names) parameters.push_back(inputs_[HEDDLE_TRY(slot_of(name))]);
    const std::vector<Seed> seeds = {{value, b_.full(g[value].type, 1)}};
    std::vector<NodeId> gradient = HEDDLE_TRY(gradients(g, seeds, parameters));
    g.set_origin(prim::Origin{"Optimizer", std::string(optimizer.name)});
    if (options_.clip_norm > 0) clip(gradient);
    g.outputs.push_back({"loss", value});
    for (std::size_t i = 0; i < names.size(); ++i)
      update(optimizer, names[i], {parameters[i], gradient[i], {}, rate, count});
    for (std::size_t i = 1; i < forward_outputs.size(); ++i)
      if (const auto slot = slot_of(forward_outputs[i].name))
        feed_back(forward_outputs[i].name, forward_outputs[i].node, *slot);
    return std::move(step_);
  }

 private:
  Result<std::size_t> slot_of(const std::string& name) const {
    for (std::size_t slot = 0; slot < inputs_.size(); ++slot)
      if (step_.graph.inputs[slot].name == name) return slot;
    return fail("'{}' is no input of the graph", name);
  }

  /// Every gradient times min(1, limit / (common norm + 1e-6)), as torch's clip_grad_norm_.
  void clip(std::vector<NodeId>& gradient) {
    std::optional<NodeId> sum;
    for (NodeId g : gradient) {
      std::vector<int> axes;
      for (int k = 0; k < b_.rank(g); ++k) axes.push_back(k);
      const NodeId wide = b_.cast(g, DType::f32);
      const NodeId square = b_.reduce_sum(b_.mul(wide, wide), axes, false);
      sum = sum ? b_.add(*sum, square) : square;
    }
    const NodeId limit = b_.scalar(DType::f32, options_.clip_norm);
    const NodeId scale =
        b_.min(b_.div(limit, b_.add(b_.sqrt(*sum), 1e-6)), b_.scalar(DType::f32, 1));
    for (NodeId& g : gradient) g = b_.mul(g, b_.cast(scale, b_.dtype(g)));
  }

  void feed_back(const std::string& name, NodeId node, std::size_t slot) {
    step_.feedback.push_back({step_.graph.outputs.size(), slot});
    step_.graph.outputs.push_back({name, node});
  }

  void update(const Optimizer& optimizer, const std::string& name, Update u) {
    const TensorType type = step_.graph[u.parameter].type;
    u.rate = b_.cast(u.rate, type.dtype);
    u.step = b_.cast(u.step, type.dtype);
    const std::size_t first = step_.graph.inputs.size();
    for (const std::string_view state : optimizer.states) {
      step_.states.push_back(fmt::format("{}:{}", state, name));
      u.states.push_back(step_.graph.add_input(step_.states.back(), type));
    }
    const Updated after = optimizer.update(b_, u, options_.settings);
    feed_back(name, after.parameter, *slot_of(name));
    for (std::size_t s = 0; s < after.states.size(); ++s)
      feed_back(step_.graph.inputs[first + s].name, after.states[s], first + s);
  }

  const StepOptions& options_;
  Step step_;
  Builder b_;
  std::vector<NodeId> inputs_;  ///< of the forward graph
};

}  // namespace

Result<Step> training_step(prim::Graph forward, const std::vector<std::string>& parameters,
                           const StepOptions& options) {
  return Maker(std::move(forward), options).run(parameters);
}

}  // namespace heddle::grad
