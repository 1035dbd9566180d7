#pragma once
#include "plan/machine.h"
#include "support/thread_pool.h"

namespace heddle::plan {

/// Processor model, cache sizes, vector level and thread count: the name under which measurements
/// of this machine are kept.
std::string machine_name(int threads, int vector_bytes);

/// The default model with this machine's cache sizes, as far as the system tells.
MachineModel default_machine(int threads, int vector_bytes);

/// Measures copy bandwidth in L2, L3 and memory, multiply-add throughput and the cost of a parallel
/// region, each the best of repeats; about 0.3 s. Run on an idle machine.
MachineModel calibrate(ThreadPool& pool, int vector_bytes);

/// GB/s at which all threads read `bytes`, each its own part, when they do so again and again: how
/// much of a last-level cache others leave is in no table (a virtual machine of two cores says 480
/// MB and keeps 64 to 100). Memory for them is taken meanwhile, 512 MB at the most.
double reading_gbs(ThreadPool& pool, double bytes);

/// GFLOP/s of one core in the instructions that multiply 16-bit floats and bytes (in pairs and in
/// fours, or in tile registers), a product and its sum counted as two; 0 where it has none or they
/// cannot be measured. `tiles`: it has tile registers, and this process may use them.
struct NarrowPeaks {
  double bf16 = 0, bytes = 0;
};
NarrowPeaks narrow_peaks(int vector_bytes, bool tiles);

}  // namespace heddle::plan
