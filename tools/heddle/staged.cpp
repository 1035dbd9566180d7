#include "staged.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <random>

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
    const auto session = HEDDLE_TRY(driver::load(compiled.program, options));
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

struct StagedInputs {
  std::map<std::string, Tensor> values;  ///< a sequence's items as "name[0]", …
  onnx::ImportOptions told;              ///< of sequences and optional values
  std::string from;
};

/// Random numbers for what has no file, of the types that the first stage finds.
Status draw_others(const ModelFlags& flags, const onnx::Ports& ports, StagedInputs& inputs) {
  std::map<std::string, TensorType> types;
  onnx::ImportOptions given = inputs.told;
  for (const auto& [name, tensor] : inputs.values) given.shapes.try_emplace(name, tensor.shape());
  if (const auto first = onnx::import_stage(flags.model, given))
    for (const prim::GraphInput& input : first->graph.inputs) types[input.name] = input.type;
  std::mt19937_64 random(flags.seed.value_or(0));
  for (const onnx::Port& port : ports.inputs) {
    if (inputs.values.contains(port.name) || inputs.told.absent.contains(port.name) ||
        inputs.told.sequences.contains(port.name))
      continue;
    const auto type = types.find(port.name);
    if (port.text || type == types.end())
      return fail(ErrorCode::usage, "input '{}': give a file: --input {}=FILE.pb", port.name,
                  port.name);
    inputs.values.emplace(port.name, random_tensor(type->second, random));
    inputs.from = fmt::format("random numbers of seed {}", flags.seed.value_or(0));
  }
  return Ok{};
}

Result<StagedInputs> inputs_of(const ModelFlags& flags, const driver::CompileOptions& options) {
  StagedInputs inputs{{}, driver::import_options(options), {}};
  std::map<std::string, std::string> files;
  const onnx::Ports ports = HEDDLE_TRY(onnx::ports(flags.model));
  for (std::size_t i = 0; i < ports.inputs.size() && !flags.seed; ++i) {
    const fs::path file = test_data_folder(flags) / fmt::format("input_{}.pb", i);
    if (!fs::exists(file)) continue;
    files[ports.inputs[i].name] = file.string();
    inputs.from = "test_data_set_0";
  }
  for (const std::string& text : flags.inputs) {
    const std::size_t split = text.find('=');
    if (split == std::string::npos)
      return fail(ErrorCode::usage, "--input: found '{}', want NAME=FILE", text);
    files[text.substr(0, split)] = text.substr(split + 1);
    inputs.from = "files";
  }
  for (const onnx::Port& port : ports.inputs)
    if (const auto file = files.extract(port.name); !file.empty())
      HEDDLE_TRY(add_value(port, file.mapped(), inputs.values, inputs.told));
  if (!files.empty())
    return fail(ErrorCode::usage, "--input: the model has no input '{}'", files.begin()->first);
  HEDDLE_TRY(draw_others(flags, ports, inputs));
  return inputs;
}

std::string host_text(const std::set<std::string>& operators) {
  if (operators.empty()) return "the host does nothing between them";
  return fmt::format("the host does {}", fmt::join(operators, ", "));
}

std::string element(const onnx::Output& output, std::int64_t i) {
  if (output.format != ops::Format::text) return fmt::format("{:.6g}", output.tensor.at(i));
  return fmt::format("\"{}\"", text_of(output.tensor.int_at(i)).value_or("?"));
}

}  // namespace

Result<bool> is_staged(const std::string& model) {
  if (model.empty() || runtime::is_artefact(model)) return false;
  const onnx::Ports ports = HEDDLE_TRY(onnx::ports(model));
  const auto odd = [](const onnx::Port& port) {
    return port.kind == onnx::Port::Kind::sequence || port.kind == onnx::Port::Kind::optional ||
           port.kind == onnx::Port::Kind::optional_sequence;
  };
  return std::ranges::any_of(ports.inputs, odd) || std::ranges::any_of(ports.outputs, odd) ||
         HEDDLE_TRY(onnx::runs_in_stages(model));
}

