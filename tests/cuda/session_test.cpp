// The CUDA session through a stand-in for the driver and NVRTC that runs kernels on the CPU.
#include "runtime/cuda/session.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <thread>

#include "codegen/cuda/cuda.h"
#include "codegen/cuda/nvrtc.h"

namespace heddle::runtime::cuda {
namespace {

/// The stand-in's own functions.
struct Fake {
  void (*set)(const char* text);
  int (*live)();
  int (*calls)(const char* name);
};
const Fake& fake() {
  static const Fake all = [] {
    void* handle = ::dlopen(FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
    EXPECT_NE(handle, nullptr) << ::dlerror();
    const auto find = [&](auto& field, const char* name) {
      field = reinterpret_cast<std::decay_t<decltype(field)>>(::dlsym(handle, name));
    };
    Fake f{};
    find(f.set, "heddle_fake_set");
    find(f.live, "heddle_fake_live");
    find(f.calls, "heddle_fake_calls");
    return f;
  }();
  return all;
}

constexpr const char* kText = R"(
extern "C" __global__ void __launch_bounds__(32) scale(const hd::f32* __restrict__ x,
    const hd::f32* __restrict__ w, hd::f32* __restrict__ t) {
  const int i = blockIdx.x * 32 + threadIdx.x;
  if (i < 77) t[i] = x[i] * w[i];
}
extern "C" __global__ void __launch_bounds__(32) shift(const hd::f32* __restrict__ t,
    hd::f32* __restrict__ y) {
  const int i = blockIdx.x * 32 + threadIdx.x;
  if (i < 77) y[i] = t[76 - i] + 1.0f;
}
// Each block adds up what the other one wrote before the barrier.
extern "C" __global__ void __launch_bounds__(32) meet(const hd::f32* x, hd::f32* t, hd::f32* y,
    unsigned* counter) {
  t[blockIdx.x * 32 + threadIdx.x] = x[threadIdx.x];
  hd::grid_barrier(counter);
  y[blockIdx.x * 32 + threadIdx.x] = t[(1 - blockIdx.x) * 32 + threadIdx.x] * 2;
}
// More tasks than blocks; how many blocks there were is left behind the results.
extern "C" __global__ void __launch_bounds__(32) share(const hd::f32* x, hd::f32* t, hd::f32* y,
    unsigned* counter) {
  for (int i = blockIdx.x; i < 1000; i += gridDim.x) t[i * 32 + threadIdx.x] = x[threadIdx.x] + i;
  hd::grid_barrier(counter);
  for (int i = blockIdx.x; i < 1000; i += gridDim.x)
    y[i * 32 + threadIdx.x] = t[(999 - i) * 32 + threadIdx.x];
  if (threadIdx.x == 0) y[32000] = gridDim.x;
}
extern "C" __global__ void __launch_bounds__(64) big(hd::f32* y) {
  HD_DYNAMIC_SHARED(bytes);
  hd::f32* room = reinterpret_cast<hd::f32*>(bytes);
  room[threadIdx.x * 256] = threadIdx.x;
  __syncthreads();
  y[threadIdx.x] = room[(63 - threadIdx.x) * 256];
}
// The tile at row 8, column 64, as it lies with 128-byte swizzle.
extern "C" __global__ void __launch_bounds__(64) tile(const hd::bf16* __restrict__ x,
    hd::bf16* __restrict__ y, const __grid_constant__ hd::TensorMap map) {
  HD_DYNAMIC_SHARED(shared);
  hd::Mbarrier* const done = reinterpret_cast<hd::Mbarrier*>(shared + 8192);
  const int row = threadIdx.x;
  if (row == 0) {
    hd::mbarrier_init(done, 1);
    hd::mbarrier_fence();
    hd::mbarrier_arrive_expect(done, 8192);
    hd::tma_load_2d(shared, &map, 64, 8, done);
  }
  hd::block_sync();
  hd::mbarrier_wait(done, 0);
  const hd::bf16* tiles = reinterpret_cast<const hd::bf16*>(shared);
  for (int c = 0; c < 64; ++c) y[row * 64 + c] = tiles[row * 64 + ((c / 8) ^ (row % 8)) * 8 + c % 8];
}
)";

std::string cubin(const std::string& arch = "sm_90a") {
  codegen::cuda::CompileOptions options;
  options.arch = arch;
  options.library = FAKE_CUDA;
  auto made = codegen::cuda::compile(codegen::cuda::unit_header() + kText, options);
  EXPECT_TRUE(made.ok()) << made.error().message;
  return made ? made->bytes : "";
}

Phase phase(const char* symbol, std::int64_t tasks, Grid grid) { return {symbol, tasks, grid}; }
Tensor numbers(std::int64_t count, float first) {
  Tensor t({DType::f32, {count}});
  for (std::int64_t i = 0; i < count; ++i) t.set(i, first + static_cast<float>(i));
  return t;
}

/// y = reverse(x · w) + 1.
std::shared_ptr<Program> scale_and_shift() {
  auto p = std::make_shared<Program>();
  p->device = "cuda sm_90a";
  p->objects = {cubin()};
  p->inputs = {{"x", {DType::f32, {77}}}};
  p->outputs = {{"y", {DType::f32, {77}}}};
  p->constants = {numbers(77, 2)};
  p->arena_bytes = 512;
  const Slot temporary{Slot::Kind::arena, 128};
  p->launches.push_back({"scale",
                         {{Slot::Kind::input, 0}, {Slot::Kind::constant, 0}, temporary},
                         {phase("scale", 3, {.threads = 32})}});
  p->launches.push_back(
      {"shift", {temporary, {Slot::Kind::output, 0}}, {phase("shift", 3, {.threads = 32})}});
  return p;
}
Tensor expected(const Tensor& x) {
  Tensor y({DType::f32, {77}});
  for (int i = 0; i < 77; ++i)
    y.set(i, static_cast<float>(x.at(76 - i)) * (2.f + static_cast<float>(76 - i)) + 1);
  return y;
}
void expect_equal(const Tensor& a, const Tensor& b) {
  ASSERT_EQ(a.count(), b.count());
  for (std::int64_t i = 0; i < a.count(); ++i) ASSERT_EQ(a.at(i), b.at(i)) << i;
}

Result<std::shared_ptr<Session>> open(const std::shared_ptr<Program>& p,
                                      SessionOptions options = {}) {
  auto code = HEDDLE_TRY(load_code(FAKE_CUDA, 0, *p));
  return create_session(p, std::move(code), options);
}

class CudaSession : public testing::Test {
 protected:
  void SetUp() override { fake().set(""); }
  void TearDown() override { EXPECT_EQ(fake().live(), 0) << "the driver still holds objects"; }
};

TEST_F(CudaSession, RunsAndThenReplaysAGraph) {
  const auto session = open(scale_and_shift());
  ASSERT_TRUE(session.ok()) << session.error().message;
  for (int run = 0; run < 4; ++run) {
    const Tensor x = numbers(77, static_cast<float>(run));
    const auto y = (*session)->run({&x, 1});
    ASSERT_TRUE(y.ok()) << y.error().message;
    expect_equal((*y)[0], expected(x));
  }
  EXPECT_EQ(fake().calls("cuGraphLaunch"), 3);
  EXPECT_EQ(fake().calls("cuStreamBeginCapture"), 1);
}

TEST_F(CudaSession, RunsWithoutAGraphWhereAsked) {
  const auto session = open(scale_and_shift(), {.graph = false});
  ASSERT_TRUE(session.ok()) << session.error().message;
  const Tensor x = numbers(77, 5);
  for (int run = 0; run < 3; ++run) expect_equal((*(*session)->run({&x, 1}))[0], expected(x));
  EXPECT_EQ(fake().calls("cuGraphLaunch"), 0);
  EXPECT_EQ(fake().calls("cuLaunchKernelEx"), 6);
}

TEST_F(CudaSession, RunsAtTheSameTimeHaveTheirOwnMemory) {
  const auto session = open(scale_and_shift());
  ASSERT_TRUE(session.ok()) << session.error().message;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int run = 0; run < 5; ++run) {
        const Tensor x = numbers(77, static_cast<float>(100 * t + run));
        const auto y = (*session)->run({&x, 1});
        ASSERT_TRUE(y.ok()) << y.error().message;
        expect_equal((*y)[0], expected(x));
      }
    });
  for (std::thread& t : threads) t.join();
}

