#pragma once
#include <array>

#include "lower/contract/product.h"

namespace heddle::lower::contract {

/// A product of matrices by halves: rows 2i and 2i+1, vectors of columns 2j and 2j+1, and both
/// halves of the reduction make blocks of two by two, of which seven products are enough (Strassen,
/// Numer. Math. 13, 1969; in Winograd's form of fifteen additions). Rows, columns and results are
/// added where they are copied and stored, as in Huang et al., SC'16.
struct Strassen {
  std::int64_t pairs;    ///< of rows; the last may lack its second
  std::int64_t columns;  ///< pairs of vectors; the last may lack its second
  std::int64_t terms;    ///< of each product
};

constexpr std::int64_t kStrassenProducts = 7;

/// nullopt unless the operands are f32, the columns' one constant, an even number of terms and
/// whole vectors of columns, one row axis within a task.
std::optional<Strassen> strassen_of(const Product& p, int lanes);

/// Whether no window slides over the rows: each is a row of the operand, wherever that lies.
bool rows_stand_alone(const Problem& p);

/// Each product's share of the blocks 11, 12, 21, 22 of the constant operand.
std::array<std::array<int, 4>, kStrassenProducts> column_shares();

/// nullopt where `p` cannot be computed so, or nothing is gained.
std::optional<Algorithm> strassen_algorithm(const prim::Graph& g, const Problem& p,
                                            const Target& target);

/// The best by the model first; empty if `p` cannot be computed so.
std::vector<Schedule> strassen_schedules(const Product& p, const Target& target, int lanes,
                                         const Tuning& fixed, std::size_t count);

}  // namespace heddle::lower::contract
