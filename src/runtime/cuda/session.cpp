#include "runtime/cuda/session.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "runtime/cuda/blas.h"
#include "runtime/cuda/driver_library.h"
#include "runtime/cuda/monolith.h"
#include "runtime/cuda/unit.h"
#include "support/clock.h"
#include "support/log.h"

namespace heddle::runtime::cuda {
namespace {

constexpr std::int64_t kCounterBytes = 128;  // grid barriers share no cache line
constexpr int kThreadLocal = 1;              // CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
constexpr int kNonPortableCluster = 14;      // CU_FUNC_ATTRIBUTE_…
constexpr std::int64_t kSharedWithoutAsking = 48 << 10;
constexpr int kPortableCluster = 8;

/// A phase with what its launches in every run share.
struct BoundPhase {
  const Phase* phase;
  Handle function;
  std::int64_t blocks;
  std::vector<LaunchAttribute> attributes;
};

/// A launch as one run makes it: pointers into the run's own memory.
struct Bound {
  std::vector<DevicePtr> args;
  struct PhaseParameters {
    std::vector<EncodedMap> maps;
    DevicePtr counter = 0;
    std::vector<void*> list;
  };
  std::vector<PhaseParameters> phases;
  std::optional<BlasProduct> product;  ///< instead of the phases
  std::optional<UnitCall> unit;        ///< or this
};

/// Stream and memory of one run in flight.
struct Run {
  Owned<Handle> stream;
  Memory arena, ports, workspace;
  Owned<void*> staging;
  std::vector<Bound> launches;
  Persistent::Run monolith;  ///< in the place of launches
  std::optional<Owned<Handle>> graph;
  bool warm = false;  ///< ran once: kernels are loaded
};

class CudaSession final : public Session {
 public:
  CudaSession(std::shared_ptr<const Program> program, std::shared_ptr<Code> code,
              const SessionOptions& options)
      : Session(std::move(program)), code_(std::move(code)), options_(options) {}
  Status prepare();
  Result<std::vector<double>> time_runs(std::span<const Tensor> inputs, int runs) override;
  Result<std::vector<ItemTime>> timeline(std::span<const Tensor> inputs) override;
  Status use(const std::optional<StageLayout>& layout, std::span<const int> only) override;

 protected:
  Status execute(std::span<const Tensor> inputs, std::span<Tensor> outputs,
                 std::vector<LaunchTime>* times) override;
  Status execute_sharing(std::span<const Tensor> inputs, std::span<Tensor> outputs,
                         std::span<const std::size_t> shared, Communicator& group) override;

 private:
  const std::shared_ptr<Gpu>& gpu() const { return code_->gpu(); }
  const Driver& driver() const { return gpu()->driver(); }
  Status check(int code, std::string_view what) const { return gpu()->check(code, what); }
  void open_blas();
  Status bind_phases();
  Status bind_products(Run& run);
  Status bind_unit(const Launch& launch, Bound& bound);
  Status upload_constants();
  void place_ports();
  Result<std::unique_ptr<Run>> acquire();
  void release(std::unique_ptr<Run> run);
  Result<std::unique_ptr<Run>> new_run();
  Status bind(Run& run);
  Status bind_monolith(Run& run);
  DevicePtr address(const Slot& slot, const Run& run) const;
  Status launch(const Run& run, std::size_t number) const;
  Status launch_each(const Run& run) const;
  Status finish(const Run& run) const;
  Status launch_all(Run& run);
  Status launch_timed(Run& run, std::vector<LaunchTime>& times);
  Status capture(Run& run);
  Status copy_in(Run& run, std::span<const Tensor> inputs);
  Status copy_out(Run& run, std::span<Tensor> outputs);

