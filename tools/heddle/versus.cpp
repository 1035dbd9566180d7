#include "versus.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "common.h"
#include "onnx/tensor_file.h"

namespace heddle::tool {

using nlohmann::json;
namespace fs = std::filesystem;

const std::vector<std::string> kPeers = {"ort", "openvino", "torch", "torch-compile",
                                         "jax", "tvm",      "iree"};

namespace {

/// What a checkout has beside build/bin/heddle.
fs::path checkout() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  return program.parent_path().parent_path().parent_path();
}

std::vector<std::string> command_of(const std::string& name, const Terms& terms) {
  return {fs::path(terms.venv) / "bin/python", checkout() / "bench/peers/serve.py",
          name + (terms.training.is_object() ? "-training" : "") + (terms.cuda ? "-cuda" : ""),
          std::to_string(terms.threads)};
}

}  // namespace

Result<std::string> peers_venv(const std::string& given) {
  std::vector<fs::path> places = {given};
  if (given.empty())  // the second has ONNX Runtime only
    places = {checkout() / "build/peers", checkout() / "build/venv"};
  for (const fs::path& place : places)
    if (fs::exists(place / "bin/python")) return place.string();
  return fail(ErrorCode::missing,
              "bench --vs: found no Python environment of the peers at {} (bench/setup_peers.sh "
              "makes one in build/peers)",
              places[0].string());
}

json statistics(std::vector<double> ms, const std::vector<double>& percentiles) {
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
  std::vector<std::pair<std::string, double>> wanted = {
      {"median", 0.5}, {"p90", 0.9}, {"p95", 0.95}, {"p99", 0.99}};
  for (const double p : percentiles) wanted.emplace_back(fmt::format("p{:g}", p), p / 100);
  for (const auto& [name, q] : wanted) {
    const double half = 1.96 * std::sqrt(n * q * (1 - q));
    j[name + "_ms"] = at(n * q);
    // Too few samples for this quantile's interval: say nothing rather than something false.
    json& interval = j[name + "_ci_ms"];
    if (n * std::min(q, 1 - q) >= 5 || q == 0.5)
      interval = {at(std::floor(n * q - half)), at(std::ceil(n * q + half))};
  }
  return j;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

Contestant Contestant::enter(const std::string& name, const Terms& terms, const json& input_files,
                             const runtime::Program& program, const std::vector<Tensor>& ours) {
  Contestant c;
  c.name_ = name;
  if (Status status = c.load(terms, input_files, program, ours); !status) {
    c.error_ = status.error().message;
    c.peer_.reset();
  }
  return c;
}

Status Contestant::load(const Terms& terms, const json& input_files,
                        const runtime::Program& program, const std::vector<Tensor>& ours) {
  tolerance_ = tolerance_of(terms.precision).network;
  peer_.emplace(HEDDLE_TRY(Peer::start(command_of(name_, terms), terms.quiet)));
  json request = {{"cmd", "load"},
                  {"model", fs::absolute(terms.model)},
                  {"precision", terms.precision},
                  {"inputs", input_files}};
  if (terms.training.is_object()) request["training"] = terms.training;
  const json reply = HEDDLE_TRY(peer_->ask(request, terms.load_seconds));
  if (!reply.contains("outputs") || !reply["outputs"].is_object())
    return fail("the peer's reply names no outputs");
  version_ = reply.value("version", "");
  load_ms_ = reply.value("load_ms", 0.0);
  first_ms_ = reply.value("first_ms", 0.0);
  HEDDLE_TRY(compare_outputs(reply["outputs"], program, ours));
  run_ms_ = std::max(first_ms_, 1.0);
  run_ms_ = median(HEDDLE_TRY(runs(3, 1)));
  const double budget_ms = 1e3 * terms.seconds_a_round;
  runs_a_round_ = std::clamp(static_cast<int>(budget_ms / run_ms_), 1, 100000);
  every_ = std::clamp(static_cast<int>(std::ceil(run_ms_ / budget_ms)), 1, 4);
  return Ok{};
}

Status Contestant::compare_outputs(const json& files, const runtime::Program& program,
                                   const std::vector<Tensor>& ours) {
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const std::string& output = program.outputs[i].name;
    if (!files.contains(output) || !files[output].is_string())
      return fail("gives no output '{}'", output);
    const Tensor theirs = HEDDLE_TRY(onnx::read_tensor(files[output].get<std::string>()));
    if (theirs.type() != ours[i].type())
      return fail("output '{}' is {}, want {}", output, to_string(theirs.type()),
                  to_string(ours[i].type()));
    const Difference d = compare(ours[i], theirs, 0, 1);
    if (!std::isfinite(d.max_absolute))
      return fail("output '{}' is finite at element {} in one of both, not in the other", output,
                  d.index);
    difference_ = std::max(difference_, d.max_absolute / std::max(d.scale, 1e-30));
  }
  return Ok{};
}

