#pragma once
#include <boost/context/detail/fcontext.hpp>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "emulation/memory.h"
#include "emulation/module.h"
#include "emulation/races.h"
#include "emulation/tensor_map.h"

namespace heddle::emulation {

struct Block;
struct Cluster;
struct Thread;
struct Warp;

enum class State { ready, at_barrier, in_warp, spinning, done };

/// An asynchronous copy of one thread, made when it is waited for.
struct Copy {
  void* shared;
  const void* global;
  int bytes;
  bool valid;
  const void* pc;
};

/// A product of a warpgroup, as one of its threads started it.
struct Product {
  int element, n;
  float* d;
  std::uint64_t a, b;
};
/// Accumulators of products in flight: poisoned until they are waited for.
struct Accumulator {
  std::vector<float> value;
  int products = 0;  ///< not made yet
};

/// One CUDA thread: a fiber.
struct Thread {
  emu::Self* self = nullptr;  ///< at the top of its stack
  Block* block = nullptr;
  Warp* warp = nullptr;
  unsigned number = 0;  ///< in its block
  State state = State::ready;
  emu::Site site{};  ///< where it waits
  boost::context::detail::fcontext_t context = nullptr;
  std::byte* stack = nullptr;
  void* fake_stack = nullptr;  ///< of the address sanitizer
  std::vector<Copy> started;
  std::vector<std::vector<Copy>> groups;
  std::vector<Product> products;
  std::vector<std::vector<Product>> product_groups;
  std::unordered_map<float*, Accumulator> accumulators;
  Tick product_group = 1;  ///< of the next product; groups before it are committed
  bool products_fenced = false;
  std::vector<std::uint32_t>
      unfenced_barriers;  ///< initialised, not yet seen by asynchronous copies
  int cluster_arrivals = 0;
  Knowledge knowledge;
};

struct Warp {
  std::vector<Thread*> lanes;
  unsigned present = 0, arrived = 0, generation = 0;
  int operation = 0;
  emu::Site site{};
  // A lane may read one meeting while others are at the next.
  emu::Meeting meetings[2];
  Clock gathered;  ///< what those that arrived know
};

struct Barrier {
  int arrived = 0, threads = 0;
  emu::Site site{};
  std::vector<Thread*> waiting;
  Clock gathered;
};

/// A copy of a tile that was started, or of bytes as they lie.
struct TileCopy {
  std::byte* shared;
  TensorMap map;
  int at[5];
  Tick tick;
  const std::byte* from;  ///< bytes: no map
  std::int64_t bytes;
};

/// A barrier in shared memory. Copies that complete it are made when all threads have arrived and
/// one waits.
struct Mbarrier {
  int count = 0, pending = 0;
  std::int64_t bytes = 0;  ///< announced and not yet there
  std::uint32_t phase = 0;
  bool fenced = false;
  Agent copier;
  Tick issued = 0;
  std::vector<TileCopy> copies;
  Clock gathered, published;
};

/// Blocks that run together and see each other's shared memory.
struct Cluster {
  std::vector<Block*> blocks;
  int alive = 0, arrived = 0, phases = 0;
  Clock gathered, published;
  std::vector<Thread*> waiting;
};

struct Block {
  emu::Dim index{};
  unsigned number = 0;  ///< in the grid
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  Barrier barriers[16];
  std::deque<Thread*> ready;
  std::vector<Thread*> spinning;
  int alive = 0;
  std::vector<unsigned char> statics;  ///< while another block has the module's variables
  unsigned char* dynamic = nullptr;
  std::shared_ptr<Cluster> cluster;
  std::unordered_map<std::uint32_t, Mbarrier> mbarriers;  ///< by shared address
  std::uint32_t agents = 0;                               ///< numbers given out
  std::vector<Cell> static_cells, dynamic_cells;          ///< if accesses are checked
  ~Block();
};

/// One launch. Everything runs on the calling thread.
class Machine {
 public:
  Machine(const ModuleState& module, const Kernel& kernel, const Launch& how, void** arguments);
  ~Machine();
  Status run();

