// Products by cuBLASLt, through a stand-in for the driver, NVRTC and cuBLASLt on the CPU.
#include "single_product.h"

namespace heddle::driver {
namespace {

CompileOptions stand_in() {
  CompileOptions options;
  options.device = "cuda";
  options.options.cuda_driver = options.options.nvrtc = options.options.cublaslt = FAKE_CUDA;
  return options;
}

/// The cluster as one kernel with the tuning "library", run by itself.
Result<Tensor> run_alone(const Model& m, const CompileOptions& options,
                         const std::vector<Tensor>& inputs, bool through_file = false) {
  const Alone alone = HEDDLE_TRY(compile_alone(m, options, {{"library", 1}}));
  if (!alone.kernel.lowered.library) return fail("no product of a library");
  return (HEDDLE_TRY(run_alone(m, alone, options, inputs, through_file)))[0];
}

void check(Model& m, NodeId y, const char* what, bool through_file = false) {
  SCOPED_TRACE(what);
  m.g.outputs.push_back({"y", y});
  std::mt19937 random(3);
  std::vector<Tensor> inputs;
  for (const prim::GraphInput& in : m.g.inputs)
    inputs.push_back(lower::random_values(in.type, random));
  const auto wanted = prim::interpret(m.g, inputs);
  ASSERT_TRUE(wanted.ok());
  const int before = calls("cublasLtMatmul");
  const auto found = run_alone(m, stand_in(), inputs, through_file);
  ASSERT_TRUE(found.ok()) << found.error().message;
  EXPECT_GT(calls("cublasLtMatmul"), before);
  const double tolerance = m.g[y].type.dtype == DType::f32 ? 1e-4 : 0.15;
  for (std::int64_t i = 0; i < found->count(); ++i)
    ASSERT_NEAR(found->at(i), (*wanted)[0].at(i), tolerance) << i;
  // Without the library, kernels of our own.
  CompileOptions without = stand_in();
  without.options.cublaslt = "/nonexistent/libcublasLt.so";
  const int unchanged = calls("cublasLtMatmul");
  const auto own = run_alone(m, without, inputs);
  ASSERT_TRUE(own.ok()) << own.error().message;
  EXPECT_EQ(calls("cublasLtMatmul"), unchanged);
  for (std::int64_t i = 0; i < own->count(); ++i)
    ASSERT_NEAR(own->at(i), (*wanted)[0].at(i), tolerance) << i;
}

TEST(Library, MatricesEitherWay) {
  for (DType type : {DType::f32, DType::bf16, DType::f16})
    for (int which = 0; which < 4; ++which) {
      Model m;
      const bool tx = which & 1, tw = which & 2;
      NodeId x = m.in(tx ? Shape{21, 13} : Shape{13, 21}, type);
      NodeId w = m.in(tw ? Shape{34, 21} : Shape{21, 34}, type);
      if (tx) x = m.b.transpose(x, {1, 0});
      if (tw) w = m.b.transpose(w, {1, 0});
      check(m, m.b.matmul(x, w), fmt::format("{} {}", name_of(type), which).c_str(), which == 1);
    }
}

TEST(Library, FixedEpilogues) {
  for (int which = 1; which < 4; ++which) {
    Model m;
    NodeId y = m.b.matmul(m.in({9, 20}, DType::f32), m.in({20, 11}, DType::f32));
    if (which & 1) y = m.b.add(y, m.b.broadcast(m.in({11}, DType::f32), {9, 11}));
    if (which & 2) y = m.b.relu(y);
    check(m, y, fmt::format("{}", which).c_str());
  }
}

TEST(Library, Batches) {
  Model m;
  check(m, m.b.matmul(m.in({3, 9, 20}, DType::f32), m.in({3, 20, 11}, DType::f32)), "batches");
  Model heads;  // heads lie between rows and columns
  const NodeId q = heads.b.transpose(heads.in({9, 3, 16}, DType::f32), {1, 0, 2});
  const NodeId k = heads.b.transpose(heads.in({10, 3, 16}, DType::f32), {1, 2, 0});
  check(heads, heads.b.matmul(q, k), "heads");
}

TEST(Library, WhatItCannotDo) {
  const auto platform = platform_for(stand_in());
  ASSERT_TRUE(platform.ok());
  ASSERT_TRUE(platform->target().library);
  const auto has = [&](Model& m, NodeId y) {
    m.g.outputs.push_back({"y", y});
    const auto lowered = lower::lower(request_of(m, *platform, {{"library", 1}}));
    EXPECT_TRUE(lowered.ok());
    const auto space = lower::tuning_space(request_of(m, *platform, {}));
    const bool offered = std::ranges::any_of(
        space, [](const lower::Tuning& t) { return t.back().first == "library"; });
    EXPECT_EQ(offered, lowered->library.has_value());
    return offered;
  };
  const auto product = [](Model& m, DType type) {
    return m.b.matmul(m.in({32, 40}, type), m.in({40, 48}, type));
  };
  Model plain, erf, rows, exact, image;
  EXPECT_TRUE(has(plain, product(plain, DType::f32)));
  EXPECT_FALSE(has(erf, erf.b.erf(product(erf, DType::f32))));
  EXPECT_FALSE(has(exact, product(exact, DType::f64)));
  const NodeId bias = rows.b.broadcast(rows.in({32, 1}, DType::f32), {32, 48});
  EXPECT_FALSE(has(rows, rows.b.add(product(rows, DType::f32), bias)));
  prim::Builder::Conv conv;
  conv.strides = conv.dilations = {1, 1};
  conv.pads_begin = conv.pads_end = {1, 1};
  const NodeId x = image.in({1, 16, 12, 12}, DType::f32);
  EXPECT_FALSE(has(image, image.b.conv(x, image.in({32, 16, 3, 3}, DType::f32), conv)));
}

/// Each call of NVRTC and cuBLASLt fails in turn: an error that names it, or the right result
/// without it, and nothing is left behind.
TEST(Library, SurvivesAFailureOfEachCall) {
  const auto handle = ::dlopen(FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
  const auto set = reinterpret_cast<void (*)(const char*)>(::dlsym(handle, "heddle_fake_set"));
  const auto live = reinterpret_cast<int (*)()>(::dlsym(handle, "heddle_fake_live"));
  Model m;
  const NodeId product = m.b.matmul(m.in({9, 20}, DType::f32), m.in({20, 11}, DType::f32));
  const NodeId y = m.b.add(product, m.b.broadcast(m.in({11}, DType::f32), {9, 11}));
  m.g.outputs.push_back({"y", y});
  std::mt19937 random(4);
  std::vector<Tensor> inputs;
  for (const prim::GraphInput& in : m.g.inputs)
    inputs.push_back(lower::random_values(in.type, random));
  const auto wanted = prim::interpret(m.g, inputs);
  ASSERT_TRUE(wanted.ok());
  for (const char* call :
       {"nvrtcCreateProgram", "nvrtcCompileProgram", "nvrtcGetProgramLogSize", "nvrtcGetProgramLog",
        "nvrtcGetCUBINSize", "nvrtcGetCUBIN", "cublasLtCreate", "cublasLtMatmulDescCreate",
        "cublasLtMatmulDescSetAttribute", "cublasLtMatrixLayoutCreate",
        "cublasLtMatrixLayoutSetAttribute", "cublasLtMatmulPreferenceCreate",
        "cublasLtMatmulPreferenceSetAttribute", "cublasLtMatmulAlgoGetHeuristic",
        "cublasLtMatmul"}) {
    const bool compiler = std::string_view(call).starts_with("nvrtc");
    bool injected = true;
    for (int number = 1; injected && number < 60; ++number) {
      const std::string cache = ::testing::TempDir() + "/heddle-emulated";
      set(fmt::format("cache={},fail={}:{}:7", cache, call, number).c_str());
      const auto found = run_alone(m, stand_in(), inputs);
      injected = calls(call) >= number;
      EXPECT_TRUE(injected || number > 1) << call << " is never called";
      EXPECT_EQ(live(), 0) << call;
      if (!found) {
        EXPECT_TRUE(injected) << call << ": " << found.error().message;
        EXPECT_EQ(found.error().message.find(compiler ? "NVRTC: " : "cuBLASLt: "), 0u)
            << call << ": " << found.error().message;
        continue;
      }
      for (std::int64_t i = 0; i < found->count(); ++i)
        ASSERT_NEAR(found->at(i), (*wanted)[0].at(i), 1e-4) << call << " " << i;
    }
    EXPECT_FALSE(injected) << call << " is called without end";
  }
  set("");
}

}  // namespace
}  // namespace heddle::driver