TEST_F(CudaSession, ProfilesEachLaunch) {
  const auto session = open(scale_and_shift());
  ASSERT_TRUE(session.ok()) << session.error().message;
  const Tensor x = numbers(77, 5);
  const auto times = (*session)->profile({&x, 1});
  ASSERT_TRUE(times.ok()) << times.error().message;
  ASSERT_EQ(times->size(), 2u);
  EXPECT_EQ((*times)[1].name, "shift");
  EXPECT_GT((*times)[0].seconds, 0);
  EXPECT_GE((*times)[1].begin, (*times)[0].seconds);
  const auto runs = (*session)->time_runs({&x, 1}, 3);
  ASSERT_TRUE(runs.ok()) << runs.error().message;
  EXPECT_EQ(runs->size(), 3u);
}

/// One cooperative launch that reads 32 numbers.
std::shared_ptr<Program> meeting(const char* kernel, std::int64_t results, std::int64_t arena_bytes,
                                 std::int64_t tasks) {
  auto p = std::make_shared<Program>();
  p->device = "cuda sm_90a";
  p->objects = {cubin()};
  p->inputs = {{"x", {DType::f32, {32}}}};
  p->outputs = {{"y", {DType::f32, {results}}}};
  p->arena_bytes = arena_bytes;
  p->launches.push_back(
      {kernel,
       {{Slot::Kind::input, 0}, {Slot::Kind::arena, 0}, {Slot::Kind::output, 0}},
       {phase(kernel, tasks, {.threads = 32, .resident = true, .cooperative = true})}});
  return p;
}