  // What running threads call.
  /// Ends the launch; `pc`: a return address in the kernel.
  [[noreturn]] void fail_at(const std::string& what, const void* pc = nullptr,
                            const std::string& more = "", const void* other_pc = nullptr);
  /// A thread's own access, as the instrumentation reports it.
  void access(const void* at, std::size_t bytes, bool write, const void* pc);
  /// An access by a thread or by what works for it.
  void check_access(Thread& issuer, const Access& access, const void* at, std::size_t bytes,
                    bool write);
  void fence(bool device);
  void barrier(int id, int threads, emu::Site site);
  void arrive(int id, int threads, emu::Site site);
  const emu::Meeting* exchange(int operation, const void* in, int bytes, emu::Site site);
  void atomic(const void* at, int bytes, int access, int order, const void* pc);
  void spin();
  /// As instructions take it: static variables, then dynamic memory from a multiple of 1024 on.
  unsigned shared_address(const void* p, const void* pc);
  void copy_async(const Copy& copy);
  void load_matrix(unsigned* r, int count, const void* row, bool transposed, emu::Site site,
                   const void* pc);
  void multiply(int element, float* d, const unsigned* a, const unsigned* b, emu::Site site);
  void cluster_arrive(emu::Site site);
  void cluster_wait(emu::Site site);
  void* cluster_map(void* shared, unsigned rank, const void* pc);
  void mbarrier_init(void* barrier, int count, const void* pc);
  void mbarrier_fence();
  void mbarrier_arrive(void* barrier, int bytes, const void* pc);
  void mbarrier_wait(void* barrier, int parity, emu::Site site, const void* pc);
  void tma_load(void* shared, const void* map, const int* at, int rank, void* barrier,
                const void* pc);
  void bulk_load(void* shared, const void* global, int bytes, void* barrier, const void* pc);
  void bulk_prefetch(const void* global, int bytes, const void* pc);
  void fence_async();
  void products_fence();
  void products_commit();
  void products_wait(int left, emu::Site site);
  void product(const Product& product, emu::Site site, const void* pc);
  void copy_commit();
  void copy_wait(int left);

  static Machine* current;

 private:
  static void enter(boost::context::detail::transfer_t from);
  void start_block();
  void start_cluster();
  void run_block(Block& block);
  void finish_block(std::size_t at);
  Thread* next_of(Block& block);
  void resume(Thread& thread);
  void leave(bool for_good = false);
  void make_ready(Thread& thread);
  void open(Barrier& barrier);
  std::pair<Cell*, std::size_t> cells_of(Thread& issuer, const std::byte* at, std::size_t bytes,
                                         bool write, const void* pc);
  std::string place_of(const Thread& thread, const void* at) const;
  void swap_in(Block& block);
  void open(Cluster& cluster);
  void poll(emu::Site site);
  Mbarrier& mbarrier_at(void* barrier, bool store, const void* pc);
  void start(Mbarrier& barrier, TileCopy copy, const void* pc);
  void complete_phase(Mbarrier& barrier);
  void perform(Mbarrier& barrier);
  void check_operands(const Product& product, const void* pc);
  void perform(Thread& thread, const Product& product);
  std::byte* shared_pointer(const Block& block, std::uint32_t address) const;
  std::byte* new_stack();
  std::string deadlock() const;

  const ModuleState& module_;
  const Kernel& kernel_;
  const Launch& how_;
  std::unique_ptr<std::byte[], decltype(&std::free)> values_{nullptr, &std::free};  ///< arguments
  std::size_t values_bytes_ = 0;
  std::vector<void*> arguments_;
  std::int64_t blocks_, together_, next_ = 0;  ///< of the grid, of a group, started
  std::vector<std::unique_ptr<Block>> resident_;
  Block* inside_ = nullptr;  ///< whose static variables are in place
  Thread* thread_ = nullptr;
  boost::context::detail::fcontext_t scheduler_ = nullptr;
  std::string error_;
  const void *error_pc_ = nullptr, *other_pc_ = nullptr;
  std::string error_more_;
  std::optional<RaceDetector> races_;
  Allocation* allocation_ = nullptr;  ///< accessed last
  std::int64_t progress_ = 0;
  std::mt19937 random_;
  std::vector<std::byte*> free_stacks_;
  std::vector<std::pair<void*, std::size_t>> slabs_;
  void* scheduler_fake_ = nullptr;
  const void* scheduler_bottom_ = nullptr;
  std::size_t scheduler_bytes_ = 0;
};

/// "kernel.cu:12".
std::string name_of(emu::Site site);
/// The functions that modules call.
const emu::Runtime& runtime();

}  // namespace heddle::emulation
