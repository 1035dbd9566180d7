#include "driver/fusion.h"

#include <algorithm>
#include <set>

namespace heddle::driver {
namespace {

using nlohmann::json;
using prim::NodeId;

/// Where reductions are computed.
struct Places {
  int contraction = 0;  ///< before or behind a matrix product or convolution, in its kernel
  int others = 0;       ///< with other arithmetic
  int alone = 0;        ///< a kernel of views and reductions only
  json as_json() const {
    return {{"in_contractions", contraction}, {"with_others", others}, {"alone", alone}};
  }
};

bool is_norm(const prim::Graph& g, NodeId id) {
  const prim::OriginId from = g.origin_id(id);
  return from && g.origin(from).op.find("Normalization") != std::string::npos;
}

struct Kernel {
  bool contraction = false, arithmetic = false;
  std::vector<NodeId> reductions;
};
Kernel kernel_of(const prim::Graph& g, const lower::Cluster& c) {
  Kernel k;
  for (NodeId id : c.nodes) {
    k.contraction |= std::holds_alternative<prim::Contract>(g[id].op);
    k.arithmetic |= std::holds_alternative<prim::Map>(g[id].op);
    if (std::holds_alternative<prim::Reduce>(g[id].op)) k.reductions.push_back(id);
  }
  return k;
}

void add(Places& places, const Kernel& k) {
  ++(k.contraction ? places.contraction : k.arithmetic ? places.others : places.alone);
}

}  // namespace

json fusion_of(const Compiled& compiled) {
  const prim::Graph& g = compiled.graph;
  std::set<std::pair<std::string, std::string>> forward, backward;
  Places reductions, statistics;
  int loss_kernels = 0, loss_alone = 0, updates = 0, updates_in_contractions = 0;
  for (const CompiledKernel& kernel : compiled.kernels) {
    bool loss = false, other = false, update = false;
    for (prim::OriginId id : kernel.planned.origins) {
      if (!id) continue;
      const prim::Origin& from = g.origin(id);
      if (from.op == "Loss") {
        loss = true;
      } else if (from.op == "Optimizer") {
        update = true;
      } else {
        other |= from.op != "Loss.grad";
        (from.op.ends_with(".grad") ? backward : forward).insert({from.op, from.name});
      }
    }
    const Kernel k = kernel_of(g, kernel.planned.cluster);
    loss_kernels += loss;
    loss_alone += loss && !other;
    updates += update;
    updates_in_contractions += update && k.contraction;
    for (NodeId id : k.reductions) {
      add(reductions, k);
      if (is_norm(g, id)) add(statistics, k);
    }
  }
  return {{"forward_operators", forward.size()},
          {"backward_operators", backward.size()},
          {"kernels", compiled.kernels.size()},
          {"loss_kernels", loss_kernels},
          {"loss_alone", loss_alone},
          {"updates", updates},
          {"updates_in_contractions", updates_in_contractions},
          {"reductions", reductions.as_json()},
          {"norm_statistics", statistics.as_json()}};
}

std::string fusion_text(const json& fusion) {
  const int backward = fusion.value("backward_operators", 0);
  if (backward == 0) return "";
  const int forward = fusion.value("forward_operators", 0), updates = fusion.value("updates", 0);
  const auto places = [&](const char* what) {
    const json& p = fusion[what];
    return fmt::format("{} in kernels of contractions, {} with other arithmetic, {} alone",
                       p["in_contractions"].get<int>(), p["with_others"].get<int>(),
                       p["alone"].get<int>());
  };
  return fmt::format(
      "step: {} kernels for {} operators forward, {} backward and the updates: one kernel each "
      "were "
      "{} at least\n"
      "      loss: {}\n"
      "      updates: {} kernels, {} of them behind the contraction that makes the gradient\n"
      "      statistics and gradients of normalisations: {}\n"
      "      all reductions: {}\n",
      fusion["kernels"].get<int>(), forward, backward, forward + backward + 1,
      fusion.value("loss_kernels", 0) == 0
          ? "eliminated, only its gradient is computed"
          : fmt::format("in {} kernels, {} of them for nothing else",
                        fusion["loss_kernels"].get<int>(), fusion["loss_alone"].get<int>()),
      updates, fusion.value("updates_in_contractions", 0), places("norm_statistics"),
      places("reductions"));
}

}  // namespace heddle::driver
