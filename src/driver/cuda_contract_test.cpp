// Tiled contractions on GPUs are CUDA that NVRTC compiles, without spills.
#include "codegen/cuda/cuda.h"
#include "codegen/cuda/nvrtc.h"
#include "driver/test_util.h"
#include "lower/stitch/test_util.h"

namespace heddle::driver {
namespace {

using lower::NodeId;
using prim::Builder;

/// A product with bias, GELU and residual.
void product(prim::Graph& g, Builder& b, DType type, Shape mnk, bool transposed) {
  const std::int64_t m = mnk[0], n = mnk[1], k = mnk[2];
  const NodeId x = in(g, {m, k}, type);
  const NodeId w = transposed ? b.transpose(in(g, {n, k}, type), {1, 0}) : in(g, {k, n}, type);
  NodeId y = b.add(b.matmul(x, w), b.broadcast(in(g, {n}, type), {m, n}));
  y = b.mul(b.mul(y, 0.5), b.add(b.erf(b.mul(y, 0.7071)), 1));
  g.outputs.push_back({"y", b.add(y, in(g, {m, n}, type))});
}

/// A backward product: what it makes, its rows' sums (a bias' gradient) and its columns'.
void gradients(prim::Graph& g, Builder& b, DType type, Shape mnk) {
  const std::int64_t m = mnk[0], n = mnk[1], k = mnk[2];
  const NodeId w = b.transpose(in(g, {n, k}, type), {1, 0});
  const NodeId x = b.cast(b.matmul(in(g, {m, k}, type), w), DType::f32);
  const NodeId y = b.mul(x, in(g, {m, n}, DType::f32));
  g.outputs.push_back({"y", b.cast(y, type)});
  g.outputs.push_back({"rows", b.reduce_sum(y, {0}, false)});
  g.outputs.push_back({"scaled", b.reduce_sum(b.mul(y, x), {0}, false)});
  g.outputs.push_back({"columns", b.reduce_sum(y, {1}, false)});
}

void convolution(prim::Graph& g, Builder& b, DType type, Shape x, Shape w, std::int64_t stride,
                 std::int64_t pad) {
  std::mt19937 random(1);
  Builder::Conv c;
  c.strides = {stride, stride};
  c.dilations = {1, 1};
  c.pads_begin = c.pads_end = {pad, pad};
  const NodeId weights = b.constant(lower::random_values({type, std::move(w)}, random));
  g.outputs.push_back({"y", b.relu(b.conv(in(g, std::move(x), type), weights, c))});
}

struct ContractCase {
  const char* name;
  std::function<void(prim::Graph&, Builder&)> build;
  lower::Tuning tuning;
  bool channels_last = false;
  bool warpgroups = false;
};
const ContractCase kContractCases[] = {
    {"f32",
     [](auto& g, auto& b) {
       product(g, b, DType::f32, {1024, 768, 768}, false);
     },
     {}},
    {"f32_big",
     [](auto& g, auto& b) {
       product(g, b, DType::f32, {4096, 4096, 512}, true);
     },
     {}},
    {"f32_odd",
     [](auto& g, auto& b) {
       product(g, b, DType::f32, {130, 77, 45}, true);
     },
     {}},
    {"tf32",
     [](auto& g, auto& b) {
       product(g, b, DType::f32, {1024, 768, 768}, false);
     },
     {{"tf32", 1}}},
    {"f64",
     [](auto& g, auto& b) {
       product(g, b, DType::f64, {100, 64, 64}, false);
     },
     {}},
    {"bf16",
     [](auto& g, auto& b) {
       product(g, b, DType::bf16, {1024, 768, 768}, true);
     },
     {}},
    {"bf16_big",
     [](auto& g, auto& b) {
       product(g, b, DType::bf16, {4096, 4096, 512}, false);
     },
     {}},
    {"bf16_odd",
     [](auto& g, auto& b) {
       product(g, b, DType::bf16, {130, 77, 45}, false);
     },
     {}},
    {"f16",
     [](auto& g, auto& b) {
       product(g, b, DType::f16, {128, 768, 3072}, true);
     },
     {}},
    {"conv_f32",
     [](auto& g, auto& b) {
       convolution(g, b, DType::f32, {1, 64, 56, 56}, {64, 64, 3, 3}, 1, 1);
     },
     {}},
    {"conv_bf16",
     [](auto& g, auto& b) {
       convolution(g, b, DType::bf16, {16, 64, 56, 56}, {64, 64, 3, 3}, 1, 1);
     },
     {},
     true},
    {"conv_stem",
     [](auto& g, auto& b) {
       convolution(g, b, DType::bf16, {16, 3, 224, 224}, {64, 3, 7, 7}, 2, 3);
     },
     {},
     true},
    {"split",
     [](auto& g, auto& b) {
       product(g, b, DType::bf16, {128, 256, 8192}, true);
     },
     {}},
    {"stream",
     [](auto& g, auto& b) {
       product(g, b, DType::bf16, {1, 4096, 4096}, true);
     },
     {}},
    {"stream_8",
     [](auto& g, auto& b) {
       product(g, b, DType::f32, {8, 1024, 4096}, false);
     },
     {}},
    {"sums_f32",
     [](auto& g, auto& b) {
       gradients(g, b, DType::f32, {4096, 768, 768});
     },
     {}},
    {"sums_bf16",
     [](auto& g, auto& b) {
       gradients(g, b, DType::bf16, {4095, 768, 768});
     },
     {}},
    {"sums_stream",
     [](auto& g, auto& b) {
       gradients(g, b, DType::bf16, {5, 768, 768});
     },
     {}},
    {"sums_split",
     [](auto& g, auto& b) {
       gradients(g, b, DType::bf16, {256, 128, 8192});
     },
     {}},
    {"sums_groups",
     [](auto& g, auto& b) {
       gradients(g, b, DType::bf16, {4096, 768, 768});
     },
     {{"unit", 2}, {"bm", 128}, {"bn", 128}},
     false,
     true},
    {"sums_tiles",
     [](auto& g, auto& b) {
       gradients(g, b, DType::bf16, {4096, 768, 768});
     },
     {{"unit", 3}, {"bm", 128}, {"bn", 256}},
     false,
     true},
    {"groups_256",
     [](auto& g, auto& b) {
       product(g, b, DType::bf16, {4096, 4096, 512}, true);
     },
     {{"unit", 2}, {"bm", 128}, {"bn", 256}},
     false,
     true},
    {"groups_128",
     [](auto& g, auto& b) {
       product(g, b, DType::f16, {1000, 768, 776}, true);
     },
     {{"unit", 2}, {"bm", 128}, {"bn", 128}},
     false,
     true},
    {"tiles_256",
     [](auto& g, auto& b) {
       product(g, b, DType::bf16, {4096, 4096, 512}, true);
     },
     {{"unit", 3}, {"bm", 128}, {"bn", 256}},
     false,
     true},
    {"tiles_128",
     [](auto& g, auto& b) {
       product(g, b, DType::f16, {1000, 776, 776}, true);
     },
     {{"unit", 3}, {"bm", 128}, {"bn", 128}},
     false,
     true},
    {"tiles_64",
     [](auto& g, auto& b) {
       product(g, b, DType::f16, {1001, 771, 776}, true);
     },
     {{"unit", 3}, {"bm", 64}, {"bn", 64}},
     false,
     true},
    {"tiles_split",
     [](auto& g, auto& b) {
       product(g, b, DType::bf16, {512, 512, 8192}, true);
     },
     {{"unit", 3}, {"bm", 128}, {"bn", 128}, {"splits", 4}},
     false,
     true},
    {"groups_conv",
     [](auto& g, auto& b) {
       convolution(g, b, DType::bf16, {16, 64, 56, 56}, {64, 64, 3, 3}, 1, 1);
     },
     {},
     true,
     true},
};

class CudaContractions : public testing::TestWithParam<std::string> {};

TEST_P(CudaContractions, CompileWithoutSpills) {
  ASSERT_FALSE(codegen::cuda::find_library("nvrtc", "").empty())
      << "no NVRTC: scripts/venv.sh installs it, tests run in the project's root";
  std::string text = codegen::cuda::unit_header();
  std::size_t phases = 0;
  for (const ContractCase& c : kContractCases) {
    if (c.warpgroups && GetParam() != "sm_90a") continue;
    prim::Graph g;
    Builder b(g);
    c.build(g, b);
    const auto layout = [&](NodeId id) {
      const Shape& shape = g[id].type.shape;
      const bool last = c.channels_last && shape.size() == 4 && !g.constant_of(id);
      return last ? lower::ordered(shape, {0, 2, 3, 1}) : lower::row_major(shape);
    };
    lower::Request request;
    request.graph = &g;
    request.cluster = lower::whole(g);
    request.target = lower::gpu_target(132, GetParam() == "sm_80" ? 80 : 90);
    request.layout_of = layout;
    request.required_layout = [&](NodeId id) { return std::optional(layout(id)); };
    request.tuning = c.tuning;
    if (!c.warpgroups) request.tuning.emplace_back("unit", 1);
    const auto lowered = lower::contract::lower(request);
    ASSERT_TRUE(lowered.ok()) << c.name << ": " << lowered.error().message;
    const auto one = codegen::cuda::to_text(lowered->kernel, c.name);
    ASSERT_TRUE(one.ok()) << c.name << ": " << one.error().message;
    text += one->text;
    phases += one->phases.size();
  }
  codegen::cuda::CompileOptions options;
  options.arch = GetParam();
  const auto cubin = codegen::cuda::compile(text, options);
  ASSERT_TRUE(cubin.ok()) << cubin.error().message.substr(0, 4000);
  EXPECT_EQ(cubin->functions.size(), phases);
  for (const auto& f : cubin->functions) {
    EXPECT_EQ(f.spill_bytes, 0) << f.symbol;
    EXPECT_EQ(f.stack_bytes, 0) << f.symbol;
  }
  // Such as products of warpgroups that wait for each other.
  for (const std::string& note : cubin->notes) ADD_FAILURE() << note;
}

INSTANTIATE_TEST_SUITE_P(Architectures, CudaContractions, testing::Values("sm_80", "sm_90a"));

}  // namespace
}  // namespace heddle::driver
