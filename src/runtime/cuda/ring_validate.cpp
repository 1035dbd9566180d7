#include <algorithm>

#include "runtime/cuda/ring.h"

namespace heddle::runtime::cuda {

using Kind = RingEvent::Kind;

RingEvents ring_events(const MonolithTables& tables, int block, int pages) {
  RingEvents out;
  const auto b = static_cast<std::size_t>(block);
  const auto page = [&](int position) { return position % pages; };
  const auto lap = [&](int position) { return position / pages % 2; };
  for (int p = 0; p < tables.first_load[b + 1] - tables.first_load[b]; ++p) {
    out.producer.push_back({Kind::wait_empty, page(p), 1 - lap(p), p});
    out.producer.push_back({Kind::fill, page(p), 0, p});
  }
  for (int i = tables.first_item[b]; i < tables.first_item[b + 1]; ++i) {
    const MonolithItem& item = tables.items[static_cast<std::size_t>(i)];
    for (int s = item.step; s < item.step_end; ++s) {
      const MonolithStep& step = tables.steps[static_cast<std::size_t>(s)];
      for (const Kind kind : {Kind::wait_full, Kind::read, Kind::release})
        for (int p = step.position; p < step.position + step.count; ++p)
          out.consumer.push_back({kind, page(p), kind == Kind::wait_full ? lap(p) : 0, p});
    }
  }
  return out;
}

namespace {

/// Phases that a page's barriers have passed, and what its two sides have done.
struct Page {
  int waited_empty = 0, fills = 0, waited_full = 0, reads = 0, releases = 0;
  int filled = -1;  ///< position of the last filling
};

/// As long as fillings, reads and releases of a page take turns, a barrier is at most one phase
/// ahead of who waits, and a parity says which; then whatever can go on, can go on in any order.
class Protocol {
 public:
  Protocol(const RingEvents& events, int pages)
      : events_(events), pages_(static_cast<std::size_t>(pages)) {}

  Status run() {
    for (const auto* side : {&events_.producer, &events_.consumer})
      for (const RingEvent& e : *side)
        if (e.page < 0 || static_cast<std::size_t>(e.page) >= pages_.size())
          return fail("ring: found page {} of {}", e.page, pages_.size());
    std::size_t p = 0, c = 0;
    for (bool moved = true; moved;) {
      moved = false;
      for (; p < events_.producer.size() && may_go_on(events_.producer[p]); ++p, moved = true)
        HEDDLE_TRY(produce(events_.producer[p]));
      for (; c < events_.consumer.size() && may_go_on(events_.consumer[c]); ++c, moved = true)
        HEDDLE_TRY(consume(events_.consumer[c]));
    }
    if (p < events_.producer.size())
      return fail("ring: the filling at position {} waits for ever for page {}",
                  events_.producer[p].position, events_.producer[p].page);
    if (c < events_.consumer.size())
      return fail("ring: the reader of position {} waits for ever for page {}",
                  events_.consumer[c].position, events_.consumer[c].page);
    for (const Page& page : pages_)
      if (page.reads != page.fills)
        return fail("ring: {} fillings of a page are read by nobody", page.fills - page.reads);
    return Ok{};
  }

 private:
  /// A fresh barrier has just passed a phase of parity 1.
  bool may_go_on(const RingEvent& e) const {
    const Page& page = pages_[static_cast<std::size_t>(e.page)];
    if (e.kind == Kind::wait_empty) return page.releases % 2 != e.parity;
    if (e.kind == Kind::wait_full) return page.fills % 2 != e.parity;
    return true;
  }
  Status wrong(const RingEvent& e, const char* what) const {
    return fail("ring: position {}, page {}: {}", e.position, e.page, what);
  }

  Status produce(const RingEvent& e) {
    Page& page = pages_[static_cast<std::size_t>(e.page)];
    if (e.kind == Kind::wait_empty) {
      // Of parity that passes before the last reader is done, too, it orders nothing.
      if (e.parity != (page.fills + 1) % 2) return wrong(e, "waits for a phase long past");
      page.waited_empty = page.fills + 1;
      return Ok{};
    }
    if (e.kind != Kind::fill) return wrong(e, "is no work of who fills");
    if (page.waited_empty != page.fills + 1) return wrong(e, "is filled while it may be read");
    ++page.fills;
    page.filled = e.position;
    return Ok{};
  }
  Status consume(const RingEvent& e) {
    Page& page = pages_[static_cast<std::size_t>(e.page)];
    if (e.kind == Kind::wait_full) {
      if (e.parity != page.reads % 2) return wrong(e, "waits for a filling long past");
      page.waited_full = page.reads + 1;
      return Ok{};
    }
    if (e.kind == Kind::read) {
      if (page.waited_full != page.reads + 1) return wrong(e, "is read before it is filled");
      if (page.filled != e.position) return wrong(e, "holds what is for another position");
      ++page.reads;
      return Ok{};
    }
    if (e.kind != Kind::release) return wrong(e, "is no work of who reads");
    if (page.releases + 1 != page.reads) return wrong(e, "is free before it was read, or twice");
    ++page.releases;
    return Ok{};
  }

  const RingEvents& events_;
  std::vector<Page> pages_;
};

/// Where the bytes are.
class Contents {
 public:
  Contents(const Program& program, const std::vector<Stage>& stages, const MonolithTables& tables)
      : program_(program), ring_(program.persistent->ring), stages_(stages), tables_(tables) {}

