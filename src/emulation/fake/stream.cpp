// libcuda: streams, events, graphs, launches.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "emulation/fake/state.h"

using namespace heddle::emulation;
using fake::Call;
using fake::Event;
using fake::Function;
using fake::Graph;
using fake::state;
using fake::Stream;

namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// CUlaunchAttribute and CUlaunchConfig.
struct Attribute {
  int id, padding;
  unsigned value[16];
};
struct Config {
  unsigned grid[3], block[3], shared_bytes;
  Stream* stream;
  const Attribute* attributes;
  unsigned count;
};
constexpr int kCooperative = 2, kCluster = 4;

struct Shape {
  Launch launch;
  int code = fake::kOk;
};

/// Blocks of a multiprocessor: at least one, more by threads and shared memory.
std::int64_t resident(std::int64_t threads, std::size_t shared_bytes) {
  const auto shared = static_cast<std::int64_t>(shared_bytes) + 1024;
  return std::max<std::int64_t>(1,
                                std::min<std::int64_t>({2048 / threads, 32, (228 << 10) / shared}));
}

/// The launch that a configuration describes, or why the driver refuses it.
Shape shape_of(const Config& c, const Function& f) {
  Shape s;
  s.launch.grid = {c.grid[0], c.grid[1], c.grid[2]};
  s.launch.block = {c.block[0], c.block[1], c.block[2]};
  s.launch.shared_bytes = c.shared_bytes;
  s.launch.order = state().settings.order;
  s.launch.seed = state().settings.seed;
  for (unsigned i = 0; i < c.count; ++i) {
    if (c.attributes[i].id == kCooperative) s.launch.cooperative = c.attributes[i].value[0] != 0;
    if (c.attributes[i].id == kCluster)
      s.launch.cluster = {c.attributes[i].value[0], c.attributes[i].value[1],
                          c.attributes[i].value[2]};
  }
  const auto refuse = [&](int code) { return s.code = code, s; };
  const std::int64_t threads = s.launch.block.count(), cluster = s.launch.cluster.count();
  if (s.launch.grid.count() < 1 || threads < 1 || threads > 1024)
    return refuse(fake::kInvalidValue);
  if (c.grid[0] > 2147483647u || c.grid[1] > 65535 || c.grid[2] > 65535)
    return refuse(fake::kInvalidValue);
  if (f.kernel->max_threads > 0 && threads > f.kernel->max_threads)
    return refuse(fake::kInvalidValue);
  if (static_cast<int>(c.shared_bytes) > f.dynamic_shared) return refuse(fake::kInvalidValue);
  if (cluster > (f.large_clusters ? 16 : 8) || c.grid[0] % s.launch.cluster.x != 0)
    return refuse(fake::kInvalidValue);
  if (cluster > 1 && state().settings.capability < 90) return refuse(fake::kNotSupported);
  if (s.launch.cooperative &&
      s.launch.grid.count() > resident(threads, c.shared_bytes) * state().settings.multiprocessors)
    return refuse(fake::kCooperativeTooLarge);
  return s;
}

/// A kernel's parameters by value, as the driver takes them at the launch.
std::vector<std::vector<std::byte>> values_of(const Kernel& kernel, void** parameters) {
  std::vector<std::vector<std::byte>> out;
  for (std::size_t i = 0; i < kernel.parameter_bytes.size(); ++i) {
    const auto* from = static_cast<const std::byte*>(parameters[i]);
    out.emplace_back(from, from + kernel.parameter_bytes[i]);
  }
  return out;
}

int launch_now(const Function& f, const Launch& how, std::vector<std::vector<std::byte>>& values) {
  std::vector<void*> arguments;
  for (auto& value : values) {
    // Programs pass pointers and tensor maps: a pointer leads into device memory.
    std::uint64_t pointer = 0;
    if (value.size() == sizeof pointer) {
      std::memcpy(&pointer, value.data(), sizeof pointer);
      if (!state().holds(pointer, 0)) return fake::kIllegalAddress;
    }
    arguments.push_back(value.data());
  }
  const auto done = launch(*f.module, *f.kernel, how, arguments.data());
  if (done) return fake::kOk;
  state().message = fmt::format("kernel '{}': {}", f.name, done.error().message);
  return fake::kLaunchFailed;
}

