#include "runtime/schedule.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

namespace heddle::runtime {
namespace {

constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();
/// Of a stage whose shares are alike.
constexpr std::int64_t kShares = 64;
/// What it takes to see another worker's result: a cache line goes from core to core.
constexpr double kHandOver = 2e-7;

bool overlap(const Span& a, const Span& b) {
  return a.begin < b.end && b.begin < a.end && a.begin < a.end && b.begin < b.end;
}
void grow(Span& a, const Span& b) {
  if (b.begin >= b.end) return;
  if (a.begin >= a.end) a = b;
  a.begin = std::min(a.begin, b.begin);
  a.end = std::max(a.end, b.end);
}
/// Bytes that shares [first, last) touch, as one interval.
Span span_of(const Stage::Touch& touch, std::int64_t first, std::int64_t last) {
  if (touch.shares.size() == 1) return touch.shares[0];
  Span span;
  for (std::int64_t i = first; i < last; ++i) grow(span, touch.shares[static_cast<std::size_t>(i)]);
  return span;
}

/// What two touches of different stages must be ordered for.
bool conflict(const Stage::Touch& a, const Stage& of_a, const Stage::Touch& b, const Stage& of_b) {
  return a.memory == b.memory && (a.write || b.write) &&
         overlap(span_of(a, 0, of_a.shares), span_of(b, 0, of_b.shares));
}

/// Shares [first, last) of a stage: what becomes an item.
struct Piece {
  int stage = 0;
  std::int64_t first = 0, last = 0;
  int worker = -1;  ///< -1: whoever can begin first
  int group = 0;    ///< pieces that must be complete: position in befores_
};

class Scheduler {
 public:
  Scheduler(const std::vector<Stage>& stages, int workers, const StageLayout& layout)
      : stages_(stages), workers_(workers), layout_(layout) {}

  Schedule run() {
    for (std::size_t s = 0; s < stages_.size(); ++s) cut(static_cast<int>(s));
    place_.resize(pieces_.size());
    free_.resize(static_cast<std::size_t>(workers_));
    done_.resize(pieces_.size());
    theirs_.resize(befores_.size());
    arrivals_.assign(pieces_.size(), -1);
    out_.items.resize(static_cast<std::size_t>(workers_));
    known_.assign(static_cast<std::size_t>(workers_),
                  std::vector<int>(static_cast<std::size_t>(workers_)));
    if (layout_.longest_first)
      by_longest_path();
    else if (layout_.depth_first)
      by_depth();
    else
      for (std::size_t p = 0; p < pieces_.size(); ++p) put(static_cast<int>(p), best(p).worker);
    return std::move(out_);
  }

 private:
  struct Place {
    int worker = -1;
    int position = 0;  ///< in the worker's items
  };
  struct Start {
    int worker;
    double at;
  };

  int grain(int number) const {
    const auto s = static_cast<std::size_t>(number);
    if (!layout_.own.empty()) return layout_.own.at(s).grain;
    return stages_[s].seconds <= layout_.whole && workers_ > 1 ? 0 : layout_.grain;
  }

  void cut(int number) {
    const Stage& stage = stages_[static_cast<std::size_t>(number)];
    first_piece_.push_back(static_cast<int>(pieces_.size()));
    complete_.emplace_back();
    if (stage.tasks == 0) return;
    complete_.back().resize(stages_.size());
    const int each = grain(number);
    const bool whole = each == 0 || (workers_ == 1 && each == 1);
    const std::int64_t n =
        whole ? 1 : std::min<std::int64_t>(stage.shares, std::int64_t{workers_} * each);
    std::vector<Piece> made;
    for (std::int64_t i = 0; i < n; ++i) {
      Piece piece{number, stage.shares * i / n, stage.shares * (i + 1) / n};
      if (n > 1) piece.worker = static_cast<int>(i * workers_ / n);
      made.push_back(piece);
    }
    Befores befores(made.size());
    depend(stage, made, befores);
    for (std::size_t i = 0; i < made.size(); ++i) {
      std::ranges::sort(befores[i]);
      befores[i].erase(std::ranges::unique(befores[i]).begin(), befores[i].end());
      if (i == 0 || befores[i] != befores_.back()) befores_.push_back(std::move(befores[i]));
      made[i].group = static_cast<int>(befores_.size()) - 1;
      pieces_.push_back(made[i]);
    }
  }

