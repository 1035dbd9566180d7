// The scheduler: fibers, blocks, barriers, meetings of warps.
#include "emulation/machine.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "emulation/memory.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define HEDDLE_FIBER_START(fake, bottom, bytes) __sanitizer_start_switch_fiber(fake, bottom, bytes)
#define HEDDLE_FIBER_FINISH(fake, bottom, bytes) __sanitizer_finish_switch_fiber(fake, bottom, bytes)
#else
#define HEDDLE_FIBER_START(fake, bottom, bytes) (void)0
#define HEDDLE_FIBER_FINISH(fake, bottom, bytes) (void)0
#endif

namespace heddle::emulation {
namespace {

namespace fiber = boost::context::detail;

#if defined(__SANITIZE_ADDRESS__)
constexpr std::size_t kStackBytes = 256 << 10;
#else
constexpr std::size_t kStackBytes = 64 << 10;
#endif
constexpr std::size_t kSlabStacks = 64;
constexpr std::size_t kSharedAlign = 1024;
/// Rounds in which all threads poll and nothing else happens, before it is a deadlock.
constexpr int kIdleRounds = 1000;
/// Written at the end of each stack; an overflow changes it.
constexpr std::uint64_t kCanary = 0x5ca1ab1e0ddba11ull;

bool same(emu::Site a, emu::Site b) { return a.line == b.line && std::strcmp(a.file, b.file) == 0; }

emu::Dim dim(Dim d) { return {d.x, d.y, d.z}; }
emu::Dim index_in(std::int64_t i, Dim d) {
  return {static_cast<unsigned>(i % d.x), static_cast<unsigned>(i / d.x % d.y),
          static_cast<unsigned>(i / d.x / d.y)};
}

}  // namespace

std::string name_of(emu::Site site) {
  std::string_view file = site.file ? site.file : "?";
  if (const auto slash = file.rfind('/'); slash != file.npos) file.remove_prefix(slash + 1);
  return fmt::format("{}:{}", file, site.line);
}

Machine* Machine::current = nullptr;

Block::~Block() { std::free(dynamic); }

Machine::Machine(const ModuleState& module, const Kernel& kernel, const Launch& how,
                 void** arguments)
    : module_(module), kernel_(kernel), how_(how), blocks_(how.grid.count()), random_(how.seed) {
  together_ = how.cooperative ? blocks_ : how.cluster.count();
  for (std::size_t i = 0; i < kernel.parameter_bytes.size(); ++i) {
    const auto* from = static_cast<const std::byte*>(arguments[i]);
    values_.emplace_back(from, from + kernel.parameter_bytes[i]);
    arguments_.push_back(values_.back().data());
  }
}
Machine::~Machine() {
  for (const auto& [at, bytes] : slabs_) ::munmap(at, bytes);
}

std::byte* Machine::new_stack() {
  if (free_stacks_.empty()) {
    const std::size_t bytes = kSlabStacks * kStackBytes;
    void* slab = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (slab == MAP_FAILED) throw std::bad_alloc();
    slabs_.emplace_back(slab, bytes);
    for (std::size_t i = kSlabStacks; i-- > 0;)
      free_stacks_.push_back(static_cast<std::byte*>(slab) + i * kStackBytes);
  }
  std::byte* stack = free_stacks_.back();
  free_stacks_.pop_back();
  std::memcpy(stack, &kCanary, sizeof kCanary);
  return stack;
}

/// Blocks run in the order of their numbers, in the reverse order, or shuffled; clusters stay
/// together.
void Machine::start_block() {
  const std::int64_t group = next_ / how_.cluster.count(), in_cluster = next_ % how_.cluster.count();
  const Dim clusters{how_.grid.x / how_.cluster.x, how_.grid.y / how_.cluster.y,
                     how_.grid.z / how_.cluster.z};
  const std::int64_t last = clusters.count() - 1;
  const emu::Dim outer = index_in(how_.order == Order::reverse ? last - group : group, clusters);
  const emu::Dim inner = index_in(in_cluster, how_.cluster);
  ++next_;
  auto block = std::make_unique<Block>();
  block->index = {outer.x * how_.cluster.x + inner.x, outer.y * how_.cluster.y + inner.y,
                  outer.z * how_.cluster.z + inner.z};
  block->number = (block->index.z * how_.grid.y + block->index.y) * how_.grid.x + block->index.x;
  const auto threads = static_cast<std::size_t>(how_.block.count());
  const std::size_t bytes = (how_.shared_bytes + kSharedAlign) / kSharedAlign * kSharedAlign;
  block->dynamic = static_cast<unsigned char*>(std::aligned_alloc(kSharedAlign, bytes));
  if (!block->dynamic) throw std::bad_alloc();
  std::memset(block->dynamic, 0xff, bytes);
  block->statics.assign(static_cast<std::size_t>(module_.info.shared_end - module_.info.shared_begin),
                        0xff);
  block->threads.resize(threads);
  block->warps.resize((threads + 31) / 32);
  block->alive = static_cast<int>(threads);
  for (std::size_t i = 0; i < threads; ++i) {
    Thread& t = block->threads[i];
    t.block = block.get();
    t.number = static_cast<unsigned>(i);
    t.warp = &block->warps[i / 32];
    t.warp->present |= 1u << i % 32;
    t.warp->lanes.push_back(&t);
    t.stack = new_stack();
    std::byte* top = t.stack + kStackBytes - sizeof(emu::Self);
    top -= reinterpret_cast<std::uintptr_t>(top) % 64;
    t.self = new (top) emu::Self{index_in(static_cast<std::int64_t>(i), how_.block), block->index,
                                 dim(how_.block), dim(how_.grid), block->dynamic,
                                 static_cast<int>(i % 32), static_cast<unsigned>(in_cluster),
                                 static_cast<unsigned>(how_.cluster.count())};
    t.context = fiber::make_fcontext(top, static_cast<std::size_t>(top - t.stack), &Machine::enter);
    block->ready.push_back(&t);
  }
  resident_.push_back(std::move(block));
}

void Machine::enter(fiber::transfer_t from) {
  Machine& m = *current;
  m.scheduler_ = from.fctx;
  HEDDLE_FIBER_FINISH(nullptr, &m.scheduler_bottom_, &m.scheduler_bytes_);
  m.kernel_.call(m.arguments_.data());
  Thread& t = *m.thread_;
  if (!t.started.empty() || !t.groups.empty())
    m.fail_at("a thread ends with asynchronous copies in flight");
  t.state = State::done;
  m.leave(true);
}

void Machine::resume(Thread& t) {
  thread_ = &t;
  *module_.info.self = t.self;
  HEDDLE_FIBER_START(&scheduler_fake_, t.stack, kStackBytes);
  const fiber::transfer_t back = fiber::jump_fcontext(t.context, nullptr);
  HEDDLE_FIBER_FINISH(scheduler_fake_, nullptr, nullptr);
  t.context = back.fctx;
  thread_ = nullptr;
}

/// From a thread to the scheduler; returns when the thread is resumed.
void Machine::leave([[maybe_unused]] bool for_good) {
  [[maybe_unused]] Thread& t = *thread_;
  HEDDLE_FIBER_START(for_good ? nullptr : &t.fake_stack, scheduler_bottom_, scheduler_bytes_);
  const fiber::transfer_t back = fiber::jump_fcontext(scheduler_, nullptr);
  HEDDLE_FIBER_FINISH(t.fake_stack, nullptr, nullptr);
  scheduler_ = back.fctx;
}

void Machine::make_ready(Thread& t) {
  t.state = State::ready;
  t.block->ready.push_back(&t);
}

void Machine::fail_at(const std::string& what, const void* pc) {
  if (error_.empty()) {
    error_ = fmt::format("block {} thread {}: {}", thread_->block->number, thread_->number, what);
    error_pc_ = pc;
  }
  thread_->state = State::done;
  leave(true);
  std::abort();  // not reached: a failed launch resumes nobody
}

void Machine::open(Block& block, Barrier& barrier) {
  ++progress_;
  std::vector<Thread*> waiting = std::move(barrier.waiting);
  barrier = {};
  for (Thread* t : waiting) make_ready(*t);
  (void)block;
}

void Machine::barrier(int id, int threads, emu::Site site) {
  Thread& t = *thread_;
  if (id < 0 || id > 15) fail_at(fmt::format("barrier {}: there are 16, at {}", id, name_of(site)));
  if (threads % 32 != 0) fail_at("a named barrier of part of a warp, at " + name_of(site));
  Barrier& b = t.block->barriers[id];
  if (b.arrived > 0 && b.threads != threads)
    fail_at("threads disagree on how many meet at a barrier, at " + name_of(site));
  if (threads == 0 && b.arrived > 0 && !same(b.site, site))
    fail_at(fmt::format("threads of a block wait at different barriers, at {} and {}",
                        name_of(b.site), name_of(site)));
  ++b.arrived;
  b.threads = threads;
  b.site = t.site = site;
  t.state = State::at_barrier;
  b.waiting.push_back(&t);
  if (b.arrived == (threads ? threads : t.block->alive)) open(*t.block, b);
  leave();
}

void Machine::arrive(int id, int threads, emu::Site site) {
  Barrier& b = thread_->block->barriers[id & 15];
  if (id < 1 || id > 15 || threads <= 0 || threads % 32 != 0)
    fail_at(fmt::format("arrival of {} threads at barrier {}, at {}", threads, id, name_of(site)));
  if (b.arrived > 0 && b.threads != threads)
    fail_at("threads disagree on how many meet at a barrier, at " + name_of(site));
  ++b.arrived;
  b.threads = threads;
  b.site = site;
  if (b.arrived == threads) open(*thread_->block, b);
}

const emu::Meeting* Machine::exchange(int operation, const void* in, int bytes, emu::Site site) {
  Thread& t = *thread_;
  Warp& w = *t.warp;
  if (w.arrived != 0 && (w.operation != operation || !same(w.site, site)))
    fail_at(fmt::format("lanes of a warp are in different operations, at {} and {}",
                        name_of(w.site), name_of(site)));
  w.operation = operation;
  w.site = t.site = site;
  emu::Meeting& m = w.meetings[w.generation % 2];
  if (bytes) std::memcpy(m.lanes[t.self->lane].bytes, in, static_cast<std::size_t>(bytes));
  w.arrived |= 1u << t.self->lane;
  if (w.arrived != w.present) {
    t.state = State::in_warp;
    leave();
    return &m;
  }
  m.present = w.present;
  w.arrived = 0;
  ++w.generation;
  ++progress_;
  for (Thread* other : w.lanes)
    if (other != &t) make_ready(*other);
  return &m;
}

void Machine::spin() {
  thread_->state = State::spinning;
  thread_->site = {"a polling load", 0};
  thread_->block->spinning.push_back(thread_);
  leave();
}

void Machine::atomic(const void* at, int bytes, int access, int order, const void* pc) {
  (void)order;
  if (reinterpret_cast<std::uintptr_t>(at) % static_cast<unsigned>(bytes) != 0)
    fail_at("misaligned atomic", pc);
  progress_ += access != emu::kRead;
}

unsigned Machine::shared_address(const void* p, const void* pc) {
  const auto* at = static_cast<const unsigned char*>(p);
  const emu::ModuleInfo& info = module_.info;
  if (at >= info.shared_begin && at < info.shared_end)
    return static_cast<unsigned>(at - info.shared_begin);
  const unsigned char* dynamic = thread_->block->dynamic;
  if (at < dynamic || at > dynamic + how_.shared_bytes) fail_at("not an address in shared memory", pc);
  const auto statics = static_cast<unsigned>(info.shared_end - info.shared_begin);
  return (statics + 1023) / 1024 * 1024 + static_cast<unsigned>(at - dynamic);
}

void Machine::copy_async(Copy copy, const void* pc) {
  const auto mask = static_cast<std::uintptr_t>(copy.bytes - 1);
  const auto at = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p); };
  if ((at(copy.shared) | (copy.valid ? at(copy.global) : 0)) & mask)
    fail_at("misaligned asynchronous copy", pc);
  thread_->started.push_back(copy);
}
void Machine::copy_commit() {
  thread_->groups.push_back(std::move(thread_->started));
  thread_->started.clear();
}
void Machine::copy_wait(int left) {
  auto& groups = thread_->groups;
  for (; groups.size() > static_cast<std::size_t>(left); groups.pop_front())
    for (const Copy& c : groups.front()) {
      if (c.valid)
        std::memcpy(c.shared, c.global, static_cast<std::size_t>(c.bytes));
      else
        std::memset(c.shared, 0, static_cast<std::size_t>(c.bytes));
    }
}

