#include <algorithm>

#include "kernel/bounds.h"
#include "lower/attention/emit.h"
#include "lower/contract/schedule.h"
#include "lower/gpu/attention_emit.h"

namespace heddle::lower::attention {
namespace {

std::optional<Attention> attention_of(const prim::Graph& g, const Cluster& c) {
  if (c.outputs.size() != 1 || !std::holds_alternative<prim::Contract>(g[c.outputs[0]].op))
    return std::nullopt;
  auto a = attention_at(g, c.outputs[0]);
  return a && a->cluster == c ? a : std::nullopt;
}

/// A CPU's separate kernels are as fast while all scores are near; in tile registers they are
/// faster until these are far (12 heads of 512 keys: 4.6 ms against 5.2, of 1,024: 30 against 21).
bool are_many(const Attention& a, const Target& target) {
  const std::int64_t near = (target.tiles ? 6 : 1) * target.l2_bytes;
  const std::int64_t scores = a.batches() * a.extent(a.row) * a.extent(a.key);
  return scores * size_of(DType::f32) > near;
}

bool has_kernel(const prim::Graph& g, const Attention& a, const Target& target) {
  return target.is_gpu() ? !gpu::attention_tiles(g, a, target, {}).empty()
                         : are_many(a, target) && blocks_of(g, a, target, {}).has_value();
}

Result<Lowered> lower_on_gpu(const Request& request, const Attention& a) {
  auto tiles = gpu::attention_tiles(*request.graph, a, request.target, request.tuning);
  if (tiles.empty()) tiles = gpu::attention_tiles(*request.graph, a, request.target, {});
  if (tiles.empty()) return unsupported("attention: no tiles fit");
  Lowered lowered = gpu::AttentionEmitter(request, a, tiles.front()).run();
  auto sound = kernel::with_proven_bounds(lowered.kernel);
  if (!sound) return unsupported("attention: {}", sound.error().message);
  lowered.kernel = *std::move(sound);
  return lowered;
}

/// A task that has all rows packs for itself, but leaves out no keys of rows that see few.
std::optional<Blocks> chosen_blocks(const Request& r, const Attention& a) {
  const auto blocks = blocks_of(*r.graph, a, r.target, r.tuning);
  if (!blocks || blocks->in_tiles() || contract::pinned(r.tuning, "rows") ||
      !may_be_alone(a, r.target) || Emitter(r, a, *blocks).is_causal())
    return blocks;
  Tuning all = r.tuning;
  all.emplace_back("rows", a.extent(a.row));
  return blocks_of(*r.graph, a, r.target, all);
}

}  // namespace

std::optional<Cluster> cluster_at(const prim::Graph& g, NodeId contract, const Target& target) {
  const auto a = attention_at(g, contract);
  if (!a || !has_kernel(g, *a, target)) return std::nullopt;
  return a->cluster;
}

bool supports(const prim::Graph& g, const Cluster& c, const Target& target) {
  const auto a = attention_of(g, c);
  return a && has_kernel(g, *a, target);
}

Result<Lowered> lower(const Request& request) {
  const auto a = attention_of(*request.graph, request.cluster);
  if (!a) return unsupported("attention: the cluster is none");
  if (request.target.is_gpu()) return lower_on_gpu(request, *a);
  const auto blocks = chosen_blocks(request, *a);
  if (!blocks) return unsupported("attention: too small, or of operands that have no kernel");
  return Emitter(request, *a, *blocks).run();
}

std::vector<Tuning> tuning_space(const Request& request) {
  std::vector<Tuning> out;
  const auto a = attention_of(*request.graph, request.cluster);
  if (!a) return out;
  if (request.target.is_gpu()) {
    for (const auto& t : gpu::attention_tiles(*request.graph, *a, request.target, {}))
      out.push_back({{"rows", t.rows}, {"keys", t.keys}});
    return out;
  }
  Request plain = request;
  plain.tuning.clear();
  const auto best = chosen_blocks(plain, *a);
  if (!best) return out;
  const std::int64_t rows = best->tiles * best->mr;
  for (const std::int64_t r : {rows, std::max<std::int64_t>(1, rows / 2), 2 * rows})
    for (const std::int64_t nv : {best->nv, best->nv - 1})
      if (nv > 0)
        out.push_back({{"mr", nv == best->nv ? best->mr : best->mr + 2},
                       {"nv", nv},
                       {"rows", r},
                       {"block", best->block}});
  return out;
}

}  // namespace heddle::lower::attention
