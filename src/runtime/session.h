#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "runtime/program.h"
#include "support/thread_pool.h"

namespace heddle::runtime {

/// Runs tasks [begin, end) of a phase (see codegen/cpu/cpu.h, TaskFn).
using Task = void (*)(void* const* args, std::int64_t begin, std::int64_t end, void* scratch);
/// Gives the machine code of a symbol, or null.
using Linker = std::function<Task(const std::string& symbol)>;

struct LaunchTime {
  std::string name;
  double seconds = 0;
  double begin = 0;  ///< seconds since the start of the run
};

/// A program ready to run. run() may be called from many threads at once: each call has its own
/// arena, and the pool runs one region at a time. The whole program is one parallel region; threads
/// meet at a barrier between phases. Results do not depend on the number of threads.
class Session {
 public:
  /// `code` keeps the machine code alive; `pool` may be shared by sessions.
  static Result<std::shared_ptr<Session>> create(std::shared_ptr<const Program> program,
                                                 const Linker& linker,
                                                 std::shared_ptr<const void> code,
                                                 std::shared_ptr<ThreadPool> pool);
  const Program& program() const { return *program_; }

  /// Inputs by position: types must match the ports; error names the input, found and wanted.
  Result<std::vector<Tensor>> run(std::span<const Tensor> inputs);
  /// The same into caller's memory: outputs[i] holds bytes of port i. No allocation after warm-up.
  Status run_into(std::span<const Tensor> inputs, std::span<Tensor> outputs);
  /// One run with the wall time of each launch (a barrier on both sides of each).
  Result<std::vector<LaunchTime>> profile(std::span<const Tensor> inputs);

 private:
  struct BoundPhase {
    Task task;
    std::int64_t tasks;
  };
  struct BoundLaunch {
    std::vector<BoundPhase> phases;
  };
  /// Memory of one run in flight.
  struct Context {
    Tensor arena;
    Tensor scratch;
    std::vector<std::vector<void*>> args;  ///< by launch
    std::vector<std::vector<std::pair<std::size_t, std::size_t>>> inputs, outputs;  ///< (launch, arg)
  };
  Session(std::shared_ptr<const Program> program, std::shared_ptr<const void> code,
          std::shared_ptr<ThreadPool> pool);
  std::unique_ptr<Context> acquire();
  void release(std::unique_ptr<Context> context);
  Status check(std::span<const Tensor> inputs) const;
  void bind(Context& context, std::span<const Tensor> inputs, std::span<Tensor> outputs) const;
  void execute(Context& context, std::vector<LaunchTime>* times);

  std::shared_ptr<const Program> program_;
  std::shared_ptr<const void> code_;
  std::shared_ptr<ThreadPool> pool_;
  std::vector<BoundLaunch> launches_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Context>> idle_;
};

}  // namespace heddle::runtime