/// Static shared variables have one place in the module: the block that runs has it.
void Machine::swap_in(Block& block) {
  if (inside_ == &block) return;
  unsigned char* place = module_.info.shared_begin;
  const std::size_t bytes = block.statics.size();
  if (bytes) {
    if (inside_) std::memcpy(inside_->statics.data(), place, bytes);
    std::memcpy(place, block.statics.data(), bytes);
  }
  inside_ = &block;
}

Thread* Machine::next_of(Block& block) {
  std::deque<Thread*>& ready = block.ready;
  Thread* t = how_.order == Order::forward ? ready.front() : ready.back();
  if (how_.order == Order::random) std::swap(t, ready[random_() % ready.size()]);
  if (how_.order == Order::forward)
    ready.pop_front();
  else
    ready.pop_back();
  return t;
}

void Machine::run_block(Block& block) {
  swap_in(block);
  while (!block.ready.empty() && error_.empty()) {
    Thread& t = *next_of(block);
    resume(t);
    if (t.state != State::done) continue;
    std::uint64_t canary = 0;
    std::memcpy(&canary, t.stack, sizeof canary);
    if (canary != kCanary && error_.empty())
      error_ = fmt::format("block {} thread {}: the stack of {} bytes overflowed", block.number,
                           t.number, kStackBytes);
    ++progress_;
    --block.alive;
    free_stacks_.push_back(t.stack);
    for (Barrier& b : block.barriers)
      if (b.arrived > 0 && b.threads == 0 && b.arrived == block.alive) open(block, b);
  }
  for (Thread* t : block.spinning) make_ready(*t);
  block.spinning.clear();
}

