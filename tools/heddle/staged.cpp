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

/// Adds a port's value from a file: a sequence's items as "name[0]", …; the importer is told how
/// many there are, and which optional values are absent.
Status add_value(const onnx::Port& port, const std::string& file,
                 std::map<std::string, Tensor>& inputs, onnx::ImportOptions& told) {
  if (file.ends_with(".npy") || port.kind == onnx::Port::Kind::tensor) {
    inputs.insert_or_assign(port.name, HEDDLE_TRY(onnx::read_tensor(file)));
    return Ok{};
  }
  const auto items = HEDDLE_TRY(onnx::read_value(file, port.kind));
  told.absent.erase(port.name);
  if (!items) told.absent.insert(port.name);
  if (!items) return Ok{};
  if (port.kind == onnx::Port::Kind::optional) {
    inputs.insert_or_assign(port.name, items->at(0));
    return Ok{};
  }
  std::vector<Shape>& shapes = told.sequences[port.name];
  shapes.clear();
  for (const Tensor& item : *items) {
    inputs.insert_or_assign(fmt::format("{}[{}]", port.name, shapes.size()), item);
    shapes.push_back(item.shape());
  }
  return Ok{};
}

/// --input files, else the folder's test data: strings cannot be drawn at random.
Result<std::map<std::string, Tensor>> inputs_of(const ModelFlags& flags,
                                                onnx::ImportOptions& told) {
  std::map<std::string, std::string> files;
  const onnx::Ports ports = HEDDLE_TRY(onnx::ports(flags.model));
  for (std::size_t i = 0; i < ports.inputs.size(); ++i) {
    const fs::path file = test_data_folder(flags) / fmt::format("input_{}.pb", i);
    if (fs::exists(file)) files[ports.inputs[i].name] = file.string();
  }
  for (const std::string& text : flags.inputs) {
    const std::size_t split = text.find('=');
    if (split == std::string::npos)
      return fail(ErrorCode::usage, "--input: found '{}', want NAME=FILE", text);
    files[text.substr(0, split)] = text.substr(split + 1);
  }
  std::map<std::string, Tensor> inputs;
  for (const onnx::Port& port : ports.inputs) {
    const auto file = files.extract(port.name);
    if (file.empty())
      return fail(ErrorCode::usage, "input '{}': give a file: --input {}=FILE.pb", port.name,
                  port.name);
    HEDDLE_TRY(add_value(port, file.mapped(), inputs, told));
  }
  if (!files.empty())
    return fail(ErrorCode::usage, "--input: the model has no input '{}'", files.begin()->first);
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

namespace {

/// An output as text, and into a file of its own where `save` is a folder: NumPy's format where
/// that has the type, else a serialised tensor, sequence or optional value.
Result<nlohmann::json> report_output(const onnx::Port& port, const onnx::OutputItems& items,
                                     const std::string& save, int position) {
  const bool list = port.kind != onnx::Port::Kind::tensor &&
                    (port.kind != onnx::Port::Kind::optional || items.empty());
  std::string type, values;
  for (const onnx::Output& output : items) {
    const bool text = output.format == ops::Format::text;
    type += (type.empty() ? "" : ", ") +
            (text ? "string" + to_string(output.tensor.shape()) : to_string(output.tensor.type()));
    const std::int64_t shown = std::min<std::int64_t>(output.tensor.count(), 8);
    for (std::int64_t i = 0; i < shown; ++i)
      values += (values.empty() ? "" : ", ") + element(output, i);
    if (shown < output.tensor.count()) values += ", …";
  }
  const std::string shown_type = list ? "(" + type + ")" : type;
  nlohmann::json entry = {{"name", port.name}, {"type", shown_type}, {"preview", values}};
  if (save.empty()) return entry;
  const auto file = [&](const char* ending) {
    return fs::is_directory(save) ? fmt::format("{}/output_{}.{}", save, position, ending) : save;
  };
  if (list) {
    HEDDLE_TRY(onnx::write_value(file("pb"), port, items));
    return entry;
  }
  const onnx::Output& output = items[0];
  const bool numpy = output.format != ops::Format::text && output.tensor.dtype() != DType::bf16;
  HEDDLE_TRY(
      onnx::write_tensor(file(numpy ? "npy" : "pb"), port.name, output.tensor, output.format));
  return entry;
}

}  // namespace

Status run_staged(const ModelFlags& flags, const std::string& save) {
  const driver::CompileOptions options = HEDDLE_TRY(compile_options(flags));
  if (!options.locked.empty())
    return unsupported("--locked: found a model of several stages, want one that is one program");
  onnx::ImportOptions told = driver::import_options(options);
  const auto inputs = HEDDLE_TRY(inputs_of(flags, told));
  onnx::StagedModel model(flags.model, told, compiler(options));
  const auto outputs = HEDDLE_TRY(model.run(inputs));
  nlohmann::json result = {
      {"model", flags.model}, {"stages", model.compiled()}, {"outputs", nlohmann::json::array()}};
  const onnx::Ports ports = HEDDLE_TRY(onnx::ports(flags.model));
  if (!save.empty() && !fs::is_directory(save) && ports.outputs.size() > 1)
    return fail(ErrorCode::usage, "--save: found the file '{}' for {} outputs, want a folder", save,
                ports.outputs.size());
  for (std::size_t i = 0; i < ports.outputs.size(); ++i) {
    const onnx::OutputItems items = HEDDLE_TRY(onnx::items_of(ports.outputs[i], outputs));
    result["outputs"].push_back(
        HEDDLE_TRY(report_output(ports.outputs[i], items, save, static_cast<int>(i))));
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
  onnx::ImportOptions told = driver::import_options(options);
  const auto inputs = HEDDLE_TRY(inputs_of(flags, told));
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
  onnx::StagedModel model(flags.model, told, verified);
  const auto outputs = HEDDLE_TRY(model.run(inputs));
  result.stages = model.compiled();
  result.host = model.host_operators();
  result.expected = HEDDLE_TRY(expected_error(flags, outputs));
  return result;
}

}  // namespace heddle::tool
