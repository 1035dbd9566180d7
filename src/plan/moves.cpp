#include "plan/moves.h"

#include <algorithm>

namespace heddle::plan {

double Moves::move_us(double footprint, double traffic, bool cold) const {
  const double t = parallel(std::max(1.0, tasks));
  if (!cold && footprint <= static_cast<double>(m.l2_bytes) * t / 4) {
    return traffic / (m.l2_gbs * 1e3 * t);
  }
  if (!cold && footprint <= static_cast<double>(m.l3_bytes) / 2) {
    return traffic / (m.l3_gbs * 1e3 * t);
  }
  return traffic / (std::min(m.dram_gbs, 0.6 * m.dram_gbs * t) * 1e3);
}

void Moves::move(double footprint, double traffic, bool cold, bool epilogue) {
  // Share of DRAM's bandwidth that the update of a weight reaches in the epilogue of its gradient's
  // product, which goes from tile to tile; nothing overlaps with it.
  constexpr double kTileShare = 0.45;
  const double us = move_us(footprint, traffic, cold);
  if (is_update && cold && epilogue) {
    update_us += us / kTileShare;
  } else {
    memory_us += us;
  }
}

double Moves::between(NodeId leaf) const {
  return f.as<prim::Constant>(leaf) ? f.between[static_cast<std::size_t>(leaf.value)]
                                    : f.input_bytes;
}

/// What lies between two uses of a value: of a constant or input, at the least its like.
double Moves::footprint(NodeId id) const {
  const double others =
      f.is_leaf(id) ? between(id) : f.made_among[static_cast<std::size_t>(id.value)];
  return std::max(others, kernel_bytes);
}

double Moves::touched(const Read& r, const Use& use) const {
  return std::min(f.elements_of(r.node), use.scale * product(use.mask())) *
         static_cast<double>(size_of(f[r.node].type.dtype));
}

double Moves::bytes_of_kernel(const Cluster& c) const {
  double sum = 0;
  for (NodeId o : c.outputs) sum += f.bytes_of(o);
  for (const Read& r : reads) {
    double most = 0;
    for (const Use& use : r.uses) most = std::max(most, touched(r, use));
    sum += most;
  }
  return sum;
}

/// What a task reads of a value: whole vectors, where tasks are neighbours in memory.
double Moves::block_bytes(NodeId id, const Use& use) const {
  const std::uint64_t outer = outermost() & use.mask(),
                      along = use.dims.empty() ? 0 : outer & use.dims.back().unit;
  const double lanes = m.vector_bytes / static_cast<double>(size_of(f[id].type.dtype));
  return f.bytes_of(id) / std::max(1.0, product(outer)) * std::min(lanes, product(along));
}

bool Moves::strided(const Use& use) {
  if (use.dims.empty()) return false;
  const std::uint64_t inner = bit(use.innermost);
  if (!(use.mask() & inner)) return false;  // one value for the whole vector
  const std::uint64_t instead = use.instead < 0 ? 0 : bit(use.instead);
  return !(use.dims.back().unit & (inner | instead));
}

void Moves::add_read(const Read& r) {
  const bool cold = f.is_leaf(r.node) && is_cold(between(r.node));
  for (const Use& use : r.uses) {
    const double moved = touched(r, use);
    const bool again = &use != &r.uses.front();
    // A later pass finds the rows of one task in the core's cache, if they fit.
    const double block = block_bytes(r.node, use);
    if (again && block <= static_cast<double>(m.l2_bytes) / 2) {
      memory_us += moved / (m.l2_gbs * 1e3 * parallel(std::max(1.0, tasks)));
    } else {
      bytes += moved;
      move(footprint(r.node), moved, cold, use.operand == 0);
    }
    if (strided(use)) scalar_ns += kStridedNs * use.scale * product(use.mask());
  }
}

}  // namespace heddle::plan
