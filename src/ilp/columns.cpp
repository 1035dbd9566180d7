#include "ilp/columns.h"

#include <limits>
#include <map>

namespace heddle::ilp {

Columns::Columns(const Model& model, const std::vector<Row>& extra) {
  const auto n = static_cast<std::size_t>(model.variables().size());
  std::vector<std::vector<std::pair<int, double>>> columns(n);
  const auto add = [&](const Row& row) {
    const int index = static_cast<int>(lower.size());
    // CBC writes outside its arrays when a column occurs twice in a row: terms are summed here.
    std::map<int, double> sums;
    for (const Term& t : row.terms) sums[t.var.value] += t.coefficient;
    for (const auto& [column, coefficient] : sums)
      columns[static_cast<std::size_t>(column)].emplace_back(index, coefficient);
    const double infinite = std::numeric_limits<double>::infinity();
    lower.push_back(row.sense == Sense::at_most ? -infinite : row.bound);
    upper.push_back(row.sense == Sense::at_least ? infinite : row.bound);
  };
  for (const Row& row : model.rows()) add(row);
  for (const Row& row : extra) add(row);
  for (const auto& column : columns) {
    start.push_back(static_cast<CoinBigIndex>(rows.size()));
    for (const auto& [row, coefficient] : column) {
      rows.push_back(row);
      coefficients.push_back(coefficient);
    }
  }
  start.push_back(static_cast<CoinBigIndex>(rows.size()));
  zeros.assign(n, 0);
  ones.assign(n, 1);
  for (const Variable& v : model.variables()) costs.push_back(v.cost);
}

}  // namespace heddle::ilp
