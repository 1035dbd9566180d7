#pragma once
#include <functional>
#include <span>
#include <string_view>

#include "prim/graph.h"
#include "support/result.h"

namespace heddle::prim {

/// A pass is a function of its input; what it changed is found by comparing.
struct Pass {
  std::string_view name;
  std::string_view help;
  /// `disable`: rewrite rows to leave out, comma-separated.
  Graph (*run)(const Graph& g, std::string_view disable);
};

/// Every pass that can be named (heddle-opt --passes=a,b).
std::span<const Pass> passes();
const Pass* find_pass(std::string_view name);
/// "canonicalize,fold-constants" → the passes; an unknown name is an error that lists the known.
Result<std::vector<const Pass*>> parse_passes(std::string_view names);
/// What the compiler runs, in order.
std::span<const Pass* const> default_passes();

struct PassOptions {
  bool verify_each = false;
  /// Passes from this one on are skipped; negative: none. The first bad pass is found by bisection.
  std::int64_t bisect = -1;
  /// Names of passes and rewrite rows to leave out, comma-separated.
  std::string disable;
  /// Called after a pass that changed the graph: number, name, result.
  std::function<void(int, std::string_view, const Graph&)> changed = {};
};

/// A usage error for a name in `disable` that is no pass, rewrite row or alternative.
Status check_disabled(std::string_view disable);

Result<Graph> run_passes(std::span<const Pass* const> list, Graph g, const PassOptions& options);

/// Copies the live part: ids become dense.
Graph drop_dead(const Graph& g);

}  // namespace heddle::prim
