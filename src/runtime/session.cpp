#include "runtime/session.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>

#include "runtime/monolith.h"
#include "runtime/shares.h"
#include "support/clock.h"
#include "support/denormals.h"

namespace heddle::runtime {
namespace {

class CpuSession final : public Session {
 public:
  CpuSession(std::shared_ptr<const Program> program, std::shared_ptr<const void> code,
             std::shared_ptr<ThreadPool> pool)
      : Session(std::move(program)), code_(std::move(code)), pool_(std::move(pool)) {}
  Status link(const Linker& linker);

 protected:
  Status execute(std::span<const Tensor> inputs, std::span<Tensor> outputs,
                 std::vector<LaunchTime>* times) override;
  Status execute_telling(std::span<const Tensor> inputs, std::span<Tensor> outputs,
                         const Ready& ready) override;
  Result<std::vector<ItemTime>> timeline(std::span<const Tensor> inputs) override;

 public:
  Status use(const std::optional<StageLayout>& layout, std::span<const int> only) override;

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
    Tensor memory;  ///< the arena, then each thread's scratch
    std::byte* scratch = nullptr;
    std::vector<std::vector<void*>> args;  ///< by launch
    std::vector<std::vector<std::pair<std::size_t, std::size_t>>> inputs,
        outputs;    ///< (launch, arg)
    Shares shares;  ///< of the phase that runs
    explicit Context(int threads) : shares(threads) {}
  };
  /// Bytes: a cache line more than asked for, so that threads never share one.
  std::int64_t scratch_stride() const { return (program().scratch_bytes + 127) / 64 * 64; }
  std::unique_ptr<Context> acquire();
  void release(std::unique_ptr<Context> context);
  void bind(Context& context, std::span<const Tensor> inputs, std::span<Tensor> outputs) const;
  std::function<void(std::size_t)> teller(const Ready& ready) const;
  using ItemTimes = std::vector<std::vector<ItemTime>>;  ///< by thread
  void run_launches(Context& context, std::vector<LaunchTime>* times, const Ready& ready,
                    ItemTimes* items = nullptr);
  void run_phase(Context& context, std::size_t launch, std::size_t phase, double start,
                 ItemTimes* items);
  void run_monolith(Context& context, const Ready& ready, ItemTimes* times = nullptr);

  std::shared_ptr<const void> code_;
  std::shared_ptr<ThreadPool> pool_;
  std::vector<BoundLaunch> launches_;
  std::map<StageLayout, std::unique_ptr<Monolith>> monoliths_;
  std::unique_ptr<Monolith> part_;              ///< the last of some stages only
  Monolith* monolith_ = nullptr;                ///< in use
  std::vector<std::vector<std::size_t>> uses_;  ///< by launch: outputs
  std::vector<int> users_;                      ///< by output: launches
  std::mutex mutex_;
  std::vector<std::unique_ptr<Context>> idle_;
};

Status CpuSession::link(const Linker& linker) {
  for (const Launch& launch : program().launches) {
    BoundLaunch bound;
    for (const Phase& phase : launch.phases) {
      const Task task = linker(phase.symbol);
      if (task == nullptr)
        return fail("kernel '{}': symbol '{}' is not in the code", launch.name, phase.symbol);
      bound.phases.push_back({task, phase.tasks});
    }
    launches_.push_back(std::move(bound));
  }
  HEDDLE_TRY(use(program().monolith, {}));
  users_.resize(program().outputs.size());
  for (std::size_t l = 0; l < program().launches.size(); ++l) {
    std::set<std::size_t> outputs;
    for (const Slot& slot : program().launches[l].args)
      if (slot.kind == Slot::Kind::output) outputs.insert(static_cast<std::size_t>(slot.index));
    for (const std::size_t output : outputs) ++users_[output];
    uses_.emplace_back(outputs.begin(), outputs.end());
  }
  return Ok{};
}

std::unique_ptr<CpuSession::Context> CpuSession::acquire() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      std::unique_ptr<Context> context = std::move(idle_.back());
      idle_.pop_back();
      return context;
    }
  }
  auto context = std::make_unique<Context>(pool_->threads());
  const std::int64_t arena = (program().arena_bytes + 63) / 64 * 64;
  context->memory = Tensor::workspace(arena + scratch_stride() * pool_->threads());
  context->scratch = context->memory.mutable_data() + arena;
  context->inputs.resize(program().inputs.size());
  context->outputs.resize(program().outputs.size());
  for (std::size_t l = 0; l < program().launches.size(); ++l) {
    std::vector<void*>& args = context->args.emplace_back();
    for (const Slot& slot : program().launches[l].args) {
      const std::pair<std::size_t, std::size_t> use{l, args.size()};
      const std::size_t index = static_cast<std::size_t>(slot.index);
      void* pointer = nullptr;
      switch (slot.kind) {
        case Slot::Kind::arena:
          pointer = context->memory.mutable_data() + slot.index;
          break;
        case Slot::Kind::constant:
          pointer = const_cast<std::byte*>(program().constants[index].data());
          break;
        case Slot::Kind::input:
          context->inputs[index].push_back(use);
          break;
        case Slot::Kind::output:
          context->outputs[index].push_back(use);
          break;
      }
      args.push_back(pointer);
    }
  }
  return context;
}

