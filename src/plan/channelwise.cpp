#include "plan/channelwise.h"

#include <algorithm>

#include "lower/contract/depthwise.h"

namespace heddle::plan {

std::optional<NodeId> image_of_channels(const Facts& f, NodeId contract) {
  constexpr double kChannels = 16;
  const MatmulShape s = matmul_shape(f, contract);
  const bool left = s.n == 1;
  const NodeId image = f[contract].args[left ? 0 : 1], filter = f[contract].args[left ? 1 : 0];
  const bool fits = std::min(s.m, s.n) == 1 && std::max(s.m, s.n) > 1 && s.batch >= kChannels &&
                    s.k > 1 && s.k <= lower::contract::kMostTaps && f.as<prim::Constant>(filter);
  return fits ? std::optional(image) : std::nullopt;
}

namespace {

/// One number at all positions.
bool is_number(const Facts& f, NodeId id) {
  return f.as<prim::View>(id) && element_count(f[f[id].args[0]].type.shape) == 1;
}

}  // namespace

bool is_stored(const Facts& f, const std::function<bool(NodeId)>& local, NodeId id) {
  while (local(id)) {
    const auto* map = f.as<prim::Map>(id);
    const bool shifted = map && map->fn == ir::ScalarFn::add && is_number(f, f[id].args[1]);
    if (!shifted && !(map && map->fn == ir::ScalarFn::cast) &&
        !lower::contract::keeps_order(*f.graph, id))
      return false;
    id = f[id].args[0];
  }
  return true;
}

bool is_depthwise(const Facts& f, const Cluster& c) {
  std::optional<NodeId> image;
  const auto local = [&](NodeId id) { return std::ranges::binary_search(c.nodes, id); };
  for (const NodeId id : c.nodes) {
    const auto* view = f.as<prim::View>(id);
    if (f.as<prim::Contract>(id) && !image) {
      image = image_of_channels(f, id);
      if (!image || !is_stored(f, local, *image)) return false;
    } else if (!f.as<prim::Map>(id) && !(view && view->pieces.size() == 1)) {
      return false;
    }
  }
  return image.has_value();
}

}  // namespace heddle::plan
