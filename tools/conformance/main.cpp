// heddle-conformance: runs ONNX backend-test folders (model.onnx, test_data_set_*/) and writes a
// table.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <tuple>

#include "conformance/report.h"
#include "support/result.h"

namespace heddle::conformance {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Flags {
  std::vector<std::string> sets;
  Settings settings;
  std::string json_file, markdown, filter, earlier, runner;
  std::vector<int> part = {1, 1};  ///< {K, N}: every N-th case from the K-th
  bool joins = false;              ///< `sets` are reports of parts
  bool list = false;
  bool want_all = false;
};

/// The cases in the folders "a,b,…", at any depth.
Result<std::vector<fs::path>> cases_in(const std::string& folders) {
  std::vector<fs::path> cases;
  for (const std::string& folder : CLI::detail::split(folders, ',')) {
    if (!fs::is_directory(folder)) return fail("{}: not a folder", folder);
    if (fs::exists(fs::path(folder) / "model.onnx")) cases.emplace_back(folder);
    for (const auto& entry : fs::recursive_directory_iterator(folder))
      if (entry.is_directory() && fs::exists(entry.path() / "model.onnx"))
        cases.push_back(entry.path());
  }
  std::sort(cases.begin(), cases.end());
  return cases;
}

/// A set's report of its cases' rows.
json report_of(const std::string& title, json rows) {
  json summary = {{"passed", 0}, {"random", 0}, {"failed", 0}, {"refused", 0}, {"total", 0}};
  for (const json& row : rows)
    for (const std::string& key : {row["status"].get<std::string>(), std::string("total")})
      summary[key] = summary[key].get<int>() + 1;
  return {{"title", title}, {"summary", summary}, {"cases", std::move(rows)}};
}

json run_cases(const std::vector<fs::path>& cases, const Flags& flags) {
  json rows = json::array();
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const fs::path& folder = cases[i];
    const std::string name = folder.filename().string();
    if (!flags.filter.empty() && name.find(flags.filter) == std::string::npos) continue;
    if (static_cast<int>(i) % flags.part[1] != flags.part[0] - 1) continue;
    const Outcome outcome = run_isolated(folder.string(), flags.settings);
    rows.push_back({{"name", name},
                    {"kind", folder.parent_path().filename().string()},
                    {"status", outcome.status},
                    {"reason", outcome.reason},
                    {"specialised", outcome.specialised},
                    {"special", is_special(folder.string())}});
    if (flags.list && outcome.status != "passed")
      fmt::print("{} {}: {}\n", outcome.status, name, outcome.reason);
  }
  return rows;
}

/// The sets' reports out of what --json of parts has written; cases that no part has are those of
/// the earlier report, and are marked.
Result<json> joined(std::vector<std::string> files, const std::string& earlier) {
  std::vector<std::string> titles;
  std::map<std::string, json> rows;
  std::set<std::tuple<std::string, std::string, std::string>> seen;
  if (!earlier.empty()) files.push_back(earlier);
  for (const std::string& file : files) {
    const json part = json::parse(std::ifstream(file), nullptr, false);
    if (!part.is_object() || !part.contains("cases")) return fail("{}: not a report", file);
    for (json row : part["cases"]) {
      const std::string title = row["set"];
      if (!seen.emplace(title, row["kind"], row["name"]).second) continue;
      if (file == earlier) row["earlier"] = true;
      if (rows.try_emplace(title, json::array()).second) titles.push_back(title);
      rows[title].push_back(std::move(row));
    }
  }
  std::sort(titles.begin(), titles.end());
  json sets = json::array();
  for (const std::string& title : titles) {
    std::sort(rows[title].begin(), rows[title].end(), [](const json& a, const json& b) {
      return std::tie(a["kind"], a["name"]) < std::tie(b["kind"], b["name"]);
    });
    sets.push_back(report_of(title, std::move(rows[title])));
  }
  return sets;
}

Result<json> run_sets(const Flags& flags) {
  json sets = json::array();
  for (const std::string& set : flags.sets) {
    const std::size_t equals = set.find('=');
    const bool titled = equals != std::string::npos;
    const auto cases = HEDDLE_TRY(cases_in(titled ? set.substr(equals + 1) : set));
    sets.push_back(report_of(titled ? set.substr(0, equals) : set, run_cases(cases, flags)));
  }
  return sets;
}