  std::shared_ptr<Code> code_;
  SessionOptions options_;
  std::vector<std::vector<BoundPhase>> launches_;
  std::map<StageLayout, std::unique_ptr<Persistent>> monoliths_;
  std::unique_ptr<Persistent> part_;  ///< the last of some stages only
  Persistent* monolith_ = nullptr;    ///< in use, in the place of launches_
  std::shared_ptr<Blas> blas_;
  std::int64_t counters_ = 0;  ///< phases with grid barriers
  Memory constants_;
  std::vector<std::int64_t> constant_at_, input_at_, output_at_;  ///< bytes
  std::int64_t input_bytes_ = 0, port_bytes_ = 0;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Run>> idle_;
};

Status CudaSession::prepare() {
  const Current current(*gpu());
  place_ports();
  HEDDLE_TRY(upload_constants());
  if (program().persistent) {
    HEDDLE_TRY(use(program().monolith.value_or(StageLayout{}), {}));
  } else {
    open_blas();
    HEDDLE_TRY(bind_phases());
  }
  release(HEDDLE_TRY(new_run()));  // what cannot fit is known now
  return Ok{};
}

Status CudaSession::use(const std::optional<StageLayout>& layout, std::span<const int> only) {
  HEDDLE_CHECK(layout.has_value() == program().persistent.has_value(), "the code is {} monolith's",
               program().persistent ? "a" : "no");
  if (!layout) return Ok{};
  const Current current(*gpu());
  const Persistent::Wanted wanted{*layout, {only.begin(), only.end()}, options_.blocks};
  std::unique_ptr<Persistent>& made = only.empty() ? monoliths_[*layout] : part_;
  if (!made || !only.empty()) {
    std::vector<DevicePtr> constants;
    for (std::int64_t at : constant_at_)
      constants.push_back(constants_.get() + static_cast<DevicePtr>(at));
    made = HEDDLE_TRY(Persistent::prepare(code_, program(), constants, wanted));
  }
  if (monolith_ == made.get()) return Ok{};
  monolith_ = made.get();
  std::vector<std::unique_ptr<Run>> idle = std::exchange(idle_, {});  // none with old tables
  for (std::unique_ptr<Run>& run : idle) {                            // their arenas stay
    run->graph.reset();
    HEDDLE_TRY(bind_monolith(*run));
    idle_.push_back(std::move(run));
  }
  return Ok{};
}

void CudaSession::place_ports() {
  const auto place = [&](const std::vector<Port>& ports, std::vector<std::int64_t>& at) {
    for (const Port& port : ports) {
      at.push_back(port_bytes_);
      port_bytes_ += aligned(element_count(port.type.shape) * size_of(port.type.dtype));
    }
  };
  place(program().inputs, input_at_);
  input_bytes_ = port_bytes_;
  place(program().outputs, output_at_);
}

void CudaSession::open_blas() {
  const bool any = std::ranges::any_of(program().launches,
                                       [](const Launch& l) { return l.product.has_value(); });
  if (!any || options_.cublaslt.empty()) return;
  auto blas = Blas::open(gpu(), options_.cublaslt);
  if (blas)
    blas_ = *std::move(blas);
  else
    log(LogLevel::info, "{}; kernels of our own instead", blas.error().message);
}

Status CudaSession::bind_products(Run& run) {
  std::int64_t workspace = 0;
  for (std::size_t l = 0; l < run.launches.size(); ++l) {
    const Launch& launch = program().launches[l];
    Bound& bound = run.launches[l];
    if (launch.unit) {
      HEDDLE_TRY(bind_unit(launch, bound));
      if (bound.unit) workspace = std::max(workspace, bound.unit->workspace_bytes());
    }
    if (!launch.product || !blas_) continue;
    bound.product = HEDDLE_TRY(BlasProduct::prepare(blas_, *launch.product, bound.args));
    if (bound.product)
      workspace = std::max(workspace, bound.product->workspace_bytes());
    else
      log(LogLevel::info, "kernel '{}': cuBLASLt has no algorithm for it", launch.name);
  }
  const bool any = std::ranges::any_of(
      run.launches, [](const Bound& b) { return b.product.has_value() || b.unit.has_value(); });
  if (any) run.workspace = HEDDLE_TRY(allocate(gpu(), workspace, "products' workspace"));
  return Ok{};
}

Status CudaSession::bind_unit(const Launch& launch, Bound& bound) {
  const HeddleUnit* unit = code_->unit(launch.unit->object);
  if (unit == nullptr) return Ok{};
  bound.unit = HEDDLE_TRY(UnitCall::prepare(gpu(), unit, *launch.unit, bound.args));
  if (!bound.unit)
    log(LogLevel::info, "kernel '{}': its unit does not take the sizes", launch.name);
  return Ok{};
}

Status CudaSession::bind_phases() {
  for (const Launch& launch : program().launches) {
    std::vector<BoundPhase>& bound = launches_.emplace_back();
    for (const Phase& phase : launch.phases) {
      const Handle function = code_->find(phase.symbol);
      if (function == nullptr)
        return fail("kernel '{}': symbol '{}' is not in the code", launch.name, phase.symbol);
      bound.push_back({&phase, function, phase.tasks, {}});
      const Grid& grid = phase.grid;
      const auto set = [&](int attribute, std::int64_t value) {
        return check(driver().FuncSetAttribute(function, attribute, static_cast<int>(value)),
                     fmt::format("kernel '{}': {} bytes of shared memory, clusters of {}",
                                 launch.name, grid.shared_bytes, grid.cluster));
      };
      if (grid.shared_bytes > kSharedWithoutAsking)
        HEDDLE_TRY(set(kMaxDynamicShared, grid.shared_bytes));
      if (grid.cluster > kPortableCluster) HEDDLE_TRY(set(kNonPortableCluster, 1));
      if (grid.resident)
        bound.back().blocks =
            std::min(phase.tasks,
                     HEDDLE_TRY(resident_blocks(*gpu(), function, grid.threads, grid.shared_bytes,
                                                fmt::format("kernel '{}'", launch.name)))
                         .all());
      if (grid.cooperative) {
        bound.back().attributes.push_back({LaunchAttribute::cooperative, 0, {1}});
        ++counters_;
      }
      if (grid.cluster > 1)
        bound.back().attributes.push_back(
            {LaunchAttribute::cluster, 0, {static_cast<unsigned>(grid.cluster), 1, 1}});
    }
  }
  return Ok{};
}

Status CudaSession::upload_constants() {
  std::int64_t bytes = 0;
  for (const Tensor& t : program().constants) {
    constant_at_.push_back(bytes);
    bytes += aligned(t.bytes());
  }
  constants_ = HEDDLE_TRY(allocate(gpu(), bytes, "constants"));
  for (std::size_t i = 0; i < constant_at_.size(); ++i) {
    const Tensor& t = program().constants[i];
    const DevicePtr to = constants_.get() + static_cast<DevicePtr>(constant_at_[i]);
    if (t.bytes() > 0)
      HEDDLE_TRY(check(driver().MemcpyHtoD(to, t.data(), static_cast<std::size_t>(t.bytes())),
                       "copy of constants"));
  }
  return Ok{};
}

Result<std::unique_ptr<Run>> CudaSession::new_run() {
  auto run = std::make_unique<Run>();
  const Driver& d = driver();
  run->stream =
      HEDDLE_TRY(Owned<Handle>::make(gpu(), "cuStreamCreate", d.StreamDestroy, [&](Handle* stream) {
        return d.StreamCreate(stream, kNonBlocking);
      }));
  const std::int64_t arena = aligned(program().arena_bytes);
  run->arena = HEDDLE_TRY(allocate(gpu(), arena + counters_ * kCounterBytes, "the arena"));
  run->ports = HEDDLE_TRY(allocate(gpu(), port_bytes_, "inputs and outputs"));
  const auto bytes = static_cast<std::size_t>(std::max<std::int64_t>(port_bytes_, 1));
  run->staging = HEDDLE_TRY(
      Owned<void*>::make(gpu(), fmt::format("{} bytes of pinned memory", bytes), d.MemFreeHost,
                         [&](void** memory) { return d.MemAllocHost(memory, bytes); }));
  if (monolith_) HEDDLE_TRY(bind_monolith(*run));
  HEDDLE_TRY(bind(*run));
  HEDDLE_TRY(bind_products(*run));
  if (counters_ > 0) {
    const auto size = static_cast<std::size_t>(counters_ * kCounterBytes);
    const DevicePtr first = run->arena.get() + static_cast<DevicePtr>(arena);
    HEDDLE_TRY(check(d.MemsetD8Async(first, 0, size, run->stream.get()), "cuMemsetD8Async"));
  }
  return run;
}

Status CudaSession::bind_monolith(Run& run) {
  run.monolith = HEDDLE_TRY(
      monolith_->bind([&](const Slot& slot) { return address(slot, run); }, run.stream.get()));
  return Ok{};
}

DevicePtr CudaSession::address(const Slot& slot, const Run& run) const {
  const auto index = static_cast<std::size_t>(slot.index);
  switch (slot.kind) {
    case Slot::Kind::arena:
      return run.arena.get() + index;
    case Slot::Kind::input:
      return run.ports.get() + static_cast<DevicePtr>(input_at_[index]);
    case Slot::Kind::output:
      return run.ports.get() + static_cast<DevicePtr>(output_at_[index]);
    case Slot::Kind::constant:
      break;
  }
  return constants_.get() + static_cast<DevicePtr>(constant_at_[index]);
}

Status CudaSession::bind(Run& run) {
  run.launches.resize(launches_.size());  // parameter lists point into it
  DevicePtr counter = run.arena.get() + static_cast<DevicePtr>(aligned(program().arena_bytes));
  for (std::size_t l = 0; l < launches_.size(); ++l) {
    Bound& bound = run.launches[l];
    for (const Slot& slot : program().launches[l].args) bound.args.push_back(address(slot, run));
    bound.phases.resize(launches_[l].size());
    for (std::size_t p = 0; p < bound.phases.size(); ++p) {
      Bound::PhaseParameters& parameters = bound.phases[p];
      const Grid& grid = launches_[l][p].phase->grid;
      for (DevicePtr& arg : bound.args) parameters.list.push_back(&arg);
      for (const TensorMap& map : grid.maps)
        parameters.maps.push_back(
            HEDDLE_TRY(encode(*gpu(), map, bound.args[static_cast<std::size_t>(map.arg)])));
      for (EncodedMap& map : parameters.maps) parameters.list.push_back(&map);
      if (!grid.cooperative) continue;
      parameters.counter = std::exchange(counter, counter + kCounterBytes);
      parameters.list.push_back(&parameters.counter);
    }
  }
  return Ok{};
}

Result<std::unique_ptr<Run>> CudaSession::acquire() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      std::unique_ptr<Run> run = std::move(idle_.back());
      idle_.pop_back();
      return run;
    }
  }
  return new_run();
}