TEST_F(CudaSession, BlocksMeetInCooperativeLaunches) {
  const auto session = open(meeting("meet", 64, 256, 2));
  ASSERT_TRUE(session.ok()) << session.error().message;
  const Tensor x = numbers(32, 3);
  for (int run = 0; run < 3; ++run) {
    const auto y = (*session)->run({&x, 1});
    ASSERT_TRUE(y.ok()) << y.error().message;
    for (int i = 0; i < 64; ++i) ASSERT_EQ((*y)[0].at(i), 2 * x.at(i % 32));
  }
}

TEST_F(CudaSession, LaunchesAsManyResidentBlocksAsFit) {
  const auto session = open(meeting("share", 32001, 128000, 1000));
  ASSERT_TRUE(session.ok()) << session.error().message;
  const Tensor x = numbers(32, 3);
  for (int run = 0; run < 3; ++run) {
    const auto y = (*session)->run({&x, 1});
    ASSERT_TRUE(y.ok()) << y.error().message;
    for (int i = 0; i < 32000; ++i) ASSERT_EQ((*y)[0].at(i), x.at(i % 32) + 999 - i / 32);
    // Four multiprocessors with 32 blocks each.
    ASSERT_EQ((*y)[0].at(32000), 128);
  }
}

TEST_F(CudaSession, AsksForLargeSharedMemory) {
  auto p = std::make_shared<Program>();
  p->device = "cuda sm_90a";
  p->objects = {cubin()};
  p->outputs = {{"y", {DType::f32, {64}}}};
  p->launches.push_back(
      {"big",
       {{Slot::Kind::output, 0}},
       {phase("big", 1, {.threads = 64, .shared_bytes = 64 << 10, .cluster = 1})}});
  const auto session = open(p);
  ASSERT_TRUE(session.ok()) << session.error().message;
  const auto y = (*session)->run({});
  ASSERT_TRUE(y.ok()) << y.error().message;
  for (int i = 0; i < 64; ++i) EXPECT_EQ((*y)[0].at(i), 63 - i);
  p->launches[0].phases[0].grid.shared_bytes = 300 << 10;
  const auto refused = open(p);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("kernel 'big': 307200 bytes of shared memory"),
            std::string::npos)
      << refused.error().message;
}

TEST_F(CudaSession, TensorMaps) {
  auto p = std::make_shared<Program>();
  p->device = "cuda sm_90a";
  p->objects = {cubin()};
  p->inputs = {{"x", {DType::bf16, {70, 120}}}};
  p->outputs = {{"y", {DType::bf16, {64, 64}}}};
  Grid grid{.threads = 64, .shared_bytes = 8200};
  grid.maps = {{0, DType::bf16, {120, 70}, {240}, {64, 64}, 128}};
  p->launches.push_back(
      {"tile", {{Slot::Kind::input, 0}, {Slot::Kind::output, 0}}, {phase("tile", 1, grid)}});
  const auto session = open(p);
  ASSERT_TRUE(session.ok()) << session.error().message;
  Tensor x({DType::bf16, {70, 120}});
  for (std::int64_t i = 0; i < x.count(); ++i) x.set(i, static_cast<double>(i % 251));
  for (int run = 0; run < 3; ++run) {  // the third replays a graph
    const auto y = (*session)->run({&x, 1});
    ASSERT_TRUE(y.ok()) << y.error().message;
    for (std::int64_t r = 0; r < 64; ++r)
      for (std::int64_t c = 0; c < 64; ++c) {
        const bool inside = r + 8 < 70 && c + 64 < 120;
        ASSERT_EQ((*y)[0].at(r * 64 + c), inside ? x.at((r + 8) * 120 + c + 64) : 0)
            << r << " " << c;
      }
  }
  const auto refused = [&](const TensorMap& map) {
    p->launches[0].phases[0].grid.maps = {map};
    const auto opened = open(p);
    return !opened.ok() && opened.error().message.find("tensor map of") != std::string::npos;
  };
  EXPECT_TRUE(refused({0, DType::bf16, {120, 70}, {248}, {64, 64}, 128}));   // stride
  EXPECT_TRUE(refused({0, DType::bf16, {120, 70}, {240}, {64, 257}, 128}));  // box
  EXPECT_TRUE(
      refused({0, DType::bf16, {120, 70}, {240}, {72, 64}, 128}));       // wider than the swizzle
  EXPECT_TRUE(refused({0, DType::bf16, {120, 70}, {240}, {4, 64}, 0}));  // 8 bytes
  EXPECT_TRUE(refused({0, DType::bf16, {120, 90000}, {240}, {64, 64}, 128}));  // outside memory
}