void CpuSession::release(std::unique_ptr<Context> context) {
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(context));
}

void CpuSession::bind(Context& context, std::span<const Tensor> inputs,
                      std::span<Tensor> outputs) const {
  for (std::size_t i = 0; i < inputs.size(); ++i)
    for (auto [launch, arg] : context.inputs[i])
      context.args[launch][arg] = const_cast<std::byte*>(inputs[i].data());
  for (std::size_t i = 0; i < outputs.size(); ++i)
    for (auto [launch, arg] : context.outputs[i])
      context.args[launch][arg] = outputs[i].mutable_data();
}

Status CpuSession::use(const std::optional<StageLayout>& layout, std::span<const int> only) {
  monolith_ = nullptr;
  if (!layout) return Ok{};
  std::unique_ptr<Monolith>& made = only.empty() ? monoliths_[*layout] : part_;
  if (!made || !only.empty()) {
    std::vector<Task> tasks;
    for (const BoundLaunch& launch : launches_)
      for (const BoundPhase& phase : launch.phases) tasks.push_back(phase.task);
    made = std::make_unique<Monolith>(program(), *layout, pool_->threads(), std::move(tasks), only);
  }
  monolith_ = made.get();
  return Ok{};
}

/// What to call when a launch is complete: tells `ready` of outputs that nothing uses any more, one
/// after the other.
std::function<void(std::size_t)> CpuSession::teller(const Ready& ready) const {
  if (!ready) return [](std::size_t) {};
  struct State {
    std::mutex mutex;
    std::vector<int> left;
  };
  auto state = std::make_shared<State>();
  state->left = users_;
  return [this, state, &ready](std::size_t launch) {
    if (uses_[launch].empty()) return;
    const std::lock_guard lock(state->mutex);
    for (const std::size_t output : uses_[launch])
      if (--state->left[output] == 0) ready(output);
  };
}

void CpuSession::run_phase(Context& context, std::size_t launch, std::size_t phase, double start,
                           ItemTimes* items) {
  const BoundPhase& bound = launches_[launch].phases[phase];
  context.shares.reset(bound.tasks);
  pool_->run([&](int thread) {
    const FlushDenormals flush(!program().denormals);
    void* scratch = context.scratch + scratch_stride() * thread;
    for (auto [first, last] = context.shares.take(thread); first < last;
         std::tie(first, last) = context.shares.take(thread)) {
      const double begin = items != nullptr ? now() - start : 0;
      bound.task(context.args[launch].data(), first, last, scratch);
      if (items == nullptr) continue;
      auto& list = (*items)[static_cast<std::size_t>(thread)];
      const ItemTime item{
          thread,       static_cast<int>(launch), static_cast<int>(phase), first, last, 0, begin,
          now() - start};
      // A thread takes its share in ever smaller parts: one slice of a trace.
      if (!list.empty() && list.back().launch == item.launch && list.back().phase == item.phase &&
          list.back().last == first)
        list.back().last = last, list.back().end = item.end;
      else
        list.push_back(item);
    }
  });
}