void CudaSession::release(std::unique_ptr<Run> run) {
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(run));
}

Status CudaSession::launch(const Run& run, std::size_t number) const {
  const Bound& bound = run.launches[number];
  if (bound.product) return bound.product->launch(run.workspace.get(), run.stream.get());
  if (bound.unit) return bound.unit->launch(run.workspace.get(), run.stream.get());
  for (std::size_t p = 0; p < bound.phases.size(); ++p) {
    const BoundPhase& phase = launches_[number][p];
    if (phase.phase->tasks == 0) continue;
    const Grid& grid = phase.phase->grid;
    const LaunchConfig config{{static_cast<unsigned>(phase.blocks), 1, 1},
                              {static_cast<unsigned>(grid.threads), 1, 1},
                              static_cast<unsigned>(grid.shared_bytes),
                              run.stream.get(),
                              phase.attributes.data(),
                              static_cast<unsigned>(phase.attributes.size())};
    auto* parameters = const_cast<void**>(bound.phases[p].list.data());
    const int code = driver().LaunchKernelEx(&config, phase.function, parameters, nullptr);
    if (code != 0)
      return check(code,
                   fmt::format("kernel '{}': {} blocks of {} threads, {} bytes of shared memory",
                               program().launches[number].name, phase.blocks, grid.threads,
                               grid.shared_bytes));
  }
  return Ok{};
}

