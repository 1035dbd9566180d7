#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

#include "common.h"
#include "onnx/tensor_file.h"
#include "peer.h"
#include "runtime/artefact.h"

namespace heddle::tool {
namespace {

using nlohmann::json;

struct BenchFlags : ModelFlags {
  double duration = 2;
  int rounds = 12;
  std::string peers;
  bool ablation = false;
  std::string venv = "build/venv";
};

/// Order statistics of latencies in milliseconds; the interval of a quantile is the one that order
/// statistics give without assuming a distribution (95 %).
json statistics(std::vector<double> ms) {
  std::sort(ms.begin(), ms.end());
  const double n = static_cast<double>(ms.size());
  const auto at = [&](double rank) {
    return ms[static_cast<std::size_t>(std::clamp(rank, 0.0, n - 1))];
  };
  json j = {{"n", ms.size()}, {"min_ms", ms.front()}};
  double sum = 0;
  for (double value : ms) sum += value;
  j["mean_ms"] = sum / n;
  j["throughput_per_s"] = 1e3 * n / sum;
  for (const auto& [name, q] :
       {std::pair{"median", 0.5}, {"p90", 0.9}, {"p95", 0.95}, {"p99", 0.99}}) {
    const double half = 1.96 * std::sqrt(n * q * (1 - q));
    // Too few samples for this quantile's interval: say nothing rather than something false.
    if (n * (1 - q) < 5 && q > 0.5) continue;
    j[std::string(name) + "_ms"] = at(n * q);
    j[std::string(name) + "_ci_ms"] = {at(std::floor(n * q - half)), at(std::ceil(n * q + half))};
  }
  return j;
}

/// A peer in the comparison, or the error that keeps it out.
struct Contestant {
  std::string name;
  std::optional<Peer> peer;
  std::string error, version;
  std::vector<double> ms;
  double load_ms = 0, worst_difference = 0;
};

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin < list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    if (end > begin) parts.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::string onnx_file_of(const std::string& model) {
  return std::filesystem::is_directory(model) ? model + "/model.onnx" : model;
}

/// Starts a peer, loads the model and compares its outputs with ours (in units of the scale).
Contestant enter(const std::string& name, const BenchFlags& flags, const json& load_request,
                 const runtime::Program& program, const std::vector<Tensor>& ours) {
  Contestant c;
  c.name = name;
  const auto attempt = [&]() -> Status {
    c.peer.emplace(
        HEDDLE_TRY(Peer::start(name, flags.venv + "/bin/python", "bench/peers/serve.py")));
    const json reply = HEDDLE_TRY(c.peer->ask(load_request));
    c.version = reply.value("version", "");
    c.load_ms = reply.value("load_ms", 0.0);
    for (std::size_t i = 0; i < ours.size(); ++i) {
      const std::string& output = program.outputs[i].name;
      if (!reply["outputs"].contains(output)) return fail("gives no output '{}'", output);
      const Tensor theirs =
          HEDDLE_TRY(onnx::read_tensor(reply["outputs"][output].get<std::string>()));
      const Difference d = compare(ours[i], theirs, 0, 1);
      c.worst_difference = std::max(c.worst_difference, d.max_absolute / std::max(d.scale, 1e-30));
    }
    return Ok{};
  };
  if (Status status = attempt(); !status) {
    c.error = status.error().message;
    c.peer.reset();
  }
  return c;
}

Status time_ours(const Model& model, const std::vector<Tensor>& inputs,
                 std::vector<Tensor>& outputs, int runs, std::vector<double>& ms) {
  for (int i = 0; i < runs; ++i) {
    const auto start = std::chrono::steady_clock::now();
    HEDDLE_TRY(model.session->run_into(inputs, outputs));
    ms.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
                     .count());
  }
  return Ok{};
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

double peak_megabytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

/// Inputs as files for the peers, in a folder that is removed at the end.
class InputFiles {
 public:
  InputFiles()
      : folder_(std::filesystem::temp_directory_path() /
                fmt::format("heddle-bench-{}", ::getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~InputFiles() {
    std::error_code error;
    std::filesystem::remove_all(folder_, error);
  }
  Result<json> write(const runtime::Program& program, const std::vector<Tensor>& inputs) const {
    json files = json::object();
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const std::string path = (folder_ / fmt::format("input_{}.npy", i)).string();
      HEDDLE_TRY(onnx::write_tensor(path, program.inputs[i].name, inputs[i]));
      files[program.inputs[i].name] = path;
    }
    return files;
  }

 private:
  std::filesystem::path folder_;
};

json result_of(const BenchFlags& flags, const Model& model, const std::vector<double>& ours,
               double first_ms, const std::vector<Contestant>& contestants) {
  json j = {{"schema", 1},
            {"model", flags.model},
            {"device", "cpu"},
            {"precision", "f32"},
            {"threads", flags.threads > 0 ? flags.threads : driver::machine_threads()}};
  j["heddle"] = statistics(ours);
  j["heddle"]["first_ms"] = first_ms;
  j["heddle"]["compile_s"] = model.compile_seconds;
  j["heddle"]["from_cache"] = model.from_cache;
  j["heddle"]["load_s"] = model.load_seconds;
  j["heddle"]["peak_mb"] = peak_megabytes();
  j["heddle"]["arena_mb"] = static_cast<double>(model.program->arena_bytes) / 1e6;
  j["heddle"]["kernels"] = model.program->launches.size();
  j["peers"] = json::object();
  for (const Contestant& c : contestants) {
    if (!c.error.empty() || c.ms.empty()) {
      j["peers"][c.name] = {{"error", c.error}};
      continue;
    }
    json& peer = j["peers"][c.name] = statistics(c.ms);
    peer["version"] = c.version;
    peer["load_ms"] = c.load_ms;
    peer["ratio"] = median(c.ms) / median(ours);
    peer["difference"] = c.worst_difference;
    peer["error"] = nullptr;
  }
  return j;
}

void print_table(const json& j) {
  const json& h = j["heddle"];
  fmt::print(
      "{} ({} threads, {}): {} kernels, compile {:.2f} s{}, load {:.0f} ms, first run {:.2f} ms\n",
      j["model"].get<std::string>(), j["threads"].get<int>(), j["precision"].get<std::string>(),
      h["kernels"].get<int>(), h["compile_s"].get<double>(),
      h["from_cache"].get<bool>() ? " (cache)" : "", 1e3 * h["load_s"].get<double>(),
      h["first_ms"].get<double>());
  fmt::print("  {:<10} {:>10} {:>22} {:>10} {:>10} {:>8}\n", "", "median ms", "95 % interval",
             "p90", "min", "ratio");
  const auto row = [](const std::string& name, const json& s, const std::string& ratio) {
    fmt::print("  {:<10} {:10.3f} [{:9.3f}, {:9.3f}] {:>10} {:10.3f} {:>8}\n", name,
               s["median_ms"].get<double>(), s["median_ci_ms"][0].get<double>(),
               s["median_ci_ms"][1].get<double>(),
               s.contains("p90_ms") ? fmt::format("{:.3f}", s["p90_ms"].get<double>()) : "-",
               s["min_ms"].get<double>(), ratio);
  };
  row("heddle", h, "");
  for (const auto& [name, peer] : j["peers"].items()) {
    if (!peer["error"].is_null()) {
      fmt::print("  {:<10} error: {}\n", name, peer["error"].get<std::string>());
      continue;
    }
    row(name, peer, fmt::format("{:.2f}x", peer["ratio"].get<double>()));
    fmt::print("  {:<10} version {}, outputs differ by {:.1e} of their scale\n", "",
               peer["version"].get<std::string>(), peer["difference"].get<double>());
  }
}

Result<json> measure(const BenchFlags& flags) {
  const Model model = HEDDLE_TRY(open_model(flags));
  const std::vector<Tensor> inputs = HEDDLE_TRY(make_inputs(*model.program, flags));
  std::vector<double> first;
  std::vector<Tensor> outputs = HEDDLE_TRY(model.session->run(inputs));
  HEDDLE_TRY(time_ours(model, inputs, outputs, 1, first));

  const InputFiles files;
  std::vector<Contestant> contestants;
  if (!flags.peers.empty()) {
    if (model.from_artefact)
      return fail(ErrorCode::usage,
                  "bench --vs: found an artefact, want the ONNX model that peers can read");
    const json request = {
        {"cmd", "load"},
        {"model", onnx_file_of(flags.model)},
        {"threads", flags.threads > 0 ? flags.threads : driver::machine_threads()},
        {"inputs", HEDDLE_TRY(files.write(*model.program, inputs))}};
    for (const std::string& name : split(flags.peers))
      contestants.push_back(enter(name, flags, request, *model.program, outputs));
  }

  // Rounds in which everybody runs in turn: a slow moment of the machine hits all of them.
  const double seconds = flags.duration / flags.rounds;
  const int runs = std::clamp(static_cast<int>(seconds * 1e3 / first[0]), 1, 100000);
  std::vector<double> ours;
  for (int round = 0; round < flags.rounds; ++round) {
    std::vector<double> warm;
    HEDDLE_TRY(time_ours(model, inputs, outputs, 1, warm));
    HEDDLE_TRY(time_ours(model, inputs, outputs, runs, ours));
    for (Contestant& c : contestants) {
      if (!c.peer) continue;
      Result<json> reply = c.peer->ask({{"cmd", "run"}, {"iters", runs}, {"warmup", 1}});
      if (!reply) {
        c.error = reply.error().message;
        c.peer.reset();
        continue;
      }
      for (const json& value : (*reply)["ms"]) c.ms.push_back(value.get<double>());
    }
  }
  return result_of(flags, model, ours, first[0], contestants);
}

struct Step {
  const char *name, *strategy, *disable;
};
/// What each idea adds to the one before (docs/performance.md keeps the tables).
constexpr Step kSteps[] = {
    {"greedy fusion of operators", "operators", "canonicalize"},
    {"+ fission", "greedy", "canonicalize"},
    {"+ rewrites", "greedy", ""},
    {"+ binary program", "partition", ""},
    {"+ recomputation", "recompute", ""},
    {"+ several outputs", "full", ""},
};

struct Entrant {
  Model model;
  std::vector<Tensor> outputs;
  std::vector<double> ms;
};

/// All steps in turn, round by round, as peers are.
Status ablation(const BenchFlags& flags) {
  std::vector<Entrant> entrants;
  std::vector<Tensor> inputs;
  const std::string disabled = global_options().disable;
  for (const Step& step : kSteps) {
    BenchFlags with = flags;
    with.strategy = step.strategy;
    global_options().disable = disabled.empty() ? step.disable : disabled + "," + step.disable;
    Entrant e{HEDDLE_TRY(open_model(with)), {}, {}};
    if (inputs.empty()) inputs = HEDDLE_TRY(make_inputs(*e.model.program, flags));
    e.outputs = HEDDLE_TRY(e.model.session->run(inputs));
    entrants.push_back(std::move(e));
  }
  global_options().disable = disabled;
  for (int round = 0; round < flags.rounds; ++round) {
    for (Entrant& e : entrants) {
      std::vector<double> warm;
      HEDDLE_TRY(time_ours(e.model, inputs, e.outputs, 1, warm));
      const int runs =
          std::clamp(static_cast<int>(flags.duration / flags.rounds * 1e3 / warm[0]), 1, 100000);
      HEDDLE_TRY(time_ours(e.model, inputs, e.outputs, runs, e.ms));
    }
  }
  json rows = json::array();
  for (std::size_t i = 0; i < entrants.size(); ++i) {
    json row = statistics(entrants[i].ms);
    row["step"] = kSteps[i].name;
    row["kernels"] = entrants[i].model.program->launches.size();
    row["speedup"] = median(entrants[0].ms) / row["median_ms"].get<double>();
    if (!flags.json)
      fmt::print("{:<28} {:5} kernels {:10.3f} ms  {:.2f}x\n", kSteps[i].name,
                 row["kernels"].get<int>(), row["median_ms"].get<double>(),
                 row["speedup"].get<double>());
    rows.push_back(std::move(row));
  }
  if (flags.json) fmt::print("{}\n", json{{"model", flags.model}, {"ablation", rows}}.dump(2));
  return Ok{};
}

Status run(const BenchFlags& flags) {
  if (flags.ablation) return ablation(flags);
  const json result = HEDDLE_TRY(measure(flags));
  if (flags.json)
    fmt::print("{}\n", result.dump(2));
  else
    print_table(result);
  return Ok{};
}

}  // namespace

Verb add_bench(CLI::App& verb) {
  auto flags = std::make_shared<BenchFlags>();
  add_model_flags(verb, *flags);
  verb.add_option("--vs", flags->peers, "peers to run interleaved in the same run: ort");
  verb.add_option("--duration", flags->duration, "seconds of measuring for each contestant")
      ->capture_default_str()
      ->check(CLI::Range(0.01, 3600.0));
  verb.add_option("--rounds", flags->rounds, "turns that everybody takes")
      ->capture_default_str()
      ->check(CLI::Range(1, 10000));
  verb.add_option("--venv", flags->venv, "Python environment that holds the peers")
      ->capture_default_str();
  verb.add_flag("--ablation", flags->ablation, "measure each step of the orchestrator instead");
  return [flags] { return run(*flags); };
}

}  // namespace heddle::tool
