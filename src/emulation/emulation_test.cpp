#include "emulation/emulation.h"

#include <gtest/gtest.h>

#include <cstring>

namespace heddle::emulation {
namespace {

/// Global memory of a test.
template <class T>
struct Array {
  T* data;
  explicit Array(std::int64_t count)
      : data(reinterpret_cast<T*>(allocate(count * static_cast<std::int64_t>(sizeof(T))))) {}
  ~Array() { release(reinterpret_cast<std::byte*>(data)); }
  T& operator[](std::int64_t i) { return data[i]; }
};

Module compiled(const std::string& text, CompileOptions options = {}) {
  auto module = compile("#include \"heddle.cuh\"\n" + text, options);
  if (!module) throw std::runtime_error(module.error().message);
  return *module;
}

template <class... A>
std::string run(const Module& module, const std::string& symbol, const Launch& how, A... values) {
  void* arguments[] = {&values..., nullptr};
  const Kernel* kernel = module.find(symbol);
  if (!kernel) return "no kernel " + symbol;
  const Status status = launch(module, *kernel, how, arguments);
  return status ? "" : status.error().message;
}

constexpr const char* kBasics = R"(
extern "C" __global__ void index(int* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = 1000 * blockIdx.x + threadIdx.x;
}
extern "C" __global__ void __launch_bounds__(256) sums(const float* x, float* out) {
  __shared__ float scratch[8];
  const float sum = hd::block_reduce<256>(x[threadIdx.x], hd::Sum{}, scratch);
  const float most = hd::block_reduce<256>(x[threadIdx.x], hd::Max{}, scratch);
  if (threadIdx.x == 0) out[2 * blockIdx.x] = sum, out[2 * blockIdx.x + 1] = most;
}
extern "C" __global__ void grid_wide(float* x, unsigned* counter) {
  for (int round = 1; round < 4; ++round) {
    if (threadIdx.x == 0) x[round * gridDim.x + blockIdx.x] = x[(round - 1) * gridDim.x + (blockIdx.x + 1) % gridDim.x] + 1;
    hd::grid_barrier(counter);
  }
}
extern "C" __global__ void divergent() {
  if (threadIdx.x < 32)
    hd::block_sync();
  else
    hd::block_sync();
}
extern "C" __global__ void missing() {
  if (threadIdx.x != 7) hd::warp_sync();
}
extern "C" __global__ void different() {
  if (threadIdx.x & 1) hd::shuffle(1u, 0);
  else hd::warp_sync();
}
extern "C" __global__ void unpublished(const float* x) {
  HD_DYNAMIC_SHARED(shared);
  hd::copy_async<16>(shared + 16 * threadIdx.x, x + 4 * threadIdx.x);
  hd::copy_commit();
}
extern "C" __global__ void crooked(const float* x) {
  HD_DYNAMIC_SHARED(shared);
  hd::copy_async<16>(shared + 4, x);
}
extern "C" __global__ void poisoned(unsigned* out) {
  HD_DYNAMIC_SHARED(shared);
  __shared__ unsigned other[4];
  out[0] = reinterpret_cast<unsigned*>(shared)[3];
  out[1] = other[1];
  other[1] = 7;
}
)";

TEST(Emulation, ThreadsKnowWhereTheyAre) {
  const Module m = compiled(kBasics);
  Array<int> out(70);
  for (Order order : {Order::forward, Order::reverse, Order::random}) {
    ASSERT_EQ(run(m, "index", {.grid = {3}, .block = {32}, .order = order}, out.data, 70), "");
    for (int i = 0; i < 70; ++i) EXPECT_EQ(out[i], i / 32 * 1000 + i % 32);
  }
}

TEST(Emulation, BlocksReduce) {
  const Module m = compiled(kBasics);
  Array<float> x(256), out(6);
  for (int i = 0; i < 256; ++i) x[i] = static_cast<float>(i * 7 % 256);
  for (Order order : {Order::forward, Order::reverse, Order::random}) {
    ASSERT_EQ(run(m, "sums", {.grid = {3}, .block = {256}, .order = order}, x.data, out.data), "");
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(out[2 * i], 255 * 128);
      EXPECT_EQ(out[2 * i + 1], 255);
    }
  }
}

