// Kernels that the GPU lowering writes are CUDA that NVRTC compiles, without spills.
#include "codegen/cuda/cuda.h"
#include "codegen/cuda/nvrtc.h"
#include "driver/test_util.h"
#include "lower/stitch/test_util.h"

namespace heddle::driver {
namespace {

using ir::Monoid;
using ir::ScalarFn;
using lower::NodeId;
using prim::Builder;

void out(prim::Graph& g, NodeId id) {
  g.outputs.push_back({fmt::format("y{}", g.outputs.size()), id});
}

struct Case {
  const char* name;
  void (*build)(prim::Graph&, Builder&);
};
const Case kCases[] = {
    {"softmax",
     [](auto& g, auto& b) {
       out(g, b.softmax(in(g, {4096, 1024}), {1}));
     }},
    {"softmax_cluster",
     [](auto& g, auto& b) {
       out(g, b.softmax(in(g, {8, 50257}), {1}));
     }},
    {"softmax_odd",
     [](auto& g, auto& b) {
       out(g, b.softmax(in(g, {5, 37}), {1}));
     }},
    {"softmax_mid",
     [](auto& g, auto& b) {
       out(g, b.softmax(in(g, {2, 512, 3, 19}), {1}));
     }},
    {"norm_bf16",
     [](auto& g, auto& b) {
       auto n = b.normalize(in(g, {2048, 768}, DType::bf16), {1}, 1e-5);
       out(g, b.add(b.mul(n, in(g, {768}, DType::bf16)), in(g, {768}, DType::bf16)));
     }},
    {"gelu",
     [](auto& g, auto& b) {
       auto x = in(g, {1024, 4096});
       out(g, b.mul(b.mul(x, 0.5), b.add(b.erf(b.mul(x, 0.70710678)), 1)));
     }},
    {"batchnorm",
     [](auto& g, auto& b) {
       out(g, b.normalize(in(g, {16, 64, 56, 56}), {0, 2, 3}, 1e-5));
     }},
    {"sumall",
     [](auto& g, auto& b) {
       out(g, b.reduce_sum(in(g, {1024, 1024}), {0, 1}));
     }},
    {"colsum",
     [](auto& g, auto& b) {
       out(g, b.reduce_sum(in(g, {4096, 512}), {0}));
     }},
    {"pad",
     [](auto& g, auto& b) {
       out(g, b.pad(in(g, {4, 33}), {1, 2}, {1, 1}, 0));
     }},
    {"take",
     [](auto& g, auto& b) {
       out(g, b.take(in(g, {100, 64}), in(g, {7}, DType::i64), 0));
     }},
    {"scan",
     [](auto& g, auto& b) {
       out(g, b.scan(Monoid::sum, b.mul(in(g, {5, 17}), 2), 1, false, false));
     }},
    {"argmax",
     [](auto& g, auto& b) {
       out(g, b.reduce(Monoid::argmax, in(g, {5, 1000}), {1}, false));
     }},
    {"logic",
     [](auto& g, auto& b) {
       out(g, b.map(ScalarFn::logical_and, {in(g, {5, 33}, DType::b1), in(g, {5, 33}, DType::b1)}));
     }},
    {"cast",
     [](auto& g, auto& b) {
       out(g, b.cast(b.mul(in(g, {3, 31}), 10), DType::i8));
     }},
    {"f64",
     [](auto& g, auto& b) {
       out(g, b.softmax(in(g, {3, 190}, DType::f64), {1}));
     }},
    {"half",
     [](auto& g, auto& b) {
       out(g, b.softmax(in(g, {400, 512}, DType::f16), {1}));
     }},
};

class CudaKernels : public testing::TestWithParam<std::string> {};

TEST_P(CudaKernels, CompileWithoutSpills) {
  ASSERT_FALSE(codegen::cuda::find_library("nvrtc", "").empty())
      << "no NVRTC: scripts/venv.sh installs it, tests run in the project's root";
  std::string text = codegen::cuda::unit_header();
  std::size_t phases = 0;
  for (const Case& c : kCases) {
    prim::Graph g;
    Builder b(g);
    c.build(g, b);
    const lower::Request request{&g,
                                 lower::whole(g),
                                 lower::gpu_target(132, GetParam() == "sm_80" ? 80 : 90),
                                 [&](NodeId id) { return lower::row_major(g[id].type.shape); },
                                 {},
                                 {}};
    const auto lowered = lower::stitch::lower(request);
    ASSERT_TRUE(lowered.ok()) << c.name << ": " << lowered.error().message;
    const bool cluster = lowered->schedule.find("cluster=") != std::string::npos;
    const bool wanted = c.name == std::string("softmax_cluster");
    EXPECT_TRUE(cluster ? GetParam() == "sm_90a" : !wanted || GetParam() == "sm_80")
        << c.name << ": " << lowered->schedule;
    const auto one = codegen::cuda::to_text(lowered->kernel, c.name);
    ASSERT_TRUE(one.ok()) << c.name << ": " << one.error().message;
    ASSERT_EQ(one->origins.size(), std::count(one->text.begin(), one->text.end(), '\n')) << c.name;
    text += one->text;
    phases += one->phases.size();
  }
  codegen::cuda::CompileOptions options;
  options.arch = GetParam();
  const auto cubin = codegen::cuda::compile(text, options);
  ASSERT_TRUE(cubin.ok()) << cubin.error().message.substr(0, 4000);
  EXPECT_EQ(cubin->functions.size(), phases);
  // Blocks of 1024 threads have 64 registers each; the driver lowers such kernels again.
  for (const auto& f : cubin->functions)
    EXPECT_LE(f.spill_bytes, f.symbol == "softmax_cluster_0" ? 8 : 0) << f.symbol;
}

/// Lines of generated text lead to the primitives that they compute.
TEST(CudaText, LinesHaveOrigins) {
  prim::Graph g;
  Builder b(g);
  const NodeId x = in(g, {64, 128});
  const NodeId e = b.exp(x), sum = b.reduce_sum(e, {1});
  out(g, b.mul(b.tanh(x), sum));
  const lower::Request request{&g, lower::whole(g), lower::gpu_target(132), {}, {}, {}};
  const auto lowered = lower::stitch::lower(request);
  ASSERT_TRUE(lowered.ok()) << lowered.error().message;
  const auto text = codegen::cuda::to_text(lowered->kernel, "k");
  ASSERT_TRUE(text.ok()) << text.error().message;
  std::istringstream lines(text->text);
  std::string line;
  std::map<std::string, std::set<std::int32_t>> found;
  for (std::size_t i = 0; std::getline(lines, line); ++i) {
    ASSERT_LT(i, text->origins.size());
    for (const char* name : {"hd::exp(", "hd::tanh(", "hd::add(", "hd::mul("})
      if (line.find(name) != std::string::npos) found[name].insert(text->origins[i]);
  }
  EXPECT_EQ(found["hd::exp("], std::set{e.value}) << text->text;
  EXPECT_EQ(found["hd::tanh("], std::set{g[g.outputs[0].node].args[0].value}) << text->text;
  EXPECT_EQ(found["hd::mul("], std::set{g.outputs[0].node.value}) << text->text;
  EXPECT_TRUE(found["hd::add("].contains(sum.value) ||
              found["hd::add("].contains(g[sum].args[0].value));
}

INSTANTIATE_TEST_SUITE_P(Architectures, CudaKernels, testing::Values("sm_80", "sm_90a"));

}  // namespace
}  // namespace heddle::driver
