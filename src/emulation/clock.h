#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

namespace heddle::emulation {

using Tick = std::uint32_t;

/// Who accesses memory: a thread of a block, or what works for threads asynchronously.
struct Agent {
  std::uint32_t block = 0, index = 0;
  bool operator==(const Agent&) const = default;
};

/// A vector clock: the last event of each agent that is known to have happened (Fidge, Mattern
/// 1988; accesses are kept as in FastTrack, Flanagan and Freund, PLDI'09). Agents of a block have
/// their ticks in one array, which clocks share until one changes it: after a barrier all threads
/// of a block know the same.
class Clock {
 public:
  Tick at(Agent a) const {
    for (const Part& p : parts_)
      if (p.block == a.block) return a.index < p.ticks->size() ? (*p.ticks)[a.index] : 0;
    return 0;
  }
  /// The agent's events up to `tick` have happened.
  void learn(Agent a, Tick tick) {
    Part* found = nullptr;
    for (Part& p : parts_)
      if (p.block == a.block) found = &p;
    if (!found) found = &parts_.emplace_back(Part{a.block, std::make_shared<Ticks>(), nullptr});
    if (found->ticks.use_count() > 1) found->ticks = std::make_shared<Ticks>(*found->ticks);
    Ticks& ticks = *found->ticks;
    if (a.index >= ticks.size()) ticks.resize(a.index + 1);
    ticks[a.index] = std::max(ticks[a.index], tick);
  }
  void join(const Clock& other) {
    for (const Part& theirs : other.parts_) {
      Part* mine = nullptr;
      for (Part& p : parts_)
        if (p.block == theirs.block) mine = &p;
      if (!mine)
        parts_.push_back({theirs.block, theirs.ticks, theirs.ticks});
      else if (mine->ticks != theirs.ticks && mine->last != theirs.ticks)
        merge(*mine, theirs);
    }
  }
  bool empty() const { return parts_.empty(); }

 private:
  using Ticks = std::vector<Tick>;
  struct Part {
    std::uint32_t block;
    std::shared_ptr<Ticks> ticks;
    std::shared_ptr<Ticks> last;  ///< joined last: most threads of a block bring the same
  };
  static void merge(Part& mine, const Part& theirs) {
    if (mine.ticks.use_count() > 1) mine.ticks = std::make_shared<Ticks>(*mine.ticks);
    Ticks& to = *mine.ticks;
    const Ticks& from = *theirs.ticks;
    if (to.size() < from.size()) to.resize(from.size());
    for (std::size_t i = 0; i < from.size(); ++i) to[i] = std::max(to[i], from[i]);
    mine.last = theirs.ticks;
  }
  std::vector<Part> parts_;
};

}  // namespace heddle::emulation