bool known(Stream* stream) { return state().streams.contains(stream); }

}  // namespace

HEDDLE_FAKE int cuStreamCreate(Stream** stream, unsigned) {
  const Call call("cuStreamCreate");
  if (call.code != 0) return call.code;
  *stream = new Stream;
  state().streams.insert(*stream);
  return 0;
}
HEDDLE_FAKE int cuStreamDestroy_v2(Stream* stream) {
  const Call call("cuStreamDestroy", Call::nothing);
  if (!known(stream)) return fake::kInvalidHandle;
  state().drain(*stream);
  state().streams.erase(stream);
  delete stream;
  return 0;
}
HEDDLE_FAKE int cuStreamSynchronize(Stream* stream) {
  const Call call("cuStreamSynchronize");
  if (call.code != 0) return call.code;
  if (!known(stream)) return fake::kInvalidHandle;
  if (stream->capture) return stream->capture_broken = true, fake::kCaptureUnsupported;
  return state().drain(*stream);
}
HEDDLE_FAKE int cuStreamBeginCapture_v2(Stream* stream, int) {
  const Call call("cuStreamBeginCapture");
  if (call.code != 0) return call.code;
  if (!known(stream) || stream->capture) return fake::kInvalidValue;
  stream->capture = std::make_unique<Graph>();
  ++fake::capturing();
  return 0;
}
HEDDLE_FAKE int cuStreamEndCapture(Stream* stream, Graph** graph) {
  const Call call("cuStreamEndCapture");
  if (!known(stream) || !stream->capture) return fake::kInvalidValue;
  --fake::capturing();
  const std::unique_ptr<Graph> made = std::move(stream->capture);
  if (std::exchange(stream->capture_broken, false)) return fake::kCaptureInvalidated;
  if (call.code != 0) return call.code;
  *graph = new Graph{made->work};
  state().graphs.insert(*graph);
  return 0;
}
HEDDLE_FAKE int cuGraphInstantiateWithFlags(Graph** executable, Graph* graph, unsigned long long) {
  const Call call("cuGraphInstantiate");
  if (call.code != 0) return call.code;
  if (!state().graphs.contains(graph)) return fake::kInvalidHandle;
  *executable = new Graph{graph->work};
  state().executables.insert(*executable);
  return 0;
}
HEDDLE_FAKE int cuGraphLaunch(Graph* executable, Stream* stream) {
  const Call call("cuGraphLaunch");
  if (call.code != 0) return call.code;
  if (!state().executables.contains(executable) || !known(stream)) return fake::kInvalidHandle;
  for (const fake::Work& work : executable->work) state().enqueue(*stream, work);
  return 0;
}
HEDDLE_FAKE int cuGraphExecDestroy(Graph* executable) {
  const Call call("cuGraphExecDestroy", Call::nothing);
  if (state().executables.erase(executable) == 0) return fake::kInvalidHandle;
  return delete executable, 0;
}
HEDDLE_FAKE int cuGraphDestroy(Graph* graph) {
  const Call call("cuGraphDestroy", Call::nothing);
  if (state().graphs.erase(graph) == 0) return fake::kInvalidHandle;
  return delete graph, 0;
}

