#include "runtime/cuda/monolith.h"

#include <algorithm>
#include <cstring>

#include "runtime/cuda/driver_library.h"
#include "runtime/cuda/ring.h"

namespace heddle::runtime::cuda {
namespace {

constexpr std::int64_t kFetchBytes = 16 << 20;  // of a stage: part of the L2 cache
constexpr unsigned kPatience = 1u << 26;        // polls: seconds

/// Tables one behind the other in one allocation.
class Packer {
 public:
  template <class T>
  std::int64_t add(const std::vector<T>& table) {
    const std::int64_t at = aligned(static_cast<std::int64_t>(bytes_.size()));
    bytes_.resize(static_cast<std::size_t>(at) + table.size() * sizeof(T));
    if (!table.empty()) std::memcpy(bytes_.data() + at, table.data(), table.size() * sizeof(T));
    return at;
  }
  std::int64_t size() const { return static_cast<std::int64_t>(bytes_.size()); }
  Result<Memory> upload(const std::shared_ptr<Gpu>& gpu) const {
    Memory memory = HEDDLE_TRY(allocate(gpu, size(), "the monolith's tables"));
    if (!bytes_.empty())
      HEDDLE_TRY(gpu->check(gpu->driver().MemcpyHtoD(memory.get(), bytes_.data(), bytes_.size()),
                            "copy of the monolith's tables"));
    return memory;
  }

