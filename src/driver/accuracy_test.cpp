// What --accuracy promises, measured on whole programs against the float64 interpreter.
#include <gtest/gtest.h>

#include <cmath>

#include "codegen/cpu/cpu.h"
#include "driver/driver.h"
#include "lower/contract/test_util.h"
#include "prim/builder.h"
#include "prim/interpret.h"

namespace heddle::driver {
namespace {

/// Rectified inputs, as in a network, of a 3×3 convolution with few or many channels.
prim::Graph network(std::int64_t channels) {
  prim::Graph g;
  prim::Builder b(g);
  lower::Case values;
  const auto conv = [&](prim::NodeId x, std::int64_t to, std::int64_t kernel) {
    prim::Builder::Conv c;
    c.strides = c.dilations = {1, 1};
    c.pads_begin = c.pads_end = {kernel / 2, kernel / 2};
    const TensorType type{DType::f32, {to, b.shape(x)[1], kernel, kernel}};
    return b.relu(b.conv(x, b.constant(values.random_tensor(type)), c));
  };
  const prim::NodeId x = g.add_input("x", {DType::f32, {1, 8, 16, 14}});
  g.outputs.push_back({"y", conv(conv(x, channels, 1), 32, 3)});
  return g;
}

/// Largest error as a share of the largest result, and whether some kernel is Winograd's.
std::pair<double, bool> measured(std::int64_t channels, const std::string& accuracy) {
  const prim::Graph g = network(channels);
  CompileOptions options;
  options.threads = 2;
  options.options.accuracy = accuracy;
  const auto compiled = compile(g, options);
  HEDDLE_CHECK(compiled.ok(), "{}", compiled.error().message);
  bool winograd = false;
  for (const CompiledKernel& k : compiled->kernels)
    winograd |= k.lowered.schedule.starts_with("winograd");
  const auto session = load(compiled->program, options);
  HEDDLE_CHECK(session.ok(), "{}", session.error().message);
  lower::Case values;
  values.random.seed(9);
  const std::vector<Tensor> x{values.random_tensor(g.inputs[0].type)};
  const auto got = (*session)->run(x);
  const auto want = prim::interpret(g, x);
  HEDDLE_CHECK(got.ok() && want.ok(), "the network does not run");
  double error = 0, scale = 0;
  for (std::int64_t i = 0; i < (*want)[0].count(); ++i) {
    error = std::max(error, std::fabs((*got)[0].at(i) - (*want)[0].at(i)));
    scale = std::max(scale, std::fabs((*want)[0].at(i)));
  }
  return {error / scale, winograd};
}

/// Attention whose keys, terms and columns are no whole vectors, as machine code: one kernel where
/// two products of bf16 are one instruction.
TEST(Accuracy, AttentionOfBf16) {
  prim::Graph g;
  prim::Builder b(g);
  const auto input = [&](const char* name, std::int64_t rows, std::int64_t columns) {
    return g.add_input(name, {DType::bf16, {4, 8, rows, columns}});
  };
  const prim::NodeId q = input("q", 160, 41), k = input("k", 203, 41), v = input("v", 203, 24);
  const prim::NodeId scores = b.mul(b.matmul(q, b.transpose(k, {0, 1, 3, 2})), 0.2);
  g.outputs.push_back({"y", b.matmul(b.softmax(scores, {3}), v)});
  CompileOptions options;
  options.threads = 2;
  const auto compiled = compile(g, options);
  ASSERT_TRUE(compiled.ok()) << compiled.error().message;
  const codegen::cpu::Machine machine = codegen::cpu::host_machine();
  if (machine.fast_pairs && !machine.tiles) {
    EXPECT_EQ(compiled->kernels.size(), 1U);
    EXPECT_TRUE(compiled->kernels[0].lowered.schedule.starts_with("attention"))
        << compiled->kernels[0].lowered.schedule;
  }
  const auto session = load(compiled->program, options);
  ASSERT_TRUE(session.ok()) << session.error().message;
  lower::Case values;
  std::vector<Tensor> inputs;
  for (const prim::GraphInput& in : g.inputs) inputs.push_back(values.random_tensor(in.type));
  const auto got = (*session)->run(inputs);
  const auto want = prim::interpret(g, inputs);
  ASSERT_TRUE(got.ok() && want.ok());
  double scale = 0;
  for (std::int64_t i = 0; i < (*want)[0].count(); ++i)
    scale = std::max(scale, std::fabs((*want)[0].at(i)));
  for (std::int64_t i = 0; i < (*want)[0].count(); ++i)
    ASSERT_NEAR((*got)[0].at(i), (*want)[0].at(i), 0.02 * scale) << i;
}

/// Machine code of a kernel on arguments' bytes, one thread.
Status execute(const kernel::Kernel& kernel, const codegen::cpu::Machine& machine,
               std::vector<std::vector<std::byte>>& memory) {
  const auto object = HEDDLE_TRY(codegen::cpu::compile({&kernel, 1}, machine, "k"));
  const auto module = HEDDLE_TRY(codegen::cpu::load({&object.bytes, 1}));
  const codegen::cpu::KernelInfo& info = object.kernels[0];
  std::vector<Tensor> buffers;  // aligned
  for (const auto& argument : memory) {
    buffers.emplace_back(TensorType{DType::u8, {static_cast<std::int64_t>(argument.size())}});
    std::memcpy(buffers.back().mutable_data(), argument.data(), argument.size());
  }
  for (const std::int64_t bytes : info.local_bytes)
    buffers.emplace_back(TensorType{DType::u8, {bytes}});
  Tensor scratch({DType::u8, {info.scratch_bytes + 64}});
  std::vector<void*> args;
  for (Tensor& t : buffers) args.push_back(t.mutable_data());
  for (const auto& phase : info.phases)
    module->find(phase.symbol)(args.data(), 0, phase.tasks, scratch.mutable_data());
  for (std::size_t i = 0; i < memory.size(); ++i)
    std::memcpy(memory[i].data(), buffers[i].data(), memory[i].size());
  return Ok{};
}

/// A case that is computed as this schedule says on this machine.
lower::Case case_on(const codegen::cpu::Machine& machine, lower::Tuning tuning, unsigned seed) {
  lower::Case c;
  c.target.vector_bytes = machine.vector_bytes;
  c.target.vector_registers = machine.vector_registers;
  c.tuning = std::move(tuning);
  c.row_major_outputs = true;
  c.random.seed(seed);
  return c;
}

/// Largest error of the case's only output, as a share of the largest result.
double error_of(lower::Case& c, const codegen::cpu::Machine& machine, std::string_view schedule) {
  const lower::Request request = lower::request_of(c);
  const auto lowered = lower::contract::lower(request);
  HEDDLE_CHECK(lowered.ok(), "{}", lowered.error().message);
  EXPECT_TRUE(lowered->schedule.starts_with(schedule)) << lowered->schedule;
  const Tensor want = (*prim::interpret(c.g, c.inputs))[0];
  double error = 0, scale = 0;
  const std::string wrong =
      lower::run(c, *lowered, [&](std::vector<std::vector<std::byte>>& memory) -> Status {
        HEDDLE_TRY(execute(lowered->kernel, machine, memory));
        std::size_t at = 0;
        while (lowered->arguments[at].node != request.cluster.outputs[0]) ++at;
        Tensor got(want.type());
        std::memcpy(got.mutable_data(), memory[at].data(), memory[at].size());
        for (std::int64_t i = 0; i < want.count(); ++i) {
          error = std::max(error, std::fabs(got.at(i) - want.at(i)));
          scale = std::max(scale, std::fabs(want.at(i)));
        }
        return Ok{};
      });
  EXPECT_EQ(wrong.find("output") == std::string::npos ? wrong : "", "");
  return error / scale;
}

/// Of a 3×3 convolution of rectified values by tiles of m×m (0: as written).
double convolution_error(std::int64_t m, std::int64_t channels,
                         const codegen::cpu::Machine& machine) {
  lower::Case c = case_on(machine, {{"winograd", m}}, static_cast<unsigned>(channels));
  const Shape shape{1, channels, 9, 7};
  const prim::NodeId x = c.input(shape);
  c.layouts[x] = lower::ordered(shape, {0, 2, 3, 1});
  c.output(c.b.conv(c.b.relu(x), c.constant({32, channels, 3, 3}), lower::conv(2, 1, 1)));
  return error_of(c, machine, m > 0 ? "winograd" : "contract");
}

/// Of a product of matrices by halves, or as written.
double product_error(bool halves, std::int64_t terms, const codegen::cpu::Machine& machine) {
  lower::Case c = case_on(machine, {{"strassen", halves}}, static_cast<unsigned>(terms));
  c.output(c.b.matmul(c.b.relu(c.input({37, terms})), c.constant({terms, 96})));
  return error_of(c, machine, halves ? "strassen" : "contract");
}

/// The vector levels that this machine has.
std::vector<codegen::cpu::Machine> levels() {
  const int host = codegen::cpu::host_machine().vector_bytes;
  std::vector<codegen::cpu::Machine> out;
  for (const char* level : {"x86-64-v2", "x86-64-v3", "x86-64-v4"})
    if (auto machine = codegen::cpu::machine_named(level);
        machine.ok() && machine->vector_bytes <= host)
      out.push_back(*std::move(machine));
  return out;
}

TEST(Accuracy, EveryKindOfScheduleErrsByLessThanItsBound) {
  for (const auto& [m, bound] : {std::pair{0, 4e-6}, {2, 2e-6}, {4, 8e-6}}) {
    double worst = 0;
    for (const auto& machine : levels())
      for (const std::int64_t channels : {16, 80, 512}) {
        const double error = convolution_error(m, channels, machine);
        EXPECT_LT(error, bound) << "m " << m << ", " << channels << " channels, " << machine.cpu;
        worst = std::max(worst, error);
      }
    std::printf("tiles of %d: %.1e of the scale\n", m, worst);
  }
}

TEST(Accuracy, ProductsByHalvesErrByLessThanTheirBound) {
  for (const auto& [halves, bound] : {std::pair{false, 4e-6}, {true, 1e-5}}) {
    double worst = 0;
    for (const auto& machine : levels())
      for (const std::int64_t terms : {64, 768, 4096}) {
        const double error = product_error(halves, terms, machine);
        EXPECT_LT(error, bound) << halves << ", " << terms << " terms, " << machine.cpu;
        worst = std::max(worst, error);
      }
    std::printf("%s: %.1e of the scale\n", halves ? "by halves" : "as written", worst);
  }
}

/// Errors of products of f32 in pieces are no larger than those of multiply-adds of f32, as the
/// processor multiplies them; mixed types and odd shapes in machine code.
TEST(Accuracy, ProductsInPiecesErrByNoMoreThanAsWritten) {
  const codegen::cpu::Machine machine = codegen::cpu::host_machine();
  if (!machine.tiles) GTEST_SKIP() << "this processor has no tile registers";
  const auto error = [&](bool pieces, std::int64_t m, std::int64_t terms, std::int64_t n,
                         bool constant, bool across) {
    lower::Case c =
        case_on(machine, {{"pieces", pieces}, {"strassen", 0}}, static_cast<unsigned>(terms));
    c.target.tiles = true;
    prim::NodeId x = across ? c.b.transpose(c.input({terms, m}), {1, 0}) : c.input({m, terms});
    prim::NodeId w = constant ? c.constant({terms, n}) : c.input({terms, n});
    if (across && !constant) w = c.b.transpose(c.input({n, terms}), {1, 0});
    c.output(c.b.matmul(c.b.relu(x), w));
    return error_of(c, machine, pieces ? "pieces" : "contract");
  };
  double worst = 0;
  for (const std::int64_t terms : {20, 64, 768, 4096})
    for (const auto& [m, n] : {std::pair<std::int64_t, std::int64_t>{37, 96}, {64, 33}, {128, 128}})
      for (const bool constant : {true, false})
        for (const bool across : {true, false}) {
          const double plain = error(false, m, terms, n, constant, across),
                       pieces = error(true, m, terms, n, constant, across);
          EXPECT_LE(pieces, std::max(plain, 2e-7)) << m << "x" << n << "x" << terms;
          worst = std::max(worst, pieces);
        }
  std::printf("in pieces: %.1e of the scale\n", worst);
}

TEST(Accuracy, StandardErrsByLessThanItSays) {
  for (const std::int64_t channels : {8, 128}) {
    const auto [error, winograd] = measured(channels, "standard");
    EXPECT_LT(error, 1e-5) << channels << " channels";
    EXPECT_TRUE(winograd || channels == 8);
    std::printf("%d channels: %.1e of the scale\n", static_cast<int>(channels), error);
  }
}

TEST(Accuracy, StrictKeepsSumsAsWritten) {
  const auto [error, winograd] = measured(128, "strict");
  EXPECT_LT(error, 2e-6);
  EXPECT_FALSE(winograd);
}

}  // namespace
}  // namespace heddle::driver
