#include "runtime/cuda/ring.h"

#include <gtest/gtest.h>

#include <random>

namespace heddle::runtime::cuda {
namespace {

using Kind = RingEvent::Kind;

struct Case {
  Program program;
  std::vector<Stage> stages;
  MonolithTables tables;
};

/// Random stages, most of which go through one or two constants of odd sizes.
Case random_case(std::mt19937& rng) {
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(rng);
  };
  Case c;
  Program& p = c.program;
  p.persistent.emplace();
  p.persistent->ring = {pick(2, 7), 16 * pick(1, 5), 0};
  for (int n = pick(1, 6); n > 0; --n) {
    Launch launch{fmt::format("k{}", n), {{Slot::Kind::arena, 64 * n}}, {}};
    Phase phase{"k", pick(1, 20), {}};
    for (int a = pick(0, 2); a > 0; --a) {
      const std::int64_t step = pick(1, 60), bytes = step + pick(0, 3), begin = pick(0, 40);
      const std::int64_t size = begin + step * (phase.tasks - 1) + bytes - pick(0, 3);
      phase.grid.paged.push_back({static_cast<int>(launch.args.size()), begin, step, bytes});
      launch.args.push_back({Slot::Kind::constant, static_cast<std::int64_t>(p.constants.size())});
      p.constants.emplace_back(TensorType{DType::u8, {std::max<std::int64_t>(size, 1)}});
    }
    phase.touches = {{0, true, {{0, 64}}}};
    launch.phases = {std::move(phase)};
    p.launches.push_back(std::move(launch));
  }
  c.stages = stages_of(p);
  const int workers = pick(1, 3);
  const Schedule made = block_schedule(c.stages, workers, {});
  EXPECT_TRUE(validate(c.stages, made, 32).ok());
  c.tables = tables_of(made, {}, 0);
  add_pages(p, c.stages, c.tables);
  return c;
}

/// What a block does under tables and events, its two sides and the copies in random order: pages
/// hold the constant and the place that each byte is of.
class Execution {
 public:
  Execution(const Case& c, int block, const RingEvents& events)
      : c_(c),
        ring_(c.program.persistent->ring),
        block_(static_cast<std::size_t>(block)),
        events_(events),
        pages_(static_cast<std::size_t>(ring_.pages)) {
    for (Page& page : pages_)
      page.bytes.assign(static_cast<std::size_t>(ring_.page_bytes), {-1, 0});
  }

  bool right(std::mt19937& rng) {
    if (!has_all_tasks()) return false;
    while (right_) {
      std::vector<int> able;
      if (may_go_on(events_.producer, p_)) able.push_back(0);
      if (may_go_on(events_.consumer, c_at_)) able.push_back(1);
      if (!copies_.empty()) able.push_back(2);
      if (able.empty()) break;
      switch (able[rng() % able.size()]) {
        case 0:
          produce(events_.producer[p_++]);
          break;
        case 1:
          consume(events_.consumer[c_at_++]);
          break;
        default:
          land(rng() % copies_.size());
      }
    }
    return right_ && p_ == events_.producer.size() && c_at_ == events_.consumer.size();
  }

 private:
  struct Page {
    std::vector<std::pair<std::int64_t, std::int64_t>> bytes;
    int full = 0, empty = 0;  ///< phases passed
    bool armed = false;
    int reading = -1;  ///< position
  };
  struct Copy {
    int page;
    ConstantRange from;
  };

  const MonolithTables& tables() const { return c_.tables; }

  bool has_all_tasks() const {
    for (int i = tables().first_item[block_]; i < tables().first_item[block_ + 1]; ++i) {
      const MonolithItem& item = tables().items[static_cast<std::size_t>(i)];
      if (item.step == item.step_end) continue;
      std::vector<int> runs(
          static_cast<std::size_t>(c_.stages[static_cast<std::size_t>(item.stage)].tasks));
      for (int s = item.step; s < item.step_end; ++s) {
        const MonolithStep& step = tables().steps[static_cast<std::size_t>(s)];
        for (int t = step.first; t < step.last; ++t) {
          if (t < 0 || t >= std::ssize(runs)) return false;
          ++runs[static_cast<std::size_t>(t)];
        }
      }
      for (int t = 0; t < std::ssize(runs); ++t)
        if (runs[static_cast<std::size_t>(t)] != (t >= item.first && t < item.last)) return false;
    }
    return true;
  }

