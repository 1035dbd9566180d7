#include "plan/korch.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>

namespace heddle::plan {
namespace {

using Bits = std::vector<std::uint64_t>;

bool has(const Bits& b, int i) { return b[static_cast<std::size_t>(i / 64)] >> (i % 64) & 1; }
void put(Bits& b, int i) { b[static_cast<std::size_t>(i / 64)] |= std::uint64_t{1} << (i % 64); }

/// All down-closed sets, or nothing if there are too many.
std::optional<std::vector<Bits>> states_of(const KorchGraph& g, int max_states) {
  const int n = static_cast<int>(g.args.size());
  std::set<Bits> seen;
  std::vector<Bits> work = {Bits(static_cast<std::size_t>(n / 64 + 1))};
  seen.insert(work[0]);
  while (!work.empty()) {
    const Bits state = std::move(work.back());
    work.pop_back();
    for (int i = 0; i < n; ++i) {
      if (has(state, i)) continue;
      const auto& args = g.args[static_cast<std::size_t>(i)];
      if (!std::all_of(args.begin(), args.end(), [&](int a) { return has(state, a); })) continue;
      Bits next = state;
      put(next, i);
      if (!seen.insert(next).second) continue;
      if (static_cast<int>(seen.size()) > max_states) return std::nullopt;
      work.push_back(std::move(next));
    }
  }
  return std::vector<Bits>(seen.begin(), seen.end());
}

std::vector<int> members(const Bits& b, int n) {
  std::vector<int> out;
  for (int i = 0; i < n; ++i) {
    if (has(b, i)) out.push_back(i);
  }
  return out;
}

bool accepted(const KorchGraph& g, const std::vector<int>& set,
              const std::vector<std::vector<int>>& readers, const Bits& bits) {
  int sinks = 0, linear = 0;
  for (int i : set) {
    linear += g.linear[static_cast<std::size_t>(i)];
    const auto& r = readers[static_cast<std::size_t>(i)];
    sinks += std::none_of(r.begin(), r.end(), [&](int x) { return has(bits, x); });
  }
  return sinks == 1 && (linear == 0 || set.size() == 1);
}

}  // namespace

int KorchGraph::add(std::vector<int> reads, bool is_linear) {
  args.push_back(std::move(reads));
  linear.push_back(is_linear);
  return static_cast<int>(args.size()) - 1;
}

Result<KorchCandidates> korch_candidates(const KorchGraph& g, int max_states) {
  const int n = static_cast<int>(g.args.size());
  auto states = states_of(g, max_states);
  if (!states) return fail("graph of {} primitives: more than {} execution states", n, max_states);
  std::vector<std::vector<int>> readers(g.args.size());
  for (int i = 0; i < n; ++i) {
    for (int a : g.args[static_cast<std::size_t>(i)]) {
      readers[static_cast<std::size_t>(a)].push_back(i);
    }
  }
  std::set<Bits> convex;
  for (const Bits& small : *states) {
    for (const Bits& large : *states) {
      Bits difference = large;
      bool subset = small != large;
      for (std::size_t w = 0; w < large.size(); ++w) {
        subset = subset && (small[w] & ~large[w]) == 0;
        difference[w] &= ~small[w];
      }
      if (subset) convex.insert(std::move(difference));
    }
  }
  KorchCandidates out;
  out.states = static_cast<int>(states->size());
  out.convex_sets = static_cast<int>(convex.size());
  for (const Bits& bits : convex) {
    std::vector<int> set = members(bits, n);
    if (accepted(g, set, readers, bits)) out.kernels.push_back(std::move(set));
  }
  std::sort(out.kernels.begin(), out.kernels.end());
  return out;
}

}  // namespace heddle::plan
