#pragma once
#include "common.h"
#include "driver/train.h"

namespace heddle::tool {

/// Adds --train, --optimizer, --learning-rate, --clip-norm and --freeze to a verb that takes a
/// training step in place of the model.
void add_step_flags(CLI::App& verb, ModelFlags& flags);

/// The step's program, through no cache.
Result<driver::Compiled> compile_step(const ModelFlags& flags);
/// What --distributed explains: the collectives, then the programs before and after them.
/// With --json: {"sums": …, "programs": {"before": …, "after": …}}, each as `explain --json`
/// prints.
Result<std::string> explain_distributed(const ModelFlags& flags, const std::string& node, int top);
/// What its inputs start as: the model's values, zeros for states, the rate, the number of the
/// step.
Result<std::vector<Tensor>> step_inputs(const runtime::Program& program, const ModelFlags& flags,
                                        std::vector<Tensor> batch);
/// Ports as `explain --json` has them: without what sizes are told by.
nlohmann::json ports_json(const std::vector<runtime::Port>& ports);
/// The step made ready to run.
Result<driver::Trainer> open_step(const ModelFlags& flags);

}  // namespace heddle::tool
