#pragma once
#include "lower/contract/product.h"

namespace heddle::lower::contract {

constexpr std::int64_t kFewColumns = 8;

/// A product of a few columns, which would leave most lanes of vectors along them empty: vectors
/// run along the terms instead, and each result is the sum of its vector's lanes in the end.
struct Dots {
  std::int64_t lines = 1;    ///< of terms that lie side by side in both operands
  std::int64_t vectors = 1;  ///< of a line; the last may lack lanes
};

/// nullopt unless the columns are few and constant, and the rows' operand has whole lines of terms
/// in memory or in its box (channels-last).
std::optional<Dots> dots_of(const Product& p, int lanes);

/// What it takes where the layouts are as they are likely to be. nullopt where `p` (analysed with
/// constant columns) cannot be computed so, or nothing is gained.
std::optional<Algorithm> dots_algorithm(const prim::Graph& g, const Problem& p,
                                        const Target& target);
/// Whether it pays on processors with 32-byte vectors as well as on those with 64-byte ones and
/// products of words.
bool dots_everywhere(const prim::Graph& g, NodeId contract);

/// The best by the model first; empty if `p` cannot be computed so.
std::vector<Schedule> dots_schedules(const Product& p, const Target& target, int lanes,
                                     const Tuning& fixed, std::size_t count);

}  // namespace heddle::lower::contract
