#include "staged.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "driver/cache.h"
#include "driver/report.h"
#include "onnx/tensor_file.h"
#include "runtime/artefact.h"
#include "support/text_id.h"

namespace heddle::tool {
namespace {

namespace fs = std::filesystem;

onnx::Engine compiler(const driver::CompileOptions& options) {
  return [options](const prim::Graph& graph) -> Result<onnx::Runner> {
    const driver::Compiled compiled = HEDDLE_TRY(driver::compile(graph, options));
    const auto session = HEDDLE_TRY(driver::load(compiled.program, options.threads));
    return onnx::Runner([session](const std::vector<Tensor>& in) { return session->run(in); });
  };
}

fs::path test_data_folder(const ModelFlags& flags) {
  const fs::path model = flags.model;
  return (fs::is_directory(model) ? model : model.parent_path()) / "test_data_set_0";
}

/// --input files, else the folder's test data: strings cannot be drawn at random.
Result<std::map<std::string, Tensor>> inputs_of(const ModelFlags& flags) {
  std::map<std::string, Tensor> inputs;
  const onnx::Ports ports = HEDDLE_TRY(onnx::ports(flags.model));
  for (std::size_t i = 0; i < ports.inputs.size(); ++i) {
    const fs::path file = test_data_folder(flags) / fmt::format("input_{}.pb", i);
    if (fs::exists(file))
      inputs.insert_or_assign(ports.inputs[i].name, HEDDLE_TRY(onnx::read_tensor(file.string())));
  }
  for (const std::string& text : flags.inputs) {
    const std::size_t split = text.find('=');
    if (split == std::string::npos)
      return fail(ErrorCode::usage, "--input: found '{}', want NAME=FILE", text);
    inputs.insert_or_assign(text.substr(0, split),
                            HEDDLE_TRY(onnx::read_tensor(text.substr(split + 1))));
  }
  for (const onnx::Port& port : ports.inputs)
    if (!inputs.contains(port.name))
      return fail(ErrorCode::usage, "input '{}': give a file: --input {}=FILE.pb", port.name,
                  port.name);
  return inputs;
}

std::string element(const onnx::Output& output, std::int64_t i) {
  if (output.format != ops::Format::text) return fmt::format("{:.6g}", output.tensor.at(i));
  return fmt::format("\"{}\"", text_of(output.tensor.int_at(i)).value_or("?"));
}

}  // namespace

Result<bool> is_staged(const std::string& model) {
  if (model.empty() || runtime::is_artefact(model)) return false;
  return onnx::runs_in_stages(model);
}

Status run_staged(const ModelFlags& flags, const std::string& save) {
  const driver::CompileOptions options = HEDDLE_TRY(compile_options(flags));
  if (!options.locked.empty())
    return unsupported("--locked: found a model of several stages, want one that is one program");
  const auto inputs = HEDDLE_TRY(inputs_of(flags));
  onnx::StagedModel model(flags.model, driver::import_options(options), compiler(options));
  const auto outputs = HEDDLE_TRY(model.run(inputs));
  nlohmann::json result = {
      {"model", flags.model}, {"stages", model.compiled()}, {"outputs", nlohmann::json::array()}};
  if (!save.empty() && !fs::is_directory(save) && outputs.size() > 1)
    return fail(ErrorCode::usage, "--save: found the file '{}' for {} outputs, want a folder", save,
                outputs.size());
  int position = 0;
  for (const onnx::Port& port : HEDDLE_TRY(onnx::ports(flags.model)).outputs) {
    const auto found = outputs.find(port.name);
    if (found == outputs.end()) continue;
    const onnx::Output& output = found->second;
    const bool text = output.format == ops::Format::text;
    const bool numpy = !text && output.tensor.dtype() != DType::bf16;
    std::string values;
    const std::int64_t shown = std::min<std::int64_t>(output.tensor.count(), 8);
    for (std::int64_t i = 0; i < shown; ++i) values += (i ? ", " : "") + element(output, i);
    if (shown < output.tensor.count()) values += ", …";
    const std::string type =
        text ? "string" + to_string(output.tensor.shape()) : to_string(output.tensor.type());
    result["outputs"].push_back({{"name", port.name}, {"type", type}, {"preview", values}});
    if (save.empty()) continue;
    const std::string path = fs::is_directory(save) ? fmt::format("{}/output_{}.{}", save,
                                                                  position++, numpy ? "npy" : "pb")
                                                    : save;
    HEDDLE_TRY(onnx::write_tensor(path, port.name, output.tensor, output.format));
  }
  if (flags.json) {
    fmt::print("{}\n", result.dump(2));
    return Ok{};
  }
  fmt::print("{}: {} stages, host operators between them\n", flags.model, model.compiled());
  for (const auto& output : result["outputs"])
    fmt::print("  {} {} = {}\n", output["name"].get<std::string>(),
               output["type"].get<std::string>(), output["preview"].get<std::string>());
  return Ok{};
}

namespace {

/// One node of the first stage: on the host, waiting for it, or covered by kernels.
Status explain_node(const onnx::Stage& stage, const std::string& node,
                    const driver::CompileOptions& options) {
  for (const onnx::HostCall& call : stage.calls)
    if (call.call.name == node) {
      fmt::print("host: {} '{}'\n", call.call.op, node);
      return Ok{};
    }
  if (std::ranges::find(stage.waiting, node) != stage.waiting.end()) {
    fmt::print("'{}' is compiled when the host has told the shapes\n", node);
    return Ok{};
  }
  if (stage.graph.outputs.empty())
    return fail(ErrorCode::usage, "--node: the model has no node '{}'", node);
  const driver::Compiled compiled = HEDDLE_TRY(driver::compile(stage.graph, options));
  const auto report = nlohmann::json::parse(compiled.program->manifest, nullptr, false);
  fmt::print("stage 0, {}", HEDDLE_TRY(driver::explain_text(report, node, 0)));
  return Ok{};
}

}  // namespace

Status explain_staged(const ModelFlags& flags, const std::string& node) {
  const driver::CompileOptions options = HEDDLE_TRY(compile_options(flags));
  const onnx::Stage stage =
      HEDDLE_TRY(onnx::import_stage(flags.model, driver::import_options(options), {}, {}));
  if (!node.empty()) return explain_node(stage, node, options);
  nlohmann::json report = {{"model", flags.model},
                           {"first_stage_outputs", nlohmann::json::array()},
                           {"host_operators", nlohmann::json::array()},
                           {"after_the_host", stage.waiting}};
  for (const prim::GraphOutput& output : stage.graph.outputs)
    report["first_stage_outputs"].push_back(output.name);
  for (const onnx::HostCall& call : stage.calls)
    report["host_operators"].push_back({{"op", call.call.op}, {"name", call.call.name}});
  if (flags.json) {
    fmt::print("{}\n", report.dump(2));
    return Ok{};
  }
  fmt::print("stage 0, compiled: makes {} values\n", stage.graph.outputs.size());
  for (const onnx::HostCall& call : stage.calls)
    fmt::print("host: {} '{}'\n", call.call.op, call.call.name);
  fmt::print("later, compiled when the host has told the shapes: {} nodes\n", stage.waiting.size());
  for (const std::string& name : stage.waiting) fmt::print("  {}\n", name);
  return Ok{};
}

namespace {

void merge(driver::Verification& all, driver::Verification one) {
  all.wrong += one.wrong;
  all.worst = std::max(all.worst, one.worst);
  all.uncertain += one.uncertain;
  all.outputs_error = std::max(all.outputs_error, one.outputs_error);
  if (all.first_wrong.empty()) all.first_wrong = one.first_wrong;
  std::ranges::move(one.kernels, std::back_inserter(all.kernels));
  std::ranges::move(one.unjudged, std::back_inserter(all.unjudged));
}

/// Largest error of outputs against the folder's test data; nullopt where there is none.
Result<std::optional<double>> expected_error(const ModelFlags& flags,
                                             const std::map<std::string, onnx::Output>& outputs) {
  std::optional<double> worst;
  const onnx::Ports ports = HEDDLE_TRY(onnx::ports(flags.model));
  for (std::size_t i = 0; i < ports.outputs.size(); ++i) {
    const fs::path file = test_data_folder(flags) / fmt::format("output_{}.pb", i);
    const auto found = outputs.find(ports.outputs[i].name);
    if (found == outputs.end() || !flags.inputs.empty() || !fs::exists(file)) continue;
    const Tensor wanted = HEDDLE_TRY(onnx::read_tensor(file.string()));
    const Difference d = compare(found->second.tensor, wanted, 0, 1);
    const bool text = found->second.format == ops::Format::text;
    const double error = text && d.max_absolute > 0 ? INFINITY : d.of_scale();
    worst = std::max(worst.value_or(0), error);
  }
  return worst;
}

}  // namespace

Result<StagedVerification> verify_staged(const ModelFlags& flags, const Tolerance& tolerance) {
  const driver::CompileOptions options = HEDDLE_TRY(compile_options(flags));
  const auto inputs = HEDDLE_TRY(inputs_of(flags));
  StagedVerification result;
  const auto verified = [&](const prim::Graph& graph) -> Result<onnx::Runner> {
    const auto compiled =
        std::make_shared<driver::Compiled>(HEDDLE_TRY(driver::compile(graph, options)));
    const auto session = HEDDLE_TRY(driver::load(compiled->program, options));
    return onnx::Runner(
        [&, compiled, session](const std::vector<Tensor>& in) -> Result<std::vector<Tensor>> {
          merge(result.all, HEDDLE_TRY(driver::verify(*compiled, in, tolerance.kernel,
                                                      tolerance.network, options)));
          return session->run(in);
        });
  };
  onnx::StagedModel model(flags.model, driver::import_options(options), verified);
  const auto outputs = HEDDLE_TRY(model.run(inputs));
  result.stages = model.compiled();
  result.host = model.host_operators();
  result.expected = HEDDLE_TRY(expected_error(flags, outputs));
  return result;
}

}  // namespace heddle::tool