  using Befores = std::vector<std::vector<int>>;  ///< by piece
  void depend(const Stage& stage, const std::vector<Piece>& made, Befores& befores) {
    const std::size_t number = first_piece_.size() - 1;
    std::vector<bool>& complete = complete_.back();
    if (layout_.barriers && layout_.own.empty()) {
      meet(met_, static_cast<int>(pieces_.size()), befores);
      met_ = static_cast<int>(pieces_.size());
      return;
    }
    for (std::size_t p = number; p-- > 0;) {
      // The last stages first: what they waited for is complete, too.
      if (complete[p]) continue;
      if (!layout_.own.empty() &&
          std::ranges::count(layout_.own[number].meets, static_cast<int>(p)) > 0)
        meet(first_piece_[p], first_piece_[p + 1], befores);
      else
        for (const Stage::Touch& now : stage.touches)
          for (const Stage::Touch& then : stages_[p].touches)
            if (conflict(then, stages_[p], now, stage)) depend(p, then, now, made, befores);
      know(p, befores, complete);
    }
  }
  /// Pieces [first, last) are complete before any that is made now.
  static void meet(int first, int last, Befores& befores) {
    for (std::vector<int>& before : befores)
      for (int q = first; q < last; ++q) before.push_back(q);
  }
  void depend(std::size_t earlier, const Stage::Touch& then, const Stage::Touch& now,
              const std::vector<Piece>& made, Befores& befores) {
    std::vector<Span> spans;
    for (const Piece& piece : made) spans.push_back(span_of(now, piece.first, piece.last));
    for (int q = first_piece_[earlier]; q < first_piece_[earlier + 1]; ++q) {
      const Piece& old = pieces_[static_cast<std::size_t>(q)];
      const Span before = span_of(then, old.first, old.last);
      for (std::size_t i = 0; i < made.size(); ++i)
        if (overlap(before, spans[i])) befores[i].push_back(q);
    }
  }
  /// What is complete before each piece of a stage by what they wait for of stage p.
  void know(std::size_t p, const Befores& befores, std::vector<bool>& complete) const {
    const int first = first_piece_[p], last = first_piece_[p + 1];
    if (first == last) return;
    bool some = true, all = true;
    for (const std::vector<int>& before : befores) {
      std::vector<bool> seen(static_cast<std::size_t>(last - first));
      for (std::size_t i = before.size(); i-- > 0 && before[i] >= first && before[i] < last;)
        seen[static_cast<std::size_t>(before[i] - first)] = true;
      const auto n = std::ranges::count(seen, true);
      some = some && n > 0, all = all && n == last - first;
    }
    if (!some) return;
    if (all) complete[p] = true;
    for (std::size_t q = 0; q < p; ++q) complete[q] = complete[q] || complete_[p][q];
  }

  const std::vector<int>& before(const Piece& piece) const {
    return befores_[static_cast<std::size_t>(piece.group)];
  }
  double seconds(const Piece& piece) const {
    const Stage& stage = stages_[static_cast<std::size_t>(piece.stage)];
    return stage.seconds * static_cast<double>(piece.last - piece.first) /
           static_cast<double>(stage.shares);
  }
  /// When what the piece waits for is there; it is placed.
  double arrival(const Piece& piece, int worker) const {
    double at = 0;
    for (const int b : before(piece)) {
      const auto before = static_cast<std::size_t>(b);
      at = std::max(at, done_[before] + (place_[before].worker == worker ? 0 : kHandOver));
    }
    return at;
  }
  double start(std::size_t number, int worker) {
    const Piece& piece = pieces_[number];
    double& known = arrivals_[number];
    if (piece.worker < 0)
      known = arrival(piece, worker);
    else if (known < 0)
      known = arrival(piece, piece.worker);
    return std::max(free_[static_cast<std::size_t>(worker)], known);
  }
  Start best(std::size_t number) {
    const Piece& piece = pieces_[number];
    if (piece.worker >= 0) return {piece.worker, start(number, piece.worker)};
    Start chosen{0, start(number, 0)};
    for (int w = 1; w < workers_; ++w)
      if (const double at = start(number, w); at < chosen.at) chosen = {w, at};
    return chosen;
  }

