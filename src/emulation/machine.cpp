// The scheduler: fibers, blocks, barriers, meetings of warps.
#include "emulation/machine.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>

#include "emulation/memory.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define HEDDLE_FIBER_START(fake, bottom, bytes) __sanitizer_start_switch_fiber(fake, bottom, bytes)
#define HEDDLE_FIBER_FINISH(fake, bottom, bytes) \
  __sanitizer_finish_switch_fiber(fake, bottom, bytes)
// Frames that a fiber never left are marked in the stack that the next one gets.
#define HEDDLE_FRESH_STACK(at, bytes) __asan_unpoison_memory_region(at, bytes)
#else
#define HEDDLE_FRESH_STACK(at, bytes) (void)0
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
constexpr std::size_t kValueAlign = 64;  ///< of tensor maps
/// Rounds in which all threads poll and nothing else happens, before it is a deadlock.
constexpr int kIdleRounds = 1000;
/// Written at the end of each stack; an overflow changes it.
constexpr std::uint64_t kCanary = 0x5ca1ab1e0ddba11ull;

std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

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
  static std::atomic<std::uint32_t> launches{0};
  if (module.races) races_.emplace(++launches);
  for (std::size_t bytes : kernel.parameter_bytes) values_bytes_ += round_up(bytes, kValueAlign);
  values_.reset(
      static_cast<std::byte*>(std::aligned_alloc(kValueAlign, values_bytes_ + kValueAlign)));
  if (!values_) throw std::bad_alloc();
  std::byte* to = values_.get();
  for (std::size_t i = 0; i < kernel.parameter_bytes.size(); ++i) {
    std::memcpy(to, arguments[i], kernel.parameter_bytes[i]);
    arguments_.push_back(to);
    to += round_up(kernel.parameter_bytes[i], kValueAlign);
  }
}
Machine::~Machine() {
  for (const auto& [at, bytes] : slabs_) {
    HEDDLE_FRESH_STACK(at, bytes);
    ::munmap(at, bytes);
  }
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
  HEDDLE_FRESH_STACK(stack, kStackBytes);
  std::memcpy(stack, &kCanary, sizeof kCanary);
  return stack;
}

void Machine::start_cluster() {
  const auto cluster = std::make_shared<Cluster>();
  for (std::int64_t i = 0; i < how_.cluster.count(); ++i) {
    start_block();
    Block& block = *resident_.back();
    block.cluster = cluster;
    cluster->blocks.push_back(&block);
    cluster->alive += block.alive;
  }
}

/// In the order of numbers of clusters, or in the reverse order.
void Machine::start_block() {
  const std::int64_t group = next_ / how_.cluster.count(),
                     in_cluster = next_ % how_.cluster.count();
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
  const std::size_t bytes = round_up(how_.shared_bytes + 1, kSharedAlign);
  block->dynamic = static_cast<unsigned char*>(std::aligned_alloc(kSharedAlign, bytes));
  if (!block->dynamic) throw std::bad_alloc();
  std::memset(block->dynamic, 0xff, bytes);
  block->statics.assign(
      static_cast<std::size_t>(module_.info.shared_end - module_.info.shared_begin), 0xff);
  if (races_) {
    block->static_cells.resize(block->statics.size() / 4 + 1);
    block->dynamic_cells.resize(bytes / 4);
  }
  block->threads.resize(threads);
  block->warps.resize((threads + 31) / 32);
  block->alive = static_cast<int>(threads);
  for (std::size_t i = 0; i < threads; ++i) {
    Thread& t = block->threads[i];
    t.block = block.get();
    t.number = static_cast<unsigned>(i);
    t.knowledge.self = {block->number, t.number};
    t.knowledge.copier = {block->number, static_cast<unsigned>(threads) + t.number};
    t.warp = &block->warps[i / 32];
    t.warp->present |= 1u << i % 32;
    t.warp->lanes.push_back(&t);
    t.stack = new_stack();
    std::byte* top = t.stack + kStackBytes - sizeof(emu::Self);
    top -= reinterpret_cast<std::uintptr_t>(top) % 64;
    t.self = new (top) emu::Self{index_in(static_cast<std::int64_t>(i), how_.block),
                                 block->index,
                                 dim(how_.block),
                                 dim(how_.grid),
                                 block->dynamic,
                                 static_cast<int>(i % 32),
                                 static_cast<unsigned>(in_cluster),
                                 static_cast<unsigned>(how_.cluster.count())};
    t.context = fiber::make_fcontext(top, static_cast<std::size_t>(top - t.stack), &Machine::enter);
    block->ready.push_back(&t);
  }
  // Threads, their copies, and the products of warps are agents; then barriers in shared memory.
  block->agents = static_cast<std::uint32_t>(2 * threads + block->warps.size());
  resident_.push_back(std::move(block));
}

