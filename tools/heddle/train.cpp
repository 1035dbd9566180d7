#include "driver/train.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <numbers>
#include <numeric>
#include <set>

#include "common.h"
#include "driver/report.h"
#include "grad/losses.h"
#include "ranks.h"
#include "support/hash.h"
#include "support/log.h"
#include "training_checks.h"

namespace heddle::tool {
namespace {

struct TrainFlags : ModelFlags {
  driver::TrainOptions train;
  std::string target, schedule = "constant", checkpoint, output, distributed, nccl;
  std::vector<std::string> frozen;
  double rate = 1e-3;
  std::int64_t epochs = 1, steps = 0, stop_after = 0, warmup = 0, save_every = 100;
  bool resume = false, ordered = false;
  std::vector<std::string> given;  ///< of the options that not every optimiser or type has
};

/// Every --data has to name an input: a typing error would be passed over.
Status want_inputs(const onnx::TrainingModel& model, const TrainFlags& flags) {
  std::vector<std::string> names;
  const auto has = [](const auto& list, const std::string& name) {
    return std::any_of(list.begin(), list.end(), [&](const auto& n) { return n.name == name; });
  };
  for (const auto& in : model.graph.inputs)
    if (!has(model.parameters, in.name) && !has(model.statistics, in.name))
      names.push_back(in.name);
  std::set<std::string> given;
  for (const std::string& text : flags.inputs) {
    const std::size_t split = text.find('=');
    const std::string name = text.substr(0, split);
    if (split == std::string::npos || std::find(names.begin(), names.end(), name) == names.end())
      return fail(ErrorCode::usage, "--data: found '{}', want NAME=FILE with NAME one of: {}", text,
                  fmt::join(names, ", "));
    if (!given.insert(name).second)
      return fail(ErrorCode::usage, "--data: found input '{}' twice, want one file", name);
  }
  return Ok{};
}

/// How many classes the target may name, nullopt if it names none.
std::optional<std::int64_t> classes_of(const onnx::TrainingModel& model, const TrainFlags& flags) {
  const std::string& loss = flags.train.step.loss;
  if ((loss != "cross_entropy" && loss != "nll") || model.graph.outputs.empty()) return {};
  const Shape& shape = model.graph[model.graph.outputs[0].node].type.shape;
  if (shape.size() < 2) return {};  // the loss refuses it
  return shape[1];
}

double rate_at(const TrainFlags& flags, std::int64_t step, std::int64_t steps) {
  if (step < flags.warmup)
    return flags.rate * static_cast<double>(step + 1) / static_cast<double>(flags.warmup);
  const double done = static_cast<double>(step - flags.warmup) /
                      static_cast<double>(std::max<std::int64_t>(1, steps - flags.warmup));
  if (flags.schedule == "linear") return flags.rate * (1 - done);
  if (flags.schedule == "cosine") return flags.rate * 0.5 * (1 + std::cos(std::numbers::pi * done));
  return flags.rate;
}

void show(std::int64_t step, std::int64_t steps, double loss, double samples_per_second,
          double left) {
  fmt::print(stderr, "\r\033[Kstep {}/{}  loss {:.5f}  {:.0f} samples/s  {:.0f} s left", step,
             steps, loss, samples_per_second, left);
  std::fflush(stderr);
}

/// How far training is: what is shown and what is asked.
class Course {
 public:
  Course(const driver::Trainer& trainer, const Data& data, const TrainFlags& flags)
      : flags_(flags), first_(trainer.steps()) {
    const auto& group = flags.train.group;
    ranks_ = group ? group->size() : 1;
    rank_ = group ? group->rank() : 0;
    batches_ = flags.train.accumulate;
    samples_ = data.batch * batches_ * ranks_;
    per_epoch = data.samples / samples_;
    steps = flags.steps > 0 ? flags.steps : flags.epochs * per_epoch;
    terminal_ = ::isatty(STDERR_FILENO) != 0 && rank_ == 0;
  }
  bool speaks() const { return rank_ == 0 && !flags_.json; }
  bool saves() const { return rank_ == 0; }

  /// The batches of a step, in the order of its epoch.
  std::vector<driver::Batch> batches(const driver::Trainer& trainer, const Data& data,
                                     std::int64_t step) {
    const std::int64_t in_epoch = step % per_epoch, epoch = step / per_epoch;
    if (epoch != epoch_) {
      order_ = flags_.ordered ? in_order(data.samples)
                              : order_of(data.samples, flags_.seed.value_or(0), epoch);
      epoch_ = epoch;
    }
    std::vector<driver::Batch> all;
    for (std::int64_t k = 0; k < batches_; ++k)
      all.push_back(batch_of(data, trainer.batch_ports(), order_,
                             in_epoch * samples_ + (k * ranks_ + rank_) * data.batch));
    return all;
  }