  bool may_go_on(const std::vector<RingEvent>& side, std::size_t at) const {
    if (at == side.size()) return false;
    const RingEvent& e = side[at];
    const Page& page = pages_[static_cast<std::size_t>(e.page)];
    if (e.kind == Kind::wait_empty) return page.empty % 2 != e.parity;
    if (e.kind == Kind::wait_full) return page.full % 2 != e.parity;
    return true;
  }
  void produce(const RingEvent& e) {
    Page& page = pages_[static_cast<std::size_t>(e.page)];
    if (e.kind != Kind::fill) return;
    if (page.armed) right_ = false;  // a second arrival in one phase
    page.armed = true;
    const auto at = static_cast<std::size_t>(tables().first_load[block_] + e.position);
    copies_.push_back({e.page, tables().loads.at(at)});
    // What is being written holds nothing.
    page.bytes.assign(static_cast<std::size_t>(ring_.page_bytes), {-1, 0});
  }
  void land(std::size_t number) {
    const Copy copy = copies_[number];
    copies_.erase(copies_.begin() + static_cast<std::ptrdiff_t>(number));
    Page& page = pages_[static_cast<std::size_t>(copy.page)];
    for (std::int64_t i = 0; i < copy.from.bytes && i < ring_.page_bytes; ++i)
      page.bytes[static_cast<std::size_t>(i)] = {copy.from.constant, copy.from.begin + i};
    right_ = right_ && copy.from.bytes <= ring_.page_bytes && copy.from.begin % 16 == 0;
    ++page.full;
    page.armed = false;
  }
  void consume(const RingEvent& e) {
    Page& page = pages_[static_cast<std::size_t>(e.page)];
    // From the read to the release all that the step's tasks want of the page is there.
    if (e.kind == Kind::read) page.reading = e.position;
    if (e.kind == Kind::read || e.kind == Kind::release) check(page.reading);
    if (e.kind == Kind::release) ++page.empty;
  }

  void check(int position) {
    for (int i = tables().first_item[block_]; i < tables().first_item[block_ + 1]; ++i) {
      const MonolithItem& item = tables().items[static_cast<std::size_t>(i)];
      for (int s = item.step; s < item.step_end; ++s) {
        const MonolithStep& step = tables().steps[static_cast<std::size_t>(s)];
        if (position >= step.position && position < step.position + step.count)
          check(item, step, position);
      }
    }
  }
  void check(const MonolithItem& item, const MonolithStep& step, int position) {
    const Stage& stage = c_.stages[static_cast<std::size_t>(item.stage)];
    const Launch& launch = c_.program.launches[static_cast<std::size_t>(stage.launch)];
    const std::vector<Paged>& paged = launch.phases[0].grid.paged;
    for (std::size_t a = 0; a < paged.size(); ++a) {
      if (step.bias[a] == kNoPages) continue;
      const std::int64_t constant = launch.args[static_cast<std::size_t>(paged[a].arg)].index;
      const std::int64_t size = c_.program.constants[static_cast<std::size_t>(constant)].bytes();
      for (std::int64_t task = step.first; task < step.last; ++task)
        for (std::int64_t i = 0; i < paged[a].bytes; ++i) {
          const std::int64_t at = paged[a].begin + task * paged[a].step + i;
          if (at >= size) continue;
          const std::int64_t place =
              std::int64_t{step.position % ring_.pages} * ring_.page_bytes + step.bias[a] + at;
          const std::int64_t page = place / ring_.page_bytes;
          const std::int64_t behind = page - step.position % ring_.pages;
          if (place < 0 || page >= ring_.pages || behind < 0 || behind >= step.count) {
            right_ = false;
            continue;
          }
          if (page != position % ring_.pages) continue;
          const auto found = pages_[static_cast<std::size_t>(page)]
                                 .bytes[static_cast<std::size_t>(place % ring_.page_bytes)];
          right_ = right_ && found == std::pair(constant, at);
        }
    }
  }