TEST(Emulation, GridsMeetIfTheyAreResident) {
  const Module m = compiled(kBasics);
  Array<float> x(4 * 5);
  Array<unsigned> counter(1);
  for (int i = 0; i < 5; ++i) x[i] = static_cast<float>(i);
  counter[0] = 0;
  Launch how{.grid = {5}, .block = {64}, .cooperative = true, .order = Order::random};
  ASSERT_EQ(run(m, "grid_wide", how, x.data, counter.data), "");
  for (int i = 0; i < 5; ++i) EXPECT_EQ(x[15 + i], static_cast<float>((i + 3) % 5 + 3));
  how.cooperative = false;
  EXPECT_NE(run(m, "grid_wide", how, x.data, counter.data).find("deadlock"), std::string::npos);
}

TEST(Emulation, SharedMemoryIsPoisoned) {
  const Module m = compiled(kBasics);
  Array<unsigned> out(2);
  for (int round = 0; round < 2; ++round) {
    ASSERT_EQ(run(m, "poisoned", {.block = {1}, .shared_bytes = 16}, out.data), "");
    EXPECT_EQ(out[0], ~0u);
    EXPECT_EQ(out[1], ~0u);
  }
}

void expect_error(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << message;
}

TEST(Emulation, MisuseNamesItsLines) {
  const Module m = compiled(kBasics);
  Array<float> x(1024);
  expect_error(run(m, "divergent", {.block = {64}}),
               "threads of a block wait at different barriers, at kernel.cu:21 and kernel.cu:23");
  expect_error(run(m, "missing", {.block = {32}}), "in its warp's operation of kernel.cu:26");
  expect_error(run(m, "different", {.block = {32}}),
               "different operations, at kernel.cu:30 and kernel.cu:29");
  expect_error(run(m, "unpublished", {.block = {32}, .shared_bytes = 512}, x.data), "in flight");
  expect_error(run(m, "crooked", {.block = {32}, .shared_bytes = 512}, x.data),
               "misaligned asynchronous copy, at kernel.cu:39");
}

constexpr const char* kBulk = R"(
extern "C" __global__ void bulk(const unsigned char* from, unsigned char* out, int to, int bytes, int fenced) {
  HD_DYNAMIC_SHARED(shared);
  __shared__ hd::Mbarrier full;
  if (threadIdx.x == 0) {
    hd::mbarrier_init(&full, 1);
    if (fenced) hd::mbarrier_fence();
    hd::mbarrier_arrive_expect(&full, bytes);
    hd::bulk_load(shared + to, from, bytes, &full);
  }
  hd::block_sync();
  if (bytes != 48) hd::mbarrier_wait(&full, 0);
  if (bytes != 48) out[threadIdx.x] = shared[to + threadIdx.x];
}
)";

TEST(Emulation, BulkCopiesAreChecked) {
  const Module m = compiled(kBulk, {.races = true});
  Array<unsigned char> x(64), y(32);
  const auto said = [&](int from, int to, int bytes, int fenced) {
    return run(m, "bulk", {.block = {32}, .shared_bytes = 128}, x.data + from, y.data, to, bytes,
               fenced);
  };
  for (int i = 0; i < 64; ++i) x[i] = static_cast<unsigned char>(3 * i);
  ASSERT_EQ(said(16, 32, 32, 1), "");
  for (int i = 0; i < 32; ++i) EXPECT_EQ(y[i], x[16 + i]);
  expect_error(said(8, 0, 32, 1), "misaligned source of a bulk copy, at kernel.cu:10");
  expect_error(said(0, 8, 32, 1), "misaligned destination of a bulk copy");
  expect_error(said(0, 0, 40, 1), "a bulk copy of 40 bytes; multiples of 16 are possible");
  expect_error(said(48, 0, 32, 1), "from outside global memory");
  expect_error(said(0, 112, 32, 1), "ends outside shared memory");
  expect_error(said(0, 0, 32, 0), "gets copies before mbarrier_fence");
  expect_error(said(0, 0, 48, 1), "ends with copies of tiles in flight");
}

