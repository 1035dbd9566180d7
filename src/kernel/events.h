#pragma once
#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "kernel/kernel.h"

namespace heddle::kernel {

/// Events of a block as the interpreter counts them, and the tiles that complete them: these arrive
/// as late as they may, when somebody waits. Misuse throws Failure.
class Events {
 public:
  struct Tile {
    const TileCopy* copy;
    std::vector<std::int64_t> at;
    std::int64_t to;
  };
  using Deliver = std::function<void(const Tile&)>;

  void init(BufferId id, std::int64_t size, std::int64_t arrivals, int thread,
            std::int64_t interval);
  void arrive(BufferId id, std::int64_t index, std::int64_t bytes, int thread,
              std::int64_t interval);
  void start(BufferId id, std::int64_t index, Tile tile);
  /// True if the last phase of the parity is complete.
  bool complete(BufferId id, std::int64_t index, std::int64_t parity, int thread,
                std::int64_t interval, const Deliver& deliver);
  /// The block ends: nothing may be on its way.
  void end();

 private:
  struct State {
    std::int64_t arrivals = 1, missing = 1, bytes = 0, phase = 0;
    int thread = 0;  ///< that made it, in this interval
    std::int64_t interval = 0;
    std::vector<Tile> tiles;
  };
  State& at(BufferId id, std::int64_t index, int thread, std::int64_t interval);
  static void advance(State& e);

  std::map<std::pair<std::int32_t, std::int64_t>, State> all_;
};

/// Functions that take turns, each on a thread of its own: one runs, the last first, until it
/// passes or ends.
class Turns {
 public:
  /// Returns when all have ended; the first exception ends the others and comes out.
  void run(const std::vector<std::function<void()>>& all);
  /// Lets the others run.
  void pass();

 private:
  struct Stopped {};
  void await(std::size_t i);
  void advance();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t turn_ = 0;
  std::vector<bool> done_;
  std::exception_ptr failure_;
};

}  // namespace heddle::kernel