void CpuSession::run_launches(Context& context, std::vector<LaunchTime>* times, const Ready& ready,
                              ItemTimes* items) {
  const auto told = teller(ready);
  const double start = now();
  for (std::size_t l = 0; l < launches_.size(); ++l) {
    const double begin = times != nullptr ? now() : 0;
    for (std::size_t p = 0; p < launches_[l].phases.size(); ++p)
      run_phase(context, l, p, start, items);
    if (times != nullptr)
      times->push_back({program().launches[l].name, now() - begin, begin - start});
    told(l);
  }
}

void CpuSession::run_monolith(Context& context, const Ready& ready, ItemTimes* times) {
  Monolith::Run run{&context.args, context.scratch, scratch_stride(), times, {}};
  if (ready) run.done = teller(ready);
  monolith_->run(*pool_, run);
}

Status CpuSession::execute(std::span<const Tensor> inputs, std::span<Tensor> outputs,
                           std::vector<LaunchTime>* times) {
  std::unique_ptr<Context> context = acquire();
  bind(*context, inputs, outputs);
  if (times != nullptr) times->reserve(launches_.size());
  if (monolith_ && times == nullptr)
    run_monolith(*context, {});
  else
    run_launches(*context, times, {});
  release(std::move(context));
  return Ok{};
}

Status CpuSession::execute_telling(std::span<const Tensor> inputs, std::span<Tensor> outputs,
                                   const Ready& ready) {
  std::unique_ptr<Context> context = acquire();
  bind(*context, inputs, outputs);
  if (monolith_)
    run_monolith(*context, ready);
  else
    run_launches(*context, nullptr, ready);
  release(std::move(context));
  return Ok{};
}

Result<std::vector<ItemTime>> CpuSession::timeline(std::span<const Tensor> inputs) {
  HEDDLE_TRY(check(inputs));
  std::vector<Tensor> outputs = touched_outputs();
  ItemTimes times(static_cast<std::size_t>(pool_->threads()));
  // Memory is there before the run. Kernel by kernel, threads seldom take more than a few times.
  for (std::size_t w = 0; w < times.size(); ++w)
    times[w].reserve(monolith_ ? monolith_->schedule().items[w].size() : 4 * launches_.size());
  std::unique_ptr<Context> context = acquire();
  bind(*context, inputs, outputs);
  if (monolith_)
    run_monolith(*context, {}, &times);
  else
    run_launches(*context, nullptr, {}, &times);
  release(std::move(context));
  std::vector<ItemTime> all;
  for (const std::vector<ItemTime>& list : times) all.insert(all.end(), list.begin(), list.end());
  return all;
}

}  // namespace

Result<std::shared_ptr<Session>> Session::create(std::shared_ptr<const Program> program,
                                                 const Linker& linker,
                                                 std::shared_ptr<const void> code,
                                                 std::shared_ptr<ThreadPool> pool) {
  if (program->device != "cpu")
    return fail("program: made for '{}', want one for the CPU", program->device);
  auto session = std::make_shared<CpuSession>(std::move(program), std::move(code), std::move(pool));
  HEDDLE_TRY(session->link(linker));
  return std::shared_ptr<Session>(std::move(session));
}

Status Session::check(std::span<const Tensor> inputs) const {
  if (inputs.size() != program_->inputs.size())
    return fail(ErrorCode::usage, "run: found {} inputs, want {}", inputs.size(),
                program_->inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i].type() != program_->inputs[i].type)
      return fail(ErrorCode::usage, "input '{}': found {}, want {}", program_->inputs[i].name,
                  to_string(inputs[i].type()), to_string(program_->inputs[i].type));
  return Ok{};
}

std::vector<Tensor> Session::new_outputs() const {
  std::vector<Tensor> outputs;
  for (const Port& port : program_->outputs) outputs.emplace_back(port.type);
  return outputs;
}

std::vector<Tensor> Session::touched_outputs() const {
  std::vector<Tensor> outputs = new_outputs();
  for (Tensor& t : outputs) std::memset(t.mutable_data(), 0, static_cast<std::size_t>(t.bytes()));
  return outputs;
}