Status CudaSession::launch_each(const Run& run) const {
  if (monolith_) return monolith_->launch(run.monolith, run.stream.get());
  for (std::size_t l = 0; l < launches_.size(); ++l) HEDDLE_TRY(launch(run, l));
  return Ok{};
}

/// What a monolith says of its end is worth more than that of the driver.
Status CudaSession::finish(const Run& run) const {
  Status done = check(driver().StreamSynchronize(run.stream.get()), "run");
  if (!done && monolith_)
    if (auto why = monolith_->failure(run.monolith)) return *std::move(why);
  return done;
}

Status CudaSession::capture(Run& run) {
  const Driver& d = driver();
  const Handle stream = run.stream.get();
  HEDDLE_TRY(check(d.StreamBeginCapture(stream, kThreadLocal), "cuStreamBeginCapture"));
  Status launched = launch_each(run);
  // A capture that was begun must end, or the stream is lost.
  Result<Owned<Handle>> graph =
      Owned<Handle>::make(gpu(), "cuStreamEndCapture", d.GraphDestroy,
                          [&](Handle* g) { return d.StreamEndCapture(stream, g); });
  HEDDLE_TRY(std::move(launched));
  if (!graph) return std::move(graph).error();
  run.graph = HEDDLE_TRY(Owned<Handle>::make(
      gpu(), "cuGraphInstantiate", d.GraphExecDestroy,
      [&](Handle* executable) { return d.GraphInstantiate(executable, graph->get(), 0); }));
  return Ok{};
}

