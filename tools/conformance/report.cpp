#include "conformance/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

namespace heddle::conformance {
namespace {

using nlohmann::json;

/// "Conv 'y': input 1 …" without the node's name, so that equal reasons count together.
std::string reason_class(const std::string& reason) {
  const std::size_t open = reason.find(" '"), close = reason.find("': ");
  return open != std::string::npos && close != std::string::npos && open < close
             ? reason.substr(0, open) + reason.substr(close + 1)
             : reason;
}

/// Cases whose data are wrong.
std::string note_of(const std::string& title, const std::string& name) {
  if (name == "test_adam_multiple" && title.find("1.12") != std::string::npos)
    return " (computed with epsilon 1e-2, which the model does not say; the newer model does)";
  if (name.starts_with("test_dft_inverse"))
    return " (it is 0; the test's data hold rounding of f32, more than the tolerance)";
  return {};
}

std::string earlier_cases(const json& cases) {
  const auto count = std::count_if(cases.begin(), cases.end(),
                                   [](const json& c) { return c.contains("earlier"); });
  return count == 0 ? ""
                    : fmt::format("\n{} of the cases were run with an earlier build.\n", count);
}

std::string plain_nodes(const json& cases) {
  if (std::any_of(cases.begin(), cases.end(), [](const json& c) { return !c.contains("special"); }))
    return {};
  std::map<std::string, int> count;
  int total = 0;
  for (const json& c : cases)
    if (c["kind"] == "node" && !c["special"].get<bool>()) {
      ++total;
      ++count[c["status"].get<std::string>()];
    }
  return fmt::format(
      "\nOf the {} node cases that need no sequence, optional value, string, training or random "
      "operator {} passed, {} draw (dropout), {} failed and {} were refused.\n",
      total, count["passed"], count["random"], count["failed"], count["refused"]);
}

std::string counts_row(std::string_view label, const json& counts) {
  return fmt::format("| {} | {} | {} | {} | {} | {} |\n", label, counts.value("passed", 0),
                     counts.value("random", 0), counts.value("failed", 0),
                     counts.value("refused", 0), counts.value("total", 0));
}

std::string set_section(const json& set) {
  const json& s = set["summary"];
  std::string text = fmt::format(
      "\n## {}\n\n{:.1f} % passed.\n\n| kind | passed | random | failed | refused | total |\n"
      "|---|---|---|---|---|---|\n",
      set["title"].get<std::string>(),
      100.0 * s["passed"].get<int>() / std::max(1, s["total"].get<int>()));
  std::map<std::string, json> kinds;
  std::map<std::string, int> refusals;
  int specialised = 0;
  for (const json& c : set["cases"]) {
    json& kind = kinds.try_emplace(c["kind"].get<std::string>(), json::object()).first->second;
    for (const std::string& key : {c["status"].get<std::string>(), std::string("total")})
      kind[key] = kind.value(key, 0) + 1;
    if (c["status"] == "refused") ++refusals[reason_class(c["reason"])];
    specialised += c["specialised"].get<bool>();
  }
  for (const auto& [kind, counts] : kinds) text += counts_row(kind, counts);
  text += counts_row("all", s);
  text += fmt::format(
      "\nIn {} of the passed cases an input decides shapes (axes, repeats, a target shape) or how "
      "often a loop runs; the small inputs were bound to the test's values there, the others "
      "stayed "
      "inputs.\n",
      specialised);
  text += plain_nodes(set["cases"]);
  text += earlier_cases(set["cases"]);
  text += "\n### Refusals by reason\n\n| cases | reason |\n|---|---|\n";
  std::vector<std::pair<int, std::string>> ordered;
  for (const auto& [reason, count] : refusals) ordered.emplace_back(-count, reason);
  std::sort(ordered.begin(), ordered.end());
  for (const auto& [count, reason] : ordered) text += fmt::format("| {} | {} |\n", -count, reason);
  text += "\n### Failures\n\n| case | reason |\n|---|---|\n";
  for (const json& c : set["cases"])
    if (c["status"] == "failed") {
      std::string reason = c["reason"];
      std::replace(reason.begin(), reason.end(), '\n', ' ');
      const std::string name = c["name"];
      text +=
          fmt::format("| {} | {}{} |\n", name, reason.substr(0, 200), note_of(set["title"], name));
    }
  return text;
}

}  // namespace

std::string markdown_of(const json& sets, const Settings& settings) {
  std::string text = fmt::format(
      "# ONNX conformance\n\nMade by `scripts/conformance.sh` (engine: {}); do not edit. "
      "Tolerance: "
      "rtol {}, atol {}. *Random*: the outputs are drawn, so that no two implementations agree; "
      "types, shapes and possible values are compared, and that over 2,000 seeds each value comes "
      "as "
      "often as the standard promises (Bernoulli's expanded body draws with 1 - p). *Refused*: a "
      "clear error says what is not supported.\n",
      settings.engine, settings.rtol, settings.atol);
  for (const json& set : sets) text += set_section(set);
  return text;
}

std::string runner_section(const json& report) {
  const json& counts = report["counts"];
  int total = 0;
  for (const auto& [status, count] : counts.items()) total += count.get<int>();
  std::string text = fmt::format(
      "\n## onnx {}, by onnx's own runner\n\n`scripts/backend.sh`: the same cases from Python, "
      "`onnx.backend.test.BackendTest` over `heddle.backend`; it runs with the tests. {} passed, "
      "{} "
      "draw their outputs, {} failed and {} were refused of {}.\n\n| case | reason |\n|---|---|\n",
      report["onnx"].get<std::string>(), counts["passed"].get<int>(), counts["drawn"].get<int>(),
      counts["failed"].get<int>(), counts["refused"].get<int>(), total);
  for (const json& row : report["rest"])
    if (row["status"] != "drawn")
      text += fmt::format("| {} | {} |\n", row["name"].get<std::string>(),
                          row["reason"].get<std::string>());
  return text;
}

}  // namespace heddle::conformance
