#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <thread>

#include "common.h"
#include "step.h"
#include "training_bench.h"
#include "versus.h"

namespace heddle::tool {
namespace {

using nlohmann::json;

struct BenchFlags : ModelFlags {
  double duration = 2;
  int rounds = 12;
  int iterations = 0;    ///< at least so many runs in all
  double warmup_ms = 0;  ///< of running before the first round
  std::vector<double> percentiles;
  std::string times;  ///< file for every time
  std::vector<std::string> peers;
  bool ablation = false, markdown = false;
  double peer_timeout = 600;
  std::string venv, peers_model, peers_precision;  ///< empty precision: Heddle's
  std::string start_when;                          ///< file to wait for before measuring
};

/// On a GPU inputs and outputs stay in its memory, as peers' do.
Status time_ours(const Model& model, const std::vector<Tensor>& inputs,
                 std::vector<Tensor>& outputs, int runs, std::vector<double>& ms) {
  if (model.program->device != "cpu") {
    for (double seconds : HEDDLE_TRY(model.session->time_runs(inputs, runs)))
      ms.push_back(1e3 * seconds);
    return Ok{};
  }
  for (int i = 0; i < runs; ++i) {
    const auto start = std::chrono::steady_clock::now();
    HEDDLE_TRY(model.session->run_into(inputs, outputs));
    ms.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
                     .count());
  }
  return Ok{};
}

/// As trtexec writes them: one object a run.
Status export_times(const std::vector<double>& ms, const std::string& path) {
  json rows = json::array();
  double start = 0;
  for (const double value : ms) {
    rows.push_back({{"startMs", start}, {"endMs", start + value}, {"latencyMs", value}});
    start += value;
  }
  std::ofstream file(path);
  file << rows.dump(1) << "\n";
  file.close();
  if (!file) return fail("--exportTimes: {}: cannot write", path);
  return Ok{};
}

/// In which the peers compute; an artefact tells its own.
std::string precision_of(const BenchFlags& flags, const Model& model) {
  if (!flags.peers_precision.empty()) return flags.peers_precision;
  if (!model.from_artefact) return flags.precision;
  const json report = json::parse(model.program->manifest, nullptr, false);
  return report.is_object() ? report.value("precision", "f32") : "f32";
}

/// Peak resident memory, as peers tell theirs; getrusage() would count what started us.
double peak_megabytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    double kilobytes = 0;
    if (word == "VmHWM:" && status >> kilobytes) return kilobytes / 1024;
  }
  return 0;
}

json result_of(const BenchFlags& flags, const Model& model, const std::vector<double>& ours,
               double first_ms, const std::vector<Contestant>& contestants) {
  json j = {{"schema", 1},
            {"model", flags.model},
            {"device", model.program->device},
            {"precision", precision_of(flags, model)},
            {"threads", flags.threads > 0 ? flags.threads : driver::machine_threads()}};
  j["heddle"] = statistics(ours, flags.percentiles);
  j["heddle"]["first_ms"] = first_ms;
  j["heddle"]["compile_s"] = model.compile_seconds;
  j["heddle"]["from_cache"] = model.from_cache;
  j["heddle"]["load_s"] = model.load_seconds;
  j["heddle"]["peak_mb"] = peak_megabytes();
  j["heddle"]["arena_mb"] = static_cast<double>(model.program->arena_bytes) / 1e6;
  j["heddle"]["kernels"] = model.program->launches.size();
  j["peers"] = json::object();
  for (const Contestant& c : contestants) j["peers"][c.name()] = c.result(median(ours));
  return j;
}

std::string number(const json& s, const char* key) {
  return s.contains(key) ? fmt::format("{:.3f}", s[key].get<double>()) : "-";
}

std::string interval(const json& s) {
  return fmt::format("{:.3f}–{:.3f}", s["median_ci_ms"][0].get<double>(),
                     s["median_ci_ms"][1].get<double>());
}

/// How far a peer's outputs are from ours, and whether that is rounding.
std::string agreement(const json& peer) {
  return fmt::format("{:.1e}{}", peer["difference"].get<double>(),
                     peer["agrees"].get<bool>() ? "" : " (DIFFERENT)");
}

