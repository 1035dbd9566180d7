// Sums over the processes' GPUs. NCCL is loaded when it is asked for; the processes find each other
// through the communicator of their hosts.
#include "runtime/cuda/nccl.h"

#include <dlfcn.h>

#include <algorithm>
#include <deque>
#include <vector>

#include "runtime/cuda/driver_library.h"
#include "runtime/cuda/gpu.h"

namespace heddle::runtime::cuda {
namespace {

// Values of nccl.h, the same since NCCL 2.
constexpr int kFloat32 = 7, kSum = 0;

/// ncclUniqueId.
struct UniqueId {
  unsigned char bytes[128] = {};
};

/// Names without "nccl".
struct Library {
  int (*GetUniqueId)(UniqueId*);
  int (*CommInitRank)(Handle* comm, int ranks, UniqueId id, int rank);
  int (*CommDestroy)(Handle comm);
  int (*AllReduce)(DevicePtr from, DevicePtr to, std::size_t count, int type, int op, Handle comm,
                   Handle stream);
  const char* (*GetErrorString)(int code);

  Status check(int code, std::string_view what) const {
    if (code == 0) return Ok{};
    const char* text = GetErrorString(code);
    return fail(ErrorCode::failed, "NCCL: {}: {} ({})", what, text ? text : "unknown error", code);
  }
};

Result<Library> open_library(const std::string& wanted) {
  const std::string path = wanted.empty() ? "libnccl.so.2" : wanted;
  void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return fail(ErrorCode::missing, "NCCL {}: {}", path, ::dlerror());
  Library l{};
  const auto bind = [&](auto& field, const char* name) {
    field = reinterpret_cast<std::decay_t<decltype(field)>>(::dlsym(handle, name));
    return field != nullptr;
  };
  const bool all = bind(l.GetUniqueId, "ncclGetUniqueId") &&
                   bind(l.CommInitRank, "ncclCommInitRank") &&
                   bind(l.CommDestroy, "ncclCommDestroy") && bind(l.AllReduce, "ncclAllReduce") &&
                   bind(l.GetErrorString, "ncclGetErrorString");
  if (!all) return fail(ErrorCode::missing, "NCCL {}: want NCCL 2", path);
  return l;
}

/// The id that process 0 has made: a sum to which the others add nothing.
Result<UniqueId> shared_id(const Library& library, Communicator& host) {
  UniqueId id;
  if (host.rank() == 0) HEDDLE_TRY(library.check(library.GetUniqueId(&id), "ncclGetUniqueId"));
  std::vector<float> bytes(std::begin(id.bytes), std::end(id.bytes));
  host.start_sum(bytes.data(), static_cast<std::int64_t>(bytes.size()));
  HEDDLE_TRY(host.wait());
  std::ranges::transform(bytes, id.bytes, [](float b) { return static_cast<unsigned char>(b); });
  return id;
}

class Nccl final : public Communicator, public DeviceSums {
 public:
  Nccl(std::shared_ptr<Communicator> host, std::shared_ptr<Gpu> gpu, const Library& library)
      : host_(std::move(host)), gpu_(std::move(gpu)), library_(library) {}
  ~Nccl() override {
    const Current current(*gpu_);
    if (comm_ != nullptr) library_.CommDestroy(comm_);
  }
  Status open() {
    const UniqueId id = HEDDLE_TRY(shared_id(library_, *host_));
    const Current current(*gpu_);
    const Driver& d = gpu_->driver();
    stream_ =
        HEDDLE_TRY(Owned<Handle>::make(gpu_, "cuStreamCreate", d.StreamDestroy,
                                       [&](Handle* s) { return d.StreamCreate(s, kNonBlocking); }));
    HEDDLE_TRY(
        library_.check(library_.CommInitRank(&comm_, size(), id, rank()), "ncclCommInitRank"));
    reached_ = HEDDLE_TRY(event());
    return Ok{};
  }

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  void start_sum(float* data, std::int64_t count) override { host_->start_sum(data, count); }
  Status wait() override { return host_->wait(); }
  DeviceSums* on_device() override { return this; }
  void abort(int code) override { host_->abort(code); }
  Times times() const override {
    const Times host = host_->times();
    return {host.sums + times_.sums, host.waits + times_.waits};
  }

