// heddle-conformance: runs ONNX backend-test folders (model.onnx, test_data_set_*/) and writes a
// table.
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "onnx/reader.h"
#include "onnx/tensor_file.h"
#include "prim/interpret.h"
#ifdef HEDDLE_HAVE_DRIVER
#include "driver/driver.h"
#endif

namespace heddle {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Flags {
  std::vector<std::string> folders;
#ifdef HEDDLE_HAVE_DRIVER
  std::string engine = "compiled";
#else
  std::string engine = "reference";
#endif
  std::string json_file, markdown, filter;
  bool list = false;
  double rtol = 1e-3, atol = 1e-7;
  int seconds = 20, threads = 1;
};

struct Outcome {
  std::string status, reason;  ///< passed, failed, refused
  bool specialised = false;    ///< small inputs were bound to the test's values
};

/// The tests' files hold bf16 as u16, by its bits.
Tensor as_bf16(const Tensor& given, DType wanted) {
  if (given.dtype() != DType::u16 || wanted != DType::bf16) return given;
  return Tensor::from<std::uint16_t>(DType::bf16, given.shape(), given.as<std::uint16_t>());
}

/// The comparison of onnx's own runner: |found - wanted| <= atol + rtol·|wanted|, integers exact.
std::string difference(const Tensor& found, const Tensor& given, const Flags& flags) {
  const Tensor wanted = as_bf16(given, found.dtype());
  if (found.type() != wanted.type())
    return fmt::format("found {}, want {}", to_string(found.type()), to_string(wanted.type()));
  for (std::int64_t i = 0; i < found.count(); ++i) {
    if (!is_float(found.dtype())) {
      if (found.int_at(i) != wanted.int_at(i))
        return fmt::format("element {}: found {}, want {}", i, found.int_at(i), wanted.int_at(i));
      continue;
    }
    const double f = found.at(i), w = wanted.at(i);
    if (f == w || (std::isnan(f) && std::isnan(w))) continue;
    if (!(std::abs(f - w) <= flags.atol + flags.rtol * std::abs(w)))
      return fmt::format("element {}: found {}, want {}", i, f, w);
  }
  return {};
}

Result<std::vector<Tensor>> read_set(const fs::path& set, const char* kind) {
  std::vector<Tensor> tensors;
  for (int i = 0;; ++i) {
    const fs::path file = set / fmt::format("{}_{}.pb", kind, i);
    if (!fs::exists(file)) return tensors;
    tensors.push_back(HEDDLE_TRY(onnx::read_tensor(file.string())));
  }
}

/// The one place where engines differ.
Result<std::vector<Tensor>> run_set(const prim::Graph& graph, const std::vector<Tensor>& inputs,
                                    const Flags& flags) {
  if (flags.engine == "reference") return prim::interpret(graph, inputs);
#ifdef HEDDLE_HAVE_DRIVER
  driver::CompileOptions options;
  options.threads = flags.threads;
  const driver::Compiled compiled = HEDDLE_TRY(driver::compile(graph, options));
  return HEDDLE_TRY(driver::load(compiled.program, flags.threads))->run(inputs);
#else
  return fail(ErrorCode::usage, "engine '{}' is not built in", flags.engine);
#endif
}

struct Imported {
  prim::Graph graph;
  std::vector<Tensor> arguments;  ///< of the graph's inputs
  bool specialised = false;
};

/// Inputs that may decide shapes (axes, target shapes, scales) are small vectors.
bool may_decide_shapes(const Tensor& t) { return t.shape().size() <= 1 && t.count() <= 64; }

/// Imports the model as it is; if that is refused, with symbolic extents those of the test's
/// inputs; if that is refused, with the small inputs bound to the test's values, so that they
/// decide shapes.
Result<Imported> import_case(const fs::path& folder, const std::vector<Tensor>& inputs) {
  const std::vector<std::string> names = HEDDLE_TRY(onnx::input_names(folder.string()));
  if (inputs.size() > names.size())
    return fail("found {} inputs, the model has {}", inputs.size(), names.size());
  onnx::ImportOptions shaped;
  for (std::size_t i = 0; i < inputs.size(); ++i) shaped.shapes[names[i]] = inputs[i].shape();
  onnx::ImportOptions bound = shaped;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (may_decide_shapes(inputs[i])) bound.values[names[i]] = inputs[i];
  const auto refused = [](const Result<prim::Graph>& graph) {
    return !graph && graph.error().code == ErrorCode::unsupported;
  };
  Imported imported;
  Result<prim::Graph> graph = onnx::import(folder.string(), {});
  if (refused(graph)) graph = onnx::import(folder.string(), shaped);
  if (refused(graph) && !bound.values.empty()) {
    graph = onnx::import(folder.string(), bound);
    imported.specialised = true;
  }
  imported.graph = HEDDLE_TRY(std::move(graph));
  for (const prim::GraphInput& port : imported.graph.inputs) {
    const auto at =
        static_cast<std::size_t>(std::find(names.begin(), names.end(), port.name) - names.begin());
    if (at >= inputs.size()) return fail("the test has no data for input '{}'", port.name);
    const Tensor given = as_bf16(inputs[at], port.type.dtype);
    // Some tests of bf16 give their elements without the shape.
    const bool fits =
        given.dtype() == port.type.dtype && given.count() == element_count(port.type.shape);
    if (!fits)
      return fail("input '{}' is {}, want {}", port.name, to_string(given.type()),
                  to_string(port.type));
    imported.arguments.push_back(given.reshaped(port.type.shape));
  }
  return imported;
}

/// Ok{} or why not; sets `specialised`.
Status run_case(const fs::path& folder, const Flags& flags, bool& specialised) {
  std::vector<fs::path> sets;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().filename().string().starts_with("test_data_set_"))
      sets.push_back(entry.path());
  std::sort(sets.begin(), sets.end());
  if (sets.empty()) return fail("no test_data_set_*");
  HEDDLE_TRY(onnx::check_ports(folder.string()));
  for (const fs::path& set : sets) {
    const std::vector<Tensor> inputs = HEDDLE_TRY(read_set(set, "input"));
    const std::vector<Tensor> wanted = HEDDLE_TRY(read_set(set, "output"));
    const Imported imported = HEDDLE_TRY(import_case(folder, inputs));
    specialised |= imported.specialised;
    const std::vector<Tensor> found =
        HEDDLE_TRY(run_set(imported.graph, imported.arguments, flags));
    if (found.size() < wanted.size())
      return fail("found {} outputs, want {}", found.size(), wanted.size());
    for (std::size_t i = 0; i < wanted.size(); ++i)
      if (const std::string text = difference(found[i], wanted[i], flags); !text.empty())
        return fail(ErrorCode::mismatch, "output {}: {}", i, text);
  }
  return Ok{};
}

