#include <algorithm>
#include <fstream>
#include <map>

#include "common.h"

namespace heddle::tool {
namespace {

struct ProfileFlags : ModelFlags {
  int iterations = 20;
  std::string trace;
};

Status write_trace(const std::string& path, const std::vector<runtime::LaunchTime>& times) {
  nlohmann::json events = nlohmann::json::array();
  for (const runtime::LaunchTime& time : times)
    events.push_back({{"name", time.name},
                      {"ph", "X"},
                      {"pid", 0},
                      {"tid", 0},
                      {"ts", time.begin * 1e6},
                      {"dur", time.seconds * 1e6}});
  std::ofstream file(path);
  file << nlohmann::json{{"traceEvents", events}, {"displayTimeUnit", "ns"}};
  file.close();
  if (!file) return fail("{}: cannot write", path);
  return Ok{};
}

Status run(const ProfileFlags& flags) {
  const Model model = HEDDLE_TRY(open_model(flags));
  const std::vector<Tensor> inputs = HEDDLE_TRY(make_inputs(*model.program, flags));
  const nlohmann::json report = nlohmann::json::parse(model.program->manifest, nullptr, false);
  std::vector<runtime::LaunchTime> best;
  for (int i = 0; i < flags.iterations; ++i) {
    std::vector<runtime::LaunchTime> times = HEDDLE_TRY(model.session->profile(inputs));
    if (best.empty()) best = times;
    for (std::size_t k = 0; k < times.size(); ++k)
      if (times[k].seconds < best[k].seconds) best[k] = times[k];
  }
  if (!flags.trace.empty()) HEDDLE_TRY(write_trace(flags.trace, best));

  double total = 0;
  for (const runtime::LaunchTime& time : best) total += time.seconds;
  nlohmann::json kernels = nlohmann::json::array();
  for (std::size_t k = 0; k < best.size(); ++k) {
    nlohmann::json entry = {
        {"name", best[k].name}, {"us", best[k].seconds * 1e6}, {"share", best[k].seconds / total}};
    if (report.is_object() && k < report["kernels"].size()) {
      const nlohmann::json& kernel = report["kernels"][k];
      entry["schedule"] = kernel["schedule"];
      entry["modelled_us"] = kernel["cost"]["us"];
      entry["gflops"] = kernel["cost"]["flops"].get<double>() / best[k].seconds / 1e9;
      entry["gbytes_per_s"] = kernel["cost"]["bytes"].get<double>() / best[k].seconds / 1e9;
      entry["sources"] = kernel["sources"];
    }
    kernels.push_back(entry);
  }
  if (flags.json) {
    fmt::print("{}\n", nlohmann::json{{"total_us", total * 1e6}, {"kernels", kernels}}.dump(2));
    return Ok{};
  }
  std::stable_sort(kernels.begin(), kernels.end(),
                   [](const auto& a, const auto& b) { return a["us"] > b["us"]; });
  fmt::print("{} kernels, {:.1f} us (best of {} runs per kernel)\n", best.size(), total * 1e6,
             flags.iterations);
  fmt::print("{:>10} {:>6} {:>10} {:>8} {:>7}  kernel\n", "us", "%", "model us", "GFLOP/s", "GB/s");
  for (const nlohmann::json& k : kernels)
    fmt::print("{:10.1f} {:6.1f} {:10.1f} {:8.1f} {:7.1f}  {}  {}\n", k["us"].get<double>(),
               100 * k["share"].get<double>(), k.value("modelled_us", 0.0), k.value("gflops", 0.0),
               k.value("gbytes_per_s", 0.0), k["name"].get<std::string>(), k.value("schedule", ""));
  return Ok{};
}

}  // namespace

Verb add_profile(CLI::App& verb) {
  auto flags = std::make_shared<ProfileFlags>();
  add_model_flags(verb, *flags);
  verb.add_option("--iterations", flags->iterations, "runs")
      ->capture_default_str()
      ->check(CLI::Range(1, 100000));
  verb.add_option("--trace,--exportProfile", flags->trace,
                  "write a Chrome trace (opens in Perfetto)");
  return [flags] { return run(*flags); };
}

}  // namespace heddle::tool
