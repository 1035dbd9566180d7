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

/// GFLOP/s of one core in the instructions that multiply 16-bit floats in pairs and bytes in fours,
/// a product and its sum counted as two; 0 where it has none or they cannot be measured.
struct NarrowPeaks {
  double bf16 = 0, bytes = 0;
};
NarrowPeaks narrow_peaks(int vector_bytes);

}  // namespace heddle::plan
