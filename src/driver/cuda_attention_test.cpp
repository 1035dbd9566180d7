// Attention kernels of common sizes are CUDA that NVRTC compiles, without spills.
#include "codegen/cuda/cuda.h"
#include "codegen/cuda/nvrtc.h"
#include "lower/attention/test_cases.h"

namespace heddle::driver {
namespace {

struct Size {
  DType type;
  lower::AttentionShape shape;
  bool causal;
};
const Size kSizes[] = {
    {DType::bf16, {1, 12, 1024, 1024, 64, 64}, false},
    {DType::bf16, {8, 32, 4096, 4096, 128, 128}, true},
    {DType::f16, {16, 12, 197, 197, 64, 64}, false},
    {DType::bf16, {1, 8, 512, 700, 80, 80}, false},
    {DType::bf16, {64, 3, 49, 49, 32, 32}, false},
    {DType::f32, {1, 12, 512, 512, 64, 64}, true},
    {DType::f32, {1, 1, 16384, 256, 32, 32}, false},
    {DType::f32, {1, 8, 512, 512, 128, 128}, false},
    {DType::f32, {1, 4, 300, 300, 256, 256}, false},
};

class CudaAttention : public testing::TestWithParam<std::string> {};

TEST_P(CudaAttention, CompilesWithoutSpills) {
  ASSERT_FALSE(codegen::cuda::find_library("nvrtc", "").empty())
      << "no NVRTC: scripts/venv.sh installs it, tests run in the project's root";
  std::string text = codegen::cuda::unit_header();
  std::vector<std::string> names;
  for (const Size& size : kSizes) {
    lower::Case c;
    c.target = lower::gpu_target(132, GetParam() == "sm_80" ? 80 : 90);
    // Only types and shapes matter here.
    const auto in = [&](Shape shape) {
      return c.g.add_input(fmt::format("x{}", c.g.inputs.size()), {size.type, std::move(shape)});
    };
    const auto& s = size.shape;
    const auto q = in({s.batch, s.heads, s.queries, s.depth});
    const auto k = in({s.batch, s.heads, s.keys, s.depth});
    const auto v = in({s.batch, s.heads, s.keys, s.columns});
    auto scores = c.b.mul(c.b.matmul(q, c.b.transpose(k, {0, 1, 3, 2})), 0.125);
    if (size.causal) scores = lower::causal(c, scores, 0);
    c.output(c.b.matmul(c.b.softmax(scores, {3}), v));
    lower::Request request = lower::request_of(c);
    const auto cluster = lower::attention::cluster_at(c.g, c.g.outputs[0].node, c.target);
    ASSERT_TRUE(cluster);
    request.cluster = *cluster;
    const auto lowered = lower::attention::lower(request);
    ASSERT_TRUE(lowered.ok()) << lowered.error().message;
    names.push_back(lowered->schedule);
    const auto one = codegen::cuda::to_text(lowered->kernel, fmt::format("k{}", names.size()));
    ASSERT_TRUE(one.ok()) << one.error().message;
    text += one->text;
  }
  codegen::cuda::CompileOptions options;
  options.arch = GetParam();
  const auto cubin = codegen::cuda::compile(text, options);
  ASSERT_TRUE(cubin.ok()) << cubin.error().message.substr(0, 4000);
  ASSERT_EQ(cubin->functions.size(), names.size());
  for (const auto& f : cubin->functions) {
    const std::string& name = names[std::stoul(f.symbol.substr(1)) - 1];
    EXPECT_EQ(f.spill_bytes, 0) << name << " " << f.registers;
    EXPECT_EQ(f.stack_bytes, 0) << name << " " << f.registers;
    RecordProperty(f.symbol, f.registers);
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, CudaAttention, testing::Values("sm_80", "sm_90a"));

}  // namespace
}  // namespace heddle::driver
