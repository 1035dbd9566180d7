#include "driver/train.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <numbers>
#include <numeric>
#include <random>
#include <set>

#include "common.h"
#include "driver/report.h"
#include "grad/losses.h"
#include "onnx/tensor_file.h"
#include "ranks.h"
#include "support/hash.h"
#include "support/log.h"

namespace heddle::tool {
namespace {

struct TrainFlags : ModelFlags {
  driver::TrainOptions train;
  std::string target, schedule = "constant", checkpoint, output, distributed, nccl;
  std::vector<std::string> frozen;
  double rate = 1e-3;
  std::int64_t epochs = 1, steps = 0, stop_after = 0, warmup = 0, save_every = 100;
  bool resume = false, ordered = false;
};

/// The whole of a data set, a tensor for each port of a batch, first dimension: samples.
struct Data {
  std::vector<Tensor> tensors;
  std::int64_t samples = 0, batch = 0;
};

Result<Tensor> read_samples(const std::string& path, const runtime::Port& port) {
  Tensor t = HEDDLE_TRY(onnx::read_tensor(path));
  Shape want = port.type.shape;
  if (want.empty()) return fail("input '{}' has no dimension to hold samples", port.name);
  if (t.shape().empty() ||
      !std::equal(want.begin() + 1, want.end(), t.shape().begin() + 1, t.shape().end()))
    return fail("{}: shape {}, want [samples, …] of batches {} for '{}'", path,
                to_string(t.shape()), to_string(want), port.name);
  if (t.dtype() != port.type.dtype)
    return fail("{}: type {}, want {} for '{}'", path, name_of(t.dtype()), name_of(port.type.dtype),
                port.name);
  return t;
}

Result<Data> read_data(const driver::Trainer& trainer, const TrainFlags& flags) {
  Data data;
  for (const runtime::Port& port : trainer.batch_ports()) {
    std::string path = port.name == "target" ? flags.target : "";
    for (const std::string& text : flags.inputs)
      if (text.starts_with(port.name + "=")) path = text.substr(port.name.size() + 1);
    if (path.empty())
      return fail(ErrorCode::usage, "no data for '{}', want {}", port.name,
                  port.name == "target" ? "--target FILE" : "--data " + port.name + "=FILE");
    data.tensors.push_back(HEDDLE_TRY(read_samples(path, port)));
    const std::int64_t samples = data.tensors.back().shape()[0], batch = port.type.shape[0];
    if (data.tensors.size() > 1 && (samples != data.samples || batch != data.batch))
      return fail("'{}' has {} samples in batches of {}, others {} in batches of {}", port.name,
                  samples, batch, data.samples, data.batch);
    data.samples = samples;
    data.batch = batch;
  }
  if (data.batch < 1 || data.samples < data.batch)
    return fail("{} samples, want at least a batch of {}", data.samples, data.batch);
  return data;
}

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

/// The loss of a class that there is not would be that of none, a wrong number without a word.
Status want_classes(const Data& data, const std::vector<runtime::Port>& ports, std::int64_t classes,
                    std::optional<std::int64_t> ignored, const std::string& path) {
  for (std::size_t p = 0; p < ports.size(); ++p) {
    if (ports[p].name != "target") continue;
    const Tensor& target = data.tensors[p];
    for (std::int64_t i = 0; i < target.count(); ++i)
      if (const std::int64_t found = target.int_at(i);
          (found < 0 || found >= classes) && found != ignored)
        return fail("{}: sample {}: class {}, want 0 to {}", path,
                    i / (target.count() / data.samples), found, classes - 1);
  }
  return Ok{};
}

/// Probabilities beyond 0 and 1 have no cross entropy, but it gives a number.
Status want_probabilities(const Data& data, const std::vector<runtime::Port>& ports,
                          const std::string& path) {
  for (std::size_t p = 0; p < ports.size(); ++p) {
    if (ports[p].name != "target") continue;
    const Tensor& target = data.tensors[p];
    for (std::int64_t i = 0; i < target.count(); ++i)
      if (const double found = target.at(i); !(found >= 0 && found <= 1))
        return fail("{}: sample {}: {}, want 0 to 1", path, i / (target.count() / data.samples),
                    found);
  }
  return Ok{};
}

/// Hours of training should not end in a file that cannot be written.
Status want_writable(const char* flag, const std::string& path) {
  namespace fs = std::filesystem;
  if (path.empty()) return Ok{};
  std::error_code failed;
  if (fs::is_directory(path, failed)) return fail("{} {}: a folder, want a file", flag, path);
  const fs::path parent = fs::path(path).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  if (!fs::is_directory(folder, failed))
    return fail("{} {}: '{}' is no folder", flag, path, folder);
  if (::access(folder.c_str(), W_OK | X_OK) != 0)
    return fail("{} {}: folder '{}' cannot be written to: {}", flag, path, folder,
                std::strerror(errno));
  return Ok{};
}

/// Rows `order[first..]` of a data set as one batch.
driver::Batch batch_of(const Data& data, const std::vector<runtime::Port>& ports,
                       const std::vector<std::int64_t>& order, std::int64_t first) {
  driver::Batch batch;
  for (std::size_t i = 0; i < ports.size(); ++i) {
    batch.emplace_back(ports[i].type);
    const auto row = static_cast<std::size_t>(batch[i].bytes() / data.batch);
    for (std::int64_t r = 0; r < data.batch; ++r)
      std::memcpy(batch[i].mutable_data() + static_cast<std::size_t>(r) * row,
                  data.tensors[i].data() +
                      static_cast<std::size_t>(order[static_cast<std::size_t>(first + r)]) * row,
                  row);
  }
  return batch;
}

/// The samples in the order of an epoch: a function of seed and epoch, so that resuming repeats it.
std::vector<std::int64_t> order_of(std::int64_t samples, std::uint64_t seed, std::int64_t epoch) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(samples));
  std::iota(order.begin(), order.end(), 0);
  std::mt19937_64 random(seed * 1000003 + static_cast<std::uint64_t>(epoch));
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  return order;
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
  const std::int64_t first = trainer.steps();
  if (first >= course.steps && course.speaks())
    fmt::print("nothing is left to do: {} of {} steps are done\n", first, course.steps);
  for (std::int64_t step = first; step < course.steps; ++step) {
    const auto batches = course.batches(trainer, data, step);
    const double loss = HEDDLE_TRY(trainer.step(batches, rate_at(flags, step, course.steps)));
    if (hopeless(trainer, flags, loss))
      return fail("step {}: the loss is {}: {}", step + 1, loss,
                  step == 0 ? "look at the data and the weights: nothing has been trained yet"
                            : "a smaller --learning-rate or --clip-norm may help");
    losses.push_back(loss);
    const bool last = step + 1 == course.steps || step + 1 - first == flags.stop_after;
    course.tell(step, loss);
    const bool due = (step + 1) % flags.save_every == 0 || last;
    if (!flags.checkpoint.empty() && due && course.saves())
      HEDDLE_TRY(trainer.save(flags.checkpoint));
    if (last) break;
  }
  return Ok{};
}

