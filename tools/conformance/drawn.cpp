#include "conformance/drawn.h"

#include <cmath>
#include <functional>
#include <optional>

#include "prim/interpret.h"

namespace heddle::conformance {
namespace {

using prim::Graph;
using prim::Node;
using prim::NodeId;

/// Element i of output 0 is `high[i]` with probability `chance[i]`, else 0.
struct TwoValues {
  std::vector<double> high, chance;
};

std::optional<TwoValues> promise_of(const std::string& name, const std::vector<Tensor>& inputs) {
  TwoValues promise;
  const Tensor& x = inputs.at(0);
  if (name.starts_with("test_bernoulli")) {
    // The body of onnx's function Bernoulli says draw > p, which has the chance 1 - p.
    const bool flipped = name.ends_with("_expanded");
    for (std::int64_t i = 0; i < x.count(); ++i) {
      promise.high.push_back(1);
      promise.chance.push_back(flipped ? 1 - x.at(i) : x.at(i));
    }
    return promise;
  }
  if (name.starts_with("test_training_dropout")) {
    const bool has_ratio = inputs.size() > 1 && inputs[1].count() == 1;
    const double kept = 1 - (has_ratio ? inputs[1].at(0) : 0.5);
    for (std::int64_t i = 0; i < x.count(); ++i) {
      promise.high.push_back(x.at(i) / kept);
      promise.chance.push_back(kept);
    }
    return promise;
  }
  return std::nullopt;
}

bool close(double a, double b) { return std::abs(a - b) <= 1e-5 * (std::abs(a) + std::abs(b)); }

/// That element i is one of its two values; a second output is the mask of those that are not 0.
Status check_values(const TwoValues& promise, const std::vector<Tensor>& outputs) {
  for (std::size_t i = 0; i < promise.high.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    const double y = outputs[0].at(at);
    if (y != 0 && !close(y, promise.high[i]))
      return fail("element {}: found {}, want 0 or {}", i, y, promise.high[i]);
    if (outputs.size() > 1 && promise.high[i] != 0 && (outputs[1].at(at) != 0) != (y != 0))
      return fail("element {}: found {}, but the mask says {}", i, y, outputs[1].at(at));
  }
  return Ok{};
}

Graph reseeded(const Graph& graph, std::uint64_t by) {
  return prim::rebuild(graph, [&](Graph& out, const Node& node, NodeId) {
    prim::Op op = node.op;
    if (auto* random = std::get_if<prim::Random>(&op)) random->seed += by;
    return out.add(op, node.args, node.type);
  });
}

}  // namespace

Status check_drawn(const std::string& name, const Graph& graph,
                   const std::vector<Tensor>& arguments, const std::vector<Tensor>& inputs,
                   const std::vector<Tensor>& found) {
  constexpr int kSeeds = 2000;
  const auto promise = promise_of(name, inputs);
  if (!promise) return fail("nothing is known of what it should draw");
  HEDDLE_TRY(check_values(*promise, found));
  std::vector<double> count(promise->high.size());
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const auto drawn = HEDDLE_TRY(prim::interpret(reseeded(graph, seed), arguments));
    HEDDLE_TRY(check_values(*promise, drawn));
    for (std::size_t i = 0; i < count.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      if (seed == 0 && !close(drawn[0].at(at), found[0].at(at)))
        return fail("element {}: found {}, the same seed gives {}", i, found[0].at(at),
                    drawn[0].at(at));
      count[i] += drawn[0].at(at) != 0;
    }
  }
  for (std::size_t i = 0; i < count.size(); ++i) {
    const double p = promise->high[i] == 0 ? 0 : promise->chance[i];
    if (std::abs(count[i] - kSeeds * p) > 6 * std::sqrt(kSeeds * p * (1 - p)) + 1e-9)
      return fail("element {}: {} of {} draws are not 0, want a share of {}", i, count[i], kSeeds,
                  p);
  }
  return Ok{};
}

}  // namespace heddle::conformance
