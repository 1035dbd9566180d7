#pragma once
#include <array>
#include <optional>
#include <unordered_map>

#include "emulation/clock.h"

namespace heddle::emulation {

/// One access to a cell of memory.
struct Access {
  Agent agent;
  Tick tick = 0;  ///< 0: none
  const void* pc = nullptr;
  bool atomic = false;
};

/// What is remembered of four bytes: the last write, and the reads since. Split where accesses are
/// smaller.
struct Cell {
  std::uint32_t launch = 0;  ///< before another launch's accesses everything is over
  Access write, read;
  std::unique_ptr<std::vector<Access>> reads;  ///< besides `read`
  std::unique_ptr<std::array<Cell, 4>> bytes;
};

/// What a thread knows of others.
struct Knowledge {
  Agent self;
  Agent copier;      ///< makes the thread's asynchronous copies
  Tick now = 1;      ///< of the thread's next access
  Tick copied = 0;   ///< groups of copies that it waited for
  Tick copying = 1;  ///< group of the next copy
  /// Accesses before it, and groups of copies up to it, are seen by asynchronous readers
  /// (fence_async).
  Tick proxied = 0, proxied_copies = 0;
  Clock known;
  Clock seen;  ///< through relaxed loads: known after a fence
  /// At the last fence: what relaxed stores publish, and to which scope.
  std::optional<Clock> fenced_device, fenced_block;

  bool knows(const Access& a) const {
    if (a.agent == self) return true;
    if (a.agent == copier) return copied >= a.tick;
    return known.at(a.agent) >= a.tick;
  }
  /// Publishes what the thread did until now.
  void release_to(Clock& clock) {
    clock.join(known);
    clock.learn(self, now++);
    if (copied) clock.learn(copier, copied);
  }
};

/// What an atomic variable passes on from those that store to those that load.
struct Published {
  Clock device;
  std::unordered_map<std::uint32_t, Clock> block;  ///< by fences of the block's scope
};

/// Finds the access that races with the one given, and remembers it. `who` issues it; `agent` makes
/// it (who.self, or something asynchronous), at `tick`.
class RaceDetector {
 public:
  explicit RaceDetector(std::uint32_t launch) : launch_(launch) {}
  /// `cells` holds the four bytes at `offset` bytes from an aligned place. Null if nothing races.
  const Access* check(Cell* cells, std::size_t offset, std::size_t bytes, const Knowledge& who,
                      const Access& access, bool write);
  void atomic(const void* at, Knowledge& who, bool load, bool store, bool acquire, bool release);
  static void fence(Knowledge& who, bool device);
  /// The memory will be used by others.
  void forget(const void* begin, const void* end);

 private:
  const Access* check_cell(Cell& cell, const Knowledge& who, const Access& access, bool write);
  static void split(Cell& cell);
  void add_read(Cell& cell, const Knowledge& who, const Access& access);

  std::uint32_t launch_;
  std::unordered_map<const void*, Published> published_;
};

}  // namespace heddle::emulation
