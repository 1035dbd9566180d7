#include "runtime/schedule.h"

#include <gtest/gtest.h>

#include <random>

namespace heddle::runtime {
namespace {

Stage::Touch touch(bool write, std::vector<Span> shares, int memory = 0) {
  return {memory, write, std::move(shares)};
}
Stage stage(std::int64_t tasks, double seconds, std::vector<Stage::Touch> touches) {
  Stage s{0, 0, tasks, 1, seconds, std::move(touches)};
  for (const Stage::Touch& t : s.touches)
    s.shares = std::max<std::int64_t>(s.shares, std::ssize(t.shares));
  return s;
}
std::vector<Span> rows(std::int64_t begin, std::int64_t n, std::int64_t bytes) {
  std::vector<Span> out;
  for (std::int64_t i = 0; i < n; ++i) out.push_back({begin + i * bytes, begin + (i + 1) * bytes});
  return out;
}

/// Random programs over a small arena, so that memory is used again and again.
std::vector<Stage> random_stages(std::mt19937& rng) {
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(rng);
  };
  std::vector<Stage> out;
  for (int n = pick(1, 30); n > 0; --n) {
    const std::int64_t tasks = pick(0, 9) == 0 ? pick(0, 1) : pick(1, 40);
    const std::int64_t shares = std::min<std::int64_t>(std::max<std::int64_t>(tasks, 1), 8);
    std::vector<Stage::Touch> touches;
    for (int t = pick(1, 4); t > 0; --t) {
      const int memory = pick(0, 4) == 0 ? 1 : 0;
      const std::int64_t bytes = pick(1, 20);
      std::vector<Span> spans = pick(0, 2) == 0 ? std::vector<Span>{{pick(0, 50), pick(60, 200)}}
                                                : rows(pick(0, 200), shares, bytes);
      if (spans.size() > 1 && pick(0, 1) == 0)  // a halo
        for (Span& s : spans) s = {std::max<std::int64_t>(s.begin - bytes, 0), s.end + bytes};
      touches.push_back(touch(t == 1 || pick(0, 3) == 0, std::move(spans), memory));
    }
    out.push_back(stage(tasks, 1e-6 * pick(0, 20), std::move(touches)));
    out.back().shares = shares;
  }
  return out;
}
std::vector<StageLayout> layouts(std::size_t stages, std::mt19937& rng) {
  StageLayout own, deep{1, 0, true};
  for (std::size_t s = 0; s < stages; ++s) {
    StageChoice& choice = own.own.emplace_back(StageChoice{static_cast<int>(rng() % 4), {}});
    for (std::size_t before = 0; before < s; ++before)
      if (rng() % 6 == 0) choice.meets.push_back(static_cast<int>(before));
  }
  deep.own = own.own;
  StageLayout longest{2, 5e-6}, longest_whole{1, 1};
  longest.longest_first = longest_whole.longest_first = true;
  return {{},  {1, 5e-6}, {4, 0, true}, {3, 3e-6, true}, {1, 1}, {2, 0, false, true},
          own, deep,      longest,      longest_whole};
}

TEST(Schedule, RandomProgramsAreValid) {
  std::mt19937 rng(7);
  for (int i = 0; i < 300; ++i) {
    const std::vector<Stage> stages = random_stages(rng);
    for (const int workers : {1, 2, 3, 8})
      for (const StageLayout& layout : layouts(stages.size(), rng)) {
        const Schedule s = schedule(stages, workers, layout);
        const Status valid = validate(stages, s);
        ASSERT_TRUE(valid.ok()) << i << ": " << valid.error().message;
      }
  }
}

/// What a run can do wrong under a schedule: bytes hold who wrote them last, and reads are compared
/// with the stages run in order. Workers take turns at random.
bool runs_right(const std::vector<Stage>& stages, const Schedule& s, std::mt19937& rng) {
  constexpr std::size_t kBytes = 1024;
  using Memory = std::vector<std::vector<int>>;
  const auto touch_all = [&](Memory& memory, int number, std::int64_t task, bool write) {
    std::vector<int> seen;
    const Stage& stage = stages[static_cast<std::size_t>(number)];
    std::int64_t share = 0;
    while (stage.task_of(share + 1) <= task) ++share;
    for (const Stage::Touch& t : stage.touches) {
      if (t.write != write) continue;
      const Span span = t.shares[t.shares.size() == 1 ? 0 : static_cast<std::size_t>(share)];
      for (std::int64_t b = span.begin; b < span.end; ++b) {
        int& byte = memory[static_cast<std::size_t>(t.memory)][static_cast<std::size_t>(b)];
        if (write) byte = number + 1;
        // Tasks of one stage may be seen or not: stages that touch the same in one stage are alike.
        seen.push_back(byte == number + 1 ? -1 : byte);
      }
    }
    return seen;
  };
  Memory plain(2, std::vector<int>(kBytes)), memory = plain;
  std::vector<std::vector<std::vector<int>>> want(stages.size());
  for (std::size_t n = 0; n < stages.size(); ++n) {
    const Memory before = plain;
    for (std::int64_t t = 0; t < stages[n].tasks; ++t) {
      Memory copy = before;
      want[n].push_back(touch_all(copy, static_cast<int>(n), t, false));
      touch_all(plain, static_cast<int>(n), t, true);
    }
  }
  std::vector<std::size_t> next(s.items.size());
  while (true) {
    std::vector<std::size_t> able;
    for (std::size_t w = 0; w < next.size(); ++w) {
      if (next[w] == s.items[w].size()) continue;
      const int wait = s.items[w][next[w]].wait;
      bool free = true;
      for (std::size_t u = 0; wait >= 0 && u < next.size(); ++u)
        free &= static_cast<std::size_t>(s.waits[static_cast<std::size_t>(wait)][u]) <= next[u];
      if (free) able.push_back(w);
    }
    if (able.empty()) break;
    const std::size_t w = able[rng() % able.size()];
    const Schedule::Item item = s.items[w][next[w]++];
    for (std::int64_t t = item.first; t < item.last; ++t) {
      const std::vector<int> got = touch_all(memory, item.stage, t, false);
      const auto& wanted = want[static_cast<std::size_t>(item.stage)][static_cast<std::size_t>(t)];
      for (std::size_t i = 0; i < got.size(); ++i)
        if (got[i] != -1 && got[i] != wanted[i]) return false;
      touch_all(memory, item.stage, t, true);
    }
  }
  for (std::size_t w = 0; w < next.size(); ++w)
    if (next[w] != s.items[w].size()) return false;
  return memory == plain;
}

// Faults planted in valid schedules: whatever then runs wrong in some order is found by the proof.
TEST(Schedule, PlantedFaultsAreFound) {
  std::mt19937 rng(11);
  int wrong = 0, found = 0;
  for (int i = 0; i < 400; ++i) {
    std::vector<Stage> stages = random_stages(rng);
    const std::vector<StageLayout> choice = layouts(stages.size(), rng);
    Schedule s = schedule(stages, 2 + static_cast<int>(rng() % 3), choice[rng() % choice.size()]);
    ASSERT_TRUE(runs_right(stages, s, rng));
    auto& list = s.items[rng() % s.items.size()];
    if (list.empty()) continue;
    Schedule::Item& item = list[rng() % list.size()];
    switch (rng() % 6) {
      case 0:  // a wait is left out
        item.wait = -1;
        break;
      case 1:  // a wait is for one item less
        if (item.wait < 0) break;
        for (int& n : s.waits[static_cast<std::size_t>(item.wait)]) n = std::max(n - 1, 0);
        break;
      case 2:  // two items change places
        std::swap(item, list[rng() % list.size()]);
        break;
      case 3:  // a task is lost
        if (item.last - item.first > 1) --item.last;
        break;
      case 4: {  // a buffer lies elsewhere, on what others hold
        std::vector<Stage::Touch>& touches = stages[static_cast<std::size_t>(item.stage)].touches;
        const auto by = static_cast<std::int64_t>(1 + rng() % 200);
        for (Span& span : touches[rng() % touches.size()].shares) span.begin += by, span.end += by;
        break;
      }
      default:  // a wait for what comes later
        if (item.wait >= 0) s.waits[static_cast<std::size_t>(item.wait)].back() += 1;
    }
    bool right = true;
    const Status valid = validate(stages, s);
    for (const auto& wait : s.waits)
      for (std::size_t u = 0; u < wait.size(); ++u) right &= wait[u] <= std::ssize(s.items[u]);
    for (int order = 0; right && order < 20; ++order) right = runs_right(stages, s, rng);
    found += !valid.ok();
    if (right) continue;
    ++wrong;
    EXPECT_FALSE(valid.ok()) << "fault " << i << " is not found";
  }
  EXPECT_GT(wrong, 80);
  EXPECT_GE(found, wrong);
}

// A counter of `bits` tells items apart as long as a worker has fewer than half of what it counts.
TEST(Schedule, CountersThatOverflowAreFound) {
  std::mt19937 rng(13);
  for (int i = 0; i < 200; ++i) {
    const std::vector<Stage> stages = random_stages(rng);
    const Schedule s = schedule(stages, 1 + static_cast<int>(rng() % 4), {});
    std::int64_t most = 0;
    for (const auto& list : s.items) most = std::max<std::int64_t>(most, std::ssize(list));
    for (int bits = 1; bits < 12; ++bits)
      EXPECT_EQ(validate(stages, s, bits).ok(), most < std::int64_t{1} << (bits - 1)) << bits;
  }
}

TEST(Schedule, NamesWhatIsWrong) {
  const std::vector<Stage> stages = {
      stage(2, 1e-6, {touch(true, rows(0, 2, 64))}),
      stage(2, 1e-6, {touch(false, {{0, 128}}), touch(true, rows(128, 2, 64))})};
  const Schedule good = schedule(stages, 2, {});
  ASSERT_TRUE(validate(stages, good).ok());
  const auto message = [&](const Schedule& s, int bits = 64) {
    const Status status = validate(stages, s, bits);
    return status.ok() ? std::string("valid") : status.error().message;
  };
  Schedule s = good;
  s.items[0][1].wait = -1;
  EXPECT_NE(message(s).find("both touch byte 64, and nothing orders them"), std::string::npos);
  s = good;
  s.items[0][0].wait = 0, s.items[1][0].wait = 0, s.waits[0] = {2, 2};
  EXPECT_NE(message(s).find("deadlock"), std::string::npos);
  s = good;
  s.items[1].pop_back(), s.waits = {{1, 0}, {0, 1}};
  EXPECT_NE(message(s).find("task 1 of stage 1 runs never"), std::string::npos);
  s = good;
  s.items[0].push_back(s.items[0].back());
  EXPECT_NE(message(s).find("runs twice"), std::string::npos);
  EXPECT_NE(message(good, 2).find("in a counter of 2 bits"), std::string::npos);
  EXPECT_NE(message(good, 1).find("in a counter of 1 bits"), std::string::npos);
  for (const int bits : {0, -1, 65})
    EXPECT_NE(message(good, bits).find("want 1 to 64"), std::string::npos);
}

// Each stage has its own grain, and only some have a barrier before them.
// Where in memory two stages meet does not matter; what of each other's they touch, and how, does.
TEST(Schedule, EdgesMeetAlike) {
  const auto maker = [](std::int64_t at) { return stage(4, 1, {touch(true, rows(at, 4, 64))}); };
  const auto reader = [](std::int64_t at) { return stage(4, 1, {touch(false, rows(at, 4, 64))}); };
  EXPECT_EQ(meeting_of(maker(0), reader(0)), meeting_of(maker(512), reader(512)));
  EXPECT_NE(meeting_of(maker(0), reader(0)), meeting_of(maker(0), reader(64)));
  EXPECT_NE(meeting_of(maker(0), reader(0)), meeting_of(maker(0), maker(0)));
  EXPECT_NE(meeting_of(maker(0), reader(0)),
            meeting_of(maker(0), stage(4, 1, {touch(false, {{0, 256}})})));
  // What they do not share changes nothing.
  Stage more = reader(512);
  more.touches.push_back(touch(true, rows(4096, 4, 32)));
  EXPECT_EQ(meeting_of(maker(0), reader(0)), meeting_of(maker(512), more));
}

TEST(Schedule, StagesOfTheirOwn) {
  std::vector<Stage> stages;
  for (int i = 0; i < 4; ++i)
    stages.push_back(
        stage(8, 1e-5, {touch(false, rows(0, 8, 64)), touch(true, rows(512 * i, 8, 64))}));
  StageLayout layout;
  layout.own = {{1}, {2}, {0}, {1, {1, 2}}};
  const Schedule s = schedule(stages, 2, layout);
  ASSERT_TRUE(validate(stages, s).ok());
  std::vector<int> items(4), waits(4);
  for (const auto& list : s.items)
    for (const Schedule::Item& item : list) {
      ++items[static_cast<std::size_t>(item.stage)];
      waits[static_cast<std::size_t>(item.stage)] += item.wait >= 0;
    }
  EXPECT_EQ(items, (std::vector<int>{2, 4, 1, 2}));
  // Rows of their own need no wait; one worker waits for the rows of the other; two wait for all.
  EXPECT_EQ(waits, (std::vector<int>{0, 0, 1, 2}));
}

// A barrier is on one edge: what is needed of another stage is waited for item by item.
TEST(Schedule, EdgesOfTheirOwn) {
  // The third stage reads its own rows of both before it.
  const std::vector<Stage> stages = {
      stage(8, 1e-5, {touch(true, rows(0, 8, 64))}),
      stage(8, 1e-5, {touch(true, rows(512, 8, 64))}),
      stage(8, 1e-5,
            {touch(false, rows(0, 8, 64)), touch(false, rows(512, 8, 64)),
             touch(true, rows(1024, 8, 64))})};
  EXPECT_EQ(edges_of(stages), (std::vector<std::vector<int>>{{}, {}, {1, 0}}));
  StageLayout layout;
  layout.own = {{1}, {1}, {1, {0}}};
  Schedule s = schedule(stages, 2, layout);
  ASSERT_TRUE(validate(stages, s).ok());
  EXPECT_EQ(s.waits, (std::vector<std::vector<int>>{{0, 1}, {1, 0}}));
  layout.own[2].meets = {1};
  s = schedule(stages, 2, layout);
  EXPECT_EQ(s.waits, (std::vector<std::vector<int>>{{0, 2}, {2, 0}}));
}

// What another stage waits for already is no edge.
TEST(Schedule, EdgesAreWhatNothingElseOrders) {
  std::vector<Stage> chain;
  for (int i = 0; i < 3; ++i) chain.push_back(stage(4, 1e-6, {touch(true, rows(0, 4, 64))}));
  chain.push_back(stage(4, 1e-6, {touch(true, rows(0, 4, 64), 1)}));
  EXPECT_EQ(edges_of(chain), (std::vector<std::vector<int>>{{}, {0}, {1}, {}}));
}

// Two chains that have nothing to do with each other run side by side without a wait; one that
// reads its own rows only needs none either.
TEST(Schedule, SideBySide) {
  std::vector<Stage> stages;
  for (const int chain : {0, 1})
    for (int i = 0; i < 5; ++i)
      stages.push_back(stage(1, 1e-6,
                             {touch(false, {{1000 * chain, 1000 * chain + 8}}),
                              touch(true, {{1000 * chain, 1000 * chain + 8}})}));
  const Schedule s = schedule(stages, 2, {1, 2e-6});
  EXPECT_EQ(s.items[0].size(), 5U);
  EXPECT_EQ(s.items[1].size(), 5U);
  EXPECT_TRUE(s.waits.empty());

  const std::vector<Stage> rowwise = {
      stage(8, 1e-5, {touch(true, rows(0, 8, 64))}),
      stage(8, 1e-5, {touch(false, rows(0, 8, 64)), touch(true, rows(512, 8, 64))})};
  EXPECT_TRUE(schedule(rowwise, 2, {}).waits.empty());
  EXPECT_EQ(schedule(rowwise, 2, {1, 0, false, true}).waits.size(), 2U);
  const Schedule deep = schedule(rowwise, 1, {4, 0, true});
  std::vector<int> order;
  for (const Schedule::Item& item : deep.items[0]) order.push_back(item.stage);
  EXPECT_EQ(order, (std::vector<int>{0, 1, 0, 1, 0, 1, 0, 1}));
}

// Short stages that nothing waits for stand first in the program; the chain that decides when all
// is done begins before them.
TEST(Schedule, TheLongestPathGoesFirst) {
  std::vector<Stage> stages;
  for (int i = 0; i < 3; ++i)
    stages.push_back(stage(1, 1e-6, {touch(true, {{1000 * i, 1000 * i + 8}})}));
  for (int i = 0; i < 3; ++i)
    stages.push_back(stage(1, 1e-6, {touch(false, {{5000, 5008}}), touch(true, {{5000, 5008}})}));
  StageLayout layout{1, 1};
  layout.longest_first = true;
  const Schedule s = schedule(stages, 2, layout);
  ASSERT_TRUE(validate(stages, s).ok());
  EXPECT_EQ(s.items[0][0].stage, 3);
  EXPECT_EQ(s.items[0][1].stage, 4);
  EXPECT_EQ(schedule(stages, 2, {1, 1}).items[0][0].stage, 0);
}

}  // namespace
}  // namespace heddle::runtime
