// What generated code reaches: the register-tile matrix product as a share of this core's multiply-
// add peak (measured by an intrinsics loop), elementwise functions in ns per element, and the time
// to compile. One thread; minimum over repeats.
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "codegen/cpu/cpu.h"
#include "support/tensor.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

using namespace heddle;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}
template <class F>
double best_seconds(int repeats, F f) {
  double best = 1e9;
  for (int i = 0; i < repeats; ++i) {
    const auto start = Clock::now();
    f();
    best = std::min(best, seconds_since(start));
  }
  return best;
}

constexpr std::int64_t kSteps = 1 << 20;

#if defined(__x86_64__)
#define HEDDLE_PEAK(name, features, type, set, fma)                           \
  __attribute__((target(features), noinline)) void name(float* out) {         \
    type a[10], x = set(1.0f), y = set(1e-9f);                                \
    for (auto& v : a) v = x;                                                  \
    for (std::int64_t i = 0; i < kSteps; ++i) {                               \
      asm volatile("" : "+x"(x), "+x"(y));                                    \
      a[0] = fma(a[0], x, y), a[1] = fma(a[1], x, y), a[2] = fma(a[2], x, y); \
      a[3] = fma(a[3], x, y), a[4] = fma(a[4], x, y), a[5] = fma(a[5], x, y); \
      a[6] = fma(a[6], x, y), a[7] = fma(a[7], x, y), a[8] = fma(a[8], x, y); \
      a[9] = fma(a[9], x, y);                                                 \
    }                                                                         \
    for (int i = 1; i < 10; ++i) a[0] = a[0] + a[i];                          \
    std::memcpy(out, &a[0], sizeof(a[0]));                                    \
  }
HEDDLE_PEAK(peak_avx512, "avx512f", __m512, _mm512_set1_ps, _mm512_fmadd_ps)
HEDDLE_PEAK(peak_avx2, "avx2,fma", __m256, _mm256_set1_ps, _mm256_fmadd_ps)
#endif

/// GFLOP/s of independent multiply-adds in registers.
double peak_gflops(const codegen::cpu::Machine& m) {
  alignas(64) float out[16];
#if defined(__x86_64__)
  if (m.vector_bytes < 32) return 0;
  const auto loop = m.vector_bytes == 64 ? peak_avx512 : peak_avx2;
  const double s = best_seconds(30, [&] { loop(out); });
  return 2.0 * 10 * (m.vector_bytes / 4) * kSteps / s / 1e9;
#else
  (void)out;
  return 0;
#endif
}

struct Code {
  std::shared_ptr<codegen::cpu::Module> module;
  codegen::cpu::KernelInfo info;
  double compile_ms = 0, load_ms = 0;
};

Code build(const std::string& text, const codegen::cpu::Machine& m) {
  auto k = kernel::parse_kernel(text);
  HEDDLE_CHECK(k.ok(), "{}", k.error().message);
  const Status status = kernel::verify(*k);
  HEDDLE_CHECK(status.ok(), "{}", status.error().message);
  Code code;
  code.compile_ms = 1e9;
  codegen::cpu::Object object;
  for (int i = 0; i < 3; ++i) {
    const auto start = Clock::now();
    auto made = codegen::cpu::compile({&*k, 1}, m, "b");
    HEDDLE_CHECK(made.ok(), "{}", made.error().message);
    code.compile_ms = std::min(code.compile_ms, seconds_since(start) * 1e3);
    object = *made;
  }
  const auto start = Clock::now();
  auto module = codegen::cpu::load({&object.bytes, 1});
  HEDDLE_CHECK(module.ok(), "{}", module.error().message);
  code.load_ms = seconds_since(start) * 1e3;
  code.module = *module;
  code.info = object.kernels[0];
  return code;
}

/// C[mr*blocks × nr*panels] = A · B, B in panels [K][nr], a register tile of mr rows.
std::string gemm_text(int mr, int vectors, int lanes, int k, int blocks, int panels, int unroll) {
  const int nr = vectors * lanes, m = mr * blocks, n = nr * panels;
  std::string s = fmt::format("kernel \"gemm {}x{}\" vars=16 {{\n", mr, nr);
  s += fmt::format("buffer b0 \"a\" f32[{}] grid arg=0\n", m * k);
  s += fmt::format("buffer b1 \"b\" f32[{}] grid arg=1\n", n * k);
  s += fmt::format("buffer b2 \"c\" f32[{}] grid arg=2 written\n", m * n);
  s += fmt::format("buffer b3 \"acc\" f32[{}] lane lanes={}\n", mr * nr, lanes);
  s += fmt::format("for grid d0 in 0..{} {{ for serial d1 in 0..{} {{\n", blocks, panels);
  const auto tile = [&](int v) {
    return fmt::format(
        "for unroll d{} in 0..{} {{ for unroll d{} in 0..{} {{ for vector d{} in "
        "0..{} {{ ",
        v, mr, v + 1, vectors, v + 2, lanes);
  };
  s += tile(2) + fmt::format("b3[d2*{} + d3*{} + d4] = f32(0) }} }} }}\n", nr, lanes);
  s += fmt::format("for serial d5 in 0..{} {{ for unroll d6 in 0..{} {{ {}", k / unroll, unroll,
                   tile(7));
  const std::string acc = fmt::format("b3[d7*{} + d8*{} + d9]", nr, lanes);
  s += fmt::format(
      "{0} = add.f32(load.f32 {0}, mul.f32(load.f32 b0[d0*{1} + d7*{2} + d5*{3} + "
      "d6], load.f32 b1[d1*{4} + d5*{5} + d6*{6} + d8*{7} + d9])) }} }} }} }} }}\n",
      acc, mr * k, k, unroll, nr * k, nr * unroll, nr, lanes);
  s += tile(10) + fmt::format(
                      "b2[d0*{} + d10*{} + d1*{} + d11*{} + d12] = load.f32 b3[d10*{} + "
                      "d11*{} + d12] }} }} }} }} }} }}\n",
                      mr * n, n, nr, lanes, nr, lanes);
  return s;
}

