#include "driver/train.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "driver/dump.h"
#include "driver/safetensors.h"
#include "support/hash.h"

namespace heddle::driver {
namespace {

using grad::Step;

Tensor copy_of(const Tensor& t) {
  Tensor out(t.type());
  std::memcpy(out.mutable_data(), t.data(), static_cast<std::size_t>(t.bytes()));
  return out;
}
void fill(Tensor& t, double value) {
  for (std::int64_t i = 0; i < t.count(); ++i) t.set(i, value);
}
std::span<float> floats_of(Tensor& t) { return t.as_mutable<float>(); }

const Step::State* state_named(const Step& step, std::string_view name) {
  for (const Step::State& s : step.states)
    if (s.name == name) return &s;
  return nullptr;
}

std::string checksum(const std::map<std::string, Tensor>& tensors, const std::string& steps,
                     const std::string& kind) {
  std::string all = steps + "\n" + kind + "\n";
  for (const auto& [name, t] : tensors) all += name + to_string(hash_bytes(t.view()));
  return to_string(hash_bytes(all));
}

Status want_f32(const onnx::TrainingModel& model) {
  for (const auto* list : {&model.parameters, &model.statistics})
    for (const auto& named : *list)
      if (named.value.dtype() != DType::f32)
        return unsupported("'{}' is {}: sums over processes are of f32", named.name,
                           to_string(named.value.type()));
  return Ok{};
}

}  // namespace

namespace {

/// So that no value of the model has the name of one that the step, or its checkpoint, adds.
void escape_names(onnx::TrainingModel& model) {
  std::set<std::string> taken;
  for (const auto& in : model.graph.inputs) taken.insert(in.name);
  std::map<std::string, std::string> changed;
  for (auto* list : {&model.parameters, &model.statistics})
    for (auto& named : *list) {
      if (!grad::is_own_name(named.port) && named.port != kSafetensorsMetadata) continue;
      do named.port.insert(0, "model:");  // no step's own name begins so
      while (taken.contains(named.port));
      taken.insert(named.port);
      changed[named.name] = named.port;
    }
  const auto rename = [&](auto& ports) {
    for (auto& port : ports)
      if (const auto at = changed.find(port.name); at != changed.end()) port.name = at->second;
  };
  rename(model.graph.inputs);
  rename(model.graph.outputs);
}

/// Outputs beyond the first that are no statistics are not needed for training.
Status keep_prediction(onnx::TrainingModel& model) {
  auto& outputs = model.graph.outputs;
  if (outputs.empty()) return fail("the model has no output to compare with a target");
  outputs.erase(outputs.begin() + 1, outputs.begin() + static_cast<std::ptrdiff_t>(model.outputs));
  return Ok{};
}

std::vector<std::string> names_of(const onnx::TrainingModel& model) {
  std::vector<std::string> names;
  for (const auto& p : model.parameters) names.push_back(p.port);
  return names;
}

}  // namespace

Result<grad::Step> step_of(onnx::TrainingModel& model, const grad::StepOptions& options) {
  HEDDLE_TRY(keep_prediction(model));
  escape_names(model);
  return grad::training_step(std::move(model.graph), names_of(model), options);
}

Result<grad::SplitStep> split_step_of(onnx::TrainingModel& model, grad::StepOptions options,
                                      const CompileOptions& compile_options) {
  // One process that accumulates is a group of one: the program ends where sums would be.
  options.distributed = true;
  const grad::Step step = HEDDLE_TRY(step_of(model, options));
  Dumper(compile_options.options).write("step", step.graph);
  return grad::split_step(step);
}

Result<Trainer> Trainer::create(onnx::TrainingModel model, const TrainOptions& train,
                                const CompileOptions& compile_options) {
  if (train.accumulate < 1)
    return fail(ErrorCode::usage, "found {} batches to accumulate, want at least 1",
                train.accumulate);
  Trainer t;
  t.accumulate_ = train.accumulate;
  t.kind_ = fmt::format("loss {}, optimizer {}, {} batches a step", train.step.loss,
                        train.step.optimizer, train.accumulate);
  t.group_ = train.group;
  if (t.group_ && t.group_->size() > 1) t.kind_ += fmt::format(", {} processes", t.group_->size());
  if (t.group_) HEDDLE_TRY(want_f32(model));
  grad::StepOptions options = train.step;
  options.parts = t.accumulate_ * (t.group_ ? t.group_->size() : 1);
  options.precision = compile_options.precision;
  // The step says itself what is stored in halves: parameters and the update are not.
  CompileOptions as_is = compile_options;
  as_is.precision = DType::f32;
  if (t.accumulate_ == 1 && !t.group_) {
    const Step step = HEDDLE_TRY(step_of(model, options));
    t.take_values(model);
    HEDDLE_TRY(t.add_part(step, {}, as_is));
  } else {
    options.accumulate = t.accumulate_ > 1;
    const grad::SplitStep split = HEDDLE_TRY(split_step_of(model, options, as_is));
    t.take_values(model);
    std::vector<std::string> sums;
    for (const std::size_t o : split.summed) sums.push_back(split.gradients.graph.outputs[o].name);
    // The update first: it says which states have to be kept.
    HEDDLE_TRY(t.add_part(split.update, sums, as_is));
    HEDDLE_TRY(t.add_part(split.gradients, sums, as_is));
    t.parts_[1].summed = split.summed;
    std::swap(t.parts_[0], t.parts_[1]);
  }
  return t;
}

void Trainer::take_values(const onnx::TrainingModel& model) {
  // Buffers change hands: none may be shared with the model's file.
  for (const auto* list : {&model.parameters, &model.statistics})
    for (const auto& named : *list)
      values_.push_back(
          {named.port, store_.keep(copy_of(named.value)), Value::Kind::weight, named.name});
}

Status Trainer::add_part(const Step& step, const std::vector<std::string>& sums,
                         const CompileOptions& options) {
  Part part;
  part.compiled = HEDDLE_TRY(compile(step.graph, options));
  part.session = HEDDLE_TRY(load(part.compiled.program, options));
  const runtime::Program& program = *part.compiled.program;
  for (const runtime::Port& port : program.inputs)
    part.inputs.push_back(value_named(port, step, sums));
  // An output replaces the value of its name; the first one is the loss of the gradients' part.
  for (const runtime::Port& port : program.outputs)
    part.outputs.push_back(port.name == "loss" ? std::nullopt : find(port.name));
  for (const runtime::Port& port : program.outputs)
    part.results.push_back(store_.keep(Tensor(port.type)));
  parts_.push_back(std::move(part));
  return Ok{};
}

std::optional<std::size_t> Trainer::find(std::string_view name) const {
  for (std::size_t i = 0; i < values_.size(); ++i)
    if (values_[i].name == name) return i;
  return std::nullopt;
}

/// The value of an input, added where it is new.
std::size_t Trainer::value_named(const runtime::Port& port, const Step& step,
                                 const std::vector<std::string>& sums) {
  if (const auto known = find(port.name)) return *known;
  Value value{port.name, Tensor(port.type), Value::Kind::batch};
  if (std::ranges::find(sums, port.name) != sums.end()) {
    value.kind = Value::Kind::sum;
  } else if (const Step::State* state = state_named(step, port.name)) {
    value.kind = Value::Kind::state;
    fill(value.tensor, state->initial);
  } else {
    for (const std::string_view number : {grad::kRate, grad::kStep, grad::kDraw})
      if (port.name == number) value.kind = Value::Kind::number;
  }
  if (value.kind == Value::Kind::batch) {
    batch_.push_back(port);
    batch_values_.push_back(values_.size());
  } else {
    value.tensor = store_.keep(value.tensor);
  }
  values_.push_back(std::move(value));
  return values_.size() - 1;
}

void Trainer::set_number(std::string_view name, double value) {
  const auto at = find(name);
  if (at) values_[*at].tensor.set(0, value);
}

/// Runs a part; with `share`, sums over processes start as soon as a gradient is there.
Status Trainer::run(Part& part, bool share) {
  std::vector<Tensor> inputs;
  for (const std::size_t i : part.inputs) inputs.push_back(values_[i].tensor);
  HEDDLE_TRY(share ? part.session->run_sharing(inputs, part.results, part.summed, *group_)
                   : part.session->run_into(inputs, part.results));
  for (std::size_t o = 0; o < part.outputs.size(); ++o)
    if (part.outputs[o]) std::swap(values_[*part.outputs[o]].tensor, part.results[o]);
  return Ok{};
}

/// Sums go in the order in which process 0 has them: plans, and so orders, may differ where
/// processors, threads or measurements do.
Status Trainer::agree_on_order() {
  if (std::exchange(ordered_, true)) return Ok{};
  Part& part = parts_[0];
  if (part.summed.empty()) return Ok{};
  const std::vector<std::size_t> own = part.session->by_completion(part.summed);
  std::vector<float> places(own.size());
  for (std::size_t k = 0; k < own.size() && group_->rank() == 0; ++k)
    places[k] = static_cast<float>(std::ranges::find(part.summed, own[k]) - part.summed.begin());
  group_->start_sum(places.data(), static_cast<std::int64_t>(places.size()));
  HEDDLE_TRY(group_->wait());
  std::vector<std::size_t> order;
  for (const float place : places) order.push_back(part.summed[static_cast<std::size_t>(place)]);
  part.summed = std::move(order);
  return Ok{};
}

/// Their means over all processes, so that these stay alike.
Status Trainer::share_loss_and_statistics(double& loss) {
  std::vector<Tensor*> shared;
  for (const auto& value : parts_[0].outputs)
    if (value && values_[*value].kind == Value::Kind::weight)
      shared.push_back(&values_[*value].tensor);
  Tensor number(TensorType{DType::f32, {}});
  number.set(0, loss);
  shared.push_back(&number);
  for (Tensor* t : shared) group_->start_sum(floats_of(*t).data(), t->count());
  HEDDLE_TRY(group_->wait());
  for (Tensor* t : shared)
    for (float& v : floats_of(*t)) v /= static_cast<float>(group_->size());
  loss = number.at(0);
  return Ok{};
}

Result<double> Trainer::step(std::span<const Batch> batches, double learning_rate) {
  if (batches.size() != static_cast<std::size_t>(accumulate_))
    return fail(ErrorCode::usage, "{} batches in a step, want {}", batches.size(), accumulate_);
  set_number(grad::kRate, learning_rate);
  set_number(grad::kStep, static_cast<double>(steps_ + 1));
  const bool split = parts_.size() > 1;
  if (group_) HEDDLE_TRY(agree_on_order());
  for (Value& v : values_)
    if (accumulate_ > 1 && v.kind == Value::Kind::sum) fill(v.tensor, 0);
  double loss = 0;
  for (std::size_t k = 0; k < batches.size(); ++k) {
    if (batches[k].size() != batch_.size())
      return fail(ErrorCode::usage, "{} tensors in the batch, want {}", batches[k].size(),
                  batch_.size());
    for (std::size_t i = 0; i < batch_.size(); ++i)
      values_[batch_values_[i]].tensor = batches[k][i];
    // Another draw for every batch of every process.
    const std::int64_t number = steps_ * accumulate_ + static_cast<std::int64_t>(k);
    const std::int64_t ranks = group_ ? group_->size() : 1, rank = group_ ? group_->rank() : 0;
    if (const auto draw = find(grad::kDraw))
      values_[*draw].tensor.set_int(0, number * ranks + rank);
    HEDDLE_TRY(run(parts_[0], group_ && k + 1 == batches.size()));
    loss += parts_[0].results[0].at(0) / accumulate_;
  }
  if (group_) HEDDLE_TRY(share_loss_and_statistics(loss));
  if (split) HEDDLE_TRY(run(parts_[1], false));
  ++steps_;
  return loss;
}

std::int64_t Trainer::skipped() const {
  const auto at = find(grad::kSkipped);
  return at ? static_cast<std::int64_t>(values_[*at].tensor.at(0)) : 0;
}

std::map<std::string, Tensor> Trainer::weights() const {
  std::map<std::string, Tensor> out;
  for (const Value& v : values_)
    if (v.kind == Value::Kind::weight) out[v.initializer] = copy_of(v.tensor);
  return out;
}

Status Trainer::want_numbers() const {
  for (const Value& v : values_) {
    if (v.kind != Value::Kind::weight || !is_float(v.tensor.dtype())) continue;
    for (std::int64_t i = 0; i < v.tensor.count(); ++i)
      if (std::isnan(v.tensor.at(i)))
        return fail(
            "after step {}: parameter '{}' holds NaN: a smaller --learning-rate or "
            "--clip-norm may help; no file has been written since it did",
            steps_, v.initializer);
  }
  return Ok{};
}

Status Trainer::save(const std::string& path) const {
  std::map<std::string, Tensor> all;
  for (const Value& v : values_)
    if (v.saved()) all[v.name] = v.tensor;
  return write_safetensors(path, all,
                           {{"steps", std::to_string(steps_)},
                            {"training", kind_},
                            {"checksum", checksum(all, std::to_string(steps_), kind_)}});
}

std::int64_t Trainer::kind_hash() const {
  std::string all = kind_;
  for (const Value& v : values_) {
    all += "\n" + v.name + " " + to_string(v.tensor.type());
    if (v.saved()) all += to_string(hash_bytes(v.tensor.view()));
  }
  return static_cast<std::int64_t>(hash_bytes(all).low);
}

Status Trainer::resume(const std::string& path) {
  const Safetensors file = HEDDLE_TRY(read_safetensors(path));
  std::map<std::string, std::string> told = file.metadata;
  for (const char* key : {"training", "steps", "checksum"})
    if (!told.contains(key))
      return fail("{}: no checkpoint of training: it has no '{}'", path, key);
  if (told["training"] != kind_)
    return fail("{}: made with {}, want {}", path, told["training"], kind_);
  const std::string sum = checksum(file.tensors, told["steps"], kind_);
  if (told["checksum"] != sum)
    return fail("{}: damaged: its data have the checksum {}, want {}", path, sum, told["checksum"]);
  std::vector<std::pair<Value*, const Tensor*>> fresh;
  for (Value& v : values_) {
    if (!v.saved()) continue;
    const auto it = file.tensors.find(v.name);
    if (it == file.tensors.end())
      return fail("{}: no tensor '{}': made with another model, optimizer, --freeze or --precision",
                  path, v.name);
    if (it->second.type() != v.tensor.type())
      return fail("{}: tensor '{}' is {}, want {}", path, v.name, to_string(it->second.type()),
                  to_string(v.tensor.type()));
    fresh.emplace_back(&v, &it->second);
  }
  if (file.tensors.size() != fresh.size())
    return fail(
        "{}: {} tensors, want {}: made with another model, optimizer, --freeze or --precision",
        path, file.tensors.size(), fresh.size());
  const std::string& steps = told["steps"];
  std::int64_t number = -1;
  const char *begin = steps.data(), *end = begin + steps.size();
  const auto [rest, error] = std::from_chars(begin, end, number);
  if (error != std::errc() || rest != end || number < 0 || number > (std::int64_t{1} << 53))
    return fail("{}: found '{}' steps, want their number", path, steps);
  for (auto& [value, tensor] : fresh)  // in place: what is in the store stays there
    std::memcpy(value->tensor.mutable_data(), tensor->data(),
                static_cast<std::size_t>(tensor->bytes()));
  steps_ = number;
  return Ok{};
}

}  // namespace heddle::driver