/// The first run launches kernel by kernel, which loads them: that is not allowed in a capture.
Status CudaSession::launch_all(Run& run) {
  if (options_.graph && run.warm && !program().launches.empty()) {
    if (!run.graph) HEDDLE_TRY(capture(run));
    return check(driver().GraphLaunch(run.graph->get(), run.stream.get()), "cuGraphLaunch");
  }
  HEDDLE_TRY(launch_each(run));
  run.warm = true;
  return Ok{};
}

Status CudaSession::launch_timed(Run& run, std::vector<LaunchTime>& times) {
  if (monolith_) {
    times = launch_times(program(),
                         HEDDLE_TRY(monolith_->launch_timed(run.monolith, run.stream.get())));
    return Ok{};
  }
  const Driver& d = driver();
  const auto event = [&] {
    return Owned<Handle>::make(gpu(), "cuEventCreate", d.EventDestroy,
                               [&](Handle* e) { return d.EventCreate(e, 0); });
  };
  std::vector<Owned<Handle>> events;
  for (std::size_t l = 0; l <= launches_.size(); ++l) events.push_back(HEDDLE_TRY(event()));
  const auto record = [&](std::size_t number) {
    return check(d.EventRecord(events[number].get(), run.stream.get()), "cuEventRecord");
  };
  HEDDLE_TRY(record(0));
  for (std::size_t l = 0; l < launches_.size(); ++l) {
    HEDDLE_TRY(launch(run, l));
    HEDDLE_TRY(record(l + 1));
  }
  HEDDLE_TRY(check(d.StreamSynchronize(run.stream.get()), "run"));
  const auto seconds = [&](std::size_t from, std::size_t to) -> Result<double> {
    float ms = 0;
    HEDDLE_TRY(
        check(d.EventElapsedTime(&ms, events[from].get(), events[to].get()), "cuEventElapsedTime"));
    return 1e-3 * static_cast<double>(ms);
  };
  for (std::size_t l = 0; l < launches_.size(); ++l)
    times.push_back(
        {program().launches[l].name, HEDDLE_TRY(seconds(l, l + 1)), HEDDLE_TRY(seconds(0, l))});
  return Ok{};
}

Status CudaSession::copy_in(Run& run, std::span<const Tensor> inputs) {
  auto* staging = static_cast<std::byte*>(run.staging.get());
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i].bytes() > 0)
      std::memcpy(staging + input_at_[i], inputs[i].data(),
                  static_cast<std::size_t>(inputs[i].bytes()));
  if (input_bytes_ == 0) return Ok{};
  return check(driver().MemcpyHtoDAsync(run.ports.get(), staging,
                                        static_cast<std::size_t>(input_bytes_), run.stream.get()),
               "copy of inputs");
}

Status CudaSession::copy_out(Run& run, std::span<Tensor> outputs) {
  auto* staging = static_cast<std::byte*>(run.staging.get());
  if (port_bytes_ > input_bytes_)
    HEDDLE_TRY(
        check(driver().MemcpyDtoHAsync(
                  staging + input_bytes_, run.ports.get() + static_cast<DevicePtr>(input_bytes_),
                  static_cast<std::size_t>(port_bytes_ - input_bytes_), run.stream.get()),
              "copy of outputs"));
  HEDDLE_TRY(finish(run));
  for (std::size_t i = 0; i < outputs.size(); ++i)
    if (outputs[i].bytes() > 0)
      std::memcpy(outputs[i].mutable_data(), staging + output_at_[i],
                  static_cast<std::size_t>(outputs[i].bytes()));
  return Ok{};
}

