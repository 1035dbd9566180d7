#pragma once
#include <map>
#include <span>
#include <string>
#include <vector>

#include "driver/driver.h"
#include "grad/step.h"
#include "onnx/training.h"
#include "runtime/communicator.h"
#include "support/tensor_store.h"

namespace heddle::driver {

using Batch = std::vector<Tensor>;

struct TrainOptions {
  grad::StepOptions step;  ///< its precision and parts are set from what follows
  int accumulate = 1;      ///< batches of a step, one after another
  /// Processes that share each step, with batches of their own; null: this one alone.
  std::shared_ptr<runtime::Communicator> group = {};
};

/// The step of a model: its first output is what the loss sees, statistics are fed back. Takes the
/// model's graph; parameters and statistics with a name that steps use (grad::is_own_name) get
/// another port, in `model`, too.
Result<grad::Step> step_of(onnx::TrainingModel& model, const grad::StepOptions& options);

/// A step that adds gradients up between two programs: the graph of both, dumped as a whole, and
/// its parts.
Result<grad::SplitStep> split_step_of(onnx::TrainingModel& model, grad::StepOptions options,
                                      const CompileOptions& compile_options);

/// A compiled training step and the values that it changes. CompileOptions::precision is what
/// values between parameters and loss are stored as.
class Trainer {
 public:
  /// Starts from the model's own values. Errors as of training_step() and compile().
  static Result<Trainer> create(onnx::TrainingModel model, const TrainOptions& train,
                                const CompileOptions& options);

  /// Names and types of the tensors of a batch: the model's inputs, then "target" if there is one.
  const std::vector<runtime::Port>& batch_ports() const { return batch_; }
  /// One step on TrainOptions::accumulate batches (each by position in batch_ports()); gives the
  /// loss before the update, the mean over batches and processes.
  Result<double> step(std::span<const Batch> batches, double learning_rate);
  Result<double> step(const Batch& batch, double learning_rate) {
    return step({&batch, 1}, learning_rate);
  }
  std::int64_t steps() const { return steps_; }
  /// Of what is trained and how: names and types of all values, loss, optimizer, accumulation.
  std::int64_t kind_hash() const;
  /// Steps in which a gradient was infinite, so that no parameter changed (f16).
  std::int64_t skipped() const;

  /// Values of parameters and statistics, by name in the model.
  std::map<std::string, Tensor> weights() const;
  /// Error: a parameter holds NaN (the loss of the next step would tell).
  Status want_numbers() const;
  /// Writes everything that changes, and the number of steps, as safetensors; a reader sees the old
  /// file or the new one, never a part.
  Status save(const std::string& path) const;
  /// Goes on from a file of save(); error: names, types or shapes differ, another loss, optimizer,
  /// accumulation or number of processes made it, or its data are damaged.
  Status resume(const std::string& path);

  /// The whole step, or what makes gradients where they are added up outside.
  const Compiled& compiled() const { return parts_[0].compiled; }

 private:
  struct Value {
    std::string name;
    Tensor tensor;
    enum class Kind : std::uint8_t { weight, state, sum, batch, number } kind = Kind::batch;
    std::string initializer = {};  ///< of a weight: its name in the model
    bool saved() const { return kind == Kind::weight || kind == Kind::state; }
  };
  /// A compiled graph over values_.
  struct Part {
    Compiled compiled;
    std::shared_ptr<runtime::Session> session;
    std::vector<std::size_t> inputs;                  ///< values, by input
    std::vector<std::optional<std::size_t>> outputs;  ///< the values that outputs replace
    std::vector<Tensor> results;
    std::vector<std::size_t> summed = {};  ///< outputs that are summed over processes, in order
  };
  void take_values(const onnx::TrainingModel& model);
  Status add_part(const grad::Step& step, const std::vector<std::string>& sums,
                  const CompileOptions& options);
  std::optional<std::size_t> find(std::string_view name) const;
  std::size_t value_named(const runtime::Port& port, const grad::Step& step,
                          const std::vector<std::string>& sums);
  void set_number(std::string_view name, double value);
  Status run(Part& part, bool share);
  Status agree_on_order();
  Status share_loss_and_statistics(double& loss);

  int accumulate_ = 1;
  std::string kind_;  ///< loss, optimizer, accumulation, processes
  std::shared_ptr<runtime::Communicator> group_;
  std::vector<Part> parts_;
  std::vector<Value> values_;
  TensorStore store_;  ///< of values and results
  std::vector<runtime::Port> batch_;
  std::vector<std::size_t> batch_values_;
  std::int64_t steps_ = 0;
  bool ordered_ = false;  ///< processes have agreed on the order of sums
};

}  // namespace heddle::driver
