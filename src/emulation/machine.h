#pragma once
#include <boost/context/detail/fcontext.hpp>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "emulation/module.h"

namespace heddle::emulation {

struct Block;
struct Thread;
struct Warp;

enum class State { ready, at_barrier, in_warp, spinning, done };

/// An asynchronous copy of one thread, made when it is waited for.
struct Copy {
  void* shared;
  const void* global;
  int bytes;
  bool valid;
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
  std::deque<std::vector<Copy>> groups;
};

struct Warp {
  std::vector<Thread*> lanes;
  unsigned present = 0, arrived = 0, generation = 0;
  int operation = 0;
  emu::Site site{};
  // A lane may read one meeting while others are at the next.
  emu::Meeting meetings[2];
};

struct Barrier {
  int arrived = 0, threads = 0;
  emu::Site site{};
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
  [[noreturn]] void fail_at(const std::string& what, const void* pc = nullptr);
  void barrier(int id, int threads, emu::Site site);
  void arrive(int id, int threads, emu::Site site);
  const emu::Meeting* exchange(int operation, const void* in, int bytes, emu::Site site);
  void atomic(const void* at, int bytes, int access, int order, const void* pc);
  void spin();
  /// As instructions take it: static variables, then dynamic memory from a multiple of 1024 on.
  unsigned shared_address(const void* p, const void* pc);
  void copy_async(Copy copy, const void* pc);
  void copy_commit();
  void copy_wait(int left);

  static Machine* current;

 private:
  static void enter(boost::context::detail::transfer_t from);
  void start_block();
  void run_block(Block& block);
  void finish_block(std::size_t at);
  Thread* next_of(Block& block);
  void resume(Thread& thread);
  void leave(bool for_good = false);
  void make_ready(Thread& thread);
  void open(Block& block, Barrier& barrier);
  void swap_in(Block& block);
  std::byte* new_stack();
  std::string deadlock() const;

  const ModuleState& module_;
  const Kernel& kernel_;
  const Launch& how_;
  std::vector<std::vector<std::byte>> values_;  ///< the arguments
  std::vector<void*> arguments_;
  std::int64_t blocks_, together_, next_ = 0;  ///< of the grid, of a group, started
  std::vector<std::unique_ptr<Block>> resident_;
  Block* inside_ = nullptr;  ///< whose static variables are in place
  Thread* thread_ = nullptr;
  boost::context::detail::fcontext_t scheduler_ = nullptr;
  std::string error_;
  const void* error_pc_ = nullptr;
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
