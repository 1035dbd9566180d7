#include <cmath>
#include <filesystem>

#include "common.h"
#include "onnx/tensor_file.h"
#include "staged.h"

namespace heddle::tool {
namespace {

struct RunFlags : ModelFlags {
  std::string save;
  double rtol = 1e-3, atol = 1e-5;
  bool as_given = false;  ///< compile for the shapes of the inputs given
  double of_scale = 0;    ///< if positive: tolerance as a share of the largest expected value
};

std::string preview(const Tensor& tensor) {
  std::string text;
  const std::int64_t shown = std::min<std::int64_t>(tensor.count(), 8);
  for (std::int64_t i = 0; i < shown; ++i)
    text += fmt::format("{}{:.6g}", i ? ", " : "", tensor.at(i));
  return text + (shown < tensor.count() ? ", …" : "");
}

nlohmann::json summary(const Tensor& tensor) {
  double low = INFINITY, high = -INFINITY, sum = 0;
  for (std::int64_t i = 0; i < tensor.count(); ++i) {
    low = std::min(low, tensor.at(i));
    high = std::max(high, tensor.at(i));
    sum += tensor.at(i);
  }
  if (tensor.count() == 0) low = high = 0;
  return {{"min", low},
          {"max", high},
          {"mean", sum / std::max<double>(1, static_cast<double>(tensor.count()))}};
}

using Outputs = std::vector<std::pair<std::string, Tensor>>;

Status save_outputs(const Outputs& outputs, const std::string& save) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    std::string path = save;
    if (std::filesystem::is_directory(save)) {
      path = fmt::format("{}/output_{}.{}", save, i,
                         outputs[i].second.dtype() == DType::bf16 ? "pb" : "npy");
    } else if (outputs.size() > 1) {
      return fail(ErrorCode::usage, "--save: found the file '{}' for {} outputs, want a folder",
                  save, outputs.size());
    }
    HEDDLE_TRY(onnx::write_tensor(path, outputs[i].first, outputs[i].second));
  }
  return Ok{};
}

Status run(const RunFlags& flags) {
  const auto in_stages = [&] { return run_staged(flags, flags.save, flags.rtol, flags.atol); };
  if (flags.as_given || HEDDLE_TRY(is_staged(flags.model))) return in_stages();
  auto opened = open_model(flags);
  if (!opened && works_in_stages(flags, opened.error())) return in_stages();
  const Model model = HEDDLE_TRY(std::move(opened));
  const double of_scale = flags.of_scale > 0 || flags.precision == "f32"
                              ? flags.of_scale
                              : tolerance_of(flags.precision).network;
  const runtime::Program& program = *model.program;
  const Inputs inputs = HEDDLE_TRY(make_inputs(program, flags));
  const auto start = std::chrono::steady_clock::now();
  const std::vector<Tensor> results = HEDDLE_TRY(model.session->run(inputs.values));
  const double ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  const Outputs outputs = model_outputs(program, results);
  if (!flags.save.empty()) HEDDLE_TRY(save_outputs(outputs, flags.save));

  const TestData data =
      inputs.test_data ? HEDDLE_TRY(test_data_of(flags.model, program)) : TestData{};
  nlohmann::json result = {{"model", flags.model},
                           {"inputs", inputs.from},
                           {"ms", ms},
                           {"kernels", program.launches.size()},
                           {"compile_seconds", model.compile_seconds},
                           {"outputs", nlohmann::json::array()}};
  bool equal = true;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const auto& [name, output] = outputs[i];
    nlohmann::json entry = {
        {"name", name}, {"type", to_string(output.type())}, {"preview", preview(output)}};
    entry.update(summary(output));
    if (!data.outputs.empty()) {
      Difference d = compare(output, data.outputs[i], flags.rtol, flags.atol);
      if (of_scale > 0) d.worst = d.max_absolute / (of_scale * std::max(d.scale, 1e-30));
      entry["expected"] = {{"max_absolute_error", d.max_absolute}, {"equal", d.worst <= 1}};
      equal &= d.worst <= 1;
    }
    result["outputs"].push_back(entry);
  }
  if (flags.json) {
    fmt::print("{}\n", result.dump(2));
  } else {
    fmt::print("{}: {} kernels, compiled in {:.2f} s{}, first run {:.2f} ms\n  inputs: {}\n",
               flags.model, program.launches.size(), model.compile_seconds,
               model.from_cache ? " (from the cache)" : "", ms, inputs.from);
    for (const nlohmann::json& entry : result["outputs"]) {
      fmt::print("  {} {} = {}\n", entry["name"].get<std::string>(),
                 entry["type"].get<std::string>(), entry["preview"].get<std::string>());
      if (entry.contains("expected"))
        fmt::print("    against the expected output: largest error {:.3g}: {}\n",
                   entry["expected"]["max_absolute_error"].get<double>(),
                   entry["expected"]["equal"].get<bool>() ? "equal" : "DIFFERENT");
    }
  }
  if (equal) return Ok{};
  if (of_scale > 0)
    return fail(ErrorCode::mismatch,
                "{}: outputs differ from the expected ones by more than {} of "
                "their scale",
                flags.model, of_scale);
  return fail(ErrorCode::mismatch, "{}: outputs differ from the expected ones (rtol {}, atol {})",
              flags.model, flags.rtol, flags.atol);
}

}  // namespace

Verb add_run(CLI::App& verb) {
  auto flags = std::make_shared<RunFlags>();
  add_model_flags(verb, *flags);
  verb.add_option("--save", flags->save, "file or folder for the outputs (.npy, .pb)");
  verb.add_option("--rtol", flags->rtol, "relative tolerance against expected outputs")
      ->capture_default_str();
  verb.add_option("--atol", flags->atol, "absolute tolerance against expected outputs")
      ->capture_default_str();
  verb.add_flag(
      "--as-given", flags->as_given,
      "compile for the shapes of the inputs given, and for small inputs' values where they "
      "decide shapes");
  verb.add_option("--of-scale", flags->of_scale,
                  "instead: largest error as a share of the largest expected value (f16: 2e-2, "
                  "bf16: 1e-1 unless given)");
  return [flags] { return run(*flags); };
}

}  // namespace heddle::tool
