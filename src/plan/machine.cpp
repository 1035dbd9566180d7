#include "plan/machine.h"

#include <algorithm>
#include <cmath>

#include "plan/cost.h"

namespace heddle::plan {

std::string to_string(const MachineModel& m) {
  return fmt::format(
      "threads={} vector={} l1={} l2={} l3={} l2_gbs={:.1f} l3_gbs={:.1f} dram_gbs={:.1f} "
      "peak_gflops={:.1f} launch_us={:.2f} scales={:.2f},{:.2f},{:.2f}",
      m.threads, m.vector_bytes, m.l1_bytes, m.l2_bytes, m.l3_bytes, m.l2_gbs, m.l3_gbs, m.dram_gbs,
      m.peak_gflops, m.launch_us, m.loop_scale, m.reduce_scale, m.map_scale);
}

namespace {

/// A chip: its rates are of the whole chip with this many multiprocessors.
struct Chip {
  int capability, multiprocessors;
  double dram_gbs, l2_gbs, f32_gflops, matrix_gflops, half_matrix_gflops;
};
// NVIDIA's data sheets (A100 80 GB, L40S, H200); matrix rates of f32 are without tf32.
constexpr Chip kChips[] = {
    {80, 108, 2039, 4000, 19.5e3, 19.5e3, 312e3},
    {89, 142, 864, 3500, 91.6e3, 91.6e3, 362e3},
    {90, 132, 4800, 5500, 67e3, 67e3, 989e3},
};

}  // namespace

MachineModel gpu_machine(int capability, int multiprocessors, std::int64_t l2_bytes) {
  const Chip* chip = &kChips[0];
  for (const Chip& c : kChips)
    if (c.capability <= capability) chip = &c;
  MachineModel m;
  m.gpu = true;
  m.threads = multiprocessors;
  m.vector_bytes = 16;
  const double each = 1.0 / chip->multiprocessors;
  // A value that another kernel wrote is in the chip's L2, never nearer.
  m.l1_bytes = m.l2_bytes = 128 << 10;
  m.l3_bytes = l2_bytes;
  m.l2_gbs = m.l3_gbs = chip->l2_gbs * each;
  m.dram_gbs = chip->dram_gbs;
  m.peak_gflops = chip->f32_gflops * each;
  m.matrix_gflops = chip->matrix_gflops * each;
  m.half_matrix_gflops = chip->half_matrix_gflops * each;
  if (capability >= 90) m.scattered_share = 0.55;
  m.launch_us = 2;
  return m;
}

double main_loop_rate(const MachineModel& m, const MatmulShape& s, DType type, bool packed) {
  const double wide = std::max(1.0, static_cast<double>(size_of(compute_type(type))) / 4);
  if (!m.gpu) return m.peak_gflops * main_loop_efficiency(s, packed, m.vector_bytes / 4) / wide;
  const double peak = size_of(type) <= 2 ? m.half_matrix_gflops : m.matrix_gflops;
  // Tiles are padded to 16 rows; filling and draining the pipeline costs some steps of k.
  const double narrow = std::min(s.m, s.n);
  return 0.75 * peak / wide * narrow / (16 * std::ceil(narrow / 16)) * s.k / (s.k + 64);
}

double main_loop_efficiency(const MatmulShape& s, bool packed_operand, int lanes) {
  // The wide side fills vectors, the narrow side rows of the register tile; but vectors of a
  // constant operand are its columns', however few.
  const double wide = std::max(s.m, s.n), narrow = std::min(s.m, s.n);
  double eff = packed_operand ? 0.9 : 0.8;
  eff *= wide / (wide + 4);
  if (packed_operand && s.n == narrow)
    eff *= std::min(1.0, s.n / lanes);
  else if (narrow < 6)
    eff *= (narrow + 0.5) / 6.5;
  eff *= s.k / (s.k + 6);
  return std::max(eff, 0.02);
}

lower::contract::Algorithm best_algorithm(const std::vector<lower::contract::Algorithm>& all,
                                          double work_us, double constant_us, bool stored) {
  const auto us = [&](const lower::contract::Algorithm& a) {
    return a.work * work_us + a.constant_bytes * constant_us;
  };
  lower::contract::Algorithm best;
  for (const lower::contract::Algorithm& a : all)
    if ((stored || !a.stored) && us(a) < us(best)) best = a;
  return best;
}

KernelKind kind_of_kernel(const Facts& f, const Cluster& c) {
  KernelKind kind = KernelKind::map;
  for (NodeId id : c.nodes) {
    if (f.is_main_loop(id)) return KernelKind::loop;
    if (f.as<prim::Reduce>(id) || f.as<prim::Contract>(id)) kind = KernelKind::reduce;
  }
  return kind;
}

double cores_for(const MachineModel& m, double tasks) {
  const double all = static_cast<double>(m.threads);
  return tasks >= 16 * all ? all : tasks / std::ceil(tasks / all);
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
