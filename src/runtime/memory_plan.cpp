#include "runtime/memory_plan.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace heddle::runtime {
namespace {

constexpr std::int64_t kAlignment = 64, kPage = 4096, kLarge = 16 * kPage;

/// What a block takes: large ones of whole pages some lines more, as large tensors begin at
/// different places of a page (support/tensor.cpp).
std::int64_t aligned(std::int64_t bytes) {
  const std::int64_t lines = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return lines >= kLarge && lines % kPage == 0 ? lines + 5 * kAlignment : lines;
}

struct Placed {
  std::int64_t begin, end;
  std::size_t block;
};

/// Lowest offset at which block `number` fits between the placed blocks that it cannot share with.
std::int64_t lowest_gap(const std::vector<Placed>& placed, const std::vector<Lifetime>& blocks,
                        std::size_t number, const MayFollow& may_follow) {
  const Lifetime& block = blocks[number];
  const auto follows = [&](std::size_t earlier, std::size_t later) {
    return blocks[earlier].last < blocks[later].first &&
           (!may_follow || may_follow(earlier, later));
  };
  std::int64_t offset = 0;
  for (const Placed& p : placed) {  // ordered by begin
    if (follows(p.block, number) || follows(number, p.block)) continue;
    if (offset + aligned(block.bytes) <= p.begin) break;
    offset = std::max(offset, p.end);
  }
  return offset;
}

}  // namespace

MemoryPlan plan_memory(const std::vector<Lifetime>& blocks, const MayFollow& may_follow) {
  MemoryPlan plan;
  plan.offsets.resize(blocks.size());
  std::vector<std::size_t> order(blocks.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return blocks[a].bytes > blocks[b].bytes; });
  std::vector<Placed> placed;
  std::map<int, std::int64_t> change;
  for (std::size_t i : order) {
    const Lifetime& block = blocks[i];
    const std::int64_t offset = lowest_gap(placed, blocks, i, may_follow);
    const Placed entry{offset, offset + aligned(block.bytes), i};
    placed.insert(
        std::upper_bound(placed.begin(), placed.end(), entry,
                         [](const Placed& a, const Placed& b) { return a.begin < b.begin; }),
        entry);
    plan.offsets[i] = offset;
    plan.bytes = std::max(plan.bytes, entry.end);
    change[block.first] += aligned(block.bytes);
    change[block.last + 1] -= aligned(block.bytes);
  }
  std::int64_t alive = 0;
  for (const auto& [step, delta] : change)
    plan.lower_bound = std::max(plan.lower_bound, alive += delta);
  return plan;
}

}  // namespace heddle::runtime
