#pragma once
#include <random>

#include "driver/platform.h"
#include "plan/measure.h"

namespace heddle::driver {

/// Values that no kernel is slow or wrong on: small normal numbers, index 0, false.
Tensor plain_values(const TensorType& type, std::mt19937_64& random);
/// "none" → 0, "full" → infinity, else seconds; a usage error for anything else.
Result<double> budget_seconds(const std::string& budget);
/// An error (missing) if this machine's vectors are narrower than those of the code.
Status runs_here(const codegen::cpu::Machine& machine);
/// The tuning database of a cache folder; in memory if there is no folder.
Result<std::unique_ptr<plan::TuningDb>> open_tuning_db(const std::string& cache_dir);

/// This machine's model as measured, from the database or measured now (about 0.3 s) and kept
/// there. Of a GPU: the model from its tables.
Result<plan::MachineModel> calibrated_machine(plan::TuningDb& db, ThreadPool& pool,
                                              const Platform& platform);

/// plan::orchestrate_measured() with this machine's calibrated model and its tuning database:
/// candidates are lowered, compiled and timed alone, with constants cold where a network's other
/// kernels have pushed them out of the caches (plan/reuse.h), and values as the caches hold them.
Result<plan::Plan> plan_measured(const prim::Graph& graph, plan::Options planning,
                                 const CompileOptions& options, const Platform& platform,
                                 ThreadPool& pool, plan::MeasureReport* report = nullptr);

/// Writes what was measured of the kernels of a plan without measurements (compiled with budget
/// none and no tuned schedules) into a file of plan::Schedules, in place of what it says of them;
/// the file is made if it is not there; one that was made for something else is an error. Returns
/// the rows that these kernels have: those for which another schedule is clearly faster than the
/// lowering's own.
Result<int> save_schedules(const Compiled& unmeasured, const CompileOptions& options,
                           const std::string& path);

/// What save_schedules would find wrong with the file, before anything is measured.
Status may_save_schedules(const CompileOptions& options, const std::string& path);

}  // namespace heddle::driver
