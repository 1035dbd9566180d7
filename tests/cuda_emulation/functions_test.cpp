// Every scalar function, of every type that it takes, as CUDA: NVRTC compiles it and the emulation
// agrees with the reference.
#include "codegen/cuda/nvrtc.h"
#include "cuda_emulation/run.h"
#include "ir/scalar.h"
#include "lower/stitch/test_util.h"
#include "prim/types.h"

namespace heddle {
namespace {

using ir::ScalarFn;
using prim::NodeId;

constexpr DType kTypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i8,
                            DType::i16, DType::i32, DType::i64, DType::u8,   DType::u16,
                            DType::u32, DType::u64, DType::b1};
const Shape kShape = {3, 37};

/// All functions of one type: one kernel with many outputs.
class Functions {
 public:
  explicit Functions(DType type) : type_(type), b_(graph_) {
    for (int i = 0; i < 2; ++i)
      args_.push_back(graph_.add_input(fmt::format("x{}", i), {type, kShape}));
    for (int i = 0; i < ir::kScalarFnCount; ++i) add(static_cast<ScalarFn>(i));
  }
  Result<lower::Prepared> prepared() {
    std::mt19937 rng(static_cast<unsigned>(type_) + 5);
    lower::CheckOptions how;
    how.target = lower::gpu_target(4);
    return lower::prepare(graph_, rng, how);
  }
  const prim::Graph& graph() const { return graph_; }
  std::set<ScalarFn> made;

 private:
  void output(ScalarFn fn, NodeId id) {
    made.insert(fn);
    graph_.outputs.push_back({fmt::format("{}{}", ir::info(fn).name, graph_.outputs.size()), id});
  }
  void add(ScalarFn fn) {
    if (fn == ScalarFn::cast || fn == ScalarFn::bitcast) return convert(fn);
    std::vector<DType> types;
    for (int i = 0; i < ir::info(fn).arity; ++i) types.push_back(type_);
    if (fn == ScalarFn::select) types[0] = DType::b1;
    if (!prim::result_type(fn, types)) return;
    std::vector<NodeId> args(args_.begin(), args_.begin() + std::min(2, ir::info(fn).arity));
    if (fn == ScalarFn::select)
      args = {b_.map(ScalarFn::less, {args_[0], args_[1]}), args_[1], args_[0]};
    output(fn, b_.map(fn, args));
  }
  /// Numbers beyond what the narrow types hold, too.
  void convert(ScalarFn fn) {
    for (const DType to : kTypes) {
      if (to == type_) continue;
      if (fn == ScalarFn::bitcast) {
        if (ir::can_bitcast(type_, to)) output(fn, b_.bitcast(args_[0], to));
        continue;
      }
      output(fn, b_.cast(args_[0], to));
      const bool wide = type_ == DType::f32 || type_ == DType::f64;
      if (type_ != DType::b1)
        output(fn, b_.cast(b_.mul(args_[0], wide ? std::ldexp(1.0, 40) : 128), to));
    }
  }

  DType type_;
  prim::Graph graph_;
  prim::Builder b_;
  std::vector<NodeId> args_;
};

struct Row {
  std::unique_ptr<Functions> functions;
  lower::Prepared prepared;
  codegen::cuda::KernelText text;
};

const std::vector<Row>& rows() {
  static const std::vector<Row> all = [] {
    std::vector<Row> out;
    for (const DType type : kTypes) {
      Row row{std::make_unique<Functions>(type), {}, {}};
      auto prepared = row.functions->prepared();
      EXPECT_TRUE(prepared.ok()) << (prepared.ok() ? "" : prepared.error().message);
      if (!prepared.ok()) continue;
      row.prepared = *std::move(prepared);
      auto text =
          codegen::cuda::to_text(row.prepared.lowered.kernel, fmt::format("of_{}", name_of(type)));
      EXPECT_TRUE(text.ok()) << (text.ok() ? "" : text.error().message);
      if (!text.ok()) continue;
      row.text = *std::move(text);
      out.push_back(std::move(row));
    }
    return out;
  }();
  return all;
}

std::string unit() {
  std::string text = codegen::cuda::unit_header();
  for (const Row& row : rows()) text += row.text.text;
  return text;
}

/// What the compiler refuses, without its warnings.
std::string errors_in(const std::string& log) {
  std::istringstream lines(log);
  std::string out;
  for (std::string line; std::getline(lines, line);)
    if (line.find("error") != std::string::npos) out += line + "\n";
  return out.substr(0, 4000);
}

TEST(ScalarFunctions, AllAreWritten) {
  std::set<ScalarFn> made;
  for (const Row& row : rows()) made.insert(row.functions->made.begin(), row.functions->made.end());
  for (int i = 0; i < ir::kScalarFnCount; ++i)
    EXPECT_TRUE(made.contains(static_cast<ScalarFn>(i)))
        << ir::info(static_cast<ScalarFn>(i)).name << " is in no kernel";
}

TEST(ScalarFunctions, CompileForEveryArchitecture) {
  for (const char* arch : {"sm_80", "sm_90a"}) {
    codegen::cuda::CompileOptions options;
    options.arch = arch;
    const auto cubin = codegen::cuda::compile(unit(), options);
    ASSERT_TRUE(cubin.ok()) << errors_in(cubin.error().message);
    // The assembler also tells of device functions that it keeps apart (trigonometric reductions).
    const auto kernels = std::ranges::count_if(
        cubin->functions, [](const auto& f) { return f.symbol.starts_with("of_"); });
    EXPECT_EQ(kernels, std::ssize(rows()));
  }
}

TEST(ScalarFunctions, AgreeWithTheReference) {
  std::vector<emulation::Module> modules;
  ASSERT_EQ(compile_all({unit()}, {}, modules), "");
  for (const Row& row : rows()) {
    const auto got = emulate(modules[0], row.text, row.prepared.bytes, emulation::Order::forward);
    ASSERT_TRUE(got.ok()) << got.error().message;
    EXPECT_EQ(lower::wrong_output(row.functions->graph(), row.prepared, *got), "") << row.text.text;
  }
}

}  // namespace
}  // namespace heddle
