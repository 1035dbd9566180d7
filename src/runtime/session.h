#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/communicator.h"
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

/// Some tasks of a phase as they ran on one worker: a thread, or a block of a monolith on a GPU.
struct ItemTime {
  int worker = 0;
  int launch = 0, phase = 0;
  std::int64_t first = 0, last = 0;  ///< tasks
  double waited = 0;                 ///< seconds before it, for others; 0 where it has no wait
  double begin = 0, end = 0;         ///< seconds since the start of the run
  int multiprocessor = -1;           ///< where the block was; -1 on the CPU
};

/// A program ready to run on its device. run() may be called from many threads at once.
class Session {
 public:
  /// A program for the CPU. `code` keeps the machine code alive; `pool` may be shared by sessions.
  /// Each call has its own arena, and the pool runs one region at a time: one for each phase, or,
  /// if the program is a monolith, a single one. Results do not depend on the number of threads.
  static Result<std::shared_ptr<Session>> create(std::shared_ptr<const Program> program,
                                                 const Linker& linker,
                                                 std::shared_ptr<const void> code,
                                                 std::shared_ptr<ThreadPool> pool);
  virtual ~Session() = default;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  const Program& program() const { return *program_; }

  /// Inputs by position: types must match the ports; error names the input, found and wanted.
  Result<std::vector<Tensor>> run(std::span<const Tensor> inputs);
  /// Told an output's number when nothing of this run reads or writes it any more.
  using Ready = std::function<void(std::size_t output)>;
  /// The same into caller's memory: outputs[i] holds bytes of port i. No allocation after warm-up.
  /// `ready` is called by a thread of the run, while others go on; it has to be quick.
  Status run_into(std::span<const Tensor> inputs, std::span<Tensor> outputs,
                  const Ready& ready = {});
  /// run_into(), whose outputs `shared` (of f32) become their sums over all processes, in this
  /// order in each of them: a sum starts when its output and those before it are there, and the run
  /// goes on beside it.
  Status run_sharing(std::span<const Tensor> inputs, std::span<Tensor> outputs,
                     std::span<const std::size_t> shared, Communicator& group);
  /// The same outputs in the order in which a run completes them, which depends on the plan.
  std::vector<std::size_t> by_completion(std::span<const std::size_t> outputs) const;
  /// One run with the time of each launch, one after another (CUDA: by events).
  Result<std::vector<LaunchTime>> profile(std::span<const Tensor> inputs);
  /// One run as it is, with the time of each item, by worker and in order; on a GPU kernel by
  /// kernel, of each launch as of one worker.
  virtual Result<std::vector<ItemTime>> timeline(std::span<const Tensor> inputs);
  /// Other layouts of the same program, to be compared: later runs go so, or, of a monolith, only
  /// some stages (stages_of()) on what is in memory. No run may be in flight. CUDA: code is either
  /// a monolith's or not.
  virtual Status use(const std::optional<StageLayout>& layout, std::span<const int> only = {});
  /// Seconds of each of `runs` runs on the same inputs. On a GPU they lie in its memory already and
  /// outputs stay there: what a pipeline on the device sees, from launch to completion.
  virtual Result<std::vector<double>> time_runs(std::span<const Tensor> inputs, int runs);

 protected:
  explicit Session(std::shared_ptr<const Program> program) : program_(std::move(program)) {}
  /// One run of inputs and outputs that fit the ports; fills `times` unless it is null.
  virtual Status execute(std::span<const Tensor> inputs, std::span<Tensor> outputs,
                         std::vector<LaunchTime>* times) = 0;
  /// The same, telling `ready`; here at the end.
  virtual Status execute_telling(std::span<const Tensor> inputs, std::span<Tensor> outputs,
                                 const Ready& ready);
  virtual Status execute_sharing(std::span<const Tensor> inputs, std::span<Tensor> outputs,
                                 std::span<const std::size_t> shared, Communicator& group);
  Status check(std::span<const Tensor> inputs) const;
  Status check_outputs(std::span<Tensor> outputs) const;
  std::vector<Tensor> new_outputs() const;
  /// The same, whose pages are there: what the system takes for them is not a kernel's time.
  std::vector<Tensor> touched_outputs() const;
  /// Of each output, the last launch that uses it.
  std::vector<std::size_t> last_launches() const;

 private:
  std::shared_ptr<const Program> program_;
};

}  // namespace heddle::runtime
