#include "lower/lower.h"

#include <algorithm>

#include "lower/contract/depthwise.h"
#include "lower/evaluate.h"
#include "prim/collectives.h"

namespace heddle::lower {

std::vector<NodeId> inputs_of(const prim::Graph& g, const Cluster& c) {
  std::vector<NodeId> out;
  for (NodeId id : c.nodes) {
    for (NodeId arg : g[id].args) {
      if (std::binary_search(c.nodes.begin(), c.nodes.end(), arg) || inlined_constant(g, arg))
        continue;
      if (std::find(out.begin(), out.end(), arg) == out.end()) out.push_back(arg);
    }
  }
  return out;
}

Target gpu_target(int multiprocessors, int capability) {
  Target target;
  target.device = Device::cuda;
  target.vector_bytes = 16;
  target.multiprocessors = multiprocessors;
  target.capability = capability;
  target.warpgroups = capability == 90;
  if (capability < 90) target.shared_bytes = (capability == 80 ? 163 : 99) << 10;
  return target;
}

namespace {

bool has_main_loop(const prim::Graph& g, const Cluster& c, bool gpu) {
  return std::any_of(c.nodes.begin(), c.nodes.end(), [&](NodeId id) {
    return std::holds_alternative<prim::Contract>(g[id].op) &&
           contract::worth_main_loop(g, id, gpu);
  });
}

}  // namespace

bool supports(const prim::Graph& g, const Cluster& c, const Target& target) {
  if (attention::supports(g, c, target) || bands::supports(g, c, target)) return true;
  return has_main_loop(g, c, target.is_gpu()) ? contract::supports(g, c, target)
                                              : stitch::supports(g, c);
}

Result<Lowered> lower(const Request& request) {
  const prim::Graph& g = *request.graph;
  HEDDLE_TRY(prim::want_no_collective(g, request.cluster.nodes));
  if (attention::supports(g, request.cluster, request.target)) return attention::lower(request);
  if (bands::supports(g, request.cluster, request.target)) return bands::lower(request);
  const bool gpu = request.target.is_gpu();
  if (has_main_loop(g, request.cluster, gpu) &&
      contract::supports(g, request.cluster, request.target)) {
    auto tiled = contract::lower(request);
    // Tiles for GPU threads that cannot be proven sound leave a reduction by teams of threads;
    // planes that one filter reads with padding leave one by each.
    if (tiled || (!gpu && has_main_loop(g, request.cluster, true))) return tiled;
  }
  if (auto depthwise = contract::lower_depthwise(request)) return depthwise;
  return stitch::lower(request);
}

std::vector<Tuning> tuning_space(const Request& request) {
  auto space = attention::tuning_space(request);
  if (space.empty()) space = bands::tuning_space(request);
  if (space.empty()) space = contract::tuning_space(request);
  return space.empty() ? stitch::tuning_space(request) : space;
}

}  // namespace heddle::lower
