#include "codegen/cuda/nvrtc.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace heddle::codegen::cuda {
namespace {

/// Uses every helper of the prelude; what sm_80 lacks is inside HD_HOPPER.
constexpr const char* kEveryHelper = R"(
#include "heddle.cuh"
namespace hd {
extern "C" __global__ void elementwise(const bf16* x, f16* y, float* z, double* w, long long* k, signed char* c, bool* b) {
  const int i = threadIdx.x;
  Vec<bf16, 8> v = load_once(x + 8 * i);
  Vec<f16, 8> o;
  for (int j = 0; j < 8; ++j) o.at[j] = narrow<f16>(hd::max(tanh(widen(v.at[j])), erf(widen(v.at[j]))));
  store_once(y + 8 * i, o);
  store_vec(y + 8 * i, load_vec<4>(y + 8 * i));
  z[i] = random_uniform(1, i) + random_normal(2, i) + hd::sin(z[i]) + hd::pow(z[i], 2.0f) + hd::floor_mod(z[i], 3.0f);
  w[i] = hd::min(hd::exp(w[i]), hd::log(w[i]));
  k[i] = hd::int_pow(k[i], 3ll) + hd::div(k[i], 0ll) + cast<long long>(z[i]) + hd::shift_left(k[i], 70ll);
  c[i] = cast<signed char>(z[i]) + hd::shift_right(c[i], (signed char)2) + hd::add(c[i], c[i]);
  b[i] = hd::isnan(z[i]) || isinf(w[i]) || cast<bool>(c[i]);
}
extern "C" __global__ void reduce(float* x, double* y, unsigned* counter, int* im) {
  __shared__ float s[8]; __shared__ Indexed<float> a[8];
  float v = block_reduce<256>(x[threadIdx.x], Sum{}, s);
  Indexed<float> m = block_reduce<256>(Indexed<float>{v, threadIdx.x}, ArgMax{}, a);
  y[threadIdx.x] = warp_reduce<8>(y[threadIdx.x], Prod{}) + shuffle_down(y[0], 2) + shuffle_up(y[0], 1) + shuffle(y[1], 3);
  x[threadIdx.x] = m.value + m.index + warp_reduce(v > 0, Any{}) + warp_reduce(v > 0, All{}) + ballot(v > 1);
  grid_barrier(counter);
  named_sync(1, 64); named_arrive(2, 64); warp_sync();
  add_relaxed(x, 1.0f); max_relaxed(im, 3); min_relaxed(im, 3); exchange_if_relaxed(counter, 1u, 2u); fence_block(); fence_device(); store_release(counter, load_relaxed(counter)); add_acq_rel(counter, 1u);
}
extern "C" __global__ void tensor(const bf16* x, float* out) {
  HD_DYNAMIC_SHARED(smem);
  copy_async<16>(smem + 16 * threadIdx.x, x + 8 * threadIdx.x, threadIdx.x < 20); copy_async<8>(smem + 1024, x); copy_async<4>(smem + 1024, x);
  copy_commit(); copy_wait<0>(); block_sync();
  u32 a[4], b[2]; float d[4] = {};
  load_matrix_x4(a, smem); load_matrix_x2(b, smem); mma_bf16(d, a, b); load_matrix_x4_transposed(a, smem); load_matrix_x2_transposed(b, smem); mma_f16(d, a, b); a[0] = to_tf32(d[0]); mma_tf32(d, a, b);
  for (int i = 0; i < 4; i++) out[i + threadIdx.x * 4] = d[i] + low_bf16(a[0]) + high_f16(b[0]); out[0] += low_f16(pack_f16(d[0], d[1])) + high_bf16(pack_bf16(d[0], d[1]));
}
#ifdef HD_HOPPER
template <int N> __device__ void products(float* out, u64 a, u64 b) {
  float d[N / 2] = {};
  wgmma_fence(); wgmma_bf16<N>(d, a, b); wgmma_commit(); wgmma_wait<0>();
  wgmma_fence(); wgmma_f16<N>(d, a, b); wgmma_commit(); wgmma_wait<0>();
  wgmma_fence(); wgmma_tf32<N>(d, a, b); wgmma_commit(); wgmma_wait<0>();
  for (int i = 0; i < N / 2; i++) out[i * 128 + threadIdx.x] += d[i];
}
extern "C" __global__ void __launch_bounds__(128) hopper(const __grid_constant__ TensorMap map, float* out) {
  HD_DYNAMIC_SHARED(smem); __shared__ Mbarrier bar[2];
  if (threadIdx.x == 0) { tma_prefetch(&map); mbarrier_init(bar, 1); mbarrier_init(bar + 1, 1); mbarrier_fence(); mbarrier_arrive_expect(bar, 32768); tma_load_2d(smem, &map, 0, 0, bar); tma_load_3d(smem, &map, 0, 0, 0, bar); mbarrier_arrive(bar + 1); }
  block_sync(); mbarrier_wait(bar, 0); fence_async();
  u64 a = descriptor_128(smem), b = descriptor_128(smem + 32);
  products<8>(out, a, b); products<16>(out, a, b); products<32>(out, a, b); products<64>(out, a, b); products<96>(out, a, b); products<128>(out, a, b); products<192>(out, a, b); products<256>(out, a, b);
  float* other = cluster_map(reinterpret_cast<float*>(smem), cluster_rank() ^ 1); cluster_sync(); out[threadIdx.x] = *other + cluster_size(); cluster_arrive(); cluster_wait(); dependency_wait(); dependents_launch();
}
#endif
}  // namespace hd
)";

