#include "training_bench.h"

#include <malloc.h>

#include <chrono>
#include <fstream>

#include "step.h"

namespace heddle::tool {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr int kCompared = 4;  // first steps; bench/peers/peer_torch_training.py makes as many

/// "VmRSS" or "VmHWM" of this process.
double resident_mb(std::string_view key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(key)) return std::strtod(line.c_str() + key.size() + 1, nullptr) / 1024;
  return 0;
}

/// The peak is of what follows, without what compiling has left.
void forget_peak() {
  ::malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << "5";
}

Result<double> step_ms(driver::Trainer& trainer, const std::vector<Tensor>& batch, double rate) {
  const auto start = Clock::now();
  HEDDLE_TRY(trainer.step(batch, rate));
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

/// Steps on a GPU from the same values, which stay in its memory.
class OnDevice {
 public:
  static Result<OnDevice> of(const ModelFlags& flags, const driver::Trainer& trainer) {
    OnDevice d;
    const auto& program = trainer.compiled().program;
    d.inputs_ = HEDDLE_TRY(make_inputs(*program, flags)).values;
    d.session_ = HEDDLE_TRY(driver::load(program, HEDDLE_TRY(compile_options(flags))));
    return d;
  }
  Status time(int runs, std::vector<double>& ms) {
    for (const double seconds : HEDDLE_TRY(session_->time_runs(inputs_, runs)))
      ms.push_back(1e3 * seconds);
    return Ok{};
  }

 private:
  std::vector<Tensor> inputs_;
  std::shared_ptr<runtime::Session> session_;
};

Status weigh(std::vector<Contestant>& contestants, json& result, double our_median) {
  for (Contestant& c : contestants) {
    c.weigh();
    result["peers"][c.name()] = c.result(our_median);
  }
  return Ok{};
}

}  // namespace

Result<json> bench_training(const ModelFlags& flags, TrainingContest contest) {
  const double base = resident_mb("VmRSS");
  const auto start = Clock::now();
  driver::Trainer trainer = HEDDLE_TRY(open_step(flags));
  const double compile_s = std::chrono::duration<double>(Clock::now() - start).count();
  runtime::Program batch_ports;  // what inputs are made for, and what peers get
  batch_ports.inputs = trainer.batch_ports();
  ModelFlags plain = flags;
  plain.training = {};
  const std::vector<Tensor> batch = HEDDLE_TRY(make_inputs(batch_ports, plain)).values;
  Tensor losses({DType::f32, {kCompared}});
  double first_ms = 0;
  for (int i = 0; i < kCompared; ++i) {
    const auto begin = Clock::now();
    losses.set(i, HEDDLE_TRY(trainer.step(batch, flags.training.rate)));
    if (i == 0) first_ms = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
  }
  forget_peak();
  const TensorFiles files;
  contest.terms.training = {{"loss", flags.training.loss},
                            {"optimizer", flags.training.optimizer},
                            {"rate", flags.training.rate}};
  runtime::Program compared;
  compared.outputs = {{"loss", losses.type()}};
  std::vector<Contestant> contestants;
  const json inputs = HEDDLE_TRY(files.write(batch_ports, batch));
  for (const std::string& name : contest.peers)
    contestants.push_back(Contestant::enter(name, contest.terms, inputs, compared, {losses}));
  std::vector<double> ours;
  const double round_ms = 1e3 * contest.duration / contest.rounds;
  std::optional<OnDevice> device;
  if (contest.terms.cuda) device = HEDDLE_TRY(OnDevice::of(flags, trainer));
  for (int round = 0; round < contest.rounds; ++round) {
    const double warm = HEDDLE_TRY(step_ms(trainer, batch, flags.training.rate));
    const int runs = std::clamp(static_cast<int>(round_ms / warm), 1, 100000);
    if (device) HEDDLE_TRY(device->time(runs, ours));
    for (int i = device ? runs : 0; i < runs; ++i)
      ours.push_back(HEDDLE_TRY(step_ms(trainer, batch, flags.training.rate)));
    for (Contestant& c : contestants) c.take_turn(round);
  }
  const runtime::Program& program = *trainer.compiled().program;
  json result = {{"schema", 1},
                 {"model", flags.model},
                 {"device", program.device},
                 {"precision", flags.precision},
                 {"loss", flags.training.loss},
                 {"optimizer", flags.training.optimizer},
                 {"threads", contest.terms.threads},
                 {"peers", json::object()}};
  json& h = result["heddle"] = statistics(ours);
  h["first_ms"] = first_ms;
  h["compile_s"] = compile_s;
  h["load_s"] = 0;
  h["from_cache"] = false;
  h["base_mb"] = base;
  h["peak_mb"] = resident_mb("VmHWM");
  h["arena_mb"] = static_cast<double>(program.arena_bytes) / 1e6;
  h["kernels"] = program.launches.size();
  HEDDLE_TRY(weigh(contestants, result, median(ours)));
  return result;
}

}  // namespace heddle::tool
