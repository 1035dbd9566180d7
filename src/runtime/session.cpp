#include "runtime/session.h"

#include <chrono>
#include <cstring>

namespace heddle::runtime {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Session::Session(std::shared_ptr<const Program> program, std::shared_ptr<const void> code,
                 std::shared_ptr<ThreadPool> pool)
    : program_(std::move(program)), code_(std::move(code)), pool_(std::move(pool)) {}

Result<std::shared_ptr<Session>> Session::create(std::shared_ptr<const Program> program,
                                                 const Linker& linker,
                                                 std::shared_ptr<const void> code,
                                                 std::shared_ptr<ThreadPool> pool) {
  std::shared_ptr<Session> session(new Session(std::move(program), std::move(code), std::move(pool)));
  for (const Launch& launch : session->program_->launches) {
    BoundLaunch bound;
    for (const Phase& phase : launch.phases) {
      const Task task = linker(phase.symbol);
      if (task == nullptr) return fail("kernel '{}': symbol '{}' is not in the code", launch.name, phase.symbol);
      bound.phases.push_back({task, phase.tasks});
    }
    session->launches_.push_back(std::move(bound));
  }
  return session;
}

std::unique_ptr<Session::Context> Session::acquire() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      std::unique_ptr<Context> context = std::move(idle_.back());
      idle_.pop_back();
      return context;
    }
  }
  auto context = std::make_unique<Context>();
  context->arena = Tensor({DType::u8, {program_->arena_bytes}});
  // A cache line more than asked for, so that threads never share one.
  const std::int64_t scratch = (program_->scratch_bytes + 127) / 64 * 64;
  context->scratch = Tensor({DType::u8, {scratch * pool_->threads()}});
  context->inputs.resize(program_->inputs.size());
  context->outputs.resize(program_->outputs.size());
  for (std::size_t l = 0; l < program_->launches.size(); ++l) {
    std::vector<void*>& args = context->args.emplace_back();
    for (const Slot& slot : program_->launches[l].args) {
      const std::pair<std::size_t, std::size_t> use{l, args.size()};
      const std::size_t index = static_cast<std::size_t>(slot.index);
      void* pointer = nullptr;
      switch (slot.kind) {
        case Slot::Kind::arena: pointer = context->arena.mutable_data() + slot.index; break;
        case Slot::Kind::constant:
          pointer = const_cast<std::byte*>(program_->constants[index].data());
          break;
        case Slot::Kind::input: context->inputs[index].push_back(use); break;
        case Slot::Kind::output: context->outputs[index].push_back(use); break;
      }
      args.push_back(pointer);
    }
  }
  return context;
}

void Session::release(std::unique_ptr<Context> context) {
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(context));
}

Status Session::check(std::span<const Tensor> inputs) const {
  if (inputs.size() != program_->inputs.size())
    return fail(ErrorCode::usage, "run: found {} inputs, want {}", inputs.size(), program_->inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i].type() != program_->inputs[i].type)
      return fail(ErrorCode::usage, "input '{}': found {}, want {}", program_->inputs[i].name,
                  to_string(inputs[i].type()), to_string(program_->inputs[i].type));
  return Ok{};
}

void Session::bind(Context& context, std::span<const Tensor> inputs, std::span<Tensor> outputs) const {
  for (std::size_t i = 0; i < inputs.size(); ++i)
    for (auto [launch, arg] : context.inputs[i])
      context.args[launch][arg] = const_cast<std::byte*>(inputs[i].data());
  for (std::size_t i = 0; i < outputs.size(); ++i)
    for (auto [launch, arg] : context.outputs[i]) context.args[launch][arg] = outputs[i].mutable_data();
}

void Session::execute(Context& context, std::vector<LaunchTime>* times) {
  const int threads = pool_->threads();
  SpinBarrier barrier(threads);
  const std::int64_t scratch_stride = context.scratch.bytes() / threads;
  const double start = now();
  pool_->run([&](int thread) {
    void* scratch = context.scratch.mutable_data() + scratch_stride * thread;
    for (std::size_t l = 0; l < launches_.size(); ++l) {
      const double begin = times != nullptr ? now() : 0;
      for (const BoundPhase& phase : launches_[l].phases) {
        const std::int64_t first = phase.tasks * thread / threads;
        const std::int64_t last = phase.tasks * (thread + 1) / threads;
        if (first < last) phase.task(context.args[l].data(), first, last, scratch);
        if (threads > 1) barrier.wait();
      }
      if (times != nullptr && thread == 0)
        times->push_back({program_->launches[l].name, now() - begin, begin - start});
    }
  });
}

Status Session::run_into(std::span<const Tensor> inputs, std::span<Tensor> outputs) {
  HEDDLE_TRY(check(inputs));
  if (outputs.size() != program_->outputs.size())
    return fail(ErrorCode::usage, "run: found {} outputs, want {}", outputs.size(), program_->outputs.size());
  std::unique_ptr<Context> context = acquire();
  bind(*context, inputs, outputs);
  execute(*context, nullptr);
  release(std::move(context));
  return Ok{};
}

Result<std::vector<Tensor>> Session::run(std::span<const Tensor> inputs) {
  HEDDLE_TRY(check(inputs));
  std::vector<Tensor> outputs;
  for (const Port& port : program_->outputs) outputs.emplace_back(port.type);
  HEDDLE_TRY(run_into(inputs, outputs));
  return outputs;
}

Result<std::vector<LaunchTime>> Session::profile(std::span<const Tensor> inputs) {
  HEDDLE_TRY(check(inputs));
  std::vector<Tensor> outputs;
  for (const Port& port : program_->outputs) outputs.emplace_back(port.type);
  std::unique_ptr<Context> context = acquire();
  bind(*context, inputs, outputs);
  std::vector<LaunchTime> times;
  times.reserve(launches_.size());
  execute(*context, &times);
  release(std::move(context));
  return times;
}

}  // namespace heddle::runtime