bool has_nvrtc() { return !find_library("nvrtc", "").empty(); }

class PreludeTest : public testing::TestWithParam<const char*> {};

TEST_P(PreludeTest, EveryHelperCompilesWithoutSpills) {
  ASSERT_TRUE(has_nvrtc()) << "scripts/venv.sh installs it, tests run in the project's root";
  auto cubin = compile(kEveryHelper, {GetParam(), "", ""});
  ASSERT_TRUE(cubin) << cubin.error().message;
  const bool hopper = std::string(GetParam()) == "sm_90a";
  ASSERT_EQ(cubin->functions.size(), hopper ? 4u : 3u) << cubin->log;
  for (const FunctionInfo& f : cubin->functions) {
    EXPECT_GT(f.registers, 8) << f.symbol;
    EXPECT_EQ(f.spill_bytes, 0) << f.symbol;
  }
  EXPECT_TRUE(cubin->notes.empty()) << cubin->notes[0];
}
INSTANTIATE_TEST_SUITE_P(Arch, PreludeTest, testing::Values("sm_80", "sm_89", "sm_90a"));

TEST(Nvrtc, ErrorsCarryTheCompilersLog) {
  ASSERT_TRUE(has_nvrtc()) << "scripts/venv.sh installs it, tests run in the project's root";
  auto cubin =
      compile("#include \"heddle.cuh\"\nextern \"C\" __global__ void f() { nothing(); }", {});
  ASSERT_FALSE(cubin);
  EXPECT_NE(cubin.error().message.find("kernel.cu(2)"), std::string::npos) << cubin.error().message;
}

TEST(Nvrtc, AbsenceIsNamed) {
  auto cubin = compile("", {"sm_90a", "/nonexistent/libnvrtc.so", ""});
  ASSERT_FALSE(cubin);
  EXPECT_EQ(cubin.error().code, ErrorCode::missing);
  EXPECT_NE(cubin.error().message.find("/nonexistent/libnvrtc.so"), std::string::npos);
}

TEST(Nvrtc, SpillsAreRead) {
  const auto functions = functions_from_log(
      "ptxas info    : Compiling entry function 'f' for 'sm_90a'\n"
      "ptxas info    : Function properties for f\n"
      "    64 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads\n"
      "ptxas info    : Used 255 registers, used 1 barriers, 96 bytes smem\n");
  ASSERT_EQ(functions.size(), 1u);
  EXPECT_EQ(functions[0], (FunctionInfo{"f", 255, 64, 32, 96}));
}

/// A kernel that calls functions: each has its own stack.
TEST(Nvrtc, FunctionsOfAKernelAreApart) {
  const auto functions = functions_from_log(
      "ptxas info    : Compiling entry function 'm' for 'sm_90a'\n"
      "ptxas info    : Function properties for m\n"
      "ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
      "ptxas info    : Used 38 registers, used 2 barriers\n"
      "ptxas info    : Function properties for s0\n"
      "ptxas         .     8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads\n");
  ASSERT_EQ(functions.size(), 2u);
  EXPECT_EQ(functions[0], (FunctionInfo{"m", 38, 0, 0, 0}));
  EXPECT_EQ(functions[1], (FunctionInfo{"s0", 0, 8, 8, 0}));
}

TEST(Nvrtc, SerialisedProductsAreNoted) {
  ASSERT_TRUE(has_nvrtc()) << "scripts/venv.sh installs it, tests run in the project's root";
  auto cubin = compile(R"(
#include "heddle.cuh"
extern "C" __global__ void f(float* out, hd::u64 a, hd::u64 b) {
  float d[4] = {};
  hd::wgmma_fence();
  hd::wgmma_bf16<8>(d, a, b);
  hd::wgmma_commit();
  d[0] += 1;  // the product is still in flight
  hd::wgmma_wait<0>();
  for (int i = 0; i < 4; ++i) out[4 * threadIdx.x + i] = d[i];
})",
                       {});
  ASSERT_TRUE(cubin) << cubin.error().message;
  EXPECT_FALSE(cubin->notes.empty()) << cubin->log;
}

TEST(Nvrtc, CubinsAreCachedAndDamageIsNoticed) {
  ASSERT_TRUE(has_nvrtc()) << "scripts/venv.sh installs it, tests run in the project's root";
  const std::string folder = testing::TempDir() + "heddle_cubin_cache";
  std::filesystem::remove_all(folder);
  const std::string text = "extern \"C\" __global__ void f(float* x) { x[threadIdx.x] = 1; }";
  const auto first = compile(text, {"sm_80", "", folder});
  ASSERT_TRUE(first) << first.error().message;
  std::filesystem::path entry;
  for (const auto& e : std::filesystem::directory_iterator(folder + "/cubins")) entry = e.path();
  const auto again = compile(text, {"sm_80", "", folder});
  ASSERT_TRUE(again);
  EXPECT_EQ(again->bytes, first->bytes);
  EXPECT_EQ(again->functions, first->functions);
  std::fstream(entry, std::ios::in | std::ios::out | std::ios::ate | std::ios::binary) << "x";
  const auto repaired = compile(text, {"sm_80", "", folder});
  ASSERT_TRUE(repaired);
  EXPECT_EQ(repaired->bytes, first->bytes);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace heddle::codegen::cuda
