// The functions that emulated kernels call: to the machine that runs.
#include "emulation/machine.h"

namespace heddle::emulation {
namespace {

// The place of the call in the kernel, into which helpers are inlined.
#define HEDDLE_PC __builtin_return_address(0)

Machine& machine() { return *Machine::current; }

void fail(const char* what) { machine().fail_at(what, HEDDLE_PC); }
void barrier(int id, int threads, emu::Site site) { machine().barrier(id, threads, site); }
void arrive(int id, int threads, emu::Site site) { machine().arrive(id, threads, site); }
const emu::Meeting* exchange(int operation, const void* in, int bytes, emu::Site site) {
  return machine().exchange(operation, in, bytes, site);
}
void atomic(const void* at, int bytes, int access, int order) {
  machine().atomic(at, bytes, access, order, HEDDLE_PC);
}
void fence(int) {}
void spin() { machine().spin(); }
void access(const void*, long, int, const void*) {}
void undefined(const char* what, const char* file, unsigned line) {
  machine().fail_at(fmt::format("{}, at {}", what, name_of({file, static_cast<int>(line)})));
}
unsigned shared_address(const void* p) { return machine().shared_address(p, HEDDLE_PC); }
void copy_async(void* shared, const void* global, int bytes, int valid) {
  machine().copy_async({shared, global, bytes, valid != 0}, HEDDLE_PC);
}
void copy_commit() { machine().copy_commit(); }
void copy_wait(int left) { machine().copy_wait(left); }

}  // namespace

const emu::Runtime& runtime() {
  static constexpr emu::Runtime kRuntime = {
      .fail = fail,
      .barrier = barrier,
      .arrive = arrive,
      .exchange = exchange,
      .atomic = atomic,
      .fence = fence,
      .spin = spin,
      .access = access,
      .undefined = undefined,
      .shared_address = shared_address,
      .copy_async = copy_async,
      .copy_commit = copy_commit,
      .copy_wait = copy_wait,
      .load_matrix = nullptr,
      .multiply = nullptr,
  };
  return kRuntime;
}

}  // namespace heddle::emulation
