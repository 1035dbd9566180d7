#include "driver/train.h"

#include "driver/safetensors.h"

namespace heddle::driver {
namespace {

Result<std::size_t> port_named(const std::vector<runtime::Port>& ports, const std::string& name) {
  for (std::size_t i = 0; i < ports.size(); ++i)
    if (ports[i].name == name) return i;
  return fail("the compiled step has no port '{}'", name);
}

Tensor number(double value) {
  Tensor t(TensorType{DType::f32, {}});
  t.set(0, value);
  return t;
}

Tensor copy_of(const Tensor& t) {
  Tensor out(t.type());
  std::memcpy(out.mutable_data(), t.data(), static_cast<std::size_t>(t.bytes()));
  return out;
}

}  // namespace

Result<grad::Step> step_of(onnx::TrainingModel& model, const grad::StepOptions& options) {
  std::vector<std::string> names;
  for (const auto& p : model.parameters) names.push_back(p.name);
  // Outputs beyond the first that are no statistics are not needed for training.
  auto& outputs = model.graph.outputs;
  outputs.erase(outputs.begin() + 1, outputs.begin() + static_cast<std::ptrdiff_t>(model.outputs));
  return grad::training_step(std::move(model.graph), names, options);
}

Result<Trainer> Trainer::create(onnx::TrainingModel model, const grad::StepOptions& options,
                                const CompileOptions& compile_options) {
  if (compile_options.precision != DType::f32)
    return unsupported(
        "training: found --precision {}, want f32 (weights would be rounded at every step)",
        name_of(compile_options.precision));
  const grad::Step step = HEDDLE_TRY(step_of(model, options));
  Trainer t;
  t.compiled_ = HEDDLE_TRY(compile(step.graph, compile_options));
  t.session_ = HEDDLE_TRY(load(t.compiled_.program, compile_options));
  const runtime::Program& program = *t.compiled_.program;
  std::map<std::string, Tensor> values;
  for (auto* list : {&model.parameters, &model.statistics})
    for (auto& named : *list) {
      t.weights_.push_back(named.name);
      values[named.name] = std::move(named.value);
    }
  for (const auto& f : step.feedback)
    t.changing_.push_back(
        {HEDDLE_TRY(port_named(program.inputs, step.graph.inputs[f.to].name)),
         HEDDLE_TRY(port_named(program.outputs, step.graph.outputs[f.from].name))});
  t.rate_slot_ = HEDDLE_TRY(port_named(program.inputs, "learning_rate"));
  t.step_slot_ = HEDDLE_TRY(port_named(program.inputs, "step"));
  for (const runtime::Port& port : program.inputs) {
    const auto value = values.find(port.name);
    // Buffers change hands from step to step, so none may be shared with the model's file.
    t.inputs_.push_back(value == values.end() ? Tensor(port.type) : copy_of(value->second));
  }
  for (const runtime::Port& port : program.outputs) t.outputs_.emplace_back(port.type);
  const auto is_batch = [&](std::size_t slot) {
    if (slot == t.rate_slot_ || slot == t.step_slot_) return false;
    for (const Changing& c : t.changing_)
      if (c.input == slot) return false;
    return !values.contains(program.inputs[slot].name);
  };
  for (std::size_t slot = 0; slot < program.inputs.size(); ++slot)
    if (is_batch(slot)) {
      t.batch_.push_back(program.inputs[slot]);
      t.batch_slots_.push_back(slot);
    }
  return t;
}

Result<double> Trainer::step(const std::vector<Tensor>& batch, double learning_rate) {
  if (batch.size() != batch_.size())
    return fail("{} tensors in the batch, want {}", batch.size(), batch_.size());
  for (std::size_t i = 0; i < batch.size(); ++i) inputs_[batch_slots_[i]] = batch[i];
  inputs_[rate_slot_] = number(learning_rate);
  inputs_[step_slot_] = number(static_cast<double>(steps_ + 1));
  HEDDLE_TRY(session_->run_into(inputs_, outputs_));
  for (const Changing& c : changing_) std::swap(inputs_[c.input], outputs_[c.output]);
  ++steps_;
  return outputs_[0].at(0);
}

std::map<std::string, Tensor> Trainer::weights() const {
  std::map<std::string, Tensor> out;
  const auto& ports = compiled_.program->inputs;
  for (std::size_t slot = 0; slot < ports.size(); ++slot)
    if (std::find(weights_.begin(), weights_.end(), ports[slot].name) != weights_.end())
      out[ports[slot].name] = copy_of(inputs_[slot]);
  return out;
}

Status Trainer::save(const std::string& path) const {
  std::map<std::string, Tensor> all;
  for (const Changing& c : changing_)
    all[compiled_.program->inputs[c.input].name] = inputs_[c.input];
  return write_safetensors(path, all, {{"steps", std::to_string(steps_)}});
}

Status Trainer::resume(const std::string& path) {
  const Safetensors file = HEDDLE_TRY(read_safetensors(path));
  std::vector<Tensor> fresh;
  for (const Changing& c : changing_) {
    const runtime::Port& port = compiled_.program->inputs[c.input];
    const auto it = file.tensors.find(port.name);
    if (it == file.tensors.end()) return fail("{}: no tensor '{}'", path, port.name);
    if (it->second.type() != port.type)
      return fail("{}: tensor '{}' is {}, want {}", path, port.name, to_string(it->second.type()),
                  to_string(port.type));
    fresh.push_back(it->second);
  }
  if (file.tensors.size() != changing_.size())
    return fail("{}: {} tensors, want {}: of another model, optimizer or loss", path,
                file.tensors.size(), changing_.size());
  const auto steps = file.metadata.find("steps");
  if (steps == file.metadata.end()) return fail("{}: no number of steps", path);
  for (std::size_t i = 0; i < changing_.size(); ++i) inputs_[changing_[i].input] = fresh[i];
  steps_ = std::strtoll(steps->second.c_str(), nullptr, 10);
  return Ok{};
}

}  // namespace heddle::driver
