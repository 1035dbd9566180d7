#include "ilp/relax.h"

#include <coin/Clp_C_Interface.h>

#include <algorithm>
#include <memory>

#include "ilp/columns.h"

namespace heddle::ilp {

std::optional<Relaxation> relax(const Model& model, int max_iterations) {
  const std::unique_ptr<Clp_Simplex, decltype(&Clp_deleteModel)> clp(Clp_newModel(),
                                                                     Clp_deleteModel);
  Clp_setLogLevel(clp.get(), 0);
  const Columns columns(model, {});
  const auto n = static_cast<std::size_t>(model.variables().size());
  Clp_loadProblem(clp.get(), static_cast<int>(n), static_cast<int>(columns.lower.size()),
                  columns.start.data(), columns.rows.data(), columns.coefficients.data(),
                  columns.zeros.data(), columns.ones.data(), columns.costs.data(),
                  columns.lower.data(), columns.upper.data());
  Clp_setMaximumIterations(clp.get(), max_iterations);
  Clp_initialDualSolve(clp.get());
  if (Clp_status(clp.get()) != 0) return std::nullopt;
  Relaxation out;
  out.bound = Clp_objectiveValue(clp.get());
  const double* values = Clp_getColSolution(clp.get());
  const double* reduced = Clp_getReducedCost(clp.get());
  out.values.assign(values, values + n);
  out.reduced_costs.assign(reduced, reduced + n);
  out.iterations = Clp_numberIterations(clp.get());
  return out;
}

std::vector<bool> fixed_to_zero(const Relaxation& relaxation, double cost) {
  std::vector<bool> out;
  const double slack = 1e-7 * std::max(1.0, std::abs(cost));
  for (const double reduced : relaxation.reduced_costs)
    out.push_back(reduced > 0 && relaxation.bound + reduced > cost + slack);
  return out;
}

Reduced without(const Model& model, const std::vector<bool>& gone) {
  Reduced out;
  std::vector<VarId> now(gone.size());
  for (std::int32_t v = 0; v < model.variables().size(); ++v) {
    if (gone[static_cast<std::size_t>(v)]) continue;
    const Variable& variable = model.variables()[VarId{v}];
    now[static_cast<std::size_t>(v)] = out.model.add_variable(variable.name, variable.cost);
    out.kept.push_back(VarId{v});
  }
  for (const Row& row : model.rows()) {
    Row less{row.name, {}, row.sense, row.bound};
    for (const Term& t : row.terms)
      if (const VarId var = now[static_cast<std::size_t>(t.var.value)])
        less.terms.push_back({var, t.coefficient});
    // What is left says nothing where no term is: 0 ≥ 0.
    if (less.terms.empty() && holds(less, {})) continue;
    out.model.add_row(std::move(less));
  }
  return out;
}

}  // namespace heddle::ilp
