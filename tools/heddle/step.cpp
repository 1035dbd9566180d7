#include "step.h"

#include "driver/cache.h"
#include "driver/report.h"
#include "grad/losses.h"

namespace heddle::tool {
namespace {

Result<onnx::TrainingModel> read(const ModelFlags& flags, const driver::CompileOptions& options) {
  HEDDLE_TRY(want_graph(flags, "--train"));
  HEDDLE_TRY(want_one_size(flags, "--train"));
  return onnx::import_for_training(flags.model, driver::import_options(options),
                                   flags.training.frozen);
}

/// What Trainer makes of the flags: a step says itself what it stores in halves, the compiler then
/// rounds nothing (not the update, not the parameters).
struct Wish {
  onnx::TrainingModel model;
  grad::StepOptions step;
  driver::CompileOptions compile;
};
Result<Wish> wish_of(const ModelFlags& flags) {
  Wish wish;
  wish.compile = HEDDLE_TRY(compile_options(flags));
  wish.model = HEDDLE_TRY(read(flags, wish.compile));
  wish.step.loss = flags.training.loss;
  wish.step.optimizer = flags.training.optimizer;
  wish.step.clip_norm = flags.training.clip_norm;
  wish.step.precision = std::exchange(wish.compile.precision, DType::f32);
  return wish;
}

Tensor number(double value) {
  Tensor t(TensorType{DType::f32, {}});
  t.set(0, value);
  return t;
}

}  // namespace

void add_step_flags(CLI::App& verb, ModelFlags& flags) {
  std::string names;
  for (const grad::Loss& loss : grad::losses())
    names += fmt::format("{}{}", names.empty() ? "" : ", ", loss.name);
  verb.add_option("--train", flags.training.loss,
                  "a training step with this loss in place of the model: " + names);
  verb.add_option("--optimizer", flags.training.optimizer, "of --train")->capture_default_str();
  const CLI::Validator at_least_0 =
      number("a number of at least 0", [](double v) { return v >= 0; });
  verb.add_option("--learning-rate", flags.training.rate, "of --train")
      ->check(at_least_0)
      ->capture_default_str();
  verb.add_option("--clip-norm", flags.training.clip_norm,
                  "of --train: limit of the gradients' norm; 0: none")
      ->check(at_least_0);
  verb.add_option("--freeze", flags.training.frozen,
                  "of --train: initializers that are not trained");
}

Result<driver::Compiled> compile_step(const ModelFlags& flags) {
  Wish wish = HEDDLE_TRY(wish_of(flags));
  prim::Graph step = HEDDLE_TRY(driver::step_of(wish.model, wish.step)).graph;
  if (flags.training.silent) step.outputs.erase(step.outputs.begin());
  return driver::compile(std::move(step), wish.compile);
}

Result<std::string> explain_distributed(const ModelFlags& flags, const std::string& node, int top) {
  Wish wish = HEDDLE_TRY(wish_of(flags));
  const grad::SplitStep split =
      HEDDLE_TRY(driver::split_step_of(wish.model, wish.step, wish.compile));
  std::string text = "sums over processes, in their order:\n";
  nlohmann::json all;
  for (std::size_t channel = 0; channel < split.summed.size(); ++channel) {
    const prim::Graph& g = split.gradients.graph;
    const prim::GraphOutput& o = g.outputs[split.summed[channel]];
    text += fmt::format("  all_reduce {} : {} channel {}\n", o.name, to_string(g[o.node].type),
                        channel);
    all["sums"].push_back({{"name", o.name}, {"type", to_string(g[o.node].type)}});
  }
  for (const auto& [title, part] :
       {std::pair("before them", &split.gradients), std::pair("after them", &split.update)}) {
    const driver::Compiled compiled = HEDDLE_TRY(driver::compile(part->graph, wish.compile));
    auto report = nlohmann::json::parse(compiled.program->manifest);
    text += fmt::format("\nthe program {}:\n{}", title,
                        HEDDLE_TRY(driver::explain_text(report, node, top)));
    report["inputs"] = ports_json(compiled.program->inputs);
    report["outputs"] = ports_json(compiled.program->outputs);
    all["programs"][part == &split.gradients ? "before" : "after"] = std::move(report);
  }
  return flags.json ? all.dump(2) + "\n" : text;
}

Result<std::vector<Tensor>> step_inputs(const runtime::Program& program, const ModelFlags& flags,
                                        std::vector<Tensor> batch) {
  Wish wish = HEDDLE_TRY(wish_of(flags));
  const grad::Step step = HEDDLE_TRY(driver::step_of(wish.model, wish.step));
  std::map<std::string, Tensor> start{{"learning_rate", number(flags.training.rate)},
                                      {"step", number(1)}};
  for (const auto* list : {&wish.model.parameters, &wish.model.statistics})
    for (const auto& named : *list) start[named.port] = named.value;
  std::map<std::string, double> states;
  for (const grad::Step::State& state : step.states) states[state.name] = state.initial;
  for (std::size_t i = 0; i < program.inputs.size(); ++i) {
    const std::string& name = program.inputs[i].name;
    if (const auto found = start.find(name); found != start.end()) batch[i] = found->second;
    const auto state = states.find(name);
    if (state == states.end()) continue;
    batch[i] = Tensor(program.inputs[i].type);
    for (std::int64_t k = 0; k < batch[i].count(); ++k) batch[i].set(k, state->second);
  }
  return batch;
}

Result<driver::Trainer> open_step(const ModelFlags& flags) {
  Wish wish = HEDDLE_TRY(wish_of(flags));
  wish.compile.precision = wish.step.precision;  // as Trainer takes it
  return driver::Trainer::create(std::move(wish.model), {.step = wish.step}, wish.compile);
}

}  // namespace heddle::tool