std::string Machine::deadlock() const {
  std::string out = "deadlock:";
  int shown = 0;
  for (const auto& block : resident_)
    for (const Thread& t : block->threads) {
      if (t.state == State::done || shown++ >= 3) continue;
      const char* where = t.state == State::at_barrier ? "at the barrier of"
                          : t.state == State::in_warp  ? "in its warp's operation of"
                                                       : "in";
      out += fmt::format(" block {} thread {} waits {} {};", block->number, t.number, where,
                         t.state == State::spinning || t.state == State::ready ? "a polling load"
                                                                               : name_of(t.site));
    }
  return out;
}

Status Machine::run() {
  int idle = 0;
  std::int64_t last = 0;
  while (error_.empty() && (next_ < blocks_ || !resident_.empty())) {
    if (resident_.empty())
      for (std::int64_t i = 0; i < together_; ++i) start_block();
    if (how_.order == Order::random) std::shuffle(resident_.begin(), resident_.end(), random_);
    for (std::size_t i = 0; i < resident_.size() && error_.empty(); ++i) run_block(*resident_[i]);
    std::erase_if(resident_, [&](const auto& b) {
      if (b->alive == 0 && inside_ == b.get()) inside_ = nullptr;
      return b->alive == 0;
    });
    idle = progress_ == last ? idle + 1 : 0;
    last = progress_;
    const bool stuck = std::all_of(resident_.begin(), resident_.end(),
                                   [](const auto& b) { return b->ready.empty(); });
    if (error_.empty() && !resident_.empty() && (stuck || idle > kIdleRounds)) error_ = deadlock();
  }
  resident_.clear();
  if (!error_.empty() && error_pc_) error_ += ", at " + source_of(module_, error_pc_);
  if (!error_.empty()) return fail("emulation: kernel '{}': {}", kernel_.symbol, error_);
  return Ok{};
}

