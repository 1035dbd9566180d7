#pragma once
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "emulation/emulation.h"

/// A stand-in for libcuda.so.1, libnvrtc.so, libcublasLt.so and libnccl.so.2 over the emulator, as
/// one library: what Heddle asks of them, with the checks that they make and a few more. Work on a
/// stream is done as late as allowed: when somebody waits for it.
namespace heddle::emulation::fake {

/// Values of CUresult.
enum Code : int {
  kOk = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kInvalidDevice = 101,
  kInvalidImage = 200,
  kInvalidContext = 201,
  kNoBinary = 209,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kOutOfResources = 701,
  kLaunchFailed = 719,
  kCooperativeTooLarge = 720,
  kNotSupported = 801,
  kCaptureUnsupported = 900,
  kCaptureInvalidated = 901,
};

/// HEDDLE_FAKE_CUDA="key=value,…": arch (90), sms (4), devices (1), memory (bytes), order (forward,
/// reverse, random), races (0), sums (early, late: those of NCCL), cache (folder of compiled text),
/// and fail=NAME:N:CODE, which makes the N-th call (from 1; 0: each) of an entry point give this
/// CUresult; 700 and 719 lose the context.
struct Settings {
  int capability = 90, multiprocessors = 4, devices = 1;
  std::int64_t memory = std::int64_t{1} << 32;
  Order order = Order::forward;
  unsigned seed = 1;  ///< of the random order
  int unit_ms = 0;    ///< that products of units take longer
  bool races = false;
  bool early_sums = false;  ///< sums over processes are done as early as allowed, not as late
  std::string cache, fail_name;
  std::string problem;  ///< of the settings: cuInit fails
  int fail_at = 0, fail_code = 0;
};

struct Function {
  std::string name;
  const Kernel* kernel = nullptr;
  Module* module = nullptr;
  int dynamic_shared = 48 << 10;
  bool large_clusters = false;
};
struct LoadedModule {
  Module module;
  std::map<std::string, Function> functions;
};
using Work = std::function<int()>;
struct Graph {
  std::vector<Work> work;
};
struct Stream;
struct Event {
  double seconds = 0;
  bool done = false;
  Stream* stream = nullptr;    ///< that it was last recorded in
  int recorded = 0, seen = 0;  ///< how often it was recorded, and which of these is done
};
struct Stream {
  std::deque<Work> queue;
  std::unique_ptr<Graph> capture;
  bool capture_broken = false;
};

/// Everything that is alive; handles are checked against it.
struct State {
  Settings settings;
  std::recursive_mutex mutex;
  int contexts = 0;  ///< retained and not released
  int error = 0;     ///< sticky: the context is lost
  std::string message;
  std::map<std::uint64_t, std::int64_t> device;  ///< address → bytes
  std::map<void*, std::size_t> pinned;
  std::int64_t device_bytes = 0;
  std::set<LoadedModule*> modules;
  std::set<Function*> functions;
  std::set<Graph*> graphs, executables;
  std::set<Stream*> streams;
  std::set<Event*> events;
  int blas = 0;  ///< handles of cuBLASLt
  std::map<std::string, int> calls;

  std::size_t live() const {
    return static_cast<std::size_t>(contexts) + device.size() + pinned.size() + modules.size() +
           graphs.size() + executables.size() + streams.size() + events.size() +
           static_cast<std::size_t>(blas);
  }
  /// True if [at, at + bytes) lies in one allocation of device memory.
  bool holds(std::uint64_t at, std::uint64_t bytes) const;
  int run(const Work& work);
  int drain(Stream& stream);
  /// Up to this record of an event.
  int drain(Stream& stream, const Event& event, int record);
  /// Does `work` when somebody waits for the stream, or adds it to what is captured.
  int enqueue(Stream& stream, Work work);
};
State& state();

/// Counts a call and holds the lock during it; `code` is what the call must give at once, if not
/// kOk: an injected error, a lost context, no current context.
struct Call {
  enum Needs { nothing, context };
  explicit Call(const char* name, Needs needs = context);
  std::lock_guard<std::recursive_mutex> lock;
  int code = kOk;
};
/// The calling thread's stack of current contexts.
std::vector<void*>& current();
/// Captures that the calling thread has begun and not ended.
int& capturing();

/// A cubin of this library: its text and architecture.
std::string pack_cubin(const std::string& arch, const std::string& text);
struct Cubin {
  std::string arch, text;
};
/// nullptr if `image` is none.
std::unique_ptr<Cubin> unpack_cubin(const void* image);
CompileOptions compile_options();

}  // namespace heddle::emulation::fake

#define HEDDLE_FAKE extern "C" __attribute__((visibility("default")))