void Machine::enter(fiber::transfer_t from) {
  Machine& m = *current;
  m.scheduler_ = from.fctx;
  HEDDLE_FIBER_FINISH(nullptr, &m.scheduler_bottom_, &m.scheduler_bytes_);
  m.kernel_.call(m.arguments_.data());
  Thread& t = *m.thread_;
  const bool copies = std::any_of(t.groups.begin(), t.groups.end(),
                                  [](const std::vector<Copy>& group) { return !group.empty(); });
  if (!t.started.empty() || copies) m.fail_at("a thread ends with asynchronous copies in flight");
  if (!t.products.empty() || !t.product_groups.empty())
    m.fail_at("a thread ends with products in flight");
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

void Machine::fail_at(const std::string& what, const void* pc, const std::string& more,
                      const void* other_pc) {
  if (error_.empty()) {
    error_ = fmt::format("block {} thread {}: {}", thread_->block->number, thread_->number, what);
    error_pc_ = pc;
    error_more_ = more;
    other_pc_ = other_pc;
  }
  thread_->state = State::done;
  leave(true);
  std::abort();  // not reached: a failed launch resumes nobody
}

void Machine::open(Barrier& barrier) {
  ++progress_;
  const Barrier opened = std::exchange(barrier, {});
  for (Thread* t : opened.waiting) {
    if (races_) t->knowledge.known = opened.gathered;
    make_ready(*t);
  }
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
  if (races_) t.knowledge.release_to(b.gathered);
  t.state = State::at_barrier;
  b.waiting.push_back(&t);
  if (b.arrived == (threads ? threads : t.block->alive)) open(b);
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
  if (races_) thread_->knowledge.release_to(b.gathered);
  if (b.arrived == threads) open(b);
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
  const bool orders = races_ && operation == emu::kWarpSync;
  if (orders) t.knowledge.release_to(w.gathered);
  if (w.arrived != w.present) {
    t.state = State::in_warp;
    leave();
    return &m;
  }
  m.present = w.present;
  w.arrived = 0;
  ++w.generation;
  ++progress_;
  if (orders) {
    for (Thread* lane : w.lanes) lane->knowledge.known = w.gathered;
    w.gathered = {};
  }
  for (Thread* other : w.lanes)
    if (other != &t) make_ready(*other);
  return &m;
}

void Machine::poll(emu::Site site) {
  thread_->state = State::spinning;
  thread_->site = site;
  thread_->block->spinning.push_back(thread_);
  leave();
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
    Cluster& cluster = *block.cluster;
    if (--cluster.alive > 0 && cluster.arrived == cluster.alive) open(cluster);
    free_stacks_.push_back(t.stack);
    for (Barrier& b : block.barriers)
      if (b.arrived > 0 && b.threads == 0 && b.arrived == block.alive) open(b);
  }
  if (block.alive == 0 && error_.empty())
    for (const auto& [address, barrier] : block.mbarriers)
      if (!barrier.copies.empty())
        error_ = fmt::format("block {} ends with copies of tiles in flight", block.number);
  for (Thread* t : block.spinning) make_ready(*t);
  block.spinning.clear();
}

std::string Machine::deadlock() const {
  std::string out = "deadlock:";
  int shown = 0;
  for (const auto& block : resident_)
    for (const Thread& t : block->threads) {
      if (t.state == State::done || shown++ >= 3) continue;
      const char* where = t.state == State::at_barrier ? "at the barrier of "
                          : t.state == State::in_warp  ? "in its warp's operation of "
                                                       : "for ";
      out += fmt::format(" block {} thread {} waits {}{};", block->number, t.number, where,
                         t.site.file ? name_of(t.site) : "what a polling load reads");
    }
  return out;
}

Status Machine::run() {
  int idle = 0;
  std::int64_t last = 0;
  while (error_.empty() && (next_ < blocks_ || !resident_.empty())) {
    if (resident_.empty())
      for (std::int64_t i = 0; i < together_; i += how_.cluster.count()) start_cluster();
    if (how_.order == Order::random) std::shuffle(resident_.begin(), resident_.end(), random_);
    for (std::size_t i = 0; i < resident_.size() && error_.empty(); ++i) run_block(*resident_[i]);
    // Its memory is there until the cluster ends.
    std::erase_if(resident_, [&](const auto& b) {
      if (b->cluster->alive > 0) return false;
      if (inside_ == b.get()) inside_ = nullptr;
      if (races_) {
        races_->forget(b->dynamic, b->dynamic + how_.shared_bytes);
        races_->forget(b->statics.data(), b->statics.data() + b->statics.size());
      }
      return true;
    });
    idle = progress_ == last ? idle + 1 : 0;
    last = progress_;
    const bool stuck = std::all_of(resident_.begin(), resident_.end(),
                                   [](const auto& b) { return b->ready.empty(); });
    if (error_.empty() && !resident_.empty() && (stuck || idle > kIdleRounds)) error_ = deadlock();
  }
  resident_.clear();
  if (error_pc_) error_ += ", at " + source_of(module_, error_pc_);
  error_ += error_more_;
  if (other_pc_) error_ += ", at " + source_of(module_, other_pc_);
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
  *module.state().info.runtime = runtime();
  Machine::current = &machine;
  Status status = machine.run();
  Machine::current = nullptr;
  return status;
}

}  // namespace heddle::emulation
