#pragma once
#include <vector>

#include "support/result.h"

namespace heddle::plan {

/// A primitive graph reduced to what Korch's candidate rules look at.
struct KorchGraph {
  /// Primitives each one reads, by position, all earlier; graph inputs and weights are left out.
  std::vector<std::vector<int>> args;
  std::vector<bool> linear;  ///< convolution and matrix products
  int add(std::vector<int> reads, bool is_linear = false);
};

struct KorchCandidates {
  int states = 0;                         ///< down-closed sets
  int convex_sets = 0;                    ///< distinct non-empty differences of two states
  std::vector<std::vector<int>> kernels;  ///< accepted ones, each sorted, in order
};

/// The candidate kernels of Korch (ASPLOS'24, algorithm 1 and its published code): convex sets
/// found as differences of execution states, with a single sink; a linear primitive only alone. Our
/// own enumeration does not need convexity; this one is kept to compare with. Errors: more than
/// `max_states` execution states.
Result<KorchCandidates> korch_candidates(const KorchGraph& g, int max_states = 4000);

}  // namespace heddle::plan
