#include "driver/verify.h"
#include "common.h"
#include "driver/cache.h"

namespace heddle::tool {
namespace {

struct VerifyFlags : ModelFlags {
  double tolerance = 0;  ///< 0: of the precision
};

Status run(const VerifyFlags& flags) {
  HEDDLE_TRY(want_graph(flags, "verify"));
  const driver::CompileOptions options = HEDDLE_TRY(compile_options(flags));
  const driver::Compiled compiled = HEDDLE_TRY(driver::compile_fresh(flags.model, options));
  const Inputs inputs = HEDDLE_TRY(make_inputs(*compiled.program, flags));
  Tolerance tolerance = tolerance_of(flags.precision);
  if (flags.tolerance > 0) tolerance = {flags.tolerance, flags.tolerance};
  const driver::Verification v = HEDDLE_TRY(
      driver::verify(compiled, inputs.values, tolerance.kernel, tolerance.network, options));
  nlohmann::json kernels = nlohmann::json::array();
  for (const driver::KernelCheck& k : v.kernels)
    kernels.push_back(
        {{"name", k.name}, {"error", k.error}, {"equal", k.equal}, {"sources", k.sources}});
  std::string expected = "none";
  bool equal = true;
  const TestData data =
      inputs.test_data ? HEDDLE_TRY(test_data_of(flags.model, *compiled.program)) : TestData{};
  if (!data.outputs.empty()) {
    auto session = HEDDLE_TRY(driver::load(compiled.program, options));
    const std::vector<Tensor> outputs = HEDDLE_TRY(session->run(inputs.values));
    double worst = 0;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const Difference d = compare(outputs[i], data.outputs[i], 0, 1);
      worst = std::max(worst, d.max_absolute / std::max(d.scale, 1e-30));
    }
    equal = worst <= tolerance.network;
    expected = fmt::format("{:.3g}", worst);
  }
  if (flags.json) {
    fmt::print("{}\n", nlohmann::json{{"model", flags.model},
                                      {"inputs", inputs.from},
                                      {"kernels", kernels},
                                      {"wrong", v.wrong},
                                      {"worst", v.worst},
                                      {"outputs_error", v.outputs_error},
                                      {"expected_outputs_error", expected}}
                           .dump(2));
  } else {
    for (const driver::KernelCheck& k : v.kernels)
      if (!k.equal)
        fmt::print("WRONG {}: error {:.3g} of the scale ({})\n", k.name, k.error, k.sources);
    fmt::print(
        "{}: {} kernels against the float64 reference: {} wrong, largest error {:.3g} of a value's "
        "scale; whole program: {:.3g}; inputs: {}\n",
        flags.model, v.kernels.size(), v.wrong, v.worst, v.outputs_error, inputs.from);
    if (expected != "none")
      fmt::print("whole model against the expected outputs: error {} of the scale\n", expected);
  }
  if (v.wrong > 0 || !equal)
    return fail(ErrorCode::mismatch, "{}: {}", flags.model,
                v.wrong > 0 ? "kernel " + v.first_wrong + " is the first wrong one"
                            : "outputs differ from the expected ones");
  return Ok{};
}

}  // namespace

Verb add_verify(CLI::App& verb) {
  auto flags = std::make_shared<VerifyFlags>();
  add_model_flags(verb, *flags, false);
  verb.add_option("--tolerance", flags->tolerance,
                  "largest error, as a share of the largest value (default: 1e-3; f16 2e-3 of a "
                  "kernel and 2e-2 of the network; bf16 1e-2 and 1e-1)")
      ->check(CLI::PositiveNumber);
  return [flags] { return run(*flags); };
}

}  // namespace heddle::tool