TEST_F(CudaSession, RefusesWhatTheDriverRefuses) {
  auto p = scale_and_shift();
  p->launches[0].phases[0].grid.threads = 64;  // above __launch_bounds__
  const auto session = open(p);
  ASSERT_TRUE(session.ok()) << session.error().message;
  const Tensor x = numbers(77, 0);
  const auto y = (*session)->run({&x, 1});
  ASSERT_FALSE(y.ok());
  EXPECT_NE(y.error().message.find("kernel 'scale': 3 blocks of 64 threads"), std::string::npos)
      << y.error().message;
}

TEST_F(CudaSession, NamesAMissingKernelAndAnotherGpu) {
  auto p = scale_and_shift();
  p->launches[0].phases[0].symbol = "absent";
  EXPECT_EQ(open(p).error().message, "kernel 'scale': symbol 'absent' is not in the code");
  p->device = "cuda sm_80";
  const auto other = open(p);
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().code, ErrorCode::missing);
  EXPECT_NE(other.error().message.find("made for 'cuda sm_80', found GPU 0"), std::string::npos);
}

TEST_F(CudaSession, OutOfMemoryIsSaid) {
  auto p = scale_and_shift();
  p->arena_bytes = 1 << 20;
  fake().set("memory=1000000");
  const auto session = open(p);
  ASSERT_FALSE(session.ok());
  EXPECT_EQ(session.error().code, ErrorCode::out_of_memory);
  EXPECT_NE(session.error().message.find("GPU memory for the arena"), std::string::npos)
      << session.error().message;
}

/// scale_and_shift, then one launch of each kind that the driver is asked for in its own way.
std::shared_ptr<Program> everything() {
  auto p = scale_and_shift();
  p->inputs.push_back({"tiles", {DType::bf16, {70, 120}}});
  p->outputs.push_back({"tile", {DType::bf16, {64, 64}}});
  p->outputs.push_back({"met", {DType::f32, {64}}});
  p->outputs.push_back({"big", {DType::f32, {64}}});
  Grid tiles{.threads = 64, .shared_bytes = 8200};
  tiles.maps = {{0, DType::bf16, {120, 70}, {240}, {64, 64}, 128}};
  p->launches.push_back(
      {"tile", {{Slot::Kind::input, 1}, {Slot::Kind::output, 1}}, {phase("tile", 1, tiles)}});
  p->launches.push_back(
      {"meet",
       {{Slot::Kind::input, 0}, {Slot::Kind::arena, 0}, {Slot::Kind::output, 2}},
       {phase("meet", 2, {.threads = 32, .resident = true, .cooperative = true})}});
  p->launches.push_back({"big",
                         {{Slot::Kind::output, 3}},
                         {phase("big", 1, {.threads = 64, .shared_bytes = 64 << 10})}});
  return p;
}

/// What becomes of runs and a profile while the driver fails once: the error's code, if there is
/// one. A failure anywhere is an error, and where the context lives on, so does the session.
std::optional<ErrorCode> use(const char* call, bool context_lost = false) {
  std::optional<ErrorCode> failure;
  const auto ok = [&](const auto& result) {
    if (result.ok()) {
      EXPECT_FALSE(failure && context_lost) << call << ": runs on without a context";
      return true;
    }
    EXPECT_TRUE(!failure || context_lost) << call << ": failed twice: " << result.error().message;
    EXPECT_TRUE(!context_lost || result.error().message.find("(700)") != std::string::npos)
        << call << ": " << result.error().message;
    failure = result.error().code;
    return false;
  };
  const auto session = open(everything());
  if (!ok(session)) return failure;
  const Tensor inputs[] = {numbers(77, 1), Tensor({DType::bf16, {70, 120}})};
  for (int run = 0; run < 4; ++run) {
    const auto y = (*session)->run(inputs);
    if (ok(y)) expect_equal((*y)[0], expected(inputs[0]));
  }
  (void)ok((*session)->profile(inputs));
  return failure;
}

