#include "emulation/races.h"

#include <tuple>

namespace heddle::emulation {
namespace {

/// Readers kept before those that are known to the newest are dropped.
constexpr std::size_t kManyReads = 64;

/// One read an agent, the newest.
void keep_last_of_each(std::vector<Access>& reads) {
  const auto key = [](const Access& a) {
    return std::tuple(a.agent.block, a.agent.index, a.atomic);
  };
  std::stable_sort(reads.begin(), reads.end(),
                   [&](const Access& a, const Access& b) { return key(a) < key(b); });
  // The newest of each agent comes last: unique from the back.
  const auto kept = std::unique(reads.rbegin(), reads.rend(),
                                [&](const Access& a, const Access& b) { return key(a) == key(b); });
  reads.erase(reads.begin(), kept.base());
}

}  // namespace

void RaceDetector::split(Cell& cell) {
  cell.bytes = std::make_unique<std::array<Cell, 4>>();
  for (Cell& byte : *cell.bytes) {
    byte.launch = cell.launch;
    byte.write = cell.write;
    byte.read = cell.read;
    if (cell.reads) byte.reads = std::make_unique<std::vector<Access>>(*cell.reads);
  }
}

const Access* RaceDetector::check(Cell* cells, std::size_t offset, std::size_t bytes,
                                  const Knowledge& who, const Access& access, bool write) {
  const std::size_t end = offset + bytes;
  while (offset < end) {
    Cell& cell = cells[offset / 4];
    if (cell.launch != launch_) cell = Cell{launch_, {}, {}, nullptr, nullptr};
    const std::size_t stop = std::min(end, offset / 4 * 4 + 4);
    const bool whole = stop - offset == 4;
    if (!whole && !cell.bytes) split(cell);
    if (!cell.bytes) {
      if (const Access* other = check_cell(cell, who, access, write)) return other;
    } else {
      for (std::size_t i = offset; i < stop; ++i)
        if (const Access* other = check_cell((*cell.bytes)[i % 4], who, access, write))
          return other;
    }
    offset = stop;
  }
  return nullptr;
}

const Access* RaceDetector::check_cell(Cell& cell, const Knowledge& who, const Access& access,
                                       bool write) {
  const auto races = [&](const Access& other) {
    return other.tick != 0 && other.agent != access.agent && !(other.atomic && access.atomic) &&
           !who.knows(other);
  };
  if (races(cell.write)) return &cell.write;
  if (!write) {
    add_read(cell, who, access);
    return nullptr;
  }
  if (races(cell.read)) return &cell.read;
  if (cell.reads) {
    for (const Access& other : *cell.reads)
      if (races(other)) return &other;
    cell.reads.reset();
  }
  cell.write = access;
  cell.read = {};
  return nullptr;
}

/// A read that is known to the new one need not be kept: who knows the new one knows it too.
void RaceDetector::add_read(Cell& cell, const Knowledge& who, const Access& access) {
  const auto covered = [&](const Access& old) {
    return old.tick == 0 ||
           ((old.agent == access.agent || who.knows(old)) && (!access.atomic || old.atomic));
  };
  if (covered(cell.read) && !cell.reads) {
    cell.read = access;
    return;
  }
  if (!cell.reads) cell.reads = std::make_unique<std::vector<Access>>();
  std::vector<Access>& reads = *cell.reads;
  if (!reads.empty() && reads.back().agent == access.agent &&
      reads.back().atomic == access.atomic) {
    reads.back() = access;
    return;
  }
  if (reads.size() >= kManyReads && reads.size() == reads.capacity()) {
    std::erase_if(reads, covered);
    keep_last_of_each(reads);
    reads.reserve(2 * reads.size() + kManyReads);
  }
  reads.push_back(access);
}

void RaceDetector::fence(Knowledge& who, bool device) {
  who.known.join(who.seen);
  who.seen = {};
  Clock snapshot;
  who.release_to(snapshot);
  (device ? who.fenced_device : who.fenced_block) = std::move(snapshot);
}

void RaceDetector::atomic(const void* at, Knowledge& who, bool load, bool store, bool acquire,
                          bool release) {
  Published& p = published_[at];
  if (load) {
    Clock& to = acquire ? who.known : who.seen;
    to.join(p.device);
    if (const auto mine = p.block.find(who.self.block); mine != p.block.end())
      to.join(mine->second);
  }
  if (!store) return;
  // A store that does not load begins anew; an update continues what was released before.
  if (!load) p = {};
  if (release) who.release_to(p.device);
  if (who.fenced_device) p.device.join(*who.fenced_device);
  if (who.fenced_block) p.block[who.self.block].join(*who.fenced_block);
}

void RaceDetector::forget(const void* begin, const void* end) {
  std::erase_if(published_, [&](const auto& e) { return e.first >= begin && e.first < end; });
}

}  // namespace heddle::emulation
