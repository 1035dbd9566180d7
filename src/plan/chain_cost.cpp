#include <algorithm>
#include <cmath>

#include "plan/cost.h"

namespace heddle::plan {

namespace {

/// What a CPU takes beside the multiplications of a product: its columns are packed before, and
/// padded to whole vectors.
double added_us(const MachineModel& m, const MatmulShape& s, double written_us) {
  const double lanes = m.vector_bytes / 4.0, gigahertz = m.peak_gflops / m.vector_bytes;
  const double pack_cycles = 16 / lanes;  // of an element
  const double padding = std::ceil(s.n / lanes) * lanes / s.n - 1;
  return written_us * padding + s.batch * s.n * s.k * pack_cycles / (gigahertz * 1e3);
}

}  // namespace

void finish_loop(const MachineModel& m, Cost& cost) {
  constexpr double kOverlapLoss = 0.15;
  const double scale = scale_of(KernelKind::loop, m);
  cost.compute_us *= scale;
  cost.memory_us *= scale;
  cost.launch_us = m.launch_us;
  cost.us = cost.launch_us + std::max(cost.compute_us, cost.memory_us) +
            kOverlapLoss * std::min(cost.compute_us, cost.memory_us);
}

/// Contractions one after the other in a block's own memory, with the maps and reductions between
/// them: operands are read once from memory, and on a GPU by each block of 64 rows from the shared
/// cache. A CPU's core has them near while it multiplies.
Cost chain_cost(const Facts& f, const MachineModel& m, const Cluster& c) {
  constexpr double kRows = 64;
  const double map_efficiency = m.gpu ? 0.5 : 0.8;  // of values that are in registers or near
  double work_us = 0, vector_ops = 0, blocks = 1, passes = 1;  // of one multiprocessor
  Cost cost;
  for (NodeId id : c.nodes) {
    if (f.as<prim::Reduce>(id)) vector_ops += f.elements_of(f[id].args[0]);
    if (const auto* map = f.as<prim::Map>(id))
      vector_ops += f.elements_of(id) * ir::info(map->fn).flops;
    if (!f.as<prim::Contract>(id)) continue;
    const MatmulShape s = matmul_shape(f, id);
    const double flops = 2 * s.batch * s.m * s.n * s.k;
    passes = std::max(passes, std::ceil(s.m / kRows));
    blocks = std::max(blocks, s.batch * std::ceil(s.m / kRows));
    const double written_us = flops / (1e3 * main_loop_rate(m, s, f[id].type.dtype, !m.gpu));
    const bool halves = !m.gpu && f[f[id].args[0]].type.dtype == DType::bf16;
    const auto& all = f.algorithms[static_cast<std::size_t>(id.value)];
    const auto best =
        halves ? best_algorithm(all, written_us, 0, false) : lower::contract::Algorithm{};
    const bool pairs = halves && m.bf16_pairs && !best.tiles;
    work_us += written_us * best.work / (pairs ? kBf16Rate : 1);
    if (!m.gpu) work_us += added_us(m, s, written_us);
    cost.flops += flops;
  }
  cost.flops += vector_ops;
  const double cores = cores_for(m, blocks);
  work_us += vector_ops / (m.peak_gflops / 2 * 1e3 * map_efficiency);
  double again = 0;
  const auto move = [&](double bytes, bool constant) {
    const bool near = !constant && bytes <= static_cast<double>(m.l3_bytes) / 2;
    const double rate = near ? m.l3_gbs * cores : std::min(m.dram_gbs, 0.6 * m.dram_gbs * cores);
    cost.bytes += bytes;
    cost.memory_us += bytes / (rate * 1e3);
  };
  for (NodeId in : reads_of(*f.graph, c)) {
    move(f.bytes_of(in), f.as<prim::Constant>(in) != nullptr);
    if (m.gpu) again += (passes - 1) * f.bytes_of(in);
  }
  for (NodeId o : c.outputs) move(f.bytes_of(o), false);
  cost.compute_us = (work_us + again / (m.l2_gbs * 1e3)) / cores;
  finish_loop(m, cost);
  return cost;
}

}  // namespace heddle::plan
