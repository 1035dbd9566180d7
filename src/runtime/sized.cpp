#include "runtime/sized.h"

#include <algorithm>

#include "support/resized.h"

namespace heddle::runtime {
namespace {

class SizeSession final : public Session {
 public:
  SizeSession(std::shared_ptr<const SizedProgram> sized, std::size_t number,
              std::shared_ptr<Session> session)
      : Session(std::make_shared<const Program>(sized->at(number))),
        sized_(std::move(sized)),
        case_(sized_->cases[number]),
        session_(std::move(session)) {}

 protected:
  Status execute(std::span<const Tensor> inputs, std::span<Tensor> outputs,
                 std::vector<LaunchTime>* times) override {
    const Program& inner = session_->program();
    std::vector<Tensor> larger;
    for (std::size_t i = 0; i < inputs.size(); ++i)
      larger.push_back(resized(inputs[i], inner.inputs[i].type.shape));
    for (const std::size_t value : case_.given) larger.push_back(sized_->values[value]);
    if (times != nullptr) *times = HEDDLE_TRY(session_->profile(larger));
    std::vector<Tensor> results;
    for (std::size_t o = 0; o < outputs.size(); ++o) {
      const bool own = outputs[o].shape() == inner.outputs[o].type.shape;
      results.push_back(own ? outputs[o] : Tensor(inner.outputs[o].type));
    }
    HEDDLE_TRY(session_->run_into(larger, results));
    for (std::size_t o = 0; o < outputs.size(); ++o)
      if (results[o].data() != outputs[o].data()) copy_common(results[o], outputs[o]);
    return Ok{};
  }

 private:
  std::shared_ptr<const SizedProgram> sized_;
  const SizeCase& case_;
  std::shared_ptr<Session> session_;
};

}  // namespace

Result<std::size_t> SizedProgram::find(const std::vector<Shape>& inputs) const {
  for (std::size_t c = 0; c < cases.size(); ++c)
    if (cases[c].inputs == inputs) return c;
  std::string found;
  for (const Shape& shape : inputs) found += (found.empty() ? "" : ", ") + to_string(shape);
  return fail(ErrorCode::usage, "found inputs of shapes {}, want one of these sizes:\n{}", found,
              table());
}

Program SizedProgram::at(std::size_t number) const {
  const SizeCase& row = cases[number];
  Program program = *programs[row.program];
  program.inputs.resize(row.inputs.size());
  for (std::size_t i = 0; i < row.inputs.size(); ++i) program.inputs[i].type.shape = row.inputs[i];
  for (std::size_t o = 0; o < row.outputs.size(); ++o)
    program.outputs[o].type.shape = row.outputs[o];
  return program;
}

std::string SizedProgram::table() const {
  std::string text;
  for (std::size_t p = 0; p < programs.size(); ++p) {
    std::map<std::string, std::pair<std::int64_t, std::int64_t>> range;
    std::size_t count = 0;
    for (const SizeCase& row : cases) {
      if (row.program != p) continue;
      ++count;
      for (const auto& [name, extent] : row.sizes) {
        const auto [at, fresh] = range.try_emplace(name, extent, extent);
        at->second = {std::min(at->second.first, extent), std::max(at->second.second, extent)};
      }
    }
    std::string sizes;
    for (const auto& [name, ends] : range)
      sizes +=
          fmt::format("{}{}={}", sizes.empty() ? "" : ", ", name,
                      ends.first == ends.second ? std::to_string(ends.first)
                                                : fmt::format("{}..{}", ends.first, ends.second));
    std::string shapes;
    for (const Port& port : programs[p]->inputs)
      if (!port.name.starts_with("heddle:"))
        shapes += fmt::format(" {} {}", port.name, to_string(port.type.shape));
    text += fmt::format("  program {}: {} ({} sizes) as{}, {} kernels, arena {:.1f} MB\n", p, sizes,
                        count, shapes, programs[p]->launches.size(),
                        1e-6 * static_cast<double>(programs[p]->arena_bytes));
  }
  return text;
}

std::shared_ptr<Session> size_session(std::shared_ptr<const SizedProgram> sized, std::size_t number,
                                      std::shared_ptr<Session> program) {
  return std::make_shared<SizeSession>(std::move(sized), number, std::move(program));
}

}  // namespace heddle::runtime
