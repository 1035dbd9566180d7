#include "conformance/cases.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <vector>

#include "conformance/drawn.h"
#include "onnx/model.h"
#include "onnx/reader.h"
#include "onnx/stages.h"
#include "onnx/tensor_file.h"
#include "prim/interpret.h"
#ifdef HEDDLE_HAVE_DRIVER
#include "driver/driver.h"
#endif

namespace heddle::conformance {
namespace {

namespace fs = std::filesystem;

/// Old tests hold bf16 as u16, by its bits.
Tensor as_bf16(const Tensor& given, DType wanted) {
  if (given.dtype() != DType::u16 || wanted != DType::bf16) return given;
  return Tensor::from<std::uint16_t>(DType::bf16, given.shape(), given.as<std::uint16_t>());
}

std::string type_difference(const Tensor& found, const Tensor& wanted) {
  if (found.type() == wanted.type()) return {};
  return fmt::format("found {}, want {}", to_string(found.type()), to_string(wanted.type()));
}

/// Bits of bf16 in u16: onnx 1.12 made them by cutting numbers off, newer tests round to nearest,
/// and the standard had not said which. (onnx's runner takes the bits for integers, within 0.1 %.)
std::string bits_difference(const Tensor& found, const Tensor& wanted) {
  for (std::int64_t i = 0; i < found.count(); ++i) {
    const int f = found.as<std::uint16_t>()[static_cast<std::size_t>(i)];
    const int w = wanted.as<std::uint16_t>()[static_cast<std::size_t>(i)];
    if (std::abs(f - w) > 1)
      return fmt::format("element {}: found {}, want {}", i, found.at(i), wanted.at(i));
  }
  return {};
}

/// The comparison of onnx's own runner: |found - wanted| <= atol + rtol·|wanted|, integers exact.
std::string difference(const Tensor& found, const Tensor& wanted, const Settings& settings) {
  for (std::int64_t i = 0; i < found.count(); ++i) {
    if (!is_float(found.dtype())) {
      if (found.int_at(i) != wanted.int_at(i))
        return fmt::format("element {}: found {}, want {}", i, found.int_at(i), wanted.int_at(i));
      continue;
    }
    const double f = found.at(i), w = wanted.at(i);
    if (f == w || (std::isnan(f) && std::isnan(w))) continue;
    if (!(std::abs(f - w) <= settings.atol + settings.rtol * std::abs(w)))
      return fmt::format("element {}: found {}, want {}", i, f, w);
  }
  return {};
}

/// The values of a test's inputs or outputs; nullopt: an optional value that is absent.
struct Value {
  onnx::Port port;
  std::optional<std::vector<Tensor>> items;

