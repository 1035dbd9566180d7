// Products as units of templates. With the stand-ins for the driver and nvcc their text runs on the
// CPU, against the interpreter; where nvcc and CUTLASS are there, the same text is compiled by
// them.
#include <filesystem>
#include <fstream>
#include <list>

#include "codegen/cuda/tree_text.h"
#include "runtime/cuda/unit.h"
#include "single_product.h"

namespace heddle::driver {
namespace {

CompileOptions stand_in() {
  CompileOptions options;
  options.device = "cuda";
  options.budget = "full";
  options.options.cuda_driver = options.options.nvrtc = FAKE_CUDA;
  options.options.cublaslt = "/nonexistent/libcublasLt.so";
  options.options.nvcc = FAKE_NVCC;
  options.options.cutlass = FAKE_CUTLASS;
  return options;
}

void set_fake(const char* text) {
  static const auto set = reinterpret_cast<void (*)(const char*)>(
      ::dlsym(::dlopen(FAKE_CUDA, RTLD_NOW | RTLD_LOCAL), "heddle_fake_set"));
  set(text);  // calls are counted anew
}

struct Case {
  std::string name;
  Model m;
  int matrices = 0;  ///< of the product
  const char* leaf = "";
};

constexpr std::int64_t kM = 136, kN = 72, kK = 40;

NodeId row(Model& m, DType type, Shape to) { return m.b.broadcast(m.in({to.back()}, type), to); }

NodeId gelu(Model& m, NodeId x) {
  const Shape shape = m.g[x].type.shape;
  const auto number = [&](double v) {
    return m.b.broadcast(m.b.scalar(m.g[x].type.dtype, v), shape);
  };
  const NodeId erf = m.b.erf(m.b.mul(x, number(0.70710678)));
  return m.b.mul(m.b.mul(x, number(0.5)), m.b.add(erf, number(1)));
}
NodeId silu(Model& m, NodeId x) {
  const NodeId one = m.b.broadcast(m.b.scalar(m.g[x].type.dtype, 1), m.g[x].type.shape);
  return m.b.div(x, m.b.add(one, m.b.exp(m.b.neg(x))));
}

/// Every kind of visitor. Those of bf16 are of one group: a unit of them compiles in a minute.
std::list<Case> cases() {
  std::list<Case> out;  // a model stays where it is
  const Shape shape{kM, kN};
  const auto add = [&](std::string name, int matrices, const char* leaf, auto make) {
    Case& c = out.emplace_back();
    c.name = std::move(name), c.matrices = matrices, c.leaf = leaf;
    for (NodeId y : make(c.m))
      c.m.g.outputs.push_back({fmt::format("y{}", c.m.g.outputs.size()), y});
  };
  using Made = std::vector<NodeId>;
  const auto product = [](Model& m, DType type) {
    return m.b.matmul(m.in({kM, kK}, type), m.in({kK, kN}, type));
  };
  add("plain, f16", 3, "hdu::Sum", [&](Model& m) { return Made{product(m, DType::f16)}; });
  add("bias along the columns and relu", 4, "hdu::Row<3, hdu::bf16>", [&](Model& m) {
    return Made{m.b.relu(m.b.add(product(m, DType::bf16), row(m, DType::bf16, shape)))};
  });
  add("bias along the rows, silu", 4, "hdu::Column<3, hdu::bf16>", [&](Model& m) {
    const NodeId bias = m.b.broadcast(m.in({kM, 1}, DType::bf16), shape);
    return Made{silu(m, m.b.add(product(m, DType::bf16), bias))};
  });
  add("residual, bias, gelu", 5, "hdu::Source<", [&](Model& m) {
    const NodeId biased = m.b.add(product(m, DType::bf16), row(m, DType::bf16, shape));
    return Made{m.b.add(gelu(m, biased), m.in(shape, DType::bf16))};
  });
  add("scale, two matrices, one transposed", 7, "hdu::Strided<", [&](Model& m) {
    const NodeId scale = m.b.broadcast(m.in({1}, DType::bf16), shape);
    NodeId y = m.b.mul(product(m, DType::bf16), scale);
    y = m.b.add(y, m.b.mul(m.in(shape, DType::bf16), m.in(shape, DType::bf16)));
    return Made{m.b.add(y, m.b.transpose(m.in({kN, kM}, DType::bf16), {1, 0}))};
  });
  add("batches, each with a bias", 4, "hdu::Row<3, hdu::f16>", [&](Model& m) {
    const NodeId x = m.b.transpose(m.in({2, kK, kM}, DType::f16), {0, 2, 1});
    const NodeId y = m.b.matmul(x, m.b.transpose(m.in({2, kN, kK}, DType::f16), {0, 2, 1}));
    return Made{m.b.add(y, m.b.broadcast(m.in({2, 1, kN}, DType::f16), {2, kM, kN}))};
  });
  add("two outputs", 5, "hdu::Store<3, hdu::bf16", [&](Model& m) {
    const NodeId y = m.b.add(product(m, DType::bf16), row(m, DType::bf16, shape));
    return Made{y, m.b.relu(y)};
  });
  return out;
}

std::vector<Tensor> random_inputs(const Model& m) {
  std::mt19937 random(3);
  std::vector<Tensor> inputs;
  for (const prim::GraphInput& in : m.g.inputs)
    inputs.push_back(lower::random_values(in.type, random));
  return inputs;
}

void expect_right(const Model& m, const Alone& alone, const Result<std::vector<Tensor>>& found,
                  const std::vector<Tensor>& inputs) {
  ASSERT_TRUE(found.ok()) << found.error().message;
  const auto wanted = prim::interpret(m.g, inputs);
  ASSERT_TRUE(wanted.ok());
  for (std::size_t o = 0; o < m.g.outputs.size(); ++o) {
    std::size_t at = 0;
    while (alone.single.outputs[at].node != m.g.outputs[o].node) ++at;
    for (std::int64_t i = 0; i < (*found)[at].count(); ++i) {
      const double want = (*wanted)[o].at(i);
      ASSERT_NEAR((*found)[at].at(i), want, 0.02 * std::abs(want) + 0.05)
          << "output " << o << ", " << i;
    }
  }
}

class Unit : public ::testing::Test {
 protected:
  void TearDown() override { set_fake(""); }
};

TEST_F(Unit, EpilogueTrees) {
  std::list<Case> all = cases();
  for (Case& c : all) {
    SCOPED_TRACE(c.name);
    const auto alone = compile_alone(c.m, stand_in(), {{"cutlass", 1}});
    ASSERT_TRUE(alone.ok()) << alone.error().message;
    ASSERT_TRUE(alone->kernel.lowered.tree.has_value());
    ASSERT_TRUE(alone->kernel.code.unit.has_value());
    EXPECT_TRUE(alone->kernel.lowered.schedule.starts_with("cutlass 128x256x64 cooperative, "));
    EXPECT_EQ(alone->kernel.code.unit->matrices.size(), static_cast<std::size_t>(c.matrices));
    const auto entry = codegen::cuda::tree_text(*alone->kernel.lowered.tree);
    EXPECT_NE(entry.text.find(c.leaf), std::string::npos) << entry.text;
    const std::vector<Tensor> inputs = random_inputs(c.m);
    const int before = calls("unit_launch");
    expect_right(c.m, *alone, run_alone(c.m, *alone, stand_in(), inputs, true), inputs);
    EXPECT_EQ(calls("unit_launch"), before + 2);  // a run and a capture
  }
}

/// The first case with a bias, as most tests need no other.
const Case& biased() {
  static const std::list<Case> all = cases();
  return *std::next(all.begin());
}

TEST_F(Unit, WithoutItOurKernelRuns) {
  const Case& c = biased();
  const std::vector<Tensor> inputs = random_inputs(c.m);
  CompileOptions options = stand_in();
  const auto runs_ours = [&](const Result<Alone>& alone) {
    ASSERT_TRUE(alone.ok()) << alone.error().message;
    const int before = calls("unit_launch");
    expect_right(c.m, *alone, run_alone(c.m, *alone, stand_in(), inputs), inputs);
    EXPECT_EQ(calls("unit_launch"), before);
  };
  auto good = compile_alone(c.m, options, {{"cutlass", 2}});
  ASSERT_TRUE(good.ok());
  const std::size_t object = static_cast<std::size_t>(good->kernel.code.unit->object);
  {
    SCOPED_TRACE("a unit that refuses the sizes");
    set_fake("fail=unit_create:1:1");
    runs_ours(good);
  }
  {
    SCOPED_TRACE("no unit in the object");
    auto bad = good;
    bad->single.program.objects[object] = "not an object";
    runs_ours(bad);
  }
  {
    SCOPED_TRACE("another interface");
    const std::string folder = ::testing::TempDir();
    std::ofstream(folder + "/other.cu")
        << "#include \"product_unit.h\"\n"
           "static const HeddleUnit unit = {7, 0, 0, 0, 0};\n"
           "extern \"C\" __attribute__((visibility(\"default\"))) const HeddleUnit* heddle_unit() "
           "{ return &unit; }\n";
    std::filesystem::copy_file(SOURCES "/support/product_unit.h", folder + "/product_unit.h",
                               std::filesystem::copy_options::overwrite_existing);
    ASSERT_EQ(
        std::system((FAKE_NVCC " -o " + folder + "/other.so " + folder + "/other.cu").c_str()), 0);
    auto other = good;
    std::ifstream file(folder + "/other.so", std::ios::binary);
    other->single.program.objects[object] = std::string(std::istreambuf_iterator<char>(file), {});
    runs_ours(other);
  }
  {
    SCOPED_TRACE("a compiler that fails");
    options.options.nvcc = "/bin/false";
    const auto none = compile_alone(c.m, options, {{"cutlass", 1}});
    ASSERT_TRUE(none.ok());
    EXPECT_FALSE(none->kernel.code.unit.has_value());
    EXPECT_FALSE(none->kernel.lowered.schedule.starts_with("cutlass"));
    runs_ours(none);
  }
}

TEST_F(Unit, FailuresAreErrors) {
  const Case& c = biased();
  const std::vector<Tensor> inputs = random_inputs(c.m);
  const auto alone = compile_alone(c.m, stand_in(), {{"cutlass", 1}});
  ASSERT_TRUE(alone.ok());
  for (const char* name : {"unit_create", "unit_launch"})
    for (int which = 1; which <= (name == std::string("unit_launch") ? 2 : 1); ++which) {
      set_fake(fmt::format("fail={}:{}:2", name, which).c_str());
      const auto found = run_alone(c.m, *alone, stand_in(), inputs);
      ASSERT_FALSE(found.ok()) << name << which;
      EXPECT_NE(found.error().message.find("injected"), std::string::npos);
    }
  auto nameless = *alone;
  nameless.single.program.launches[0].unit->name = "p0";
  const auto found = run_alone(c.m, nameless, stand_in(), inputs);
  ASSERT_FALSE(found.ok());
  EXPECT_NE(found.error().message.find("no product p0"), std::string::npos);
}

TEST_F(Unit, WhatHasNone) {
  const auto platform = platform_for(stand_in());
  ASSERT_TRUE(platform.ok() && platform->target().cutlass);
  const auto offered = [&](Model& m, NodeId y) {
    m.g.outputs.push_back({"y", y});
    int count = 0;
    for (const lower::Tuning& t : lower::tuning_space(request_of(m, *platform, {})))
      count += t.back().first == "cutlass" ? 1 : 0;
    return count;
  };
  const auto product = [](Model& m, Shape a, Shape b, DType type) {
    return m.b.matmul(m.in(std::move(a), type), m.in(std::move(b), type));
  };
  Model good, small, ragged, single, gathered;
  EXPECT_EQ(offered(good, product(good, {128, 64}, {64, 64}, DType::f16)), 2);
  EXPECT_EQ(offered(small, product(small, {64, 64}, {64, 64}, DType::f16)), 0);
  EXPECT_EQ(offered(ragged, product(ragged, {128, 60}, {60, 64}, DType::f16)), 0);
  EXPECT_EQ(offered(single, product(single, {128, 64}, {64, 64}, DType::f32)), 0);
  CompileOptions hasty = stand_in();
  hasty.budget = "20";
  const auto without = platform_for(hasty);
  ASSERT_TRUE(without.ok());
  EXPECT_FALSE(without->target().cutlass);
  EXPECT_NE(without->machine_name(), platform->machine_name());
}

/// Products of one group share a unit, which is compiled once and kept.
TEST_F(Unit, GroupsAndCache) {
  const std::string cache = ::testing::TempDir() + "/units-cache";
  std::filesystem::remove_all(cache);
  codegen::cuda::UnitOptions options{{FAKE_NVCC, FAKE_CUTLASS, "0.0.1"}, "sm_90a", cache, {}, {}};
  int compiled = 0;
  options.progress = [&](int, int) { ++compiled; };
  const auto platform = platform_for(stand_in());
  ASSERT_TRUE(platform.ok());
  std::vector<codegen::cuda::UnitEntry> entries;
  std::set<std::string> groups;
  std::list<Case> all = cases();
  for (Case& c : all) {
    const auto lowered = lower::lower(request_of(c.m, *platform, {{"cutlass", 2}}));
    ASSERT_TRUE(lowered.ok() && lowered->tree);
    entries.push_back(codegen::cuda::tree_text(*lowered->tree));
    groups.insert(entries.back().group);
  }
  EXPECT_LT(groups.size(), entries.size());
  const auto units = codegen::cuda::compile_units(entries, options);
  EXPECT_EQ(units.size(), entries.size());
  EXPECT_EQ(compiled, static_cast<int>(groups.size()));
  EXPECT_EQ(codegen::cuda::compile_units(entries, options), units);
  EXPECT_EQ(compiled, static_cast<int>(groups.size()));
  int sound = 0;
  for (const auto& file : std::filesystem::directory_iterator(cache + "/units"))
    if (file.path().extension() == ".unit") {
      sound += codegen::cuda::cached_unit_is_sound(file.path().string()) ? 1 : 0;
      std::ofstream(file.path(), std::ios::app) << "x";
      EXPECT_FALSE(codegen::cuda::cached_unit_is_sound(file.path().string()));
    }
  EXPECT_EQ(sound, static_cast<int>(groups.size()));
}

TEST_F(Unit, ChosenByMeasurement) {
  for (const bool slow : {false, true}) {
    SCOPED_TRACE(slow);
    set_fake(slow ? "unit_ms=150" : "");
    const Case& c = biased();
    CompileOptions options = stand_in();
    options.threads = 1;
    const auto compiled = compile(c.m.g, options);
    ASSERT_TRUE(compiled.ok()) << compiled.error().message;
    bool chosen = false;
    for (const CompiledKernel& k : compiled->kernels) chosen |= k.code.unit.has_value();
    EXPECT_EQ(chosen, !slow);
  }
}

/// The same text by nvcc with CUTLASS's headers, and what can be asked of it without a GPU.
/// HEDDLE_ALL_UNITS: other layouts, types and tiles as well.
TEST_F(Unit, CompilesWithCutlass) {
  const auto tools = codegen::cuda::find_unit_tools("", "");
  ASSERT_TRUE(tools.ok()) << tools.error().message << "; scripts/cutlass.sh installs them";
  const auto platform = platform_for(stand_in());
  ASSERT_TRUE(platform.ok());
  const bool all_units = std::getenv("HEDDLE_ALL_UNITS") != nullptr;
  std::list<Case> all = cases();
  std::vector<codegen::cuda::UnitEntry> entries;
  for (int tile = 1; tile <= (all_units ? 2 : 1); ++tile)
    for (Case& c : all) {
      if (c.m.g.inputs[0].type.dtype != DType::bf16 && !all_units) continue;
      const auto lowered = lower::lower(request_of(c.m, *platform, {{"cutlass", tile}}));
      ASSERT_TRUE(lowered.ok() && lowered->tree);
      entries.push_back(codegen::cuda::tree_text(*lowered->tree));
    }
  codegen::cuda::UnitOptions options{*tools, "sm_90a", "", {}, {}};
  std::size_t functions = 0;
  options.compiled = [&](const std::string& log) {
    // Serialised products of warpgroups, and registers in memory, would be slow.
    EXPECT_EQ(log.find("(C75"), std::string::npos) << log;
    for (const codegen::cuda::FunctionInfo& f : codegen::cuda::functions_from_log(log)) {
      EXPECT_EQ(f.spill_bytes, 0) << log;
      ++functions;
    }
  };
  const auto units = codegen::cuda::compile_units(entries, options);
  EXPECT_EQ(functions, entries.size());
  for (const auto& [name, object] : units) EXPECT_LT(object->size(), std::size_t{4} << 20);
  ASSERT_EQ(units.size(), entries.size());
  for (const auto& [name, object] : units) {
    const auto unit = runtime::cuda::load_unit(*object);
    ASSERT_TRUE(unit.ok()) << unit.error().message;
    HeddleProduct nothing{};
    void* made = nullptr;
    std::size_t workspace = 0;
    EXPECT_EQ((*unit)->create("p0", &nothing, &made, &workspace), HEDDLE_UNIT_FAILED);
    EXPECT_NE(std::string((*unit)->message()).find("no product p0"), std::string::npos);
  }
}

}  // namespace
}  // namespace heddle::driver
