#include "staged.h"

#include <filesystem>

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

/// --input files, else the folder's test data: strings cannot be drawn at random.
Result<std::map<std::string, Tensor>> inputs_of(const ModelFlags& flags) {
  std::map<std::string, Tensor> inputs;
  const fs::path base =
      fs::is_directory(flags.model) ? fs::path(flags.model) : fs::path(flags.model).parent_path();
  const onnx::Ports ports = HEDDLE_TRY(onnx::ports(flags.model));
  for (std::size_t i = 0; i < ports.inputs.size(); ++i) {
    const fs::path file = base / "test_data_set_0" / fmt::format("input_{}.pb", i);
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
  return onnx::works_on_strings(model);
}

Status run_staged(const ModelFlags& flags, const std::string& save) {
  const driver::CompileOptions options = HEDDLE_TRY(compile_options(flags));
  if (!options.locked.empty())
    return unsupported("--locked: found a model of several stages, want one that is one program");
  const auto inputs = HEDDLE_TRY(inputs_of(flags));
  onnx::ImportOptions import;
  import.shapes = options.shapes;
  onnx::StagedModel model(flags.model, import, compiler(options));
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

Status explain_staged(const ModelFlags& flags) {
  const driver::CompileOptions options = HEDDLE_TRY(compile_options(flags));
  onnx::ImportOptions import;
  import.shapes = options.shapes;
  const onnx::Stage stage = HEDDLE_TRY(onnx::import_stage(flags.model, import, {}, {}));
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

}  // namespace heddle::tool
