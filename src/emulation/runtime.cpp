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
void fence(int device) { machine().fence(device != 0); }
void spin() { machine().spin(); }
void access(const void* at, long bytes, int write, const void* pc) {
  machine().access(at, static_cast<std::size_t>(bytes), write != 0, pc);
}
void undefined(const char* what, const void* pc) { machine().fail_at(what, pc); }
unsigned shared_address(const void* p) { return machine().shared_address(p, HEDDLE_PC); }
void copy_async(void* shared, const void* global, int bytes, int valid) {
  machine().copy_async({shared, global, bytes, valid != 0, HEDDLE_PC});
}
void copy_commit() { machine().copy_commit(); }
void copy_wait(int left) { machine().copy_wait(left); }
void load_matrix(unsigned* r, int count, const void* row, int transposed, emu::Site site) {
  machine().load_matrix(r, count, row, transposed != 0, site, HEDDLE_PC);
}
void multiply(int element, float* d, const unsigned* a, const unsigned* b, emu::Site site) {
  machine().multiply(element, d, a, b, site);
}
void cluster_arrive(emu::Site site) { machine().cluster_arrive(site); }
void cluster_wait(emu::Site site) { machine().cluster_wait(site); }
void* cluster_map(void* shared, unsigned rank) {
  return machine().cluster_map(shared, rank, HEDDLE_PC);
}
void mbarrier_init(void* barrier, int count) { machine().mbarrier_init(barrier, count, HEDDLE_PC); }
void mbarrier_fence() { machine().mbarrier_fence(); }
void mbarrier_arrive(void* barrier, int bytes) {
  machine().mbarrier_arrive(barrier, bytes, HEDDLE_PC);
}
void mbarrier_wait(void* barrier, int parity, emu::Site site) {
  machine().mbarrier_wait(barrier, parity, site, HEDDLE_PC);
}
void tma_load(void* shared, const void* map, const int* at, int rank, void* barrier) {
  machine().tma_load(shared, map, at, rank, barrier, HEDDLE_PC);
}
void bulk_load(void* shared, const void* global, int bytes, void* barrier) {
  machine().bulk_load(shared, global, bytes, barrier, HEDDLE_PC);
}
void bulk_prefetch(const void* global, int bytes) {
  machine().bulk_prefetch(global, bytes, HEDDLE_PC);
}
void fence_async() { machine().fence_async(); }
void products_fence() { machine().products_fence(); }
void products_commit() { machine().products_commit(); }
void products_wait(int left, emu::Site site) { machine().products_wait(left, site); }
void product(int element, int n, float* d, unsigned long long a, unsigned long long b,
             emu::Site site) {
  machine().product({element, n, d, a, b}, site, HEDDLE_PC);
}

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
      .load_matrix = load_matrix,
      .multiply = multiply,
      .cluster_arrive = cluster_arrive,
      .cluster_wait = cluster_wait,
      .cluster_map = cluster_map,
      .mbarrier_init = mbarrier_init,
      .mbarrier_fence = mbarrier_fence,
      .mbarrier_arrive = mbarrier_arrive,
      .mbarrier_wait = mbarrier_wait,
      .tma_load = tma_load,
      .bulk_load = bulk_load,
      .bulk_prefetch = bulk_prefetch,
      .fence_async = fence_async,
      .products_fence = products_fence,
      .products_commit = products_commit,
      .products_wait = products_wait,
      .product = product,
  };
  return kRuntime;
}

}  // namespace heddle::emulation