HEDDLE_FAKE int cuEventCreate(Event** event, unsigned) {
  const Call call("cuEventCreate");
  if (call.code != 0) return call.code;
  *event = new Event;
  state().events.insert(*event);
  return 0;
}
HEDDLE_FAKE int cuEventDestroy_v2(Event* event) {
  const Call call("cuEventDestroy", Call::nothing);
  if (state().events.erase(event) == 0) return fake::kInvalidHandle;
  return delete event, 0;
}
HEDDLE_FAKE int cuEventRecord(Event* event, Stream* stream) {
  const Call call("cuEventRecord");
  if (call.code != 0) return call.code;
  if (!state().events.contains(event) || !known(stream)) return fake::kInvalidHandle;
  event->done = false;
  event->stream = stream;
  return state().enqueue(*stream, [event, record = ++event->recorded] {
    if (!state().events.contains(event)) return 0;
    event->seconds = now();
    event->seen = record;
    return event->done = record == event->recorded, 0;
  });
}
HEDDLE_FAKE int cuStreamWaitEvent(Stream* stream, Event* event, unsigned) {
  const Call call("cuStreamWaitEvent");
  if (call.code != 0) return call.code;
  if (!state().events.contains(event) || !known(stream)) return fake::kInvalidHandle;
  if (event->recorded == 0) return 0;
  return state().enqueue(*stream, [event, record = event->recorded] {
    if (!state().events.contains(event) || !known(event->stream)) return 0;
    return state().drain(*event->stream, *event, record);
  });
}
HEDDLE_FAKE int cuEventElapsedTime(float* milliseconds, Event* begin, Event* end) {
  const Call call("cuEventElapsedTime");
  if (call.code != 0) return call.code;
  if (!begin->done || !end->done) return fake::kNotReady;
  return *milliseconds = static_cast<float>(1e3 * (end->seconds - begin->seconds)), 0;
}

HEDDLE_FAKE int cuMemcpyHtoDAsync_v2(std::uint64_t to, const void* from, std::size_t bytes,
                                     Stream* stream) {
  const Call call("cuMemcpyHtoDAsync");
  if (call.code != 0) return call.code;
  if (!known(stream)) return fake::kInvalidHandle;
  if (!state().holds(to, bytes)) return fake::kInvalidValue;
  return state().enqueue(*stream,
                         [=] { return std::memcpy(reinterpret_cast<void*>(to), from, bytes), 0; });
}
HEDDLE_FAKE int cuMemcpyDtoHAsync_v2(void* to, std::uint64_t from, std::size_t bytes,
                                     Stream* stream) {
  const Call call("cuMemcpyDtoHAsync");
  if (call.code != 0) return call.code;
  if (!known(stream)) return fake::kInvalidHandle;
  if (!state().holds(from, bytes)) return fake::kInvalidValue;
  return state().enqueue(
      *stream, [=] { return std::memcpy(to, reinterpret_cast<const void*>(from), bytes), 0; });
}
HEDDLE_FAKE int cuMemsetD8Async(std::uint64_t memory, unsigned char value, std::size_t bytes,
                                Stream* stream) {
  const Call call("cuMemsetD8Async");
  if (call.code != 0) return call.code;
  if (!known(stream)) return fake::kInvalidHandle;
  if (!state().holds(memory, bytes)) return fake::kInvalidValue;
  return state().enqueue(
      *stream, [=] { return std::memset(reinterpret_cast<void*>(memory), value, bytes), 0; });
}

HEDDLE_FAKE int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Function* function,
                                                            int threads, std::size_t shared_bytes) {
  const Call call("cuOccupancyMaxActiveBlocksPerMultiprocessor");
  if (call.code != 0) return call.code;
  if (!state().functions.contains(function)) return fake::kInvalidHandle;
  if (threads < 1 || threads > 1024) return fake::kInvalidValue;
  return *blocks = static_cast<int>(resident(threads, shared_bytes)), 0;
}
HEDDLE_FAKE int cuLaunchKernelEx(const Config* config, Function* function, void** parameters,
                                 void** extra) {
  const Call call("cuLaunchKernelEx");
  if (call.code != 0) return call.code;
  if (!state().functions.contains(function) || !known(config->stream)) return fake::kInvalidHandle;
  if (extra != nullptr) return fake::kNotSupported;
  const Shape shape = shape_of(*config, *function);
  if (shape.code != 0) return shape.code;
  return state().enqueue(*config->stream, [function, how = shape.launch,
                                           values = values_of(*function->kernel, parameters)] {
    auto own = values;
    return launch_now(*function, how, own);
  });
}