TEST(Emulation, ShapesThatNoGpuTakesAreRefused) {
  const Module m = compiled(kBasics);
  Array<float> x(1024);
  expect_error(run(m, "sums", {.block = {512}}, x.data, x.data), "its bound is 256");
  expect_error(run(m, "index", {.block = {1025}}, x.data, 3), "1 to 1024");
  expect_error(run(m, "index", {.grid = {3}, .block = {32}, .cluster = {2}}, x.data, 3),
               "clusters");
}

TEST(Emulation, KernelsAreDescribed) {
  const Module m = compiled(kBasics);
  const Kernel* k = m.find("sums");
  ASSERT_NE(k, nullptr);
  EXPECT_EQ(k->max_threads, 256);
  EXPECT_EQ(k->parameter_bytes, (std::vector<std::size_t>{8, 8}));
  EXPECT_EQ(m.find("index")->parameter_bytes, (std::vector<std::size_t>{8, 4}));
  EXPECT_EQ(m.find("none"), nullptr);
}

TEST(Emulation, WrongTextIsAnErrorWithTheCompilersWords) {
  const auto m =
      compile("#include \"heddle.cuh\"\nextern \"C\" __global__ void f() { nothing(); }");
  ASSERT_FALSE(m);
  expect_error(m.error().message, "kernel.cu:2");
  const auto none = compile("", {.compiler = "/nonexistent/compiler"});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::missing);
}

constexpr const char* kRaces = R"(
extern "C" __global__ void rotate(float* x) {
  __shared__ float s[64];
  s[threadIdx.x] = x[threadIdx.x];
#ifndef DROP
  hd::block_sync();
#endif
  x[threadIdx.x] = s[(threadIdx.x + 1) % 64];
}
extern "C" __global__ void neighbours(float* x) {
  HD_DYNAMIC_SHARED(shared);
  float* s = reinterpret_cast<float*>(shared);
  s[threadIdx.x] = 1;
  hd::warp_sync();
  x[threadIdx.x] = s[threadIdx.x ^ 1];   // of the same warp
  if (threadIdx.x >= 32) x[threadIdx.x] += s[threadIdx.x ^ 32];  // of another warp
}
extern "C" __global__ void bytes(signed char* x) { x[blockIdx.x * blockDim.x + threadIdx.x] = 1; }
extern "C" __global__ void blocks(float* x) {
  if (threadIdx.x == 0) x[blockIdx.x] = x[(blockIdx.x + 1) % gridDim.x];
}
extern "C" __global__ void handed(float* x, unsigned* flag, int mode) {
  if (threadIdx.x == 0 && blockIdx.x == 0) {
    x[0] = 1;
    if (mode == 0) hd::store_release(flag, 1);
    if (mode == 1) hd::add_relaxed(flag, 1u);
    if (mode == 2) hd::fence_device(), hd::add_relaxed(flag, 1u);
    if (mode == 3) hd::fence_block(), hd::add_relaxed(flag, 1u);
  }
  if (threadIdx.x == 0 && blockIdx.x == 1) {
    while (hd::load_acquire(flag) == 0) {}
    x[1] = x[0];
  }
}
extern "C" __global__ void staged(const float* x, float* y) {
  HD_DYNAMIC_SHARED(shared);
  float* s = reinterpret_cast<float*>(shared);
  hd::copy_async<4>(s + threadIdx.x, x + threadIdx.x);
  hd::copy_commit();
#ifndef DROP
  hd::copy_wait<0>();
#endif
  y[threadIdx.x] = s[threadIdx.x];
#ifdef DROP
  hd::copy_wait<0>();
#endif
}
extern "C" __global__ void beyond(float* x, int n) { x[n + threadIdx.x] = 0; }
extern "C" __global__ void beyond_shared(float* x) {
  HD_DYNAMIC_SHARED(shared);
  x[threadIdx.x] = reinterpret_cast<float*>(shared)[threadIdx.x];
}
extern "C" __global__ void crooked(float* x) { hd::store_vec(x + 1, hd::load_vec<4>(x)); }
)";