Result<std::vector<double>> Contestant::runs(int count, int warmup) {
  // Generous, but an end: ten times what the runs should take, and a minute.
  const double seconds = 60 + 10 * 1e-3 * run_ms_ * (count + warmup);
  const json reply =
      HEDDLE_TRY(peer_->ask({{"cmd", "run"}, {"iters", count}, {"warmup", warmup}}, seconds));
  std::vector<double> ms;
  if (reply.contains("ms") && reply["ms"].is_array())
    for (const json& value : reply["ms"])
      if (value.is_number()) ms.push_back(value.get<double>());
  if (ms.size() != static_cast<std::size_t>(count))
    return fail("the peer gave {} times, want {}", ms.size(), count);
  cores_ = std::max(cores_, reply.value("cores", 0.0));
  return ms;
}

void Contestant::take_turn(int round) {
  if (!peer_ || round % every_ != 0) return;
  const Result<std::vector<double>> ms = runs(runs_a_round_, every_ > 1 ? 0 : 1);
  if (!ms) {
    error_ = ms.error().message;
    peer_.reset();
    return;
  }
  ms_.insert(ms_.end(), ms->begin(), ms->end());
}

void Contestant::weigh() {
  if (!peer_) return;
  const Result<json> reply = peer_->ask({{"cmd", "stats"}}, 60);
  if (!reply) return;
  peak_mb_ = reply->value("peak_mb", 0.0);
  base_mb_ = reply->value("base_mb", 0.0);
}

json Contestant::result(double our_median) const {
  if (!error_.empty() || ms_.empty())
    return {{"error", error_.empty() ? "was not measured" : error_}};
  json peer = statistics(ms_);
  peer["version"] = version_;
  peer["load_ms"] = load_ms_;
  peer["first_ms"] = first_ms_;
  peer["cores"] = cores_;
  if (peak_mb_ > 0) peer["peak_mb"] = peak_mb_;
  if (base_mb_ > 0) peer["base_mb"] = base_mb_;
  peer["ratio"] = peer["median_ms"].get<double>() / our_median;
  peer["difference"] = difference_;
  peer["agrees"] = difference_ <= tolerance_;
  peer["error"] = nullptr;
  return peer;
}

TensorFiles::TensorFiles()
    : folder_(fs::temp_directory_path() / fmt::format("heddle-bench-{}", ::getpid())) {
  fs::create_directories(folder_);
}
TensorFiles::~TensorFiles() {
  std::error_code error;
  fs::remove_all(folder_, error);
}

Result<json> TensorFiles::write(const runtime::Program& program,
                                const std::vector<Tensor>& inputs) const {
  json files = json::object();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::string path = fmt::format("{}/input_{}.npy", folder_, i);
    HEDDLE_TRY(onnx::write_tensor(path, program.inputs[i].name, inputs[i]));
    files[program.inputs[i].name] = path;
  }
  return files;
}

}  // namespace heddle::tool