  bool is_list() const {
    return port.kind == onnx::Port::Kind::sequence ||
           port.kind == onnx::Port::Kind::optional_sequence;
  }
  /// The graph's name of item i.
  std::string name(std::size_t i) const {
    return is_list() ? fmt::format("{}[{}]", port.name, i) : port.name;
  }
};

Result<std::vector<Value>> read_set(const fs::path& set, const char* kind,
                                    const std::vector<onnx::Port>& ports) {
  std::vector<Value> values;
  for (std::size_t i = 0;; ++i) {
    const fs::path file = set / fmt::format("{}_{}.pb", kind, i);
    if (!fs::exists(file)) return values;
    if (i >= ports.size()) return fail("{}: the model has {} {}s", file.string(), i, kind);
    values.push_back({ports[i], HEDDLE_TRY(onnx::read_value(file.string(), ports[i].kind))});
  }
}

/// The one place where engines differ.
Result<onnx::Runner> runner_of(const prim::Graph& graph, const Settings& settings) {
  if (settings.engine == "reference")
    return onnx::Runner(
        [graph](const std::vector<Tensor>& inputs) { return prim::interpret(graph, inputs); });
#ifdef HEDDLE_HAVE_DRIVER
  driver::CompileOptions options;
  options.threads = settings.threads;
  const driver::Compiled compiled = HEDDLE_TRY(driver::compile(graph, options));
  const auto session = HEDDLE_TRY(driver::load(compiled.program, options));
  return onnx::Runner(
      [session](const std::vector<Tensor>& inputs) { return session->run(inputs); });
#else
  return fail(ErrorCode::usage, "engine '{}' is not built in", settings.engine);
#endif
}

struct Imported {
  prim::Graph graph;
  std::vector<Tensor> arguments;  ///< of the graph's inputs
  bool specialised = false;
};

/// Inputs that may decide shapes (axes, target shapes, scales) are small vectors.
bool may_decide_shapes(const Tensor& t) { return t.shape().size() <= 1 && t.count() <= 64; }

/// What the graph's input of this name is given.
Result<Tensor> argument(const prim::GraphInput& port, const std::vector<Value>& inputs) {
  for (const Value& input : inputs)
    for (std::size_t i = 0; input.items && i < input.items->size(); ++i) {
      if (input.name(i) != port.name) continue;
      const Tensor given = as_bf16((*input.items)[i], port.type.dtype);
      // onnx 1.12 gives CastLike's second input, of which only the type counts, one element.
      if (given.dtype() == port.type.dtype && given.count() == 1)
        if (const std::int64_t count = element_count(port.type.shape); count > 1)
          return Tensor(port.type);
      if (given.dtype() != port.type.dtype || given.count() != element_count(port.type.shape))
        return fail("input '{}' is {}, want {}", port.name, to_string(given.type()),
                    to_string(port.type));
      return given.reshaped(port.type.shape);
    }
  return fail("the test has no data for input '{}'", port.name);
}

/// Imports the model as it is; if that is refused, with symbolic extents those of the test's
/// inputs; if that is refused, with the small inputs bound to the test's values, so that they
/// decide shapes. What a sequence holds, and whether an optional value is there, is always told.
Result<Imported> import_case(const fs::path& folder, const std::vector<Value>& inputs) {
  onnx::ImportOptions plain;
  for (const Value& input : inputs) {
    if (!input.items) plain.absent.insert(input.port.name);
    if (!input.items || !input.is_list()) continue;
    std::vector<Shape>& shapes = plain.sequences[input.port.name];
    for (const Tensor& item : *input.items) shapes.push_back(item.shape());
  }
  onnx::ImportOptions shaped = plain;
  for (const Value& input : inputs)
    if (input.items && !input.is_list()) shaped.shapes[input.port.name] = (*input.items)[0].shape();
  onnx::ImportOptions bound = shaped;
  for (const Value& input : inputs)
    for (std::size_t i = 0; input.items && i < input.items->size(); ++i)
      if (may_decide_shapes((*input.items)[i])) bound.values[input.name(i)] = (*input.items)[i];
  const auto refused = [](const Result<prim::Graph>& graph) {
    return !graph && graph.error().code == ErrorCode::unsupported;
  };
  Imported imported;
  Result<prim::Graph> graph = onnx::import(folder.string(), plain);
  if (refused(graph)) graph = onnx::import(folder.string(), shaped);
  if (refused(graph) && !bound.values.empty()) {
    graph = onnx::import(folder.string(), bound);
    imported.specialised = true;
  }
  imported.graph = HEDDLE_TRY(std::move(graph));
  for (const prim::GraphInput& port : imported.graph.inputs)
    imported.arguments.push_back(HEDDLE_TRY(argument(port, inputs)));
  return imported;
}

bool draws(const prim::Graph& graph) {
  const std::vector<prim::NodeId> live = prim::live_nodes(graph);
  return std::any_of(live.begin(), live.end(), [&](prim::NodeId id) {
    return std::holds_alternative<prim::Random>(graph[id].op);
  });
}

Status compare(const std::map<std::string, Tensor>& by_name, const std::vector<Value>& wanted,
               bool random, const Settings& settings) {
  for (const Value& value : wanted) {
    const std::size_t count = value.items ? value.items->size() : 0;
    if ((value.is_list() || count == 0) && by_name.contains(value.name(count)))
      return fail(ErrorCode::mismatch, "output '{}': found more than {} items", value.port.name,
                  count);
    for (std::size_t i = 0; i < count; ++i) {
      const std::string name = value.name(i);
      const auto at = by_name.find(name);
      if (at == by_name.end()) return fail(ErrorCode::mismatch, "output '{}' is missing", name);
      const Tensor& given = (*value.items)[i];
      const Tensor want = as_bf16(given, at->second.dtype());
      std::string text = type_difference(at->second, want);
      if (text.empty() && !random)
        text = given.dtype() != want.dtype() ? bits_difference(at->second, want)
                                             : difference(at->second, want, settings);
      if (!text.empty()) return fail(ErrorCode::mismatch, "output '{}': {}", name, text);
    }
  }
  return Ok{};
}

/// The outputs by name of a model with host operators, which runs in stages.
Result<std::map<std::string, Tensor>> run_staged(const fs::path& folder,
                                                 const std::vector<Value>& inputs,
                                                 const Settings& settings) {
  std::map<std::string, Tensor> by_name;
  for (const Value& input : inputs)
    if (input.items && !input.is_list()) by_name.emplace(input.port.name, (*input.items)[0]);
  onnx::StagedModel model(folder.string(), {},
                          [&](const prim::Graph& graph) { return runner_of(graph, settings); });
  std::map<std::string, Tensor> outputs;
  for (auto& [name, output] : HEDDLE_TRY(model.run(by_name))) outputs.emplace(name, output.tensor);
  return outputs;
}

struct Passed {
  bool specialised = false, random = false;
};
Result<Passed> run_case(const fs::path& folder, const Settings& settings) {
  std::vector<fs::path> sets;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().filename().string().starts_with("test_data_set_"))
      sets.push_back(entry.path());
  std::sort(sets.begin(), sets.end());
  if (sets.empty()) return fail("no test_data_set_*");
  const onnx::Ports ports = HEDDLE_TRY(onnx::ports(folder.string()));
  Passed passed;
  for (const fs::path& set : sets) {
    const auto inputs = HEDDLE_TRY(read_set(set, "input", ports.inputs));
    const auto wanted = HEDDLE_TRY(read_set(set, "output", ports.outputs));
    if (HEDDLE_TRY(onnx::runs_in_stages(folder.string()))) {
      HEDDLE_TRY(
          compare(HEDDLE_TRY(run_staged(folder, inputs, settings)), wanted, false, settings));
      continue;
    }
    const Imported imported = HEDDLE_TRY(import_case(folder, inputs));
    passed.specialised |= imported.specialised;
    passed.random |= draws(imported.graph);
    const onnx::Runner run = HEDDLE_TRY(runner_of(imported.graph, settings));
    const std::vector<Tensor> found = HEDDLE_TRY(run(imported.arguments));
    std::vector<std::string> names;
    for (const prim::GraphOutput& output : imported.graph.outputs) names.push_back(output.name);
    HEDDLE_TRY(compare(onnx::trimmed(names, found), wanted, passed.random, settings));
    if (!passed.random) continue;
    std::vector<Tensor> given;
    for (const Value& input : inputs) given.push_back(input.items ? (*input.items)[0] : Tensor());
    HEDDLE_TRY(
        check_drawn(folder.filename().string(), imported.graph, imported.arguments, given, found));
  }
  return passed;
}

/// The outcome as a letter (Passed, Specialised, drawn at Random, Refused, Failed) and a reason.
std::string run_to_text(const fs::path& folder, const Settings& settings) {
  try {
    const Result<Passed> passed = run_case(folder, settings);
    if (passed) return passed->random ? "D" : passed->specialised ? "S" : "P";
    return (passed.error().code == ErrorCode::unsupported ? "R" : "F") + passed.error().message;
  } catch (const std::exception& e) {
    return std::string("Fexception: ") + e.what();
  }
}

}  // namespace

