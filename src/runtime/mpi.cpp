// Sums over the processes of mpirun. Open MPI is loaded when it is asked for, so that the binary
// needs none; its handles are addresses of objects of the library.
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "runtime/communicator.h"

namespace heddle::runtime {
namespace {

constexpr const char* kLibrary = "libmpi.so.40";
constexpr int kFunneled = 1;                        // MPI_THREAD_FUNNELED
constexpr std::int64_t kMostAtOnce = 1 << 28;       // counts are ints
void* const kInPlace = reinterpret_cast<void*>(1);  // MPI_IN_PLACE

struct Library {
  int (*Init_thread)(int*, char***, int, int*) = nullptr;
  int (*Finalize)() = nullptr;
  int (*Abort)(void*, int) = nullptr;
  int (*Comm_rank)(void*, int*) = nullptr;
  int (*Comm_size)(void*, int*) = nullptr;
  int (*Allreduce)(const void*, void*, int, void*, void*, void*) = nullptr;
  void *world = nullptr, *floats = nullptr, *sum = nullptr;
};

Result<Library> open_library() {
  // Its parts look for its symbols, so they are global.
  void* handle = ::dlopen(kLibrary, RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) return fail(ErrorCode::missing, "Open MPI: {}", ::dlerror());
  Library l;
  const auto bind = [&](auto& field, const char* name) {
    field = reinterpret_cast<std::decay_t<decltype(field)>>(::dlsym(handle, name));
    return field != nullptr;
  };
  const bool all = bind(l.Init_thread, "MPI_Init_thread") && bind(l.Finalize, "MPI_Finalize") &&
                   bind(l.Abort, "MPI_Abort") && bind(l.Comm_rank, "MPI_Comm_rank") &&
                   bind(l.Comm_size, "MPI_Comm_size") && bind(l.Allreduce, "MPI_Allreduce") &&
                   bind(l.world, "ompi_mpi_comm_world") && bind(l.floats, "ompi_mpi_float") &&
                   bind(l.sum, "ompi_mpi_op_sum");
  if (!all) return fail(ErrorCode::missing, "{}: not Open MPI's interface", kLibrary);
  return l;
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// All calls of the library but the last of all, MPI_Abort, are made by one thread of its own,
/// beside the computation.
class Mpi final : public Communicator {
 public:
  explicit Mpi(const Library& library) : library_(library), thread_([this] { serve(); }) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return started_; });
  }
  ~Mpi() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void start_sum(float* data, std::int64_t count) override {
    {
      const std::lock_guard lock(mutex_);
      todo_.push_back({data, count});
    }
    changed_.notify_all();
  }

  Status wait() override {
    const double begin = now();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return todo_.empty(); });
    times_.waits += now() - begin;
    if (code_ != 0) return fail(ErrorCode::failed, "MPI: error {}", code_);
    return Ok{};
  }
  Times times() const override {
    const std::lock_guard lock(mutex_);
    return times_;
  }
  // From the caller's thread: the library's own may be in a sum that the others never join.
  void abort(int code) override { library_.Abort(library_.world, code); }
  int code() const { return code_; }

 private:
  struct Sum {
    float* data;
    std::int64_t count;
  };

  void serve() {
    int given = 0;
    int code = library_.Init_thread(nullptr, nullptr, kFunneled, &given);
    if (code == 0) code = library_.Comm_rank(library_.world, &rank_);
    if (code == 0) code = library_.Comm_size(library_.world, &size_);
    std::unique_lock lock(mutex_);
    code_ = code;
    started_ = true;
    changed_.notify_all();
    while (true) {
      changed_.wait(lock, [&] { return stop_ || !todo_.empty(); });
      if (todo_.empty()) break;
      const Sum sum = todo_.front();  // stays in the list until it is done
      lock.unlock();
      const double begin = now();
      const int result = add_up(sum);
      const double spent = now() - begin;
      lock.lock();
      times_.sums += spent;
      if (code_ == 0) code_ = result;
      todo_.pop_front();
      if (todo_.empty()) changed_.notify_all();
    }
    lock.unlock();
    library_.Finalize();
  }

  int add_up(const Sum& sum) const {
    int code = 0;
    for (std::int64_t from = 0; from < sum.count && code == 0; from += kMostAtOnce)
      code = library_.Allreduce(kInPlace, sum.data + from,
                                static_cast<int>(std::min(kMostAtOnce, sum.count - from)),
                                library_.floats, library_.sum, library_.world);
    return code;
  }

  Library library_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Sum> todo_;
  bool started_ = false, stop_ = false;
  int rank_ = 0, size_ = 1, code_ = 0;
  Times times_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace

Result<std::shared_ptr<Communicator>> mpi_communicator() {
  auto mpi = std::make_shared<Mpi>(HEDDLE_TRY(open_library()));
  if (mpi->code() != 0) return fail(ErrorCode::failed, "MPI_Init: error {}", mpi->code());
  return std::shared_ptr<Communicator>(std::move(mpi));
}

}  // namespace heddle::runtime
