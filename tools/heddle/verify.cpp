#include "driver/verify.h"

#include "common.h"
#include "driver/cache.h"
#include "prim/interpret.h"
#include "staged.h"
#include "step.h"
#include "support/resized.h"

namespace heddle::tool {
namespace {

struct VerifyFlags : ModelFlags {
  double tolerance = 0;  ///< 0: of the precision
};

/// What has been verified, of a program or of a model's stages.
struct Verified {
  driver::Verification all;
  std::string inputs;                 ///< in words
  std::optional<double> expected;     ///< error against the expected outputs
  std::optional<std::size_t> stages;  ///< nullopt: one program
  std::set<std::string> host = {};
};

void print_json(const VerifyFlags& flags, const Verified& verified) {
  const driver::Verification& v = verified.all;
  nlohmann::json kernels = nlohmann::json::array();
  for (const driver::KernelCheck& k : v.kernels)
    kernels.push_back(
        {{"name", k.name}, {"error", k.error}, {"equal", k.equal}, {"sources", k.sources}});
  nlohmann::json j = {{"model", flags.model},
                      {"inputs", verified.inputs},
                      {"kernels", kernels},
                      {"wrong", v.wrong},
                      {"worst", v.worst},
                      {"outputs_error", v.outputs_error},
                      {"uncertain_values", v.uncertain},
                      {"unjudged_outputs", v.unjudged},
                      {"expected_outputs_error",
                       verified.expected ? fmt::format("{:.3g}", *verified.expected) : "none"}};
  if (verified.stages) {
    j["stages"] = *verified.stages;
    j["not_verified"] = verified.host;
  }
  fmt::print("{}\n", j.dump(2));
}

void print_text(const VerifyFlags& flags, const Verified& verified) {
  const driver::Verification& v = verified.all;
  for (const driver::KernelCheck& k : v.kernels)
    if (!k.equal)
      fmt::print("WRONG {}: error {:.3g} of the scale ({})\n", k.name, k.error, k.sources);
  fmt::print(
      "{}: {} kernels against the float64 reference: {} wrong, largest error {:.3g} of a value's "
      "scale; whole program: {:.3g}; inputs: {}\n",
      flags.model, v.kernels.size(), v.wrong, v.worst, v.outputs_error, verified.inputs);
  if (v.uncertain > 0)
    fmt::print(
        "{} values hang on a step (Floor, Greater, ArgMax, ...) of a number that the same kernel "
        "rounds: held to both sides of it\n",
        v.uncertain);
  if (!v.unjudged.empty())
    fmt::print(
        "not judged as a whole, as rounding may take them across a step{}: {} (each kernel is "
        "judged alone, on what it reads)\n",
        v.overflow ? " or to infinity" : "", fmt::join(v.unjudged, ", "));
  if (v.overflow)
    fmt::print("not judged either: elements that hang on a value which f16 does not hold\n");
  if (verified.stages)
    fmt::print(
        "{} programs, run in stages; not verified, as the host does them: {}\n", *verified.stages,
        verified.host.empty() ? "nothing" : fmt::format("{}", fmt::join(verified.host, ", ")));
  if (verified.expected)
    fmt::print("whole model against the expected outputs: error {:.3g} of the scale\n",
               *verified.expected);
}

Result<Verified> verify_program(const VerifyFlags& flags, const Tolerance& tolerance) {
  const driver::CompileOptions options = HEDDLE_TRY(compile_options(flags));
  const driver::Compiled compiled = HEDDLE_TRY(
      !flags.training ? driver::compile_fresh(flags.model, options) : compile_step(flags));
  const Inputs inputs = HEDDLE_TRY(make_inputs(*compiled.program, flags));
  Verified out{HEDDLE_TRY(driver::verify(compiled, inputs.values, tolerance.kernel,
                                         tolerance.network, options)),
               inputs.from,
               {},
               {}};
  const TestData data =
      inputs.test_data ? HEDDLE_TRY(test_data_of(flags.model, *compiled.program)) : TestData{};
  if (data.outputs.empty()) return out;
  auto session = HEDDLE_TRY(driver::load(compiled.program, options));
  const std::vector<Tensor> outputs = HEDDLE_TRY(session->run(inputs.values));
  out.expected = 0;
  for (std::size_t i = 0; i < data.outputs.size(); ++i)
    out.expected = std::max(*out.expected, compare(outputs[i], data.outputs[i], 0, 1).of_scale());
  return out;
}

/// One size of --dynamic: every kernel of its program on padded inputs, and the outputs against the
/// reference of the model imported at exactly that size.
Result<Verified> verify_size(const VerifyFlags& flags, const Tolerance& tolerance) {
  driver::CompileOptions options = HEDDLE_TRY(compile_options(flags));
  options.shapes.clear();
  const driver::CompiledSizes sizes =
      HEDDLE_TRY(driver::compile_sizes(flags.model, HEDDLE_TRY(size_ranges(flags)), options));
  const std::size_t number = HEDDLE_TRY(wanted_case(*sizes.program, flags));
  const runtime::SizeCase& row = sizes.program->cases[number];
  const Inputs inputs = HEDDLE_TRY(make_inputs(sizes.program->at(number), flags));
  const driver::Compiled& compiled = sizes.buckets[row.program].compiled;
  std::vector<Tensor> padded;
  for (std::size_t i = 0; i < inputs.values.size(); ++i)
    padded.push_back(resized(inputs.values[i], compiled.program->inputs[i].type.shape));
  for (const std::size_t value : row.given) padded.push_back(sizes.program->values[value]);
  Verified out{
      HEDDLE_TRY(driver::verify(compiled, padded, tolerance.kernel, tolerance.network, options)),
      inputs.from,
      {},
      {}};
  const auto exact =
      HEDDLE_TRY(onnx::import_sizes(flags.model, driver::import_options(options), {row.sizes}));
  const std::vector<Tensor> wanted = HEDDLE_TRY(prim::interpret(exact[0], inputs.values));
  const auto model = HEDDLE_TRY(driver::SizedModel::load(sizes.program, options));
  const std::vector<Tensor> found =
      HEDDLE_TRY(HEDDLE_TRY(model->session(number))->run(inputs.values));
  out.all.outputs_error = 0;
  for (std::size_t o = 0; o < found.size(); ++o) {
    const double error = compare(found[o], wanted[o], 0, 1).of_scale();
    out.all.outputs_error = std::max(out.all.outputs_error, error);
    if (!(error <= tolerance.network) && out.all.wrong++ == 0)
      out.all.first_wrong = fmt::format("(all together: output '{}')", exact[0].outputs[o].name);
  }
  return out;
}

Result<Verified> verified(const VerifyFlags& flags, const Tolerance& tolerance) {
  if (HEDDLE_TRY(wants_sizes_of_values(flags)))
    return unsupported(
        "verify: values decide shapes in '{}', which is verified in stages: give one size of its "
        "inputs, --shape",
        flags.model);
  if (wants_sizes(flags)) return verify_size(flags, tolerance);
  if (!HEDDLE_TRY(is_staged(flags))) {
    auto program = verify_program(flags, tolerance);
    if (program || !works_in_stages(flags, program.error())) return program;
  }
  StagedVerification staged = HEDDLE_TRY(verify_staged(flags, tolerance));
  return Verified{std::move(staged.all), staged.from, staged.expected, staged.stages, staged.host};
}

Status run(const VerifyFlags& flags) {
  HEDDLE_TRY(want_graph(flags, "verify"));
  Tolerance tolerance = tolerance_of(flags.precision);
  if (flags.tolerance > 0) tolerance = {flags.tolerance, flags.tolerance};
  const Verified v = HEDDLE_TRY(verified(flags, tolerance));
  flags.json ? print_json(flags, v) : print_text(flags, v);
  if (v.all.wrong > 0)
    return fail(ErrorCode::mismatch, "{}: kernel {} is the first wrong one", flags.model,
                v.all.first_wrong);
  if (v.expected.value_or(0) > tolerance.network)
    return fail(ErrorCode::mismatch, "{}: outputs differ from the expected ones", flags.model);
  return Ok{};
}

}  // namespace

Verb add_verify(CLI::App& verb) {
  auto flags = std::make_shared<VerifyFlags>();
  add_model_flags(verb, *flags, false);
  add_step_flags(verb, *flags);
  verb.add_option("--tolerance", flags->tolerance,
                  "largest error, as a share of the largest value (default: 1e-3; f16 2e-3 of a "
                  "kernel and 2e-2 of the network; bf16 1e-2 and 1e-1)")
      ->check(CLI::PositiveNumber);
  return [flags] { return run(*flags); };
}

}  // namespace heddle::tool