void print_table(const json& j) {
  const json& h = j["heddle"];
  fmt::print(
      "{} ({} threads, {}): {} kernels, compile {:.2f} s{}, load {:.0f} ms, first run {:.2f} ms\n",
      j["model"].get<std::string>(), j["threads"].get<int>(), j["precision"].get<std::string>(),
      h["kernels"].get<int>(), h["compile_s"].get<double>(),
      h["from_cache"].get<bool>() ? " (cache)" : "", 1e3 * h["load_s"].get<double>(),
      h["first_ms"].get<double>());
  const auto row = [](const std::string& name, const json& s, const std::string& ratio,
                      const std::string& rest) {
    fmt::print("  {:<14} {:>10} {:>21} {:>10} {:>10} {:>8}{}{}\n", name, number(s, "median_ms"),
               interval(s), number(s, "p90_ms"), number(s, "min_ms"), ratio,
               rest.empty() ? "" : "  ", rest);
  };
  fmt::print("  {:<14} {:>10} {:>21} {:>10} {:>10} {:>8}{}\n", "", "median ms", "95 % interval",
             "p90", "min", "ratio", j["peers"].empty() ? "" : "  version, outputs differ by");
  row("heddle", h, "", "");
  for (const std::string& name : kPeers) {
    if (!j["peers"].contains(name)) continue;
    const json& peer = j["peers"][name];
    if (!peer["error"].is_null())
      fmt::print("  {:<14} error: {}\n", name, peer["error"].get<std::string>());
    else
      row(name, peer, fmt::format("{:.2f}x", peer["ratio"].get<double>()),
          fmt::format("{}, {} of the scale", peer["version"].get<std::string>(), agreement(peer)));
  }
}

void print_markdown(const json& j) {
  const json& h = j["heddle"];
  fmt::print("{}, {}, {} thread(s); ratio = the peer's median over Heddle's\n\n",
             j["model"].get<std::string>(), j["precision"].get<std::string>(),
             j["threads"].get<int>());
  fmt::print("| | median ms | 95 % interval | p90 | ratio | outputs differ by |\n");
  fmt::print("|---|---|---|---|---|---|\n");
  fmt::print("| Heddle | {} | {} | {} | | |\n", number(h, "median_ms"), interval(h),
             number(h, "p90_ms"));
  for (const std::string& name : kPeers) {
    if (!j["peers"].contains(name)) continue;
    const json& p = j["peers"][name];
    if (!p["error"].is_null())
      fmt::print("| {} | {} |\n", name, p["error"].get<std::string>());
    else
      fmt::print("| {} {} | {} | {} | {} | {:.2f}× | {} |\n", name, p["version"].get<std::string>(),
                 number(p, "median_ms"), interval(p), number(p, "p90_ms"), p["ratio"].get<double>(),
                 agreement(p));
  }
}

/// What all peers are given.
Terms terms_of(const BenchFlags& flags, const std::string& venv) {
  Terms terms;
  const std::string& theirs = flags.peers_model.empty() ? flags.model : flags.peers_model;
  terms.model = std::filesystem::is_directory(theirs) ? theirs + "/model.onnx" : theirs;
  terms.precision = flags.precision;
  terms.cuda = flags.device != "cpu";
  terms.threads = flags.threads > 0 ? flags.threads : driver::machine_threads();
  terms.seconds_a_round = flags.duration / flags.rounds;
  terms.load_seconds = flags.peer_timeout;
  terms.quiet = !lists("trace,debug,info", global_options().log);
  terms.venv = venv;
  return terms;
}