Status Session::execute_telling(std::span<const Tensor> inputs, std::span<Tensor> outputs,
                                const Ready& ready) {
  HEDDLE_TRY(execute(inputs, outputs, nullptr));
  for (std::size_t o = 0; o < outputs.size(); ++o) ready(o);
  return Ok{};
}

/// Of the host's memory, which an output is in when it is told.
Status Session::execute_sharing(std::span<const Tensor> inputs, std::span<Tensor> outputs,
                                std::span<const std::size_t> shared, Communicator& group) {
  std::vector<bool> there(outputs.size());
  std::size_t started = 0;
  const Ready ready = [&](std::size_t output) {
    there[output] = true;
    for (; started < shared.size() && there[shared[started]]; ++started) {
      const auto data = outputs[shared[started]].as_mutable<float>();
      group.start_sum(data.data(), static_cast<std::int64_t>(data.size()));
    }
  };
  HEDDLE_TRY(execute_telling(inputs, outputs, ready));
  return group.wait();
}

Status Session::run_sharing(std::span<const Tensor> inputs, std::span<Tensor> outputs,
                            std::span<const std::size_t> shared, Communicator& group) {
  HEDDLE_TRY(check(inputs));
  HEDDLE_TRY(check_outputs(outputs));
  return execute_sharing(inputs, outputs, shared, group);
}

std::vector<std::size_t> Session::last_launches() const {
  std::vector<std::size_t> last(program().outputs.size());
  for (std::size_t l = 0; l < program().launches.size(); ++l)
    for (const Slot& slot : program().launches[l].args)
      if (slot.kind == Slot::Kind::output) last[static_cast<std::size_t>(slot.index)] = l;
  return last;
}

std::vector<std::size_t> Session::by_completion(std::span<const std::size_t> outputs) const {
  const std::vector<std::size_t> last = last_launches();
  std::vector<std::size_t> order(outputs.begin(), outputs.end());
  std::ranges::stable_sort(order, {}, [&](std::size_t o) { return last[o]; });
  return order;
}

Status Session::check_outputs(std::span<Tensor> outputs) const {
  if (outputs.size() == program_->outputs.size()) return Ok{};
  return fail(ErrorCode::usage, "run: found {} outputs, want {}", outputs.size(),
              program_->outputs.size());
}

Status Session::run_into(std::span<const Tensor> inputs, std::span<Tensor> outputs,
                         const Ready& ready) {
  HEDDLE_TRY(check(inputs));
  HEDDLE_TRY(check_outputs(outputs));
  return ready ? execute_telling(inputs, outputs, ready) : execute(inputs, outputs, nullptr);
}

Result<std::vector<Tensor>> Session::run(std::span<const Tensor> inputs) {
  HEDDLE_TRY(check(inputs));
  std::vector<Tensor> outputs = new_outputs();
  HEDDLE_TRY(execute(inputs, outputs, nullptr));
  return outputs;
}

Result<std::vector<LaunchTime>> Session::profile(std::span<const Tensor> inputs) {
  HEDDLE_TRY(check(inputs));
  std::vector<Tensor> outputs = touched_outputs();
  std::vector<LaunchTime> times;
  HEDDLE_TRY(execute(inputs, outputs, &times));
  return times;
}

Result<std::vector<ItemTime>> Session::timeline(std::span<const Tensor> inputs) {
  std::vector<ItemTime> items;
  int launch = 0;
  for (const LaunchTime& time : HEDDLE_TRY(profile(inputs)))
    items.push_back({0, launch++, 0, 0, 0, 0, time.begin, time.begin + time.seconds});
  return items;
}

Status Session::use(const std::optional<StageLayout>& layout, std::span<const int> only) {
  HEDDLE_CHECK(layout == program_->monolith && only.empty(), "no other layout of this program");
  return Ok{};
}

Result<std::vector<double>> Session::time_runs(std::span<const Tensor> inputs, int runs) {
  HEDDLE_TRY(check(inputs));
  std::vector<Tensor> outputs = new_outputs();
  std::vector<double> seconds;
  for (int i = 0; i < runs; ++i) {
    const double begin = now();
    HEDDLE_TRY(execute(inputs, outputs, nullptr));
    seconds.push_back(now() - begin);
  }
  return seconds;
}

}  // namespace heddle::runtime
