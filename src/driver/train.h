#pragma once
#include <map>
#include <string>
#include <vector>

#include "driver/driver.h"
#include "grad/step.h"
#include "onnx/training.h"

namespace heddle::driver {

/// The step of a model: its first output is what the loss sees, statistics are fed back. Takes the
/// model's graph.
Result<grad::Step> step_of(onnx::TrainingModel& model, const grad::StepOptions& options);

/// A compiled training step and the values that it changes.
class Trainer {
 public:
  /// Starts from the model's own values. Errors as of training_step() and compile().
  static Result<Trainer> create(onnx::TrainingModel model, const grad::StepOptions& step,
                                const CompileOptions& options);

  /// Names and types of what step() is given: the model's inputs, then "target".
  const std::vector<runtime::Port>& batch_ports() const { return batch_; }
  /// One step on a batch (by position in batch_ports()); gives the loss before the update.
  Result<double> step(const std::vector<Tensor>& batch, double learning_rate);
  std::int64_t steps() const { return steps_; }

  /// Values of parameters and statistics, by name in the model.
  std::map<std::string, Tensor> weights() const;
  /// Writes everything that changes, and the number of steps, as safetensors; a reader sees the old
  /// file or the new one, never a part.
  Status save(const std::string& path) const;
  /// Goes on from a file of save(); error: names, types or shapes differ.
  Status resume(const std::string& path);

  const Compiled& compiled() const { return compiled_; }

 private:
  struct Changing {
    std::size_t input, output;
  };
  Compiled compiled_;
  std::shared_ptr<runtime::Session> session_;
  std::vector<runtime::Port> batch_;
  std::vector<std::size_t> batch_slots_;
  std::vector<Changing> changing_;
  std::vector<std::string> weights_;  ///< names among the changing inputs
  std::size_t rate_slot_ = 0, step_slot_ = 0;
  std::vector<Tensor> inputs_, outputs_;
  std::int64_t steps_ = 0;
};

}  // namespace heddle::driver
