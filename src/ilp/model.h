#pragma once
#include <string>
#include <vector>

#include "support/id.h"

namespace heddle::ilp {

using VarId = Id<struct VarTag>;
using RowId = Id<struct RowTag>;

/// A 0-1 variable with its coefficient in the objective.
struct Variable {
  std::string name;
  double cost = 0;
  bool operator==(const Variable&) const = default;
};
struct Term {
  VarId var;
  double coefficient = 1;
  auto operator<=>(const Term&) const = default;
};
enum class Sense { at_most, at_least, equal };
/// Σ coefficient·var (≤ | ≥ | =) bound.
struct Row {
  std::string name;
  std::vector<Term> terms;
  Sense sense = Sense::at_least;
  double bound = 0;
  bool operator==(const Row&) const = default;
};

/// A 0-1 linear program: minimise Σ cost·var subject to the rows. Knows nothing of tensors.
class Model {
 public:
  VarId add_variable(std::string name, double cost) {
    return variables_.add({std::move(name), cost});
  }
  RowId add_row(Row row) { return rows_.add(std::move(row)); }
  const Table<VarTag, Variable>& variables() const { return variables_; }
  const Table<RowTag, Row>& rows() const { return rows_; }

 private:
  Table<VarTag, Variable> variables_;
  Table<RowTag, Row> rows_;
};

/// CPLEX LP text, readable by any solver: names are kept, characters that LP forbids become '_'.
std::string to_lp(const Model& model);
/// Objective of an assignment by VarId::value.
double objective(const Model& model, const std::vector<bool>& values);
/// The first row that an assignment breaks, or an invalid id.
RowId violated_row(const Model& model, const std::vector<bool>& values);
bool holds(const Row& row, const std::vector<bool>& values);

}  // namespace heddle::ilp