void bench_gemm(const codegen::cpu::Machine& m, double peak) {
  const int lanes = m.vector_bytes / 4, k = 256, panels = 8;
  struct Tile {
    int mr, vectors, unroll;
  };
  const std::vector<Tile> tiles =
      m.vector_registers >= 32 ? std::vector<Tile>{{6, 4, 1}, {8, 2, 1}, {14, 2, 1}, {14, 2, 4}}
                               : std::vector<Tile>{{6, 2, 1}, {6, 2, 4}, {4, 3, 1}, {4, 3, 2}};
  for (const Tile& t : tiles) {
    const int blocks = 120 / t.mr;
    const Code code = build(gemm_text(t.mr, t.vectors, lanes, k, blocks, panels, t.unroll), m);
    const std::size_t rows = static_cast<std::size_t>(t.mr * blocks);
    const std::size_t columns = static_cast<std::size_t>(t.vectors * lanes * panels);
    std::vector<float> a(rows * k, 0.5F), b(columns * k, 0.25F), c(rows * columns);
    void* args[] = {a.data(), b.data(), c.data()};
    const auto f = code.module->find(code.info.phases[0].symbol);
    const double s = best_seconds(200, [&] { f(args, 0, blocks, nullptr); });
    const double gflops = 2.0 * static_cast<double>(rows * columns) * k / s / 1e9;
    std::printf(
        "gemm %2dx%-3d k unrolled %d: %6.1f GFLOP/s = %5.1f %% of peak %.1f; compile %.1f ms, "
        "load %.2f ms, c[0]=%g\n",
        t.mr, t.vectors * lanes, t.unroll, gflops, 100 * gflops / peak, peak, code.compile_ms,
        code.load_ms, c[0]);
  }
}

void bench_unary(const codegen::cpu::Machine& m, const char* fn) {
  const int lanes = m.vector_bytes / 4, n = 8192;
  const Code code = build(
      fmt::format("kernel \"{0}\" vars=3 {{ buffer b0 \"x\" f32[{1}] grid arg=0\n buffer b1 \"y\" "
                  "f32[{1}] grid arg=1 written\n for grid d0 in 0..1 {{ for serial d1 in 0..{2} {{ "
                  "for vector d2 in 0..{3} {{ b1[d1*{3} + d2] = {0}.f32(load.f32 b0[d1*{3} + d2]) "
                  "}} }} }} }}",
                  fn, n, n / lanes, lanes),
      m);
  std::vector<float> x(n), y(n);
  for (int i = 0; i < n; ++i)
    x[static_cast<std::size_t>(i)] = 6.0F * static_cast<float>(i - n / 2) / n;
  void* args[] = {x.data(), y.data()};
  const auto f = code.module->find(code.info.phases[0].symbol);
  const double s = best_seconds(300, [&] { f(args, 0, 1, nullptr); });
  std::printf("%-5s %6.3f ns an element; compile %.1f ms\n", fn, s / n * 1e9, code.compile_ms);
}

/// A copy-like kernel over more data than the caches hold, against memcpy; two threads.
void bench_stream(const codegen::cpu::Machine& m) {
  const std::int64_t lanes = m.vector_bytes / 4, n = std::int64_t{1} << 25;
  const std::int64_t tasks = 64, rows = n / tasks / lanes;
  const Code code =
      build(fmt::format(
                "kernel \"relu\" vars=3 {{ buffer b0 \"x\" f32[{1}] grid arg=0\n buffer b1 \"y\" "
                "f32[{1}] grid arg=1 written\n for grid d0 in 0..{0} {{ for serial d1 in 0..{2} {{ "
                "for vector d2 in 0..{3} {{ b1[d0*{4} + d1*{3} + d2] = max.f32(f32(0), load.f32 "
                "b0[d0*{4} + d1*{3} + d2]) }} }} }} }}",
                tasks, n, rows, lanes, rows * lanes),
            m);
  Tensor x({DType::f32, {n}}), y({DType::f32, {n}});
  const auto f = code.module->find(code.info.phases[0].symbol);
  const auto both = [&](const auto& half) {
    const double s = best_seconds(5, [&] {
      std::thread other([&] { half(1); });
      half(0);
      other.join();
    });
    return 2.0 * static_cast<double>(x.bytes()) / s / 1e9;
  };
  const double ours = both([&](int h) {
    void* args[] = {x.mutable_data(), y.mutable_data()};
    f(args, h * tasks / 2, (h + 1) * tasks / 2, nullptr);
  });
  const double copy = both([&](int h) {
    const std::int64_t part = x.bytes() / 2;
    std::memcpy(y.mutable_data() + h * part, x.data() + h * part, static_cast<std::size_t>(part));
  });
  std::printf("relu over %lld MB: %.1f GB/s, memcpy %.1f GB/s\n",
              static_cast<long long>(x.bytes() >> 20), ours, copy);
}

}  // namespace

int main() {
  const codegen::cpu::Machine m = codegen::cpu::host_machine();
  std::printf("%s, %d-byte vectors\n", m.cpu.c_str(), m.vector_bytes);
  const double peak = peak_gflops(m);
  bench_gemm(m, peak);
  for (const char* fn : {"exp", "log", "tanh", "erf", "sin", "rsqrt"}) bench_unary(m, fn);
  bench_stream(m);
}