/// The case in a process of its own, with limits: a crash or a hang is a result.
Outcome run_isolated(const fs::path& folder, const Flags& flags) {
  int pipe[2];
  if (::pipe(pipe) != 0) return {"failed", "no pipe", false};
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(pipe[0]);
    const rlimit time{static_cast<rlim_t>(flags.seconds), static_cast<rlim_t>(flags.seconds)};
    const rlimit memory{rlim_t{6} << 30, rlim_t{6} << 30};
    ::setrlimit(RLIMIT_CPU, &time);
    ::setrlimit(RLIMIT_AS, &memory);
    ::alarm(static_cast<unsigned>(3 * flags.seconds));
    std::string text;
    bool specialised = false;
    try {
      if (const Status status = run_case(folder, flags, specialised); status)
        text = specialised ? "S" : "P";
      else
        text = (status.error().code == ErrorCode::unsupported ? "R" : "F") + status.error().message;
    } catch (const std::exception& e) {
      text = std::string("Fexception: ") + e.what();
    }
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
      return {"failed", fmt::format("no result after {} s", flags.seconds), false};
    return {"failed", fmt::format("crashed: {}", ::strsignal(signal)), false};
  }
  if (text.empty()) return {"failed", "ended without a result", false};
  const bool passed = text[0] == 'P' || text[0] == 'S';
  return {passed           ? "passed"
          : text[0] == 'R' ? "refused"
                           : "failed",
          text.substr(1), text[0] == 'S'};
}

/// "Conv 'y': input 1 …" without the node's name, so that equal reasons count together.
std::string reason_class(const std::string& reason) {
  const std::size_t open = reason.find(" '"), close = reason.find("': ");
  return open != std::string::npos && close != std::string::npos && open < close
             ? reason.substr(0, open) + reason.substr(close + 1)
             : reason;
}

