#pragma once
#include "plan/candidates.h"

namespace heddle::plan {

/// The chosen candidates of a region, by position, and what is known about how good they are.
struct Selection {
  std::vector<int> chosen;  ///< sorted
  double cost_us = 0, lower_bound_us = 0;
  int solver_nodes = 0, cut_rows = 0;
  double work = 0;  ///< of the solver
};

/// Dynamic-programming cover: the cheapest way to make each value, the cost of shared inputs
/// divided among their readers, a few rounds with the readers actually chosen; then kernels with
/// several outputs replace others while that pays. The answer at zero budget and the solver's
/// start.
Selection cover(const Facts& facts, const Region& region, const std::vector<Candidate>& candidates,
                const Options& options);

/// The binary program over the same candidates:
///   min Σ c_k u_k;  Σ_{k makes t} u_k ≥ 1 for region outputs;  Σ_{k makes t} u_k ≥ u_j for each
///   input t of j;  Σ_{k∈C} u_k ≤ |C|-1 lazily for kernels that wait for each other in a cycle.
/// Strategy::partition adds: no primitive (views apart) in two kernels. `work`: what the solver may
/// do, see ilp::SolveOptions; where it does not do, the cover is the answer.
Result<Selection> solve(const Facts& facts, const Region& region,
                        const std::vector<Candidate>& candidates, const Options& options,
                        double work = 0);

/// True if the chosen candidates make every output and input and do not wait for each other.
bool feasible(const Facts& facts, const Region& region, const std::vector<Candidate>& candidates,
              const std::vector<int>& chosen);

/// For each chosen kernel the most competitive others, with what the plan would cost.
std::vector<std::vector<Rejected>> rejected(const Facts& facts, const Region& region,
                                            const std::vector<Candidate>& candidates,
                                            const Selection& selection);

}  // namespace heddle::plan
