#include "plan/machine.h"

#include <algorithm>

#include "plan/cost.h"

namespace heddle::plan {

std::string to_string(const MachineModel& m) {
  return fmt::format(
      "threads={} vector={} l1={} l2={} l3={} l2_gbs={:.1f} l3_gbs={:.1f} dram_gbs={:.1f} "
      "peak_gflops={:.1f} launch_us={:.2f} scales={:.2f},{:.2f},{:.2f}",
      m.threads, m.vector_bytes, m.l1_bytes, m.l2_bytes, m.l3_bytes, m.l2_gbs, m.l3_gbs, m.dram_gbs,
      m.peak_gflops, m.launch_us, m.loop_scale, m.reduce_scale, m.map_scale);
}

double main_loop_efficiency(const MatmulShape& s, bool packed_operand) {
  // The wide side fills vectors, the narrow side rows of the register tile.
  const double wide = std::max(s.m, s.n), narrow = std::min(s.m, s.n);
  double eff = packed_operand ? 0.9 : 0.8;
  eff *= wide / (wide + 4);
  if (narrow < 6) eff *= (narrow + 0.5) / 6.5;
  eff *= s.k / (s.k + 6);
  return std::max(eff, 0.02);
}

KernelKind kind_of_kernel(const Facts& f, const Cluster& c) {
  KernelKind kind = KernelKind::map;
  for (NodeId id : c.nodes) {
    if (f.is_main_loop(id)) return KernelKind::loop;
    if (f.as<prim::Reduce>(id) || f.as<prim::Contract>(id)) kind = KernelKind::reduce;
  }
  return kind;
}

double scale_of(KernelKind kind, const MachineModel& m) {
  switch (kind) {
    case KernelKind::loop:
      return m.loop_scale;
    case KernelKind::reduce:
      return m.reduce_scale;
    case KernelKind::map:
      return m.map_scale;
  }
  return 1;
}

}  // namespace heddle::plan
