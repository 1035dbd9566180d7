#include <algorithm>

#include "kernel/bounds.h"
#include "lower/gpu/attention_emit.h"

namespace heddle::lower::attention {
namespace {

std::optional<gpu::Attention> attention_of(const prim::Graph& g, const Cluster& c) {
  if (c.outputs.size() != 1 || !std::holds_alternative<prim::Contract>(g[c.outputs[0]].op))
    return std::nullopt;
  auto a = gpu::attention_at(g, c.outputs[0]);
  return a && a->cluster == c ? a : std::nullopt;
}

}  // namespace

std::optional<Cluster> cluster_at(const prim::Graph& g, NodeId contract, const Target& target) {
  if (!target.is_gpu()) return std::nullopt;
  const auto a = gpu::attention_at(g, contract);
  if (!a || gpu::attention_tiles(g, *a, target, {}).empty()) return std::nullopt;
  return a->cluster;
}

bool supports(const prim::Graph& g, const Cluster& c, const Target& target) {
  const auto a = target.is_gpu() ? attention_of(g, c) : std::nullopt;
  return a && !gpu::attention_tiles(g, *a, target, {}).empty();
}

Result<Lowered> lower(const Request& request) {
  const auto a = attention_of(*request.graph, request.cluster);
  if (!a) return unsupported("attention: the cluster is none");
  auto tiles = gpu::attention_tiles(*request.graph, *a, request.target, request.tuning);
  if (tiles.empty()) tiles = gpu::attention_tiles(*request.graph, *a, request.target, {});
  if (tiles.empty()) return unsupported("attention: no tiles fit");
  Lowered lowered = gpu::AttentionEmitter(request, *a, tiles.front()).run();
  auto sound = kernel::with_proven_bounds(lowered.kernel);
  if (!sound) return unsupported("attention: {}", sound.error().message);
  lowered.kernel = *std::move(sound);
  return lowered;
}

std::vector<Tuning> tuning_space(const Request& request) {
  std::vector<Tuning> out;
  const auto a =
      request.target.is_gpu() ? attention_of(*request.graph, request.cluster) : std::nullopt;
  if (!a) return out;
  for (const gpu::AttentionTiles& t : gpu::attention_tiles(*request.graph, *a, request.target, {}))
    out.push_back({{"rows", t.rows}, {"keys", t.keys}});
  return out;
}

}  // namespace heddle::lower::attention