Status run(TrainFlags& flags) {
  HEDDLE_TRY(want_one_size(flags, "train"));
  flags.train.step.seed = flags.seed.value_or(0);
  const auto& group = flags.train.group;
  const bool speaks = !group || group->rank() == 0;
  if (speaks) {  // the others write nothing
    HEDDLE_TRY(want_writable("--output", flags.output));
    HEDDLE_TRY(want_writable("--checkpoint", flags.checkpoint));
  }
  const driver::CompileOptions options = HEDDLE_TRY(compile_options(flags));
  onnx::ImportOptions import;
  import.shapes = options.shapes;
  onnx::TrainingModel model =
      HEDDLE_TRY(onnx::import_for_training(flags.model, import, flags.frozen));
  HEDDLE_TRY(want_inputs(model, flags));
  const std::optional<std::int64_t> classes = classes_of(model, flags);
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
  const Data data = HEDDLE_TRY(read_data(trainer, flags));
  if (classes)
    HEDDLE_TRY(want_classes(data, trainer.batch_ports(), *classes, flags.train.step.ignore_index,
                            flags.target));
  if (flags.train.step.loss.starts_with("bce"))
    HEDDLE_TRY(want_probabilities(data, trainer.batch_ports(), flags.target));
  if (!flags.json && speaks)
    fmt::print("{} parameters ({} numbers), {} kernels a step, {} samples in batches of {}{}\n",
               parameters, numbers, trainer.compiled().program->launches.size(), data.samples,
               data.batch,
               trainer.steps() > 0 ? fmt::format(", resumed after step {}", trainer.steps()) : "");
  nlohmann::json losses = nlohmann::json::array();
  HEDDLE_TRY(loop(trainer, data, flags, losses));
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
  constexpr int kMost = 1'000'000'000;
  const CLI::Range from_1(1, kMost), from_0(0, kMost);
  verb.add_option("--data", flags->inputs, "NAME=FILE.npy: samples of an input, first dimension");
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
      "divides by how many of its own do)");
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
  verb.add_option("--checkpoint", flags->checkpoint, "safetensors file, written as training goes");
  verb.add_option("--save-every", flags->save_every, "steps between checkpoints")
      ->check(from_1)
      ->capture_default_str();
  verb.add_flag("--resume", flags->resume, "go on from the checkpoint if it is there");
  verb.add_option("-o,--output", flags->output, "write the trained model (ONNX)");
  return [flags] { return run_in_group(*flags); };
}

}  // namespace heddle::tool