/// A run that failed is not used again: the driver may have lost its stream.
Status CudaSession::execute(std::span<const Tensor> inputs, std::span<Tensor> outputs,
                            std::vector<LaunchTime>* times) {
  const Current current(*gpu());
  std::unique_ptr<Run> run = HEDDLE_TRY(acquire());
  HEDDLE_TRY(copy_in(*run, inputs));
  HEDDLE_TRY(times != nullptr ? launch_timed(*run, *times) : launch_all(*run));
  HEDDLE_TRY(copy_out(*run, outputs));
  release(std::move(run));
  return Ok{};
}

/// Kernel by kernel; a sum starts behind the last kernel that uses its output, on the group's own
/// stream, and results are copied when all sums are there. A monolith's start at its end.
Status CudaSession::execute_sharing(std::span<const Tensor> inputs, std::span<Tensor> outputs,
                                    std::span<const std::size_t> shared, Communicator& group) {
  DeviceSums* sums = group.on_device();
  if (sums == nullptr) return Session::execute_sharing(inputs, outputs, shared, group);
  const Current current(*gpu());
  std::unique_ptr<Run> run = HEDDLE_TRY(acquire());
  HEDDLE_TRY(copy_in(*run, inputs));
  const std::vector<std::size_t> last = last_launches();
  std::size_t started = 0;
  const auto start = [&](std::size_t l) -> Status {
    for (; started < shared.size() && last[shared[started]] <= l; ++started) {
      const Slot output{Slot::Kind::output, static_cast<std::int64_t>(shared[started])};
      HEDDLE_TRY(sums->start(run->stream.get(), address(output, *run),
                             element_count(program().outputs[shared[started]].type.shape)));
    }
    return Ok{};
  };
  if (monolith_) HEDDLE_TRY(launch_each(*run));
  for (std::size_t l = 0; l < program().launches.size(); ++l) {
    if (!monolith_) HEDDLE_TRY(launch(*run, l));
    HEDDLE_TRY(start(l));
  }
  run->warm = true;
  HEDDLE_TRY(sums->join(run->stream.get()));
  HEDDLE_TRY(copy_out(*run, outputs));
  release(std::move(run));
  return Ok{};
}

Result<std::vector<double>> CudaSession::time_runs(std::span<const Tensor> inputs, int runs) {
  HEDDLE_TRY(Session::check(inputs));
  const Current current(*gpu());
  std::unique_ptr<Run> run = HEDDLE_TRY(acquire());
  HEDDLE_TRY(copy_in(*run, inputs));
  const auto synchronise = [&] { return finish(*run); };
  for (int warm = 0; warm < 2; ++warm) HEDDLE_TRY(launch_all(*run));
  HEDDLE_TRY(synchronise());
  std::vector<double> seconds;
  for (int i = 0; i < runs; ++i) {
    const double begin = now();
    HEDDLE_TRY(launch_all(*run));
    HEDDLE_TRY(synchronise());
    seconds.push_back(now() - begin);
  }
  release(std::move(run));
  return seconds;
}

Result<std::vector<ItemTime>> CudaSession::timeline(std::span<const Tensor> inputs) {
  if (!monolith_) return Session::timeline(inputs);
  HEDDLE_TRY(Session::check(inputs));
  const Current current(*gpu());
  std::unique_ptr<Run> run = HEDDLE_TRY(acquire());
  HEDDLE_TRY(copy_in(*run, inputs));
  auto items = HEDDLE_TRY(monolith_->launch_timed(run->monolith, run->stream.get()));
  release(std::move(run));
  return items;
}

}  // namespace

Result<std::shared_ptr<Session>> create_session(std::shared_ptr<const Program> program,
                                                std::shared_ptr<Code> code,
                                                const SessionOptions& options) {
  auto session = std::make_shared<CudaSession>(std::move(program), std::move(code), options);
  HEDDLE_TRY(session->prepare());
  return std::shared_ptr<Session>(std::move(session));
}

}  // namespace heddle::runtime::cuda