Result<bool> is_staged(const ModelFlags& flags) {
  const bool staged = HEDDLE_TRY(is_staged(flags.model));
  if (staged && flags.training)
    return unsupported("--train: '{}' runs in stages, want a model that is one program",
                       flags.model);
  return staged;
}

bool works_in_stages(const ModelFlags& flags, const Error& why) {
  if (flags.training || why.code != ErrorCode::unsupported || wants_sizes(flags) ||
      runtime::is_artefact(flags.model))
    return false;
  const auto options = compile_options(flags);
  if (!options) return false;
  const auto inputs = inputs_of(flags, *options);
  if (!inputs) return false;
  onnx::ImportOptions given = inputs->told;
  for (const auto& [name, tensor] : inputs->values) given.shapes.try_emplace(name, tensor.shape());
  std::erase_if(given.shapes, [](const auto& shape) { return shape.first.ends_with(']'); });
  return onnx::import_stage(flags.model, given).ok();
}

namespace {

/// An output as text, and into a file of its own where `save` is a folder: NumPy's format where
/// that has the type, else a serialised tensor, sequence or optional value.
Result<nlohmann::json> report_output(const onnx::Port& port, const onnx::OutputItems& items,
                                     const std::string& save, int position) {
  using Kind = onnx::Port::Kind;
  const bool list = port.kind == Kind::sequence || port.kind == Kind::optional_sequence ||
                    (port.kind == Kind::optional && items.empty());
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

/// Compares an output with the folder's test data, if there are any.
Status compare_output(const ModelFlags& flags, const onnx::Port& port, std::size_t number,
                      const onnx::OutputItems& items, double relative, double absolute,
                      nlohmann::json& entry) {
  const fs::path file = test_data_folder(flags) / fmt::format("output_{}.pb", number);
  if (!fs::exists(file)) return Ok{};
  const auto wanted = HEDDLE_TRY(onnx::read_value(file.string(), port.kind));
  const std::size_t count = wanted ? wanted->size() : 0;
  bool equal = count == items.size();
  double worst = equal ? 0 : INFINITY;
  for (std::size_t i = 0; i < count && i < items.size(); ++i) {
    const Difference d = compare(items[i].tensor, (*wanted)[i], relative, absolute);
    equal &= d.worst <= 1;
    worst = std::max(worst, d.max_absolute);
  }
  entry["expected"] = {{"max_absolute_error", worst}, {"equal", equal}};
  return Ok{};
}

void print_outputs(const nlohmann::json& outputs) {
  for (const auto& output : outputs) {
    fmt::print("  {} {} = {}\n", output["name"].get<std::string>(),
               output["type"].get<std::string>(), output["preview"].get<std::string>());
    if (output.contains("expected"))
      fmt::print("    against the expected output: largest error {:.3g}: {}\n",
                 output["expected"]["max_absolute_error"].get<double>(),
                 output["expected"]["equal"].get<bool>() ? "equal" : "DIFFERENT");
  }
}

}  // namespace

Status run_staged(const ModelFlags& flags, const std::string& save, double relative,
                  double absolute) {
  const driver::CompileOptions options = HEDDLE_TRY(compile_options(flags));
  if (!options.locked.empty())
    return unsupported("--locked: found a model of several stages, want one that is one program");
  const StagedInputs inputs = HEDDLE_TRY(inputs_of(flags, options));
  onnx::StagedModel model(flags.model, inputs.told, compiler(options));
  const auto outputs = HEDDLE_TRY(model.run(inputs.values));
  const onnx::Ports ports = HEDDLE_TRY(onnx::ports(flags.model));
  if (!save.empty() && !fs::is_directory(save) && ports.outputs.size() > 1)
    return fail(ErrorCode::usage, "--save: found the file '{}' for {} outputs, want a folder", save,
                ports.outputs.size());
  nlohmann::json shown = nlohmann::json::array();
  bool equal = true;
  for (std::size_t i = 0; i < ports.outputs.size(); ++i) {
    const onnx::Port& port = ports.outputs[i];
    const onnx::OutputItems items = HEDDLE_TRY(onnx::items_of(port, outputs));
    shown.push_back(HEDDLE_TRY(report_output(port, items, save, static_cast<int>(i))));
    if (inputs.from != "test_data_set_0" || port.kind == onnx::Port::Kind::other) continue;
    HEDDLE_TRY(compare_output(flags, port, i, items, relative, absolute, shown.back()));
    equal &= !shown.back().contains("expected") || shown.back()["expected"]["equal"].get<bool>();
  }
  if (flags.json) {
    fmt::print("{}\n", nlohmann::json{{"model", flags.model},
                                      {"inputs", inputs.from},
                                      {"stages", model.compiled()},
                                      {"host_operators", model.host_operators()},
                                      {"outputs", shown}}
                           .dump(2));
  } else {
    fmt::print("{}: {} programs compiled, run in stages; {}\n  inputs: {}\n", flags.model,
               model.compiled(), host_text(model.host_operators()), inputs.from);
    print_outputs(shown);
  }
  if (equal) return Ok{};
  return fail(ErrorCode::mismatch, "{}: outputs differ from the expected ones (rtol {}, atol {})",
              flags.model, relative, absolute);
}

namespace {

/// One node of the first stage: on the host, waiting for it, or covered by kernels.
Status explain_node(const onnx::Stage& stage, const std::string& node,
                    const driver::CompileOptions& options) {
  for (const onnx::HostCall& call : stage.calls)
    if (call.name == node) {
      fmt::print("host: {} '{}'\n", call.op, node);
      return Ok{};
    }
  if (std::ranges::find(stage.waiting, node) != stage.waiting.end()) {
    fmt::print("'{}' is compiled when this stage has run\n", node);
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
      HEDDLE_TRY(onnx::import_stage(flags.model, driver::import_options(options)));
  if (!node.empty()) return explain_node(stage, node, options);
  nlohmann::json report = {{"model", flags.model},
                           {"first_stage_outputs", nlohmann::json::array()},
                           {"host_operators", nlohmann::json::array()},
                           {"numbers", nlohmann::json::array()},
                           {"after_the_host", stage.waiting}};
  for (const prim::GraphOutput& output : stage.graph.outputs)
    report["first_stage_outputs"].push_back(output.name);
  for (const onnx::HostCall& call : stage.calls)
    report["host_operators"].push_back({{"op", call.op}, {"name", call.name}});
  for (const auto& [key, asked] : stage.asked)
    if (asked.numbers) report["numbers"].push_back(key);
  if (flags.json) {
    fmt::print("{}\n", report.dump(2));
    return Ok{};
  }
  fmt::print("stage 0, compiled: makes {} values\n", stage.graph.outputs.size());
  for (const onnx::HostCall& call : stage.calls) fmt::print("host: {} '{}'\n", call.op, call.name);
  for (const auto& [key, asked] : stage.asked)
    if (asked.numbers) fmt::print("its numbers decide shapes or branches: '{}'\n", key);
  fmt::print("later, compiled for what these make: {} nodes\n", stage.waiting.size());
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
  const StagedInputs inputs = HEDDLE_TRY(inputs_of(flags, options));
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
  onnx::StagedModel model(flags.model, inputs.told, verified);
  const auto outputs = HEDDLE_TRY(model.run(inputs.values));
  result.from = inputs.from;
  result.stages = model.compiled();
  result.host = model.host_operators();
  result.expected = HEDDLE_TRY(expected_error(flags, outputs));
  return result;
}

}  // namespace heddle::tool
