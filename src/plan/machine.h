#pragma once
#include <cstdint>
#include <string>

namespace heddle::plan {

/// What the cost model knows of a machine. The defaults describe two cores of a 2021 server and are
/// what `--budget none` uses, so that plans do not depend on a measurement.
struct MachineModel {
  int threads = 2;
  int vector_bytes = 32;
  std::int64_t l1_bytes = 32 << 10, l2_bytes = 512 << 10, l3_bytes = 32 << 20;
  /// Read plus write traffic, GB/s: private L2 per core, L3 per core, DRAM for the machine.
  double l2_gbs = 70, l3_gbs = 30, dram_gbs = 30;
  /// f32 multiply-adds counted as two, GFLOP/s per core in a perfect main loop.
  double peak_gflops = 100;
  /// Starting a kernel on all threads and meeting at its end, microseconds.
  double launch_us = 0.8;
  /// Measured over modelled time, by kind of kernel: with a main loop, with a reduction, neither.
  double loop_scale = 1, reduce_scale = 1, map_scale = 1;
  /// A GPU: cores are multiprocessors, and matrix units have rates of their own: GFLOP/s per core
  /// of main loops on f32 and on 16-bit operands.
  bool gpu = false;
  double matrix_gflops = 0, half_matrix_gflops = 0;
  /// Share of half_matrix_gflops where an operand is not contiguous along the reductions: Hopper's
  /// products by warpgroups then are none of ours (lower/contract/gpu/gemm.h).
  double scattered_share = 1;
  bool quads = false;        ///< lower::Target::quads
  bool byte_tables = false;  ///< lower::Target::byte_tables
  bool bf16_pairs = false;   ///< lower::Target::bf16_pairs
  bool operator==(const MachineModel&) const = default;
};
std::string to_string(const MachineModel& m);
/// Cores that this many equal tasks keep busy: the last round may leave some idle.
double cores_for(const MachineModel& machine, double tasks);

/// A GPU of this compute capability times ten, from vendors' tables scaled to the number of
/// multiprocessors: what plans are made for where nothing was measured.
MachineModel gpu_machine(int capability, int multiprocessors, std::int64_t l2_bytes);

}  // namespace heddle::plan
