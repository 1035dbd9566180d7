#pragma once
#include <set>

#include "driver/lower_plan.h"
#include "driver/platform.h"

namespace heddle::driver {

struct Chosen {
  plan::Plan plan;
  std::vector<CompiledKernel> kernels;  ///< lowered; on a GPU with their text
  std::vector<lower::Join> joins = {};  ///< concatenations in place
};

/// What was learnt of kernels, by what they compute (key_of).
struct Learnt {
  std::set<Hash> refused;  ///< no candidates
  Tunings tunings;
  /// Primitives of a kernel that makes this value, at most.
  std::map<prim::NodeId, std::size_t> most;
};
using Orchestrate = std::function<Result<plan::Plan>(const plan::Options&)>;

/// Makes plans by `orchestrate` until every kernel of one has a lowering: clusters whose lowering
/// refuses are no candidates of the next plan. Errors: unsupported, naming the source node, where
/// a single primitive has no kernel. `done_with` is told of constants as lower_plan() says.
Result<Chosen> choose_kernels(const prim::Graph& graph, plan::Options planning,
                              const Platform& platform, const Orchestrate& orchestrate,
                              Learnt learnt = {}, const DoneWith& done_with = {});

/// Compiles the kernels' texts and fills in what the assembler says of them.
using AssembleFn = std::function<Result<std::vector<std::string>>(std::vector<CompiledKernel>&)>;
struct Built {
  Chosen chosen;
  std::vector<std::string> objects;
};
/// choose_kernels() for a GPU, and the code. A kernel whose registers do not suffice, so that the
/// assembler keeps some in memory, is lowered again with schedules that need fewer; where none
/// helps, the next plan makes its value by a kernel of at most half as many primitives
/// (over-fusion, seen where it shows).
Result<Built> build_kernels(const prim::Graph& graph, const plan::Options& planning,
                            const Platform& platform, const Orchestrate& orchestrate,
                            const AssembleFn& assemble);

}  // namespace heddle::driver