std::string markdown_of(const json& report, const Flags& flags) {
  const json& s = report["summary"];
  std::string text = fmt::format(
      "# ONNX conformance\n\nMade by `heddle-conformance --engine {}`; do not edit. Cases: the "
      "ONNX backend tests of "
      "Debian's libonnx-testdata, tolerance rtol {}, atol {}.\n\n| passed | failed | refused | "
      "total |\n|---|---|---|---|\n"
      "| {} ({:.1f} %) | {} | {} | {} |\n\n",
      flags.engine, flags.rtol, flags.atol, s["passed"].get<int>(),
      100.0 * s["passed"].get<int>() / std::max(1, s["total"].get<int>()), s["failed"].get<int>(),
      s["refused"].get<int>(), s["total"].get<int>());
  text += "| kind | passed | failed | refused |\n|---|---|---|---|\n";
  std::map<std::string, std::map<std::string, int>> kinds;
  std::map<std::string, int> refusals;
  for (const json& c : report["cases"]) {
    ++kinds[c["kind"]][c["status"]];
    if (c["status"] == "refused") ++refusals[reason_class(c["reason"])];
  }
  for (auto& [kind, counts] : kinds)
    text += fmt::format("| {} | {} | {} | {} |\n", kind, counts["passed"], counts["failed"],
                        counts["refused"]);
  const auto specialised =
      std::count_if(report["cases"].begin(), report["cases"].end(),
                    [](const json& c) { return c["specialised"].get<bool>(); });
  text += fmt::format(
      "\nIn {} of the passed cases an input decides shapes (axes, repeats, a target shape); the "
      "small inputs were bound "
      "to the test's values there, the others stayed inputs.\n",
      specialised);
  text += "\n## Refusals by reason\n\n| cases | reason |\n|---|---|\n";
  std::vector<std::pair<int, std::string>> ordered;
  for (const auto& [reason, count] : refusals) ordered.emplace_back(-count, reason);
  std::sort(ordered.begin(), ordered.end());
  for (const auto& [count, reason] : ordered) text += fmt::format("| {} | {} |\n", -count, reason);
  text += "\n## Failures\n\n| case | reason |\n|---|---|\n";
  for (const json& c : report["cases"])
    if (c["status"] == "failed") {
      std::string reason = c["reason"];
      std::replace(reason.begin(), reason.end(), '\n', ' ');
      text += fmt::format("| {} | {} |\n", c["name"].get<std::string>(), reason.substr(0, 200));
    }
  return text;
}

Status run(const Flags& flags) {
  std::vector<fs::path> cases;
  for (const std::string& folder : flags.folders) {
    if (!fs::is_directory(folder)) return fail("{}: not a folder", folder);
    if (fs::exists(fs::path(folder) / "model.onnx")) cases.emplace_back(folder);
    for (const auto& entry : fs::recursive_directory_iterator(folder))
      if (entry.is_directory() && fs::exists(entry.path() / "model.onnx"))
        cases.push_back(entry.path());
  }
  std::sort(cases.begin(), cases.end());
  json report = {{"summary", {{"passed", 0}, {"failed", 0}, {"refused", 0}, {"total", 0}}},
                 {"cases", json::array()}};
  for (const fs::path& folder : cases) {
    const std::string name = folder.filename().string();
    if (!flags.filter.empty() && name.find(flags.filter) == std::string::npos) continue;
    const Outcome outcome = run_isolated(folder, flags);
    report["summary"][outcome.status] = report["summary"][outcome.status].get<int>() + 1;
    report["summary"]["total"] = report["summary"]["total"].get<int>() + 1;
    report["cases"].push_back({{"name", name},
                               {"kind", folder.parent_path().filename().string()},
                               {"status", outcome.status},
                               {"reason", outcome.reason},
                               {"specialised", outcome.specialised}});
    if (flags.list && outcome.status != "passed")
      fmt::print("{} {}: {}\n", outcome.status, name, outcome.reason);
  }
  const json& s = report["summary"];
  fmt::print("{} passed, {} failed, {} refused of {} ({:.1f} % passed)\n", s["passed"].get<int>(),
             s["failed"].get<int>(), s["refused"].get<int>(), s["total"].get<int>(),
             100.0 * s["passed"].get<int>() / std::max(1, s["total"].get<int>()));
  if (!flags.json_file.empty()) std::ofstream(flags.json_file) << report.dump(1) << '\n';
  if (!flags.markdown.empty()) std::ofstream(flags.markdown) << markdown_of(report, flags);
  return Ok{};
}

}  // namespace
}  // namespace heddle

int main(int argc, char** argv) {
  heddle::Flags flags;
  CLI::App app{"Runs ONNX backend tests and reports what passed, failed and was refused.",
               "heddle-conformance"};
  app.add_option("folders", flags.folders, "folders that hold cases, at any depth")->required();
  app.add_option("--engine", flags.engine, "reference (the interpreter) or compiled")
      ->capture_default_str()
      ->check(CLI::IsMember({"reference", "compiled"}));
  app.add_option("--json", flags.json_file, "write the report as JSON");
  app.add_option("--markdown", flags.markdown, "write the report as Markdown");
  app.add_option("--filter", flags.filter, "only cases whose name holds this");
  app.add_option("--rtol", flags.rtol, "relative tolerance")->capture_default_str();
  app.add_option("--atol", flags.atol, "absolute tolerance")->capture_default_str();
  app.add_option("--seconds", flags.seconds, "processor time limit of a case")
      ->capture_default_str();
  app.add_flag("--list", flags.list, "print every case that did not pass");
  CLI11_PARSE(app, argc, argv);
  if (heddle::Status status = heddle::run(flags); !status) {
    fmt::print(stderr, "heddle-conformance: error: {}\n", status.error().message);
    return static_cast<int>(status.error().code);
  }
  return 0;
}
