#pragma once
#include <coin/Coin_C_defines.h>

#include <vector>

#include "ilp/model.h"

namespace heddle::ilp {

/// A model as the solvers take it in one call: by column, with bounds. Row by row they copy their
/// arrays each time.
struct Columns {
  std::vector<CoinBigIndex> start;
  std::vector<int> rows;
  std::vector<double> coefficients, lower, upper;  ///< of entries; of rows
  std::vector<double> zeros, ones, costs;          ///< of variables

  Columns(const Model& model, const std::vector<Row>& extra);
};

}  // namespace heddle::ilp