  Status start(Handle stream, std::uint64_t data, std::int64_t count) override {
    if (joined_) HEDDLE_TRY(next_step());
    if (used_ == spans_.size()) spans_.push_back({HEDDLE_TRY(event()), HEDDLE_TRY(event())});
    const Span& span = spans_[used_++];
    // One event is both: the sum's begin is where the stream has come.
    HEDDLE_TRY(record(reached_, stream));
    HEDDLE_TRY(follow(stream_.get(), reached_));
    HEDDLE_TRY(record(span.begin, stream_.get()));
    HEDDLE_TRY(library_.check(library_.AllReduce(data, data, static_cast<std::size_t>(count),
                                                 kFloat32, kSum, comm_, stream_.get()),
                              "ncclAllReduce"));
    return record(span.end, stream_.get());
  }

  Status join(Handle stream) override {
    joined_ = true;
    HEDDLE_TRY(record(reached_, stream));
    return used_ == 0 ? Status(Ok{}) : follow(stream, spans_[used_ - 1].end);
  }

 private:
  struct Span {
    Owned<Handle> begin, end;
  };
  Result<Owned<Handle>> event() {
    const Driver& d = gpu_->driver();
    return Owned<Handle>::make(gpu_, "cuEventCreate", d.EventDestroy,
                               [&](Handle* e) { return d.EventCreate(e, 0); });
  }
  Status record(const Owned<Handle>& event, Handle stream) {
    return gpu_->check(gpu_->driver().EventRecord(event.get(), stream), "cuEventRecord");
  }
  Status follow(Handle stream, const Owned<Handle>& event) {
    return gpu_->check(gpu_->driver().StreamWaitEvent(stream, event.get(), 0), "cuStreamWaitEvent");
  }
  /// Adds up what the last step's sums took: whoever starts another step has waited for them.
  Status next_step() {
    const auto seconds = [&](const Owned<Handle>& from, const Owned<Handle>& to) -> Result<double> {
      float ms = 0;
      HEDDLE_TRY(gpu_->check(gpu_->driver().EventElapsedTime(&ms, from.get(), to.get()),
                             "cuEventElapsedTime"));
      return 1e-3 * static_cast<double>(ms);
    };
    for (std::size_t i = 0; i < used_; ++i)
      times_.sums += HEDDLE_TRY(seconds(spans_[i].begin, spans_[i].end));
    if (used_ > 0)
      times_.waits += std::max(0.0, HEDDLE_TRY(seconds(reached_, spans_[used_ - 1].end)));
    used_ = 0;
    joined_ = false;
    return Ok{};
  }

  std::shared_ptr<Communicator> host_;
  std::shared_ptr<Gpu> gpu_;
  Library library_;
  Handle comm_ = nullptr;
  Owned<Handle> stream_, reached_;
  std::deque<Span> spans_;  ///< of this step's sums, the first `used_`
  std::size_t used_ = 0;
  bool joined_ = false;
  Times times_;
};

}  // namespace

Result<std::shared_ptr<Communicator>> nccl_communicator(std::shared_ptr<Communicator> host,
                                                        const std::string& driver, int ordinal,
                                                        const std::string& library) {
  const Library found = HEDDLE_TRY(open_library(library));
  auto gpu = HEDDLE_TRY(Gpu::open(driver, ordinal));
  auto nccl = std::make_shared<Nccl>(std::move(host), std::move(gpu), found);
  HEDDLE_TRY(nccl->open());
  return std::shared_ptr<Communicator>(std::move(nccl));
}

}  // namespace heddle::runtime::cuda