  /// Shows what a step has found.
  void tell(std::int64_t step, double loss) {
    const std::int64_t in_epoch = step % per_epoch, done = step + 1 - first_;
    sum_ += loss;
    const double spent = std::chrono::duration<double>(Clock::now() - begin_).count();
    const double speed = static_cast<double>(done * samples_) / spent;
    if (terminal_)
      show(step + 1, steps, loss, speed,
           spent * static_cast<double>(steps - step - 1) / static_cast<double>(done));
    if (in_epoch + 1 != per_epoch && step + 1 != steps) return;
    if (terminal_) fmt::print(stderr, "\r\033[K");
    if (speaks())
      fmt::print("epoch {}: {} steps, mean loss {:.5f}, {:.0f} samples/s\n", step / per_epoch + 1,
                 step + 1, sum_ / static_cast<double>(std::min(in_epoch + 1, done)), speed);
    std::fflush(stdout);
    sum_ = 0;
  }

  std::int64_t per_epoch = 0, steps = 0;

 private:
  using Clock = std::chrono::steady_clock;
  static std::vector<std::int64_t> in_order(std::int64_t samples) {
    std::vector<std::int64_t> order(static_cast<std::size_t>(samples));
    std::iota(order.begin(), order.end(), 0);
    return order;
  }

