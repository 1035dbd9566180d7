#include "prim/passes.h"

#include <fmt/ranges.h>

#include <set>

#include "prim/alternatives.h"
#include "prim/builder.h"
#include "prim/fold.h"
#include "prim/moments.h"
#include "prim/rewrite.h"
#include "support/options.h"

namespace heddle::prim {
namespace {

constexpr Pass kPasses[] = {
    {"canonicalize", "rewrite rows to a fixed point, constants folded in between",
     [](const Graph& g, std::string_view disable) { return canonicalize(g, disable); }},
    {"fold-constants", "replace constant subgraphs by constants that are not larger, or multiplied",
     [](const Graph& g, std::string_view) { return fold_constants(g); }},
    {kMomentsInOnePass, "variances as sums of x and of x^2 in f64, which one epilogue can make",
     [](const Graph& g, std::string_view) {
       return moments_in_one_pass(g, [](const Deviation&) { return true; });
     }},
    {"drop-dead", "drop nodes that no output needs",
     [](const Graph& g, std::string_view) { return drop_dead(g); }},
};

// Constants are folded even where the rewrite rows are disabled.
constexpr const Pass* kDefault[] = {&kPasses[0], &kPasses[1]};

}  // namespace

std::span<const Pass> passes() { return kPasses; }

const Pass* find_pass(std::string_view name) {
  for (const Pass& p : kPasses)
    if (p.name == name) return &p;
  return nullptr;
}

std::span<const Pass* const> default_passes() { return kDefault; }

Result<std::vector<const Pass*>> parse_passes(std::string_view names) {
  std::vector<const Pass*> list;
  while (!names.empty()) {
    const std::size_t comma = names.find(',');
    const std::string_view name = names.substr(0, comma);
    names = comma == std::string_view::npos ? std::string_view() : names.substr(comma + 1);
    if (name.empty()) continue;
    const Pass* pass = find_pass(name);
    if (pass == nullptr) {
      std::string known;
      for (const Pass& p : kPasses) known += (known.empty() ? "" : ", ") + std::string(p.name);
      return fail(ErrorCode::usage, "pass '{}': found no such pass, want one of {}", name, known);
    }
    list.push_back(pass);
  }
  return list;
}

Status check_disabled(std::string_view disable) {
  std::set<std::string_view> known;
  for (const Pass& p : kPasses) known.insert(p.name);
  for (const RewriteRule* r : rewrite_rules()) known.insert(r->name);
  for (const AlternativeRule& r : alternative_rules()) known.insert(r.name);
  while (!disable.empty()) {
    const std::size_t comma = disable.find(',');
    const std::string_view name = disable.substr(0, comma);
    disable = comma == std::string_view::npos ? std::string_view() : disable.substr(comma + 1);
    if (!name.empty() && !known.contains(name))
      return fail(ErrorCode::usage,
                  "--disable: found '{}', want passes, rewrite rows or alternatives: {}", name,
                  fmt::join(known, ", "));
  }
  return Ok{};
}

Result<Graph> run_passes(std::span<const Pass* const> list, Graph g, const PassOptions& options) {
  int number = 0;
  for (const Pass* pass : list) {
    if (options.bisect >= 0 && number >= options.bisect) break;
    ++number;
    if (lists(options.disable, pass->name)) continue;
    Graph next = pass->run(g, options.disable);
    if (next == g) continue;  // measured, never self-reported
    if (options.verify_each)
      if (const Status status = verify(next); !status)
        return fail("after pass {} ({}): {}", number, pass->name, status.error().message);
    if (options.changed) options.changed(number, pass->name, next);
    g = std::move(next);
  }
  return g;
}

Graph drop_dead(const Graph& g) {
  return rebuild(g,
                 [](Graph& out, const Node& n, NodeId) { return out.add(n.op, n.args, n.type); });
}

}  // namespace heddle::prim