  const Case& c_;
  const Ring& ring_;
  const std::size_t block_;
  const RingEvents& events_;
  std::vector<Page> pages_;
  std::vector<Copy> copies_;
  std::size_t p_ = 0, c_at_ = 0;
  bool right_ = true;
};

int blocks_of(const Case& c) { return static_cast<int>(c.tables.first_item.size()) - 1; }

bool runs_right(const Case& c, std::mt19937& rng) {
  for (int b = 0; b < blocks_of(c); ++b) {
    const RingEvents events = ring_events(c.tables, b, c.program.persistent->ring.pages);
    for (int order = 0; order < 10; ++order)
      if (!Execution(c, b, events).right(rng)) return false;
  }
  return true;
}

TEST(Ring, RandomProgramsAreValidAndRunRight) {
  std::mt19937 rng(3);
  std::size_t steps = 0, left_out = 0, direct = 0;
  for (int i = 0; i < 300; ++i) {
    const Case c = random_case(rng);
    const Status valid = validate_ring(c.program, c.stages, c.tables);
    ASSERT_TRUE(valid.ok()) << i << ": " << valid.error().message;
    ASSERT_TRUE(runs_right(c, rng)) << i;
    steps += c.tables.steps.size();
    for (const MonolithStep& s : c.tables.steps) left_out += s.first == s.last;
    for (const Stage& s : c.stages)
      direct +=
          !c.program.launches[static_cast<std::size_t>(s.launch)].phases[0].grid.paged.empty() &&
          paged_of(c.program, s).empty();
  }
  EXPECT_GT(steps, 2000u);
  EXPECT_GT(left_out, 100u);
  EXPECT_GT(direct, 20u);  // a task that no ring of this size holds
}

/// Faults in what the kernel reads.
void plant(Case& c, std::mt19937& rng) {
  MonolithTables& t = c.tables;
  MonolithStep& step = t.steps[rng() % t.steps.size()];
  ConstantRange& load = t.loads[rng() % t.loads.size()];
  const int sign = rng() % 2 == 0 ? 1 : -1;
  switch (rng() % 11) {
    case 0:
      step.position += sign;
      break;
    case 1:
      step.count = std::max(0, step.count + sign);
      break;
    case 2:
      if (step.bias[0] != kNoPages) step.bias[0] += 16 * sign;
      break;
    case 3:
      step.last += sign;
      break;
    case 4:
      std::swap(step, t.steps[rng() % t.steps.size()]);
      break;
    case 5:
      load.begin = std::max<std::int64_t>(0, load.begin + 16 * sign);
      break;
    case 6:
      load.bytes = std::max<std::int64_t>(0, load.bytes - 16);
      break;
    case 7:
      std::swap(load, t.loads[rng() % t.loads.size()]);
      break;
    case 8:
      load.constant = static_cast<std::int64_t>(rng() % c.program.constants.size());
      break;
    case 9:
      step.bias[0] += c.program.persistent->ring.page_bytes * sign;
      break;
    default:
      step.first += sign;
  }
}

// Faults planted in valid tables: whatever then runs wrong in some order is found by the proof.
TEST(Ring, PlantedFaultsInTablesAreFound) {
  std::mt19937 rng(5);
  int wrong = 0;
  for (int i = 0; i < 1500; ++i) {
    Case c = random_case(rng);
    if (c.tables.steps.empty() || c.tables.loads.empty()) continue;
    plant(c, rng);
    const bool valid = validate_ring(c.program, c.stages, c.tables).ok();
    // Positions outside the tables have no meaning that could be run.
    bool inside = true;
    for (int b = 0; b < blocks_of(c); ++b)
      for (const RingEvent& e : ring_events(c.tables, b, c.program.persistent->ring.pages).consumer)
        inside &= e.position >= 0 && e.page >= 0;
    if (inside && runs_right(c, rng)) continue;
    ++wrong;
    EXPECT_FALSE(valid) << "fault " << i << " is not found";
  }
  EXPECT_GT(wrong, 500);
}

/// A missing or second arrival, wait or filling, a wrong parity, a wrong order.
std::string plant(RingEvents& events, int pages, std::mt19937& rng) {
  std::vector<RingEvent>& side = rng() % 2 == 0 ? events.producer : events.consumer;
  if (side.empty()) return "";
  const std::size_t at = rng() % side.size(), other = rng() % side.size();
  const auto place = side.begin() + static_cast<std::ptrdiff_t>(at);
  switch (rng() % 5) {
    case 0:
      side.erase(place);
      return "missing";
    case 1:
      place->parity = 1 - place->parity;
      return "parity";
    case 2:
      std::swap(side[at], side[other]);
      return "order";
    case 3:
      side.insert(place, side[at]);
      return "twice";
    default:
      place->page = static_cast<int>(rng() % static_cast<unsigned>(pages));
      return "page";
  }
}

TEST(Ring, PlantedFaultsInWhatIsDoneAreFound) {
  std::mt19937 rng(7);
  std::map<std::string, int> wrong;
  for (int i = 0; i < 3000; ++i) {
    const Case c = random_case(rng);
    const int block = static_cast<int>(rng() % static_cast<unsigned>(blocks_of(c)));
    const int pages = c.program.persistent->ring.pages;
    RingEvents events = ring_events(c.tables, block, pages);
    ASSERT_TRUE(validate(events, pages).ok());
    const std::string fault = plant(events, pages, rng);
    bool right = true;
    for (int order = 0; right && order < 10; ++order)
      right = Execution(c, block, events).right(rng);
    if (right) continue;
    ++wrong[fault];
    EXPECT_FALSE(validate(events, pages).ok()) << fault << " " << i << " is not found";
  }
  for (const char* fault : {"missing", "parity", "order", "twice", "page"})
    EXPECT_GT(wrong[fault], 50) << fault;
}

TEST(Ring, NamesWhatIsWrong) {
  const auto message = [](const std::vector<RingEvent>& producer,
                          const std::vector<RingEvent>& consumer) {
    const Status status = validate(RingEvents{producer, consumer}, 1);
    return status.ok() ? std::string("valid") : status.error().message;
  };
  const std::vector<RingEvent> fills = {{Kind::wait_empty, 0, 1, 0},
                                        {Kind::fill, 0, 0, 0},
                                        {Kind::wait_empty, 0, 0, 1},
                                        {Kind::fill, 0, 0, 1}};
  const std::vector<RingEvent> reads = {{Kind::wait_full, 0, 0, 0}, {Kind::read, 0, 0, 0},
                                        {Kind::release, 0, 0, 0},   {Kind::wait_full, 0, 1, 1},
                                        {Kind::read, 0, 0, 1},      {Kind::release, 0, 0, 1}};
  EXPECT_EQ(message(fills, reads), "valid");
  std::vector<RingEvent> changed = reads;
  changed.erase(changed.begin() + 2);
  EXPECT_NE(message(fills, changed).find("waits for ever for page 0"), std::string::npos);
  changed = fills;
  changed.erase(changed.begin() + 2);
  EXPECT_NE(message(changed, reads).find("is filled while it may be read"), std::string::npos);
  changed = reads;
  changed.erase(changed.begin());
  EXPECT_NE(message(fills, changed).find("is read before it is filled"), std::string::npos);
  changed = fills;
  changed[2].parity = 1;
  EXPECT_NE(message(changed, reads).find("waits for a phase long past"), std::string::npos);
}

}  // namespace
}  // namespace heddle::runtime::cuda