/// One report of all sets: {"summary", "sets": [{"title", "summary"}], "cases"}.
json merged(const json& sets) {
  json all = {{"summary", json::object()}, {"sets", json::array()}, {"cases", json::array()}};
  for (const json& set : sets) {
    for (const auto& [status, count] : set["summary"].items())
      all["summary"][status] = all["summary"].value(status, 0) + count.get<int>();
    all["sets"].push_back({{"title", set["title"]}, {"summary", set["summary"]}});
    for (json row : set["cases"]) {
      row["set"] = set["title"];
      all["cases"].push_back(std::move(row));
    }
  }
  return all;
}

Status run(const Flags& flags) {
  const json sets = HEDDLE_TRY(flags.joins ? joined(flags.sets, flags.earlier) : run_sets(flags));
  for (const json& set : sets) {
    const json& s = set["summary"];
    fmt::print("{}: {} passed, {} random, {} failed, {} refused of {} ({:.1f} % passed)\n",
               set["title"].get<std::string>(), s["passed"].get<int>(), s["random"].get<int>(),
               s["failed"].get<int>(), s["refused"].get<int>(), s["total"].get<int>(),
               100.0 * s["passed"].get<int>() / std::max(1, s["total"].get<int>()));
  }
  if (!flags.json_file.empty()) std::ofstream(flags.json_file) << merged(sets).dump(1) << '\n';
  std::string document = markdown_of(sets, flags.settings);
  if (!flags.runner.empty()) {
    const json report = json::parse(std::ifstream(flags.runner), nullptr, false);
    if (!report.is_object()) return fail("{}: not a report", flags.runner);
    document += runner_section(report);
  }
  if (!flags.markdown.empty()) std::ofstream(flags.markdown) << document;
  for (const json& set : sets)
    if (flags.want_all && set["summary"]["passed"] != set["summary"]["total"])
      return fail(ErrorCode::mismatch, "{}: not all passed", set["title"].get<std::string>());
  return Ok{};
}

}  // namespace
}  // namespace heddle::conformance

int main(int argc, char** argv) {
  heddle::conformance::Flags flags;
  heddle::conformance::Settings& settings = flags.settings;
#ifdef HEDDLE_HAVE_DRIVER
  settings.engine = "compiled";
#else
  settings.engine = "reference";
#endif
  CLI::App app{"Runs ONNX backend tests and reports what passed, failed and was refused.",
               "heddle-conformance"};
  app.add_option(
         "sets", flags.sets,
         "folders that hold cases, at any depth; TITLE=FOLDER,FOLDER makes one table of them")
      ->required();
  app.add_option("--engine", settings.engine, "reference (the interpreter) or compiled")
      ->capture_default_str()
      ->check(CLI::IsMember({"reference", "compiled"}));
  app.add_option("--json", flags.json_file, "write the report as JSON");
  app.add_option("--markdown", flags.markdown, "write the report as Markdown");
  app.add_option("--part", flags.part, "K N: only every N-th case, from the K-th")
      ->expected(2)
      ->check(CLI::PositiveNumber);
  app.add_flag("--join", flags.joins, "the sets are JSON reports of parts, to be made one report");
  app.add_option("--earlier", flags.earlier, "--join: the report that has the cases of no part");
  app.add_option("--runner", flags.runner, "--markdown: what scripts/backend.sh has counted");
  app.add_option("--filter", flags.filter, "only cases whose name holds this");
  app.add_option("--rtol", settings.rtol, "relative tolerance")->capture_default_str();
  app.add_option("--atol", settings.atol, "absolute tolerance")->capture_default_str();
  app.add_option("--seconds", settings.seconds, "processor time limit of a case")
      ->capture_default_str();
  app.add_flag("--list", flags.list, "print every case that did not pass");
  app.add_flag("--want-all", flags.want_all, "fail unless every case passes");
  CLI11_PARSE(app, argc, argv);
  if (heddle::Status status = heddle::conformance::run(flags); !status) {
    fmt::print(stderr, "heddle-conformance: error: {}\n", status.error().message);
    return static_cast<int>(status.error().code);
  }
  return 0;
}