  /// Of all pieces whose predecessors are placed, the one that can begin first; of those that can
  /// at the same time, the latest in the program.
  void by_depth() {
    std::vector<int> left(pieces_.size());
    std::vector<std::vector<int>> after(pieces_.size());
    std::vector<int> ready;
    for (std::size_t p = 0; p < pieces_.size(); ++p) {
      const std::vector<int>& before = this->before(pieces_[p]);
      left[p] = static_cast<int>(before.size());
      for (const int b : before) after[static_cast<std::size_t>(b)].push_back(static_cast<int>(p));
      if (left[p] == 0) ready.push_back(static_cast<int>(p));
    }
    while (!ready.empty()) {
      std::size_t chosen = 0;
      Start start{-1, 0};
      for (std::size_t i = 0; i < ready.size(); ++i) {
        const Start s = best(static_cast<std::size_t>(ready[i]));
        if (start.worker < 0 || s.at < start.at || (s.at == start.at && ready[i] > ready[chosen]))
          chosen = i, start = s;
      }
      const int piece = ready[chosen];
      ready.erase(ready.begin() + static_cast<std::ptrdiff_t>(chosen));
      put(piece, start.worker);
      for (const int p : after[static_cast<std::size_t>(piece)])
        if (--left[static_cast<std::size_t>(p)] == 0) ready.push_back(p);
    }
  }

  /// Pieces by the longest path of seconds from their beginning to the program's end. What a piece
  /// waits for has a longer one, or stands before it.
  void by_longest_path() {
    std::vector<double> longest(pieces_.size());
    for (std::size_t p = pieces_.size(); p-- > 0;) {
      longest[p] += seconds(pieces_[p]);
      for (const int b : before(pieces_[p])) {
        double& before = longest[static_cast<std::size_t>(b)];
        before = std::max(before, longest[p]);
      }
    }
    std::vector<std::size_t> order(pieces_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, std::greater(), [&](std::size_t p) { return longest[p]; });
    for (const std::size_t p : order) put(static_cast<int>(p), best(p).worker);
  }

  void put(int number, int worker) {
    const auto p = static_cast<std::size_t>(number);
    const auto w = static_cast<std::size_t>(worker);
    const Piece& piece = pieces_[p];
    const Stage& stage = stages_[static_cast<std::size_t>(piece.stage)];
    done_[p] = start(p, worker) + seconds(piece);
    free_[w] = done_[p];
    Schedule::Item item{piece.stage, stage.task_of(piece.first), stage.task_of(piece.last),
                        wait(piece, worker)};
    std::vector<Schedule::Item>& list = out_.items[w];
    // The next tasks of the same stage, with nothing more to wait for: one item.
    if (item.wait < 0 && !list.empty() && list.back().stage == item.stage &&
        list.back().last == item.first && grain(piece.stage) <= 1)
      list.back().last = item.last;
    else
      list.push_back(item);
    place_[p] = {worker, static_cast<int>(list.size()) - 1};
    seen_.resize(pieces_.size());
    seen_[p] = known_[w];
    seen_[p][w] = static_cast<int>(list.size());
  }

  /// The wait of a piece: what its worker does not know to be complete. It knows what it has waited
  /// for, and what those whom it waited for had.
  int wait(const Piece& piece, int worker) {
    std::vector<int>& known = known_[static_cast<std::size_t>(worker)];
    std::vector<int> wanted(known.size());
    for (const int b : before(piece)) {
      const Place& place = place_[static_cast<std::size_t>(b)];
      int& items = wanted[static_cast<std::size_t>(place.worker)];
      if (place.worker != worker) items = std::max(items, place.position + 1);
    }
    bool any = false;
    for (std::size_t u = 0; u < known.size(); ++u) {
      if (wanted[u] <= known[u]) wanted[u] = 0;
      any |= wanted[u] > 0;
    }
    std::vector<int>& theirs = theirs_[static_cast<std::size_t>(piece.group)];
    if (theirs.empty()) {
      theirs.resize(known.size());
      for (const int b : before(piece)) grow(theirs, seen_[static_cast<std::size_t>(b)]);
    }
    grow(known, theirs);
    if (!any) return -1;
    const auto [at, fresh] = waits_.try_emplace(wanted, static_cast<int>(out_.waits.size()));
    if (fresh) out_.waits.push_back(std::move(wanted));
    return at->second;
  }

  static void grow(std::vector<int>& known, const std::vector<int>& more) {
    for (std::size_t u = 0; u < known.size(); ++u) known[u] = std::max(known[u], more[u]);
  }