  Status block(std::size_t b) {
    first_load_ = tables_.first_load[b];
    loads_ = tables_.first_load[b + 1] - first_load_;
    for (int i = 0; i < loads_; ++i) HEDDLE_TRY(load(i));
    int position = 0;
    for (int i = tables_.first_item[b]; i < tables_.first_item[b + 1]; ++i)
      HEDDLE_TRY(item(tables_.items[static_cast<std::size_t>(i)], position));
    if (position != loads_)
      return fail("ring: block {} fills {} pages and reads {}", b, loads_, position);
    return Ok{};
  }

 private:
  const ConstantRange& load_at(int position) const {
    return tables_.loads[static_cast<std::size_t>(first_load_ + position)];
  }
  Status load(int position) const {
    const ConstantRange& r = load_at(position);
    if (r.bytes == 0) return Ok{};
    const bool known =
        r.constant >= 0 && r.constant < std::ssize(program_.constants) && r.begin >= 0;
    if (!known || r.bytes < 0 || r.bytes > ring_.page_bytes || r.begin % kPageUnit != 0 ||
        r.bytes % kPageUnit != 0 ||
        r.begin + r.bytes >
            program_.constants[static_cast<std::size_t>(r.constant)].bytes() + kPageUnit - 1)
      return fail("ring: position {} gets {} bytes of constant {} from {} on", position, r.bytes,
                  r.constant, r.begin);
    return Ok{};
  }

  Status item(const MonolithItem& item, int& position) const {
    const auto s = static_cast<std::size_t>(item.stage);
    const std::vector<Paged> paged = paged_of(program_, stages_[s]);
    if (item.step == item.step_end) return Ok{};
    if (item.step < 0 || item.step > item.step_end || item.step_end > std::ssize(tables_.steps))
      return fail("ring: found steps {}..{}", item.step, item.step_end);
    int task = item.first;
    for (int i = item.step; i < item.step_end; ++i) {
      const MonolithStep& step = tables_.steps[static_cast<std::size_t>(i)];
      if (step.position != position || step.count < 0 || step.count > ring_.pages ||
          position + step.count > loads_)
        return fail("ring: a step of {} pages at position {}, want position {}", step.count,
                    step.position, position);
      position += step.count;
      if (step.first == step.last) continue;
      if (step.first != task || step.last <= task || step.last > item.last)
        return fail("ring: tasks {}..{} of stage {} where {} is next", step.first, step.last,
                    item.stage, task);
      task = step.last;
      for (std::size_t a = 0; a < kMostPaged; ++a) {
        if (step.bias[a] == kNoPages) continue;
        if (a >= paged.size()) return fail("ring: stage {} has no argument {}", item.stage, a);
        HEDDLE_TRY(argument(item, step, paged[a], step.bias[a]));
      }
    }
    if (task != item.last) return fail("ring: task {} of stage {} runs never", task, item.stage);
    return Ok{};
  }

  /// Every byte that the step's tasks may read is where the pointer leads.
  Status argument(const MonolithItem& item, const MonolithStep& step, const Paged& paged,
                  std::int64_t bias) const {
    const Stage& stage = stages_[static_cast<std::size_t>(item.stage)];
    const Slot& slot = program_.launches[static_cast<std::size_t>(stage.launch)]
                           .args[static_cast<std::size_t>(paged.arg)];
    const std::int64_t size = program_.constants[static_cast<std::size_t>(slot.index)].bytes();
    const std::int64_t begin = paged.begin + step.first * paged.step;
    const std::int64_t end =
        std::min(size, paged.begin + (step.last - 1) * paged.step + paged.bytes);
    if (bias % kPageUnit != 0) return fail("ring: pages are {} bytes off", bias % kPageUnit);
    for (std::int64_t at = begin; at < end;) {
      const std::int64_t place = bias + at;  // behind the step's first page
      const std::int64_t page = place / ring_.page_bytes, in_page = place % ring_.page_bytes;
      if (place < 0 || page >= step.count || step.position % ring_.pages + page >= ring_.pages)
        return fail("ring: byte {} of constant {} lies in no page of its step", at, slot.index);
      const ConstantRange& r = load_at(step.position + static_cast<int>(page));
      const std::int64_t there = std::min(end - at, r.bytes - in_page);
      if (r.constant != slot.index || r.begin + in_page != at || there <= 0)
        return fail("ring: byte {} of constant {} is not in its page", at, slot.index);
      at += there;
    }
    return Ok{};
  }

  const Program& program_;
  const Ring& ring_;
  const std::vector<Stage>& stages_;
  const MonolithTables& tables_;
  int first_load_ = 0, loads_ = 0;
};

}  // namespace

Status validate(const RingEvents& events, int pages) { return Protocol(events, pages).run(); }

Status validate_ring(const Program& program, const std::vector<Stage>& stages,
                     const MonolithTables& tables) {
  if (!program.persistent || program.persistent->ring.pages == 0) {
    if (!tables.steps.empty() || !tables.loads.empty()) return fail("ring: pages without a ring");
    return Ok{};
  }
  const std::size_t blocks = tables.first_item.size() - 1;
  if (tables.first_load.size() != blocks + 1 || tables.first_load.front() != 0 ||
      tables.first_load.back() != std::ssize(tables.loads) ||
      !std::ranges::is_sorted(tables.first_load))
    return fail("ring: found loads of {} blocks, want {}", tables.first_load.size(), blocks + 1);
  Contents contents(program, stages, tables);
  for (std::size_t b = 0; b < blocks; ++b) {
    HEDDLE_TRY(contents.block(b));
    HEDDLE_TRY(validate(ring_events(tables, static_cast<int>(b), program.persistent->ring.pages),
                        program.persistent->ring.pages));
  }
  return Ok{};
}

}  // namespace heddle::runtime::cuda
