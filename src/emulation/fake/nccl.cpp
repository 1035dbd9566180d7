// libnccl: sums over processes of one machine, through a file that all of them map.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <set>
#include <thread>

#include "emulation/fake/state.h"

using namespace heddle::emulation;
using fake::Call;
using fake::state;
using fake::Stream;

namespace {

// Values of nccl.h.
constexpr int kSystemError = 2, kInvalidArgument = 4, kInvalidUsage = 5, kRemoteError = 6;
constexpr int kFloat32 = 7, kSum = 0;
constexpr int kMostRanks = 8;
constexpr std::size_t kAtOnce = 1 << 14;
constexpr double kPatience = 60;  // seconds

struct UniqueId {
  char name[128];
};
/// What the processes share; zero at first.
struct Meeting {
  std::atomic<int> here, round;
  std::uint64_t contexts[kMostRanks];
  std::size_t counts[kMostRanks];
  float values[kMostRanks][kAtOnce];
};
struct Comm {
  Meeting* meeting;
  int ranks, rank;
};
std::set<Comm*>& comms() {
  static std::set<Comm*> all;
  return all;
}

/// Until all are here; false: somebody never came.
bool meet(const Comm& c) {
  Meeting& m = *c.meeting;
  const int round = m.round;
  if (++m.here == c.ranks) {
    m.here = 0;
    ++m.round;
    return true;
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(kPatience);
  while (m.round == round) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return true;
}

int failed(const char* why) {
  state().message = why;
  return fake::kLaunchFailed;
}

/// In the order of ranks, so that all get the same bits.
int add_up(const Comm& c, float* data, std::size_t count) {
  Meeting& m = *c.meeting;
  for (std::size_t from = 0; from < count; from += kAtOnce) {
    const std::size_t some = std::min(kAtOnce, count - from);
    m.counts[c.rank] = count;
    std::memcpy(m.values[c.rank], data + from, some * sizeof(float));
    if (!meet(c)) return failed("ncclAllReduce: a rank did not come");
    for (int r = 0; r < c.ranks; ++r)
      if (m.counts[r] != count) return failed("ncclAllReduce: ranks sum different counts");
    for (std::size_t i = 0; i < some; ++i) {
      float sum = 0;
      for (int r = 0; r < c.ranks; ++r) sum += m.values[r][i];
      data[from + i] = sum;
    }
    if (!meet(c)) return failed("ncclAllReduce: a rank did not come");
  }
  return 0;
}

}  // namespace

HEDDLE_FAKE const char* ncclGetErrorString(int code) {
  return code == kSystemError       ? "unhandled system error"
         : code == kInvalidArgument ? "invalid argument"
         : code == kInvalidUsage    ? "invalid usage"
         : code == kRemoteError     ? "remote process exited or there was a network error"
                                    : "unknown error";
}

HEDDLE_FAKE int ncclGetUniqueId(UniqueId* id) {
  const Call call("ncclGetUniqueId", Call::nothing);
  if (call.code != 0) return call.code;
  std::memset(id, 0, sizeof *id);
  std::strcpy(id->name, "/tmp/heddle-fake-nccl-XXXXXX");
  const int file = ::mkstemp(id->name);
  if (file < 0) return kSystemError;
  const bool sized = ::ftruncate(file, sizeof(Meeting)) == 0;
  ::close(file);
  return sized ? 0 : kSystemError;
}

HEDDLE_FAKE int ncclCommInitRank(Comm** comm, int ranks, UniqueId id, int rank) {
  const Call call("ncclCommInitRank");
  if (call.code != 0) return call.code;
  if (ranks < 1 || ranks > kMostRanks || rank < 0 || rank >= ranks) return kInvalidArgument;
  const int file = ::open(id.name, O_RDWR);
  if (file < 0) return kSystemError;
  void* at = ::mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  if (at == MAP_FAILED) return kSystemError;
  const Comm made{static_cast<Meeting*>(at), ranks, rank};
  made.meeting->contexts[rank] = reinterpret_cast<std::uint64_t>(fake::current().back());
  if (!meet(made)) return kRemoteError;
  ::unlink(id.name);               // all have it open; the first one removes it
  for (int r = 0; r < ranks; ++r)  // as the library: two ranks on one GPU are an error
    if (r != rank && made.meeting->contexts[r] == made.meeting->contexts[rank])
      return kInvalidUsage;
  comms().insert(*comm = new Comm(made));
  return 0;
}

HEDDLE_FAKE int ncclCommDestroy(Comm* comm) {
  const Call call("ncclCommDestroy", Call::nothing);
  if (comms().erase(comm) == 0) return kInvalidArgument;
  ::munmap(comm->meeting, sizeof(Meeting));
  return delete comm, 0;
}

HEDDLE_FAKE int ncclAllReduce(const void* from, void* to, std::size_t count, int type, int op,
                              Comm* comm, Stream* stream) {
  const Call call("ncclAllReduce");
  if (call.code != 0) return call.code;
  const auto address = reinterpret_cast<std::uint64_t>(to);
  if (!comms().contains(comm) || !state().streams.contains(stream)) return kInvalidArgument;
  if (from != to || type != kFloat32 || op != kSum) return kInvalidUsage;
  if (!state().holds(address, count * sizeof(float))) return kInvalidArgument;
  const int code = state().enqueue(*stream, [=] {
    return comms().contains(comm) ? add_up(*comm, static_cast<float*>(to), count)
                                  : failed("ncclAllReduce: the communicator is gone");
  });
  return state().settings.early_sums ? state().drain(*stream) : code;
}