  const TrainFlags& flags_;
  std::int64_t first_, ranks_ = 1, rank_ = 0, batches_ = 1, samples_ = 0, epoch_ = -1;
  bool terminal_ = false;
  Clock::time_point begin_ = Clock::now();
  std::vector<std::int64_t> order_;
  double sum_ = 0;
};

/// A step of f16 whose loss is infinite is skipped, not the end, while the scale can still fall.
bool hopeless(const driver::Trainer& trainer, const TrainFlags& flags, double loss) {
  constexpr std::int64_t kHalvings = 64;
  return !std::isfinite(loss) && (flags.precision != "f16" || trainer.skipped() > kHalvings);
}

std::string why_not_finite(const std::vector<driver::Batch>& batches,
                           const std::vector<runtime::Port>& ports, std::int64_t step) {
  for (const driver::Batch& batch : batches)
    if (const std::string name = name_of_not_finite(batch, ports); !name.empty())
      return fmt::format("'{}' of this batch holds values that are not finite", name);
  return step == 0 ? "look at the data and the weights: nothing has been trained yet"
                   : "a smaller --learning-rate or --clip-norm may help";
}

/// Of what changes the update but not the graph's names.
std::int64_t hash_of_options(const TrainFlags& flags) {
  const grad::StepOptions& step = flags.train.step;
  const grad::OptimizerSettings& s = step.settings;
  const std::string all = fmt::format(
      "{} {} {} {} {} {} {} {} {} {} {} {}", flags.rate, flags.schedule, flags.warmup, s.momentum,
      s.beta1, s.beta2, s.epsilon, s.weight_decay, step.clip_norm, flags.precision, step.loss_scale,
      step.ignore_index ? std::to_string(*step.ignore_index) : "none");
  return static_cast<std::int64_t>(hash_bytes(all).low);
}

Status loop(driver::Trainer& trainer, const Data& data, const TrainFlags& flags,
            nlohmann::json& losses) {
  Course course(trainer, data, flags);
  if (flags.train.group)
    HEDDLE_TRY(want_agreement(
        *flags.train.group,
        {{"batch size", data.batch},
         {"--accumulate", flags.train.accumulate},
         {"samples", data.samples},
         {"steps", course.steps},
         {"steps done before", trainer.steps()},
         {"--stop-after", flags.stop_after},
         {"--seed", static_cast<std::int64_t>(flags.seed.value_or(0))},
         {"--in-order", flags.ordered},
         {"rate, schedule, momentum, betas, epsilon, decay, --clip-norm, --precision, "
          "loss scale or --ignore-index",
          hash_of_options(flags), true},
         // Last: of what has a name of its own, the name says more.
         {"model, weights, frozen parameters, loss or optimizer", trainer.kind_hash(), true}}));
  if (course.per_epoch < 1)
    return fail("{} samples, want at least one step of {} batches of {}", data.samples,
                flags.train.accumulate * (flags.train.group ? flags.train.group->size() : 1),
                data.batch);
  if (flags.warmup >= course.steps && course.speaks())
    log(LogLevel::warning, "--warmup {}: in {} steps the rate does not reach {}", flags.warmup,
        course.steps, flags.rate);
  const std::int64_t first = trainer.steps();
  if (first >= course.steps && course.speaks())
    fmt::print("nothing is left to do: {} of {} steps are done\n", first, course.steps);
  for (std::int64_t step = first; step < course.steps; ++step) {
    const auto batches = course.batches(trainer, data, step);
    const double loss = HEDDLE_TRY(trainer.step(batches, rate_at(flags, step, course.steps)));
    if (hopeless(trainer, flags, loss))
      return fail("step {}: the loss is {}: {}", step + 1, loss,
                  why_not_finite(batches, trainer.batch_ports(), step));
    losses.push_back(loss);
    const bool last = step + 1 == course.steps || step + 1 - first == flags.stop_after;
    course.tell(step, loss);
    const bool due = (step + 1) % flags.save_every == 0 || last;
    if (due) HEDDLE_TRY(trainer.want_numbers());
    if (!flags.checkpoint.empty() && due && course.saves())
      HEDDLE_TRY(trainer.save(flags.checkpoint));
    if (last) break;
  }
  return Ok{};
}

/// Of f16: steps that changed nothing, as a gradient was infinite.
Status tell_skipped(std::int64_t steps, std::int64_t skipped, bool speaks) {
  if (skipped > 0 && skipped == steps)
    return fail(
        "all {} steps were skipped: gradients were infinite, nothing has been trained; "
        "want a smaller --loss-scale or more steps, each of which halves it",
        steps);
  if (skipped > 0 && speaks)
    fmt::print("{} of {} steps skipped: a gradient was infinite\n", skipped, steps);
  return Ok{};
}

/// Options of other optimisers and types have no effect: who gives them expects one.
Status want_used(const TrainFlags& flags) {
  const std::string& optimizer = flags.train.step.optimizer;
  for (const std::string& name : flags.given) {
    const bool moments = optimizer.starts_with("adam");
    const bool used = name == "--loss-scale" ? flags.precision == "f16"
                      : name == "--momentum" ? optimizer == "momentum" || optimizer == "nesterov"
                                             : moments;
    if (!used)
      return fail(ErrorCode::usage, "{}: has no effect with --optimizer {} and --precision {}",
                  name, optimizer, flags.precision);
  }
  return Ok{};
}

/// What is written can be, and takes the place of nothing that is read.
Status want_places(TrainFlags& flags) {
  std::vector<std::string> read = onnx::model_files(flags.model);
  read.push_back(flags.target);
  for (const std::string& text : flags.inputs) read.push_back(text.substr(text.find('=') + 1));
  HEDDLE_TRY(want_writable("--output", flags.output, read));
  if (!flags.output.empty()) read.insert(read.end(), {flags.output, flags.output + ".part"});
  HEDDLE_TRY(want_writable("--checkpoint", flags.checkpoint, read));
  if (!flags.resume && std::filesystem::exists(flags.checkpoint))
    log(LogLevel::warning, "--checkpoint {}: will be replaced; want --resume to go on from it",
        flags.checkpoint);
  return Ok{};
}

Status run(TrainFlags& flags) {
  HEDDLE_TRY(want_one_size(flags, "train"));
  HEDDLE_TRY(want_used(flags));
  flags.train.step.seed = flags.seed.value_or(0);
  const auto& group = flags.train.group;
  const bool speaks = !group || group->rank() == 0;
  if (speaks) HEDDLE_TRY(want_places(flags));  // the others write nothing
  const driver::CompileOptions options = HEDDLE_TRY(compile_options(flags));
  onnx::ImportOptions import;
  import.shapes = options.shapes;
  onnx::TrainingModel model =
      HEDDLE_TRY(onnx::import_for_training(flags.model, import, flags.frozen));
  HEDDLE_TRY(want_inputs(model, flags));
  const bool narrows = std::ranges::any_of(
      model.parameters, [](const auto& p) { return p.value.dtype() != DType::f64; });
  if (speaks && flags.precision != "f32" && !narrows)
    log(LogLevel::warning, "--precision {}: has no effect on a model in f64", flags.precision);
  const std::optional<std::int64_t> classes = classes_of(model, flags);
  const auto positions = positions_of(model.graph);
  const std::size_t parameters = model.parameters.size();
  std::int64_t numbers = 0;
  for (const auto& p : model.parameters) numbers += p.value.count();
  driver::Trainer trainer =
      HEDDLE_TRY(driver::Trainer::create(std::move(model), flags.train, options));
  if (flags.resume) {
    if (flags.checkpoint.empty())
      return fail(ErrorCode::usage, "--resume: found no --checkpoint to go on from");
    if (std::filesystem::exists(flags.checkpoint)) HEDDLE_TRY(trainer.resume(flags.checkpoint));
  }
  const Data data = HEDDLE_TRY(read_data(trainer.batch_ports(), flags.inputs, flags.target));
  if (classes)
    HEDDLE_TRY(want_classes(data, trainer.batch_ports(), *classes, flags.train.step.ignore_index,
                            flags.target));
  if (flags.train.step.loss.starts_with("bce"))
    HEDDLE_TRY(want_probabilities(data, trainer.batch_ports(), flags.target));
  HEDDLE_TRY(want_positions(data, trainer.batch_ports(), positions));
  if (!flags.json && speaks)
    fmt::print("{} parameters ({} numbers), {} kernels a step, {} samples in batches of {}{}\n",
               parameters, numbers, trainer.compiled().program->launches.size(), data.samples,
               data.batch,
               trainer.steps() > 0 ? fmt::format(", resumed after step {}", trainer.steps()) : "");
  nlohmann::json losses = nlohmann::json::array();
  const std::int64_t steps = trainer.steps(), skipped = trainer.skipped();
  HEDDLE_TRY(loop(trainer, data, flags, losses));
  HEDDLE_TRY(
      tell_skipped(trainer.steps() - steps, trainer.skipped() - skipped, !flags.json && speaks));
  if (group && speaks && !flags.json) {
    const auto times = group->times();
    fmt::print("sums over {} processes: {:.3f} s, {:.3f} s of it waited for\n", group->size(),
               times.sums, times.waits);
  }
  if (!speaks) return Ok{};
  if (!flags.output.empty())
    HEDDLE_TRY(onnx::export_trained(flags.model, flags.output, trainer.weights()));
  if (flags.json)
    fmt::print("{}\n", nlohmann::json{{"model", flags.model},
                                      {"parameters", parameters},
                                      {"kernels", trainer.compiled().program->launches.size()},
                                      {"steps", trainer.steps()},
                                      {"skipped", trainer.skipped()},
                                      {"losses", losses}}
                           .dump(2));
  return Ok{};
}

/// Without --distributed each process that mpirun starts trains alone, and all write the same
/// files.
void warn_of_copies() {
  const char* processes = std::getenv("OMPI_COMM_WORLD_SIZE");
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  if (processes && std::atoi(processes) > 1 && (!rank || std::atoi(rank) == 0))
    log(LogLevel::warning,
        "found {} processes of mpirun and no --distributed: each trains alone and writes the same "
        "files; want --distributed mpi or nccl",
        processes);
}

/// An error of one process ends all: unwinding into MPI_Finalize, it would wait for the others.
Status run_in_group(TrainFlags flags) {
  auto& group = flags.train.group;
  if (!flags.nccl.empty() && flags.distributed != "nccl")
    return fail(ErrorCode::usage, "--nccl: want --distributed nccl too");
  if (flags.distributed.empty())
    warn_of_copies();
  else
    group = HEDDLE_TRY(join_processes(flags.distributed, flags.device));
  const auto all = [&]() -> Status {
    if (flags.distributed == "nccl") group = HEDDLE_TRY(with_nccl(group, flags.device, flags.nccl));
    return run(flags);
  };
  if (!group || group->size() < 2) return all();
  const auto end_all = [&](ErrorCode code, const std::string& message) {
    std::fflush(stdout);
    fmt::print(stderr, "heddle: error: process {}: {}\n", group->rank(), message);
    std::fflush(stderr);
    group->abort(static_cast<int>(code));
  };
  try {
    Status status = all();
    if (!status) end_all(status.error().code, status.error().message);
    return status;
  } catch (const std::bad_alloc&) {
    end_all(ErrorCode::out_of_memory, "out of memory");
    throw;
  } catch (const std::exception& e) {
    end_all(ErrorCode::failed, fmt::format("internal error (a bug of Heddle): {}", e.what()));
    throw;
  }
}

/// "a, b, c" of rows that have a name.
std::string names_of(const auto& rows) {
  std::string text;
  for (const auto& row : rows) text += fmt::format("{}{}", text.empty() ? "" : ", ", row.name);
  return text;
}

}  // namespace

Verb add_train(CLI::App& verb) {
  auto flags = std::make_shared<TrainFlags>();
  add_model_flags(verb, *flags);
  const CLI::Validator share =
      number("a number in [0, 1)", [](double v) { return v >= 0 && v < 1; });
  const CLI::Validator at_least_0 =
      number("a number of at least 0", [](double v) { return v >= 0; });
  const CLI::Validator above_0 = number("a number above 0", [](double v) { return v > 0; });
  const CLI::Validator named(
      [](const std::string& text) { return text.empty() ? "found '', want a file's name" : ""; },
      "FILE");
  constexpr int kMost = 1'000'000'000;
  const CLI::Range from_1(1, kMost), from_0(0, kMost);
  verb.remove_option(verb.get_option("--input"));
  verb.add_option("--data,--input", flags->inputs,
                  "NAME=FILE.npy: samples of an input, first dimension");
  verb.add_option("--target", flags->target, "FILE.npy: what the first output should be");
  auto* step = &flags->train.step;
  verb.add_option("--loss", step->loss, names_of(grad::losses()))->capture_default_str();
  verb.add_option("--optimizer", step->optimizer, names_of(grad::optimizers()))
      ->capture_default_str();
  verb.add_option("--learning-rate,--lr", flags->rate)->check(at_least_0)->capture_default_str();
  verb.add_option("--schedule", flags->schedule, "of the learning rate, down to 0 at the end")
      ->check(CLI::IsMember({"constant", "linear", "cosine"}))
      ->capture_default_str();
  verb.add_option("--warmup", flags->warmup, "steps in which the rate rises from 0")->check(from_0);
  verb.add_option("--momentum", step->settings.momentum)->check(at_least_0)->capture_default_str();
  verb.add_option("--beta1", step->settings.beta1)->check(share)->capture_default_str();
  verb.add_option("--beta2", step->settings.beta2)->check(share)->capture_default_str();
  verb.add_option("--epsilon", step->settings.epsilon)->check(above_0)->capture_default_str();
  verb.add_option("--weight-decay", step->settings.weight_decay)
      ->check(at_least_0)
      ->capture_default_str();
  verb.add_option(
          "--ignore-index", step->ignore_index,
          "cross_entropy, nll: targets of this class do not count (in several processes each "
          "divides by how many of its own do)")
      ->check(whole_number<std::int64_t>("of 64 bits", "INT"));
  verb.add_option("--clip-norm", step->clip_norm, "limit of the gradients' norm; 0: none")
      ->check(at_least_0);
  verb.add_option("--loss-scale", step->loss_scale, "f16: what the loss is multiplied by at first")
      ->check(above_0)
      ->capture_default_str();
  verb.add_option("--accumulate", flags->train.accumulate, "batches of a step")
      ->check(from_1)
      ->capture_default_str();
  verb.add_option("--distributed", flags->distributed,
                  "share each step among the processes that mpirun starts; gradients are added up "
                  "by MPI, or on GPUs by NCCL")
      ->check(CLI::IsMember({"mpi", "nccl"}));
  verb.add_option("--nccl", flags->nccl, "path of libnccl.so.2 (default: looked for)");
  verb.add_flag("--in-order", flags->ordered, "do not shuffle the samples");
  verb.add_option("--epochs", flags->epochs)->check(from_1)->capture_default_str();
  verb.add_option("--steps", flags->steps, "instead of epochs; 0: epochs decide")->check(from_0);
  verb.add_option("--stop-after", flags->stop_after,
                  "end this run after so many of the steps; 0: all")
      ->check(from_0);
  verb.add_option("--freeze", flags->frozen, "initializers that are not trained");
  verb.add_option("--checkpoint", flags->checkpoint, "safetensors file, written as training goes")
      ->check(named);
  verb.add_option("--save-every", flags->save_every, "steps between checkpoints")
      ->check(from_1)
      ->capture_default_str();
  verb.add_flag("--resume", flags->resume, "go on from the checkpoint if it is there");
  verb.add_option("-o,--output", flags->output, "write the trained model (ONNX)")->check(named);
  return [flags, &verb] {
    for (const char* name : {"--momentum", "--beta1", "--beta2", "--epsilon", "--loss-scale"})
      if (verb.get_option(name)->count() > 0) flags->given.emplace_back(name);
    return run_in_group(*flags);
  };
}

}  // namespace heddle::tool