  const std::vector<Stage>& stages_;
  const int workers_;
  const StageLayout layout_;
  std::vector<Piece> pieces_;                ///< by stage
  std::vector<int> first_piece_;             ///< by stage
  std::vector<std::vector<int>> befores_;    ///< by group of pieces of a stage
  std::vector<std::vector<int>> theirs_;     ///< by group: what those had done by their ends
  std::vector<std::vector<bool>> complete_;  ///< by stage: those complete before all of it
  int met_ = 0;  ///< first piece of the last stage before which all have met
  std::vector<Place> place_;
  std::vector<double> free_, done_;      ///< by worker; by piece
  std::vector<double> arrivals_;         ///< by piece; -1: not known
  std::vector<std::vector<int>> known_;  ///< by worker: items of each that are complete
  std::vector<std::vector<int>> seen_;   ///< by piece: the same when it is complete
  std::map<std::vector<int>, int> waits_;
  Schedule out_;
};

/// What a phase that says nothing may touch: all memory that is written.
std::vector<Stage::Touch> everything(const Launch& launch) {
  std::vector<Stage::Touch> touches;
  for (const Slot& slot : launch.args) {
    if (slot.kind == Slot::Kind::arena) touches.push_back({0, true, {{0, kAll}}});
    if (slot.kind == Slot::Kind::output)
      touches.push_back({1 + static_cast<int>(slot.index), true, {{0, kAll}}});
  }
  return touches;
}

}  // namespace

std::vector<Stage> stages_of(const Program& program, std::span<const int> only) {
  std::vector<Stage> stages;
  for (std::size_t l = 0; l < program.launches.size(); ++l) {
    const Launch& launch = program.launches[l];
    for (std::size_t p = 0; p < launch.phases.size(); ++p) {
      const Phase& phase = launch.phases[p];
      Stage stage{static_cast<int>(l), static_cast<int>(p), phase.tasks, 1, 0, {}};
      stage.seconds = launch.seconds / static_cast<double>(launch.phases.size());
      if (!only.empty() && std::ranges::count(only, std::ssize(stages)) == 0) {
        stage.tasks = 0;
        stages.push_back(std::move(stage));
        continue;
      }
      for (const Touch& touch : phase.touches) {
        const Slot& slot = launch.args[static_cast<std::size_t>(touch.arg)];
        const bool arena = slot.kind == Slot::Kind::arena;
        if (!arena && slot.kind != Slot::Kind::output) continue;
        Stage::Touch& t = stage.touches.emplace_back();
        t.memory = arena ? 0 : 1 + static_cast<int>(slot.index);
        t.write = touch.write;
        for (const auto& [begin, end] : touch.shares)
          t.shares.push_back({begin + (arena ? slot.index : 0), end + (arena ? slot.index : 0)});
        stage.shares = std::max<std::int64_t>(stage.shares, std::ssize(t.shares));
      }
      if (phase.touches.empty()) stage.touches = everything(launch);
      // Shares that all touch the same can be told apart at will.
      if (stage.shares == 1) stage.shares = std::clamp<std::int64_t>(stage.tasks, 1, kShares);
      stages.push_back(std::move(stage));
    }
  }
  return stages;
}

std::vector<std::vector<int>> edges_of(const std::vector<Stage>& stages) {
  std::vector<std::vector<int>> edges(stages.size());
  std::vector<std::vector<bool>> after(stages.size());  // by stage: all that are complete before it
  for (std::size_t s = 0; s < stages.size(); ++s) {
    after[s].resize(stages.size());
    for (std::size_t p = s; p-- > 0;) {
      if (after[s][p]) continue;
      const bool any = std::ranges::any_of(stages[s].touches, [&](const Stage::Touch& now) {
        return std::ranges::any_of(stages[p].touches, [&](const Stage::Touch& then) {
          return conflict(then, stages[p], now, stages[s]);
        });
      });
      if (!any) continue;
      edges[s].push_back(static_cast<int>(p));
      after[s][p] = true;
      for (std::size_t q = 0; q < p; ++q) after[s][q] = after[s][q] || after[p][q];
    }
  }
  return edges;
}

std::vector<std::int64_t> meeting_of(const Stage& then, const Stage& now) {
  std::vector<std::int64_t> out{then.tasks, then.shares, now.tasks, now.shares};
  const auto add = [&](const Stage::Touch& t, std::int64_t from) {
    out.push_back(t.write);
    for (const Span& s : t.shares) out.insert(out.end(), {s.begin - from, s.end - from});
  };
  for (const Stage::Touch& a : then.touches)
    for (const Stage::Touch& b : now.touches) {
      if (!conflict(a, then, b, now) || a.shares.empty()) continue;
      add(a, a.shares[0].begin);
      add(b, a.shares[0].begin);
    }
  return out;
}

Schedule schedule(const std::vector<Stage>& stages, int workers, const StageLayout& layout) {
  return Scheduler(stages, workers, layout).run();
}

}  // namespace heddle::runtime