TEST(Races, ARemovedBarrierIsFoundWithBothLines) {
  Array<float> x(64);
  EXPECT_EQ(run(compiled(kRaces, {.races = true}), "rotate", {.block = {64}}, x.data), "");
  for (Order order : {Order::forward, Order::reverse, Order::random}) {
    const std::string found = run(compiled(std::string("#define DROP\n") + kRaces, {.races = true}),
                                  "rotate", {.block = {64}, .order = order}, x.data);
    expect_error(found, "race on shared memory");
    expect_error(found, "kernel.cu:6");
    expect_error(found, "kernel.cu:10");
  }
}

TEST(Races, AWarpsBarrierOrdersItsLanesOnly) {
  const Module m = compiled(kRaces, {.races = true});
  Array<float> x(64);
  expect_error(run(m, "neighbours", {.block = {64}, .shared_bytes = 256}, x.data),
               "read, at kernel.cu:17, and an access of block 0 thread 31, at kernel.cu:14");
}

TEST(Races, NeighbouringBytesAreApart) {
  const Module m = compiled(kRaces, {.races = true});
  Array<signed char> x(64);
  EXPECT_EQ(run(m, "bytes", {.grid = {2}, .block = {32}}, x.data), "");
}

TEST(Races, BlocksAreNotOrdered) {
  const Module m = compiled(kRaces, {.races = true});
  Array<float> x(4);
  expect_error(run(m, "blocks", {.grid = {4}, .block = {32}}, x.data), "race on global memory");
  EXPECT_EQ(run(m, "blocks", {.grid = {1}, .block = {32}}, x.data), "");
}

TEST(Races, ReleaseAndAcquireOrder) {
  const Module m = compiled(kRaces, {.races = true});
  Array<float> x(2);
  Array<unsigned> flag(1);
  const Launch how{.grid = {2}, .block = {32}, .cooperative = true};
  const bool fine[] = {true, false, true, false};
  for (int mode = 0; mode < 4; ++mode) {
    flag[0] = 0;
    const std::string found = run(m, "handed", how, x.data, flag.data, mode);
    if (fine[mode])
      EXPECT_EQ(found, "") << mode;
    else
      expect_error(found, "race on global memory");
  }
}

TEST(Races, AnAsynchronousCopyIsThereOnceWaitedFor) {
  Array<float> x(32), y(32);
  const Launch how{.block = {32}, .shared_bytes = 128};
  EXPECT_EQ(run(compiled(kRaces, {.races = true}), "staged", how, x.data, y.data), "");
  expect_error(run(compiled(std::string("#define DROP\n") + kRaces, {.races = true}), "staged", how,
                   x.data, y.data),
               "by an asynchronous operation");
}

TEST(Races, BoundsAndAlignmentAreChecked) {
  const Module m = compiled(kRaces, {.races = true});
  Array<float> x(60);
  expect_error(run(m, "beyond", {.block = {32}}, x.data, 60), "write of 4 bytes outside");
  EXPECT_EQ(run(m, "beyond", {.block = {32}}, x.data, 28), "");
  expect_error(run(m, "beyond_shared", {.block = {32}, .shared_bytes = 100}, x.data),
               "outside the block's 100 bytes of shared memory");
  expect_error(run(m, "crooked", {.block = {1}}, x.data),
               "misaligned or null access, at kernel.cu:54 (memory.cuh:");
}

}  // namespace
}  // namespace heddle::emulation
