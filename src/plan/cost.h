#pragma once
#include <memory>
#include <optional>

#include "plan/facts.h"

namespace heddle::plan {

/// Roofline of one kernel: max(bytes/bandwidth, operations/peak(shape)) + launch, where values that
/// a stitched kernel evaluates several times are counted as often, and each tensor moves at the
/// speed of the smallest cache that holds it. Keeps scratch between calls; not thread-safe.
class CostModel {
 public:
  CostModel(const Facts& facts, const MachineModel& machine);
  ~CostModel();
  /// `cluster` must be valid: nodes sorted, outputs among them.
  Cost operator()(const Cluster& cluster);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Of a kernel of several contractions (Facts::chains).
Cost chain_cost(const Facts& facts, const MachineModel& machine, const Cluster& cluster);

/// Of layers of an image band by band (lower/bands/bands.h); nullopt: the cluster is no such chain.
std::optional<Cost> band_cost(const Facts& facts, const MachineModel& machine,
                              const Cluster& cluster);
/// The time of a kernel with a main loop from its parts, which do not overlap perfectly.
void finish_loop(const MachineModel& machine, Cost& cost);

/// Kernels that the model may be wrong about in different ways.
enum class KernelKind { loop, reduce, map };
KernelKind kind_of_kernel(const Facts& f, const Cluster& c);
double scale_of(KernelKind kind, const MachineModel& m);

/// Products of bf16, two to an instruction, against those of f32.
constexpr double kBf16Rate = 1.8;
/// GFLOP/s per core of a main loop of this shape whose result has this type; the columns' operand
/// is a constant, or is not.
double main_loop_rate(const MachineModel& m, const MatmulShape& s, DType type, bool packed);
/// GFLOP/s per core that a main loop of this shape reaches, as a share of the peak.
double main_loop_efficiency(const MatmulShape& shape, bool packed_operand, int lanes);

/// The one whose arithmetic and constants, one after the other, take least time, given what both
/// take as written; `stored`: among those, too, that read the image as it is stored.
lower::contract::Algorithm best_algorithm(const std::vector<lower::contract::Algorithm>& all,
                                          double work_us, double constant_us, bool stored);

}  // namespace heddle::plan