 private:
  std::vector<std::byte> bytes_;
};

DevicePtr offset(const Memory& memory, std::int64_t at) {
  return memory.get() + static_cast<DevicePtr>(at);
}

}  // namespace

Result<std::unique_ptr<Persistent>> Persistent::prepare(std::shared_ptr<Code> code,
                                                        const Program& program,
                                                        std::span<const DevicePtr> constants,
                                                        const Wanted& wanted) {
  auto kernel = std::unique_ptr<Persistent>(new Persistent(std::move(code), program));
  HEDDLE_TRY(kernel->choose_blocks(wanted.blocks));
  HEDDLE_TRY(kernel->make_schedule(wanted));
  HEDDLE_TRY(kernel->upload(constants));
  return kernel;
}

/// As many blocks as the GPU holds at once: a block that is not resident would be waited for in
/// vain.
Status Persistent::choose_blocks(int wanted) {
  const PersistentKernel& m = *program_.persistent;
  function_ = code_->find(m.symbol);
  if (function_ == nullptr) return fail("monolith: symbol '{}' is not in the code", m.symbol);
  HEDDLE_TRY(check(
      driver().FuncSetAttribute(function_, kMaxDynamicShared, static_cast<int>(m.shared_bytes)),
      fmt::format("monolith: {} bytes of shared memory", m.shared_bytes)));
  const Resident resident =
      HEDDLE_TRY(resident_blocks(*gpu(), function_, m.block_threads(), m.shared_bytes, "monolith"));
  if (wanted > resident.all())
    return fail("monolith: found {} blocks wanted, {} of {} threads are resident at once", wanted,
                resident.all(), m.block_threads());
  blocks_ = wanted > 0 ? wanted : resident.multiprocessors * std::min(resident.each, m.blocks);
  return Ok{};
}

/// A schedule that cannot be proved right is our own fault.
Status Persistent::make_schedule(const Wanted& wanted) {
  stages_ = spread(stages_of(program_, wanted.only), blocks_);
  const Schedule made = block_schedule(stages_, blocks_, wanted.layout);
  const Status sound = validate(stages_, made, 32);
  HEDDLE_CHECK(sound.ok(), "monolith: {}", sound.error().message);
  const auto constants = [&](int stage) {
    return constants_of(program_, stages_[static_cast<std::size_t>(stage)]);
  };
  tables_ = tables_of(made, constants, kFetchBytes);
  add_pages(program_, stages_, tables_);
  const Status paged = validate_ring(program_, stages_, tables_);
  HEDDLE_CHECK(paged.ok(), "monolith: {}", paged.error().message);
  return Ok{};
}

Status Persistent::upload(std::span<const DevicePtr> constants) {
  const auto addresses = [&](const std::vector<ConstantRange>& of) {
    std::vector<MonolithRange> out;
    for (const ConstantRange& r : of)
      out.push_back(
          {constants[static_cast<std::size_t>(r.constant)] + static_cast<DevicePtr>(r.begin),
           r.bytes});
    return out;
  };
  Packer packer;
  const std::int64_t items = packer.add(tables_.items), first = packer.add(tables_.first_item),
                     waits = packer.add(tables_.waits), firsts = packer.add(tables_.first_wait),
                     ranges = packer.add(addresses(tables_.ranges)),
                     steps = packer.add(tables_.steps),
                     loads = packer.add(addresses(tables_.loads)),
                     first_load = packer.add(tables_.first_load);
  shared_tables_ = HEDDLE_TRY(packer.upload(gpu()));
  parameters_ = {0,
                 offset(shared_tables_, items),
                 offset(shared_tables_, first),
                 offset(shared_tables_, waits),
                 offset(shared_tables_, firsts),
                 offset(shared_tables_, ranges),
                 offset(shared_tables_, steps),
                 offset(shared_tables_, loads),
                 offset(shared_tables_, first_load),
                 0,
                 0,
                 0,
                 kPatience};
  return Ok{};
}

Result<Persistent::Run> Persistent::bind(const Address& address, Handle stream) const {
  Run run;
  // Addresses of arguments, launch by launch; then the stages, which point to them.
  std::vector<DevicePtr> args;
  std::vector<std::size_t> first;
  for (const Launch& launch : program_.launches) {
    first.push_back(args.size());
    for (const Slot& slot : launch.args) args.push_back(address(slot));
  }
  const std::int64_t stages_at =
      aligned(static_cast<std::int64_t>(args.size() * sizeof(DevicePtr)));
  run.tables = HEDDLE_TRY(
      allocate(gpu(), stages_at + static_cast<std::int64_t>(stages_.size() * sizeof(MonolithStage)),
               "the monolith's stages"));
  std::vector<MonolithStage> stages;
  for (const Stage& s : stages_) {
    const auto launch = static_cast<std::size_t>(s.launch);
    const Grid& grid = program_.launches[launch].phases[static_cast<std::size_t>(s.phase)].grid;
    stages.push_back(
        {run.tables.get() + first[launch] * sizeof(DevicePtr), grid.function, grid.threads});
  }
  const auto copy = [&](DevicePtr to, const void* from, std::size_t bytes) {
    return bytes == 0
               ? Status(Ok{})
               : check(driver().MemcpyHtoD(to, from, bytes), "copy of the monolith's stages");
  };
  HEDDLE_TRY(copy(run.tables.get(), args.data(), args.size() * sizeof(DevicePtr)));
  HEDDLE_TRY(
      copy(offset(run.tables, stages_at), stages.data(), stages.size() * sizeof(MonolithStage)));
  const std::int64_t counters = blocks_ * kMonolithCounterBytes;
  run.counters = HEDDLE_TRY(allocate(gpu(), counters, "the monolith's counters"));
  HEDDLE_TRY(check(
      driver().MemsetD8Async(run.counters.get(), 0, static_cast<std::size_t>(counters), stream),
      "cuMemsetD8Async"));
  run.failure = HEDDLE_TRY(Owned<void*>::make(
      gpu(), "pinned memory for what a monolith says", driver().MemFreeHost,
      [&](void** memory) { return driver().MemAllocHost(memory, sizeof(MonolithFailure)); }));
  std::memset(run.failure.get(), 0, sizeof(MonolithFailure));
  run.parameters = parameters_;
  run.parameters.stages = offset(run.tables, stages_at);
  run.parameters.counters = run.counters.get();
  // Pinned memory has the same address on both sides.
  run.parameters.failure = reinterpret_cast<DevicePtr>(run.failure.get());
  return run;
}

Status Persistent::launch(const Run& run, Handle stream) const {
  return launch(run.parameters, stream);
}

Status Persistent::launch(const MonolithParameters& parameters, Handle stream) const {
  const PersistentKernel& m = *program_.persistent;
  if (tables_.items.empty()) return Ok{};
  const LaunchAttribute cooperative{LaunchAttribute::cooperative, 0, {1}};
  const LaunchConfig config{{static_cast<unsigned>(blocks_), 1, 1},
                            {static_cast<unsigned>(m.block_threads()), 1, 1},
                            static_cast<unsigned>(m.shared_bytes),
                            stream,
                            &cooperative,
                            1};
  MonolithParameters own = parameters;
  void* list[] = {&own};
  return check(driver().LaunchKernelEx(&config, function_, list, nullptr),
               fmt::format("monolith: {} blocks of {} threads, {} bytes of shared memory", blocks_,
                           m.block_threads(), m.shared_bytes));
}

Result<std::vector<ItemTime>> Persistent::launch_timed(const Run& run, Handle stream) const {
  if (tables_.items.empty()) return std::vector<ItemTime>{};
  std::vector<MonolithTimes> rows(tables_.items.size() + static_cast<std::size_t>(blocks_));
  const std::size_t bytes = rows.size() * sizeof(MonolithTimes);
  const Memory times =
      HEDDLE_TRY(allocate(gpu(), static_cast<std::int64_t>(bytes), "the monolith's stamps"));
  MonolithParameters parameters = run.parameters;
  parameters.times = times.get();
  HEDDLE_TRY(launch(parameters, stream));
  HEDDLE_TRY(check(driver().MemcpyDtoHAsync(rows.data(), times.get(), bytes, stream),
                   "copy of the monolith's stamps"));
  HEDDLE_TRY(check(driver().StreamSynchronize(stream), "run"));
  return item_times(stages_, tables_, rows);
}

std::optional<Error> Persistent::failure(const Run& run) const {
  MonolithFailure f;
  std::memcpy(&f, run.failure.get(), sizeof f);
  if (f.failed == 0) return std::nullopt;
  return fail("{}", describe(f, program_, stages_, tables_));
}

}  // namespace heddle::runtime::cuda
