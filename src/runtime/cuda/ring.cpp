#include "runtime/cuda/ring.h"

#include <algorithm>

namespace heddle::runtime::cuda {
namespace {

/// So many steps are in the ring at once, if their tasks allow it.
constexpr int kStepsAhead = 4;

std::int64_t up(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; }

const Launch& launch_of(const Program& program, const Stage& stage) {
  return program.launches[static_cast<std::size_t>(stage.launch)];
}
const Tensor& constant_of(const Program& program, const Stage& stage, const Paged& paged) {
  const Slot& slot = launch_of(program, stage).args[static_cast<std::size_t>(paged.arg)];
  return program.constants[static_cast<std::size_t>(slot.index)];
}

/// One block's part of the tables.
class Planner {
 public:
  Planner(const Program& program, const std::vector<Stage>& stages, MonolithTables& tables)
      : program_(program), ring_(program.persistent->ring), stages_(stages), tables_(tables) {
    for (const Stage& stage : stages) paged_.push_back(paged_of(program, stage));
  }

  void block(int first_item, int end) {
    position_ = 0;
    for (int i = first_item; i < end; ++i) {
      MonolithItem& one = tables_.items[static_cast<std::size_t>(i)];
      one.step = static_cast<int>(tables_.steps.size());
      if (!paged_[static_cast<std::size_t>(one.stage)].empty()) item(one);
      one.step_end = static_cast<int>(tables_.steps.size());
    }
  }

 private:
  std::int64_t pages(const MonolithItem& item, std::int64_t first, std::int64_t last) const {
    std::int64_t n = 0;
    for (const Span& s : spans(item, first, last))
      n += up(s.end - s.begin, ring_.page_bytes) / ring_.page_bytes;
    return n;
  }
  std::vector<Span> spans(const MonolithItem& item, std::int64_t first, std::int64_t last) const {
    const auto s = static_cast<std::size_t>(item.stage);
    std::vector<Span> out;
    for (const Paged& p : paged_[s])
      out.push_back(paged_bytes(p, first, last, constant_of(program_, stages_[s], p).bytes()));
    return out;
  }

  void item(const MonolithItem& item) {
    const std::int64_t most = std::max(1, ring_.pages / kStepsAhead);
    for (std::int64_t first = item.first; first < item.last;) {
      std::int64_t last = first + 1;
      while (last < item.last && pages(item, first, last + 1) <= most) ++last;
      const auto count = static_cast<int>(pages(item, first, last));
      // An argument's pages follow each other in memory.
      if (const int left = ring_.pages - position_ % ring_.pages; count > left) leave_out(left);
      step(item, first, last);
      first = last;
    }
  }

  void leave_out(int count) {
    tables_.steps.push_back({0, 0, position_, count, {kNoPages, kNoPages}});
    for (int i = 0; i < count; ++i) tables_.loads.push_back({});
    position_ += count;
  }

  void step(const MonolithItem& item, std::int64_t first, std::int64_t last) {
    const auto s = static_cast<std::size_t>(item.stage);
    MonolithStep step{
        static_cast<int>(first), static_cast<int>(last), position_, 0, {kNoPages, kNoPages}};
    const std::vector<Span> all = spans(item, first, last);
    for (std::size_t a = 0; a < all.size(); ++a) {
      const Slot& slot =
          launch_of(program_, stages_[s]).args[static_cast<std::size_t>(paged_[s][a].arg)];
      if (all[a].begin == all[a].end) continue;
      step.bias[a] = std::int64_t{step.count} * ring_.page_bytes - all[a].begin;
      for (std::int64_t at = all[a].begin; at < all[a].end; at += ring_.page_bytes) {
        tables_.loads.push_back(
            {slot.index, at, std::min<std::int64_t>(ring_.page_bytes, all[a].end - at)});
        ++step.count;
      }
    }
    position_ += step.count;
    tables_.steps.push_back(step);
  }

  const Program& program_;
  const Ring& ring_;
  const std::vector<Stage>& stages_;
  MonolithTables& tables_;
  std::vector<std::vector<Paged>> paged_;  ///< by stage
  int position_ = 0;
};

}  // namespace

Span paged_bytes(const Paged& paged, std::int64_t first, std::int64_t last, std::int64_t size) {
  const std::int64_t begin = paged.begin + first * paged.step;
  const std::int64_t end = std::min(size, paged.begin + (last - 1) * paged.step + paged.bytes);
  if (begin >= end) return {};
  return {begin / kPageUnit * kPageUnit, up(end, kPageUnit)};
}

std::int64_t pages_of_task(const std::vector<Paged>& paged, int page_bytes) {
  std::int64_t pages = 0;
  for (const Paged& p : paged) {
    const bool whole = p.begin % kPageUnit == 0 && p.step % kPageUnit == 0;
    const std::int64_t most = up(p.bytes, kPageUnit) + (whole ? 0 : kPageUnit);
    pages += up(most, page_bytes) / page_bytes;
  }
  return pages;
}

std::vector<Paged> paged_of(const Program& program, const Stage& stage) {
  if (!program.persistent || program.persistent->ring.pages == 0) return {};
  const Ring& ring = program.persistent->ring;
  const Launch& launch = launch_of(program, stage);
  std::vector<Paged> out = launch.phases[static_cast<std::size_t>(stage.phase)].grid.paged;
  const bool constant = std::ranges::all_of(out, [&](const Paged& p) {
    return launch.args[static_cast<std::size_t>(p.arg)].kind == Slot::Kind::constant;
  });
  if (!constant || pages_of_task(out, ring.page_bytes) > ring.pages) return {};
  return out;
}

void add_pages(const Program& program, const std::vector<Stage>& stages, MonolithTables& tables) {
  if (!program.persistent || program.persistent->ring.pages == 0) return;
  Planner planner(program, stages, tables);
  tables.first_load.clear();
  for (std::size_t b = 0; b + 1 < tables.first_item.size(); ++b) {
    tables.first_load.push_back(static_cast<int>(tables.loads.size()));
    planner.block(tables.first_item[b], tables.first_item[b + 1]);
  }
  tables.first_load.push_back(static_cast<int>(tables.loads.size()));
}

}  // namespace heddle::runtime::cuda