constexpr const char* kCalls[] = {"cuInit",
                                  "cuDeviceGet",
                                  "cuDeviceGetAttribute",
                                  "cuDevicePrimaryCtxRetain",
                                  "cuModuleLoadData",
                                  "cuModuleGetFunction",
                                  "cuFuncSetAttribute",
                                  "cuOccupancyMaxActiveBlocksPerMultiprocessor",
                                  "cuTensorMapEncodeTiled",
                                  "cuMemAlloc",
                                  "cuMemAllocHost",
                                  "cuMemcpyHtoD",
                                  "cuMemcpyHtoDAsync",
                                  "cuMemcpyDtoHAsync",
                                  "cuMemsetD8Async",
                                  "cuStreamCreate",
                                  "cuStreamSynchronize",
                                  "cuStreamBeginCapture",
                                  "cuStreamEndCapture",
                                  "cuGraphInstantiate",
                                  "cuGraphLaunch",
                                  "cuEventCreate",
                                  "cuEventRecord",
                                  "cuEventElapsedTime",
                                  "cuLaunchKernelEx"};

TEST_F(CudaSession, SurvivesAFailureOfEachCall) {
  for (const char* call : kCalls) {
    bool failed = true;
    for (int number = 1; failed && number < 40; ++number) {
      fake().set(fmt::format("fail={}:{}:2", call, number).c_str());
      const auto failure = use(call);
      EXPECT_TRUE(failure || number > 1) << call << " is never called";
      // The GPU is missing then, for whatever reason.
      const bool finding = std::string(call).starts_with("cuDeviceGet") || call == kCalls[0];
      EXPECT_TRUE(finding || failure.value_or(ErrorCode::out_of_memory) == ErrorCode::out_of_memory)
          << call;
      failed = failure.has_value();
    }
    EXPECT_FALSE(failed) << call << " is called without end";
    EXPECT_EQ(fake().live(), 0) << call;
  }
}

/// A context that a fault has taken: every call says so, and what was made is given back.
TEST_F(CudaSession, SaysThatTheContextIsLost) {
  for (const char* call : kCalls) {
    if (std::string(call).starts_with("cuDeviceGet") || call == kCalls[0]) continue;
    bool failed = true;
    for (int number = 1; failed && number < 40; ++number) {
      fake().set(fmt::format("fail={}:{}:700", call, number).c_str());
      const auto failure = use(call, true);
      EXPECT_TRUE(failure || number > 1) << call << " is never called";
      EXPECT_EQ(failure.value_or(ErrorCode::failed), ErrorCode::failed) << call;
      EXPECT_TRUE(!failure || !open(everything()).ok()) << call;
      failed = failure.has_value();
    }
    EXPECT_FALSE(failed) << call << " is called without end";
    EXPECT_EQ(fake().live(), 0) << call;
  }
}

/// Two programs, each on a thread of its own, share the GPU's context and nothing else.
TEST_F(CudaSession, ProgramsRunAtTheSameTime) {
  const auto run_often = [](const std::shared_ptr<Program>& program, std::vector<Tensor> inputs,
                            const auto& check) {
    for (int opened = 0; opened < 3; ++opened) {
      const auto session = open(program);
      ASSERT_TRUE(session.ok()) << session.error().message;
      for (int run = 0; run < 6; ++run) {
        const auto y = (*session)->run(inputs);
        ASSERT_TRUE(y.ok()) << y.error().message;
        check((*y)[0], inputs[0]);
      }
    }
  };
  const auto scaled = scale_and_shift();
  const auto all = everything();
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    const auto shown = [](const Tensor& y, const Tensor& x) { expect_equal(y, expected(x)); };
    const Tensor x = numbers(77, static_cast<float>(10 * t));
    threads.emplace_back([=] { run_often(scaled, {x}, shown); });
    threads.emplace_back([=] { run_often(all, {x, Tensor({DType::bf16, {70, 120}})}, shown); });
  }
  for (std::thread& t : threads) t.join();
}

}  // namespace
}  // namespace heddle::runtime::cuda
