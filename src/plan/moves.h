#pragma once
#include "plan/loops.h"
#include "plan/machine.h"

namespace heddle::plan {

/// What a kernel's reads and writes take, each tensor at the speed of the smallest cache that holds
/// what lies between two uses of it.
struct Moves : Loops {
  MachineModel m;
  // Scratch of one evaluation.
  double tasks = 0;
  double bytes = 0, memory_us = 0, scalar_ns = 0;
  double update_us = 0;     ///< of the epilogue's memory, after the products
  bool is_update = false;   ///< whether a main loop's epilogue stores what the next run reads
  double kernel_bytes = 0;  ///< of what it reads and writes

  /// Nanoseconds of an element that cannot be loaded as part of a vector.
  static constexpr double kStridedNs = 0.4;

  Moves(const Facts& facts, const MachineModel& machine) : Loops(facts), m(machine) {}

  double parallel(double units) const { return cores_for(m, units); }
  /// Many constants, inputs (weights and moments of a training step) or outputs do not stay in the
  /// last cache from one run to the next.
  bool is_cold(double all_bytes) const { return all_bytes > static_cast<double>(m.l3_bytes) / 2; }
  bool is_cold_output(NodeId o) const { return f.is_output(o) && is_cold(f.output_bytes); }
  /// `footprint` decides which memory holds it, unless it is cold; `traffic` is what moves.
  double move_us(double footprint, double traffic, bool cold = false) const;
  void move(double footprint, double traffic, bool cold, bool epilogue);
  double between(NodeId leaf) const;
  double bytes_of_kernel(const Cluster& c) const;
  void add_read(const Read& r);

 private:
  double footprint(NodeId id) const;
  double touched(const Read& r, const Use& use) const;
  double block_bytes(NodeId id, const Use& use) const;
  static bool strided(const Use& use);
};

}  // namespace heddle::plan