/// Peers may compile for minutes: the machine has to be idle only from here on.
void wait_for(const std::string& file) {
  if (file.empty()) return;
  std::ofstream(file + ".ready").close();
  while (!std::filesystem::exists(file)) std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

Result<json> measure(const BenchFlags& flags) {
  std::string venv;
  if (!flags.peers.empty()) venv = HEDDLE_TRY(peers_venv(flags.venv));
  if (flags.training)
    return bench_training(flags,
                          {flags.peers, flags.duration, flags.rounds, terms_of(flags, venv)});
  const Model model = HEDDLE_TRY(open_model(flags));
  const std::vector<Tensor> inputs = HEDDLE_TRY(make_inputs(*model.program, flags)).values;
  std::vector<double> first;
  std::vector<Tensor> outputs = HEDDLE_TRY(model.session->run(inputs));
  HEDDLE_TRY(time_ours(model, inputs, outputs, 1, first));

  const TensorFiles files;
  std::vector<Contestant> contestants;
  if (!flags.peers.empty()) {
    if (model.from_artefact)
      return fail(ErrorCode::usage,
                  "bench --vs: found an artefact, want the ONNX model that peers can read");
    Terms terms = terms_of(flags, venv);
    terms.precision = precision_of(flags, model);
    terms.cuda = model.program->device != "cpu";
    const json inputs_of_peers = HEDDLE_TRY(files.write(*model.program, inputs));
    for (const std::string& name : flags.peers)
      contestants.push_back(
          Contestant::enter(name, terms, inputs_of_peers, *model.program, outputs));
  }

  wait_for(flags.start_when);
  // Rounds in which everybody runs in turn: a slow moment of the machine hits all of them.
  const double seconds = flags.duration / flags.rounds;
  const int least = (flags.iterations + flags.rounds - 1) / flags.rounds;
  const int runs =
      std::max(least, std::clamp(static_cast<int>(seconds * 1e3 / first[0]), 1, 100000));
  const auto warm_until =
      std::chrono::steady_clock::now() + std::chrono::duration<double, std::milli>(flags.warmup_ms);
  for (std::vector<double> warm; std::chrono::steady_clock::now() < warm_until;)
    HEDDLE_TRY(time_ours(model, inputs, outputs, 1, warm));
  std::vector<double> ours;
  for (int round = 0; round < flags.rounds; ++round) {
    std::vector<double> warm;
    HEDDLE_TRY(time_ours(model, inputs, outputs, 1, warm));
    HEDDLE_TRY(time_ours(model, inputs, outputs, runs, ours));
    for (Contestant& c : contestants) c.take_turn(round);
  }
  if (!flags.times.empty()) HEDDLE_TRY(export_times(ours, flags.times));
  for (Contestant& c : contestants) c.weigh();
  json result = result_of(flags, model, ours, first[0], contestants);
  if (model.program->device == "cpu") return result;
  std::vector<double> with_copies;
  for (int i = 0; i < std::clamp(runs, 10, 100); ++i) {
    const auto start = std::chrono::steady_clock::now();
    HEDDLE_TRY(model.session->run_into(inputs, outputs));
    const auto took = std::chrono::steady_clock::now() - start;
    with_copies.push_back(std::chrono::duration<double, std::milli>(took).count());
  }
  result["heddle"]["with_copies"] = statistics(with_copies);
  return result;
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
    if (inputs.empty()) inputs = HEDDLE_TRY(make_inputs(*e.model.program, flags)).values;
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
    (flags.markdown ? print_markdown : print_table)(result);
  return Ok{};
}

}  // namespace

Verb add_bench(CLI::App& verb) {
  auto flags = std::make_shared<BenchFlags>();
  add_model_flags(verb, *flags);
  add_step_flags(verb, *flags);
  verb.add_option("--vs", flags->peers,
                  "peers to run interleaved in the same run, with commas; bench/setup_peers.sh "
                  "installs them")
      ->delimiter(',')
      ->check(CLI::IsMember(kPeers));
  verb.add_flag("--markdown", flags->markdown, "print a Markdown table");
  verb.add_option("--peer-timeout", flags->peer_timeout,
                  "seconds that a peer may take to load and compile the model")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  verb.add_option("--duration", flags->duration, "seconds of measuring for each contestant")
      ->capture_default_str()
      ->check(CLI::Range(0.01, 3600.0));
  verb.add_option("--iterations", flags->iterations, "at least so many runs of Heddle")
      ->check(CLI::Range(0, 100'000'000));
  verb.add_option("--warmUp,--warmup", flags->warmup_ms, "milliseconds of running before measuring")
      ->check(CLI::Range(0.0, 3.6e6));
  verb.add_option("--percentile", flags->percentiles, "more percentiles, with commas (in --json)")
      ->delimiter(',')
      ->check(CLI::Range(0.0, 100.0));
  verb.add_option("--exportTimes", flags->times, "JSON file for the time of every run");
  verb.add_option("--rounds", flags->rounds, "turns that everybody takes")
      ->capture_default_str()
      ->check(CLI::Range(1, 10000));
  verb.add_option("--venv", flags->venv,
                  "Python environment of the peers (default: build/peers, else build/venv)");
  verb.add_option(
      "--start-when", flags->start_when,
      "when everybody has loaded the model, make FILE.ready and measure once FILE is there");
  verb.add_option("--peers-model", flags->peers_model,
                  "the model that peers get (default: MODEL), with the same inputs and outputs");
  verb.add_option("--peers-precision", flags->peers_precision,
                  "in which peers compute it (default: --precision)")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}));
  verb.add_flag("--ablation", flags->ablation, "measure each step of the orchestrator instead");
  return [flags] { return run(*flags); };
}

}  // namespace heddle::tool
