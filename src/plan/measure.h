#pragma once
#include "plan/plan.h"
#include "plan/tuning_db.h"

namespace heddle::plan {

struct Timing {
  double us = 0;
  lower::Tuning tuning;
  int runs = 1;
};

struct MeasureOptions {
  /// Compiles and times a cluster, with its constants `near` (finds_constants_near()) or in memory,
  /// where a network's other kernels have pushed them. An error excludes the cluster (unless it is
  /// a single primitive): it could not be lowered or compiled.
  std::function<Result<Timing>(const prim::Graph&, const Cluster&, bool near)> time;
  /// Told of clusters that will be timed, before the first of them is: those of a round, or so many
  /// at once if that is not 0. May be empty.
  std::function<void(const prim::Graph&, const std::vector<Cluster>&)> prepare = {};
  std::size_t prepared_at_once = 0;
  /// Timed before all others: kernels of a plan that is used where nothing is measured.
  std::vector<Cluster> first = {};
  /// How values will be stored, as far as is known; part of what a measurement is of. Empty:
  /// row-major.
  std::function<lower::Layout(prim::NodeId)> layout_of = {};
  double budget_s = 0;             ///< no timing starts after this; infinity is allowed
  TuningDb* db = nullptr;          ///< read before timing, written after; may be null
  std::string machine, build;      ///< as in TuningKey
  std::string other_machine = {};  ///< whose measurements are good as well, and read first
  std::function<void(int done, int waiting, double plan_us)> progress = {};
  std::function<double()> clock = {};  ///< seconds; empty: the steady clock
};

struct MeasureReport {
  int rounds = 0, timed = 0, from_db = 0, failed = 0;
  double seconds = 0;
  bool budget_spent = false;
  bool settled = false;               ///< stopped early: several rounds have found no faster plan
  std::vector<std::string> failures;  ///< messages, first of each cluster
  std::map<std::string, int> misses = {};  ///< why the database had nothing, counted
};

/// Two levels: the model plans, the kernels it chose and their closest competitors are measured
/// (most expensive first, equal ones once), the model is rescaled by what was seen, and the plan is
/// made again with the measurements, until nothing new is chosen, or rounds find no faster plan, or
/// the budget is spent. `cost_us`
/// of the result is made of measured and modelled parts; each kernel says which.
Result<Plan> orchestrate_measured(const prim::Graph& g, const Options& options,
                                  const MeasureOptions& measure, MeasureReport* report = nullptr);

}  // namespace heddle::plan