namespace {

Status check(const Kernel& kernel, const Launch& how) {
  const auto bad = [&](const std::string& what) {
    return heddle::fail(ErrorCode::usage, "emulation: kernel '{}': {}", kernel.symbol, what);
  };
  const std::int64_t threads = how.block.count(), cluster = how.cluster.count();
  if (threads < 1 || threads > 1024 || how.block.z > 64)
    return bad(fmt::format("a block of {} threads; 1 to 1024 are possible", threads));
  if (kernel.max_threads && threads > kernel.max_threads)
    return bad(fmt::format("a block of {} threads; its bound is {}", threads, kernel.max_threads));
  if (how.grid.count() < 1 || how.grid.x > 2147483647u || how.grid.y > 65535 || how.grid.z > 65535)
    return bad(fmt::format("a grid of {}x{}x{} blocks", how.grid.x, how.grid.y, how.grid.z));
  if (cluster < 1 || cluster > 16 || how.grid.x % how.cluster.x || how.grid.y % how.cluster.y ||
      how.grid.z % how.cluster.z)
    return bad(fmt::format("clusters of {} blocks do not divide the grid", cluster));
  if (how.shared_bytes > 227 << 10)
    return bad(fmt::format("{} bytes of shared memory; 232448 are possible", how.shared_bytes));
  return Ok{};
}

}  // namespace

Status launch(const Module& module, const Kernel& kernel, const Launch& how, void** arguments) {
  static std::mutex one;
  HEDDLE_TRY(check(kernel, how));
  const std::lock_guard lock(one);
  Machine machine(module.state(), kernel, how, arguments);
  *module.state().info.runtime = &runtime();
  Machine::current = &machine;
  Status status = machine.run();
  Machine::current = nullptr;
  return status;
}

}  // namespace heddle::emulation
