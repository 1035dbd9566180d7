#include "kernel/events.h"

#include <algorithm>
#include <thread>

#include "kernel/interpret_memory.h"

namespace heddle::kernel {

void Events::init(BufferId id, std::int64_t size, std::int64_t arrivals, int thread,
                  std::int64_t interval) {
  for (std::int64_t i = 0; i < size; ++i) {
    State& e = all_[{id.value, i}];
    if (e.interval > 0) throw Failure{fmt::format("event b{}[{}] is made twice", id.value, i)};
    e = {arrivals, arrivals, 0, 0, thread, interval, {}};
  }
}

Events::State& Events::at(BufferId id, std::int64_t index, int thread, std::int64_t interval) {
  const auto found = all_.find({id.value, index});
  if (found == all_.end())
    throw Failure{fmt::format("event b{}[{}] is used before it is made", id.value, index)};
  State& e = found->second;
  if (e.thread != thread && e.interval == interval)
    throw Failure{fmt::format("event b{}[{}] is used by thread {} while thread {} makes it",
                              id.value, index, thread, e.thread)};
  return e;
}

void Events::advance(State& e) {
  if (e.missing != 0 || e.bytes != 0) return;
  ++e.phase;
  e.missing = e.arrivals;
}

void Events::arrive(BufferId id, std::int64_t index, std::int64_t bytes, int thread,
                    std::int64_t interval) {
  State& e = at(id, index, thread, interval);
  if (e.missing == 0)
    throw Failure{fmt::format("more than {} arrivals at event b{}[{}] in one phase", e.arrivals,
                              id.value, index)};
  --e.missing;
  e.bytes += bytes;
  advance(e);
}

void Events::start(BufferId id, std::int64_t index, Tile tile) {
  const auto found = all_.find({id.value, index});
  if (found == all_.end())
    throw Failure{fmt::format("event b{}[{}] gets a tile before it is made", id.value, index)};
  found->second.tiles.push_back(std::move(tile));
}

bool Events::complete(BufferId id, std::int64_t index, std::int64_t parity, int thread,
                      std::int64_t interval, const Deliver& deliver) {
  State& e = at(id, index, thread, interval);
  if (e.missing == 0) {
    for (const Tile& tile : e.tiles) {
      deliver(tile);
      e.bytes -= tile.copy->bytes();
    }
    e.tiles.clear();
    advance(e);
  }
  return e.phase % 2 != parity;
}

void Events::end() {
  for (const auto& [id, e] : all_)
    if (!e.tiles.empty())
      throw Failure{fmt::format("a block ends with tiles on their way to event b{}[{}]", id.first,
                                id.second)};
  all_.clear();
}

void Turns::await(std::size_t i) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return turn_ == i; });
  if (failure_) throw Stopped{};
}

void Turns::advance() {
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < done_.size(); ++i) {
      turn_ = (turn_ + 1) % done_.size();
      if (!done_[turn_]) break;
    }
  }
  changed_.notify_all();
}

void Turns::pass() {
  const std::size_t mine = turn_;
  advance();
  await(mine);
}

void Turns::run(const std::vector<std::function<void()>>& all) {
  done_.assign(all.size(), false);
  turn_ = all.size() - 1;
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < all.size(); ++i)
    threads.emplace_back([&, i] {
      try {
        await(i);
        all[i]();
      } catch (const Stopped&) {
      } catch (...) {
        const std::lock_guard lock(mutex_);
        failure_ = std::current_exception();
      }
      {
        const std::lock_guard lock(mutex_);
        done_[i] = true;
      }
      advance();
    });
  for (std::thread& t : threads) t.join();
  if (failure_) std::rethrow_exception(failure_);
}

}  // namespace heddle::kernel