namespace {

bool is_special(const ::onnx::GraphProto& graph) {
  static const std::set<std::string> kNames = {"SplitToSequence", "ConcatFromSequence",
                                               "RegexFullMatch", "Bernoulli", "Multinomial"};
  const auto starts = [](const std::string& name) {
    return name.starts_with("Sequence") || name.starts_with("Optional") ||
           name.starts_with("String") || name.starts_with("Random");
  };
  const auto is_odd = [](const auto& port) {
    const auto& type = port.type();
    return type.has_sequence_type() || type.has_optional_type() ||
           type.tensor_type().elem_type() == ::onnx::TensorProto::STRING;
  };
  if (std::any_of(graph.input().begin(), graph.input().end(), is_odd) ||
      std::any_of(graph.output().begin(), graph.output().end(), is_odd))
    return true;
  for (const auto& node : graph.node()) {
    if (kNames.contains(node.op_type()) || starts(node.op_type()) ||
        node.domain() == "ai.onnx.preview.training")
      return true;
    for (const auto& a : node.attribute())
      if ((a.name() == "training_mode" && a.i() != 0) || (a.has_g() && is_special(a.g())))
        return true;
  }
  return false;
}

}  // namespace

bool is_special(const std::string& folder) {
  const auto loaded = onnx::load_model(folder);
  return loaded && is_special(loaded->model->graph());
}

Outcome run_isolated(const std::string& folder, const Settings& settings) {
  std::fflush(nullptr);  // or the child would print it again
  int pipe[2];
  if (::pipe(pipe) != 0) return {"failed", "no pipe", false};
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(pipe[0]);
    const auto seconds = static_cast<rlim_t>(settings.seconds);
    const rlimit time{seconds, seconds + 1};
    const rlimit memory{rlim_t{6} << 30, rlim_t{6} << 30};
    ::setrlimit(RLIMIT_CPU, &time);
    ::setrlimit(RLIMIT_AS, &memory);
    ::alarm(static_cast<unsigned>(3 * settings.seconds));
    std::string text = run_to_text(folder, settings);
    text.resize(std::min<std::size_t>(text.size(), 4000));
    if (::write(pipe[1], text.data(), text.size()) < 0) ::_exit(1);
    ::_exit(0);
  }
  ::close(pipe[1]);
  std::string text;
  char chunk[4096];
  for (ssize_t got; (got = ::read(pipe[0], chunk, sizeof chunk)) > 0;)
    text.append(chunk, static_cast<std::size_t>(got));
  ::close(pipe[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) {
    const int signal = WTERMSIG(status);
    if (signal == SIGALRM || signal == SIGXCPU)
      return {"failed", fmt::format("no result after {} s", settings.seconds), false};
    return {"failed", fmt::format("crashed: {}", ::strsignal(signal)), false};
  }
  if (text.empty()) return {"failed", "ended without a result", false};
  static const std::map<char, std::string> kStatus = {
      {'P', "passed"}, {'S', "passed"}, {'D', "random"}, {'R', "refused"}, {'F', "failed"}};
  return {kStatus.at(text[0]), text.substr(1), text[0] == 'S'};
}

}  // namespace heddle::conformance
