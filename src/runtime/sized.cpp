#include "runtime/sized.h"

#include <algorithm>
#include <mutex>
#include <set>

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
    Buffers own = take();
    Buffers run = own;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].shape() == inner.inputs[i].type.shape) {
        run.inputs[i] = inputs[i];
      } else {
        copy_common(inputs[i], run.inputs[i]);
      }
    }
    for (std::size_t o = 0; o < outputs.size(); ++o)
      if (outputs[o].shape() == inner.outputs[o].type.shape) run.outputs[o] = outputs[o];
    if (times != nullptr) *times = HEDDLE_TRY(session_->profile(run.inputs));
    HEDDLE_TRY(session_->run_into(run.inputs, run.outputs));
    for (std::size_t o = 0; o < outputs.size(); ++o)
      if (run.outputs[o].data() != outputs[o].data()) copy_common(run.outputs[o], outputs[o]);
    std::lock_guard lock(mutex_);
    free_.push_back(std::move(own));
    return Ok{};
  }

 private:
  /// What is padded and what is cut, kept from run to run: padding is written once. Null where the
  /// caller's tensors do.
  struct Buffers {
    std::vector<Tensor> inputs, outputs;
  };
  Buffers take() {
    {
      std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        Buffers out = std::move(free_.back());
        free_.pop_back();
        return out;
      }
    }
    const Program& inner = session_->program();
    const auto buffer = [](const TensorType& ours, const TensorType& theirs) {
      return ours == theirs ? Tensor() : Tensor(theirs);
    };
    Buffers out;
    for (std::size_t i = 0; i < program().inputs.size(); ++i)
      out.inputs.push_back(buffer(program().inputs[i].type, inner.inputs[i].type));
    for (const std::size_t value : case_.given) out.inputs.push_back(sized_->values[value]);
    for (std::size_t o = 0; o < program().outputs.size(); ++o)
      out.outputs.push_back(buffer(program().outputs[o].type, inner.outputs[o].type));
    return out;
  }

  std::shared_ptr<const SizedProgram> sized_;
  const SizeCase& case_;
  std::shared_ptr<Session> session_;
  std::mutex mutex_;
  std::vector<Buffers> free_;
};

/// "1..8", "16..512:16", "8,16,20"; of many that are not even, the ends.
std::string text_of(const std::set<std::int64_t>& extents) {
  constexpr std::size_t kMostListed = 12;
  const std::int64_t first = *extents.begin(), last = *extents.rbegin();
  const auto steps = static_cast<std::int64_t>(extents.size()) - 1;
  const std::int64_t step = steps < 2 ? 0 : *std::next(extents.begin()) - first;
  bool even = steps >= 2;
  for (auto at = extents.begin(); even && at != extents.end() && std::next(at) != extents.end();
       ++at)
    even = *std::next(at) - *at == step;
  if (even) return fmt::format("{}..{}{}", first, last, step > 1 ? fmt::format(":{}", step) : "");
  if (extents.size() <= kMostListed) return fmt::format("{}", fmt::join(extents, ","));
  return fmt::format("{} sizes from {} to {}", extents.size(), first, last);
}

}  // namespace

std::map<std::string, std::string> SizedProgram::described() const {
  std::map<std::string, std::string> all;
  for (std::size_t i = 0; i < dimensions.size(); ++i)
    for (std::size_t d = 0; d < dimensions[i].size(); ++d)
      all.try_emplace(dimensions[i][d],
                      fmt::format("'{}' (input '{}', dimension {})", dimensions[i][d],
                                  programs[cases[0].program]->inputs[i].name, d));
  return all;
}

/// Whether there can be inputs of such shapes at all: one name stands for one extent.
Status SizedProgram::agree(const std::map<std::string, Shape>& inputs,
                           std::map<std::string, std::int64_t> sizes) const {
  std::map<std::string, std::string> from;
  for (std::size_t i = 0; i < dimensions.size(); ++i) {
    const std::string& name = programs[cases[0].program]->inputs[i].name;
    const auto given = inputs.find(name);
    if (given == inputs.end()) continue;
    if (given->second.size() != dimensions[i].size())
      return fail(ErrorCode::usage, "input '{}': found shape {}, want rank {}", name,
                  to_string(given->second), dimensions[i].size());
    for (std::size_t d = 0; d < dimensions[i].size(); ++d) {
      const std::int64_t extent = given->second[d], fixed = cases[0].inputs[i][d];
      const std::string& dimension = dimensions[i][d];
      if (dimension.empty() && extent != fixed)
        return fail(ErrorCode::usage, "input '{}': dimension {} is {}, want {}", name, d, extent,
                    fixed);
      if (dimension.empty()) continue;
      const auto [at, fresh] = sizes.emplace(dimension, extent);
      if (!fresh && at->second != extent)
        return fail(ErrorCode::usage, "input '{}': dimension {} ('{}') is {}, want {} as {}", name,
                    d, dimension, extent, at->second,
                    from.contains(dimension) ? from.at(dimension) : "given");
      from.try_emplace(dimension, fmt::format("in input '{}'", name));
    }
  }
  return derive(facts, sizes, described());
}

Result<std::size_t> SizedProgram::find(const std::map<std::string, Shape>& inputs,
                                       const std::map<std::string, std::int64_t>& sizes) const {
  for (std::size_t c = cases.size(); c-- > 0;) {
    const SizeCase& row = cases[c];
    bool fits = std::includes(row.sizes.begin(), row.sizes.end(), sizes.begin(), sizes.end());
    for (std::size_t i = 0; fits && i < row.inputs.size(); ++i) {
      const auto given = inputs.find(programs[row.program]->inputs[i].name);
      fits = given == inputs.end() || given->second == row.inputs[i];
    }
    if (fits) return c;
  }
  HEDDLE_TRY(agree(inputs, sizes));
  std::string found;
  for (const auto& [name, shape] : inputs)
    found += fmt::format("{} {} {}", found.empty() ? "" : ",", name, to_string(shape));
  for (const auto& [name, size] : sizes)
    found += fmt::format("{} {}={}", found.empty() ? "" : ",", name, size);
  return fail(ErrorCode::usage, "no program for these sizes, found{}; there is {}", found,
              ranges());
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

std::string SizedProgram::ranges() const {
  std::map<std::string, std::set<std::int64_t>> sizes;
  std::set<std::map<std::string, std::int64_t>> combinations;
  for (const SizeCase& row : cases) {
    for (const auto& [name, extent] : row.sizes) sizes[name].insert(extent);
    combinations.insert(row.sizes);
  }
  std::string text;
  std::size_t all = 1;
  for (const auto& [name, extents] : sizes) {
    all *= extents.size();
    text += fmt::format("{}{}={}", text.empty() ? "" : ", ", name, text_of(extents));
  }
  return all == combinations.size() ? text : text + ", not in every combination";
}

std::string SizedProgram::table() const {
  std::string text;
  const std::map<std::string, std::string> where = described();
  for (const auto& [name, expr] : facts)
    if (where.contains(name))
      text += fmt::format("  dimension {} = {}\n", where.at(name), expr.text());
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
