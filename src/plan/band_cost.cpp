#include "lower/bands/bands.h"
#include "plan/cost.h"

namespace heddle::plan {

namespace {

/// Vector operations of a layer beside a main loop's. A pooling or a convolution of each channel
/// alone reaches the share of the peak that maps do.
double operations_of(const Facts& f, const lower::bands::Layer& layer) {
  double sum = 0;
  for (NodeId id : layer.cluster.nodes)
    if (const auto* map = f.as<prim::Map>(id)) sum += f.elements_of(id) * ir::info(map->fn).flops;
  if (f.is_main_loop(layer.root)) return sum;
  const auto* contract = f.as<prim::Contract>(layer.root);
  const std::int64_t terms = contract ? element_count(contract->reduced) : 1;
  return sum + f.elements_of(layer.root) * static_cast<double>(terms);
}

}  // namespace

/// What is between layers moves in a core's own cache; rows where bands overlap are made twice.
std::optional<Cost> band_cost(const Facts& f, const MachineModel& m, const Cluster& c) {
  constexpr double kMapEfficiency = 0.5;
  // Measured over modelled time, against the same of separate kernels (17 kernels of mobile
  // networks): stores of a separate layer hide behind its arithmetic less than the model has it.
  constexpr double kNear = 0.9;
  if (m.gpu) return std::nullopt;
  const auto layers = lower::bands::layers_of(*f.graph, c);
  if (!lower::bands::are_bands(*f.graph, layers, m.l2_bytes, m.vector_bytes / 4))
    return std::nullopt;
  const auto bands = lower::bands::bands_of(*f.graph, layers, m.l2_bytes, m.threads);
  if (!bands) return std::nullopt;
  Cost cost;
  const Shape& image = f[layers.back().root].type.shape;
  const double cores = cores_for(m, static_cast<double>(bands->count * image[0]));
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const NodeId root = layers[i].root;
    const std::int64_t rows = f[root].type.shape[lower::bands::kRowDim];
    const double again =
        static_cast<double>(bands->parts[i].rows * bands->count) / static_cast<double>(rows);
    const double operations = operations_of(f, layers[i]);
    double us = operations / (m.peak_gflops / 2 * 1e3 * kMapEfficiency);
    if (f.is_main_loop(root)) {
      const MatmulShape s = matmul_shape(f, root);
      const double flops = 2 * s.batch * s.m * s.n * s.k;
      us += flops / (1e3 * main_loop_rate(m, s, DType::f32, true));
      cost.flops += again * flops;
    }
    cost.flops += again * operations;
    cost.compute_us += again * us / cores;
    if (i + 1 < layers.size())
      cost.memory_us += 2 * again * f.bytes_of(layers[i].output()) / (m.l2_gbs * 1e3 * cores);
  }
  const auto move = [&](NodeId id) {
    const double bytes = f.bytes_of(id);
    const double rate = bytes <= static_cast<double>(m.l2_bytes) * cores / 4 ? m.l2_gbs * cores
                        : bytes <= static_cast<double>(m.l3_bytes) / 2       ? m.l3_gbs * cores
                                                                             : m.dram_gbs;
    cost.bytes += bytes;
    cost.memory_us += bytes / (rate * 1e3);
  };
  for (NodeId in : reads_of(*f.graph, c)) move(in);
  for (NodeId o : c.outputs) move(o);
  cost.compute_us *= kNear;
  finish_loop(m, cost);
  return cost;
}

}  // namespace heddle::plan
