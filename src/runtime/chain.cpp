#include "runtime/chain.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "support/resized.h"

namespace heddle::runtime {
namespace {

std::int64_t size_told(const Tensor& tensor, int axis) {
  if (axis < 0) return tensor.count() > 0 ? tensor.int_at(0) : -1;
  return tensor.shape()[static_cast<std::size_t>(axis)];
}

class ChainSession final : public Session {
 public:
  ChainSession(std::shared_ptr<const Chain> chain, CaseSession sessions)
      : Session(std::make_shared<const Program>(chain->as_program())),
        chain_(std::move(chain)),
        sessions_(std::move(sessions)) {
    for (const Chain::Link& link : chain_->links) {
      auto& numbers = numbers_.emplace_back();
      for (std::size_t c = 0; c < link.programs.cases.size(); ++c)
        numbers.emplace(link.programs.cases[c].sizes, c);
    }
  }

 protected:
  Status execute(std::span<const Tensor> inputs, std::span<Tensor> outputs,
                 std::vector<LaunchTime>* times) override {
    std::map<std::string, Tensor> values;
    for (std::size_t i = 0; i < inputs.size(); ++i)
      values.emplace(chain_->inputs[i].name, inputs[i]);
    for (std::size_t l = 0; l < chain_->links.size(); ++l) HEDDLE_TRY(run_link(l, values, times));
    for (const Chain::Output& output : chain_->results) {
      const auto value = values.find(output.value);
      if (value == values.end())
        return fail("artefact: nothing makes '{}'", chain_->outputs[output.port].name);
      Tensor& to = outputs[output.port];
      std::memset(to.mutable_data(), 0, static_cast<std::size_t>(to.bytes()));
      copy_common(value->second, to);
      for (const auto& [axis, port] : output.extents)
        outputs[port].set_int(0, size_told(value->second, axis));
    }
    return Ok{};
  }

 private:
  Result<std::size_t> case_of(std::size_t l, const std::map<std::string, Tensor>& values) const {
    const Chain::Link& link = chain_->links[l];
    std::map<std::string, std::int64_t> sizes;
    for (const Chain::Count& count : link.counts)
      sizes[count.name] = size_told(values.at(count.value), count.axis);
    const auto found = numbers_[l].find(sizes);
    if (found != numbers_[l].end()) return found->second;
    std::string text;
    for (const auto& [name, size] : sizes)
      text += fmt::format("{}{}={}", text.empty() ? "" : ", ", name, size);
    return unsupported("the values computed decide {}, which is not compiled for; there is {}",
                       text, link.programs.ranges());
  }

  Status run_link(std::size_t l, std::map<std::string, Tensor>& values,
                  std::vector<LaunchTime>* times) {
    const Chain::Link& link = chain_->links[l];
    const auto session = HEDDLE_TRY(this->session(l, HEDDLE_TRY(case_of(l, values))));
    std::vector<Tensor> arguments;
    for (const Port& port : session->program().inputs) arguments.push_back(values.at(port.name));
    if (times != nullptr)
      std::ranges::move(HEDDLE_TRY(session->profile(arguments)), std::back_inserter(*times));
    const std::vector<Tensor> results = HEDDLE_TRY(session->run(arguments));
    for (const Chain::Made& made : link.made) {
      Shape shape = results[made.port].shape();
      for (const auto& [axis, port] : made.extents) {
        std::int64_t& extent = shape[static_cast<std::size_t>(axis)];
        extent = std::clamp<std::int64_t>(results[port].int_at(0), 0, extent);
      }
      values.insert_or_assign(made.name, resized(results[made.port], shape));
    }
    return Ok{};
  }

  Result<std::shared_ptr<Session>> session(std::size_t link, std::size_t number) {
    const std::lock_guard lock(mutex_);
    auto& session = ready_[{link, number}];
    if (!session) session = HEDDLE_TRY(sessions_(link, number));
    return session;
  }

  std::shared_ptr<const Chain> chain_;
  CaseSession sessions_;
  std::vector<std::map<std::map<std::string, std::int64_t>, std::size_t>> numbers_;
  std::mutex mutex_;
  std::map<std::pair<std::size_t, std::size_t>, std::shared_ptr<Session>> ready_;
};

}  // namespace

Program Chain::as_program() const {
  Program program;
  program.inputs = inputs;
  program.outputs = outputs;
  for (const Link& link : links) {
    const Program& largest = *link.programs.programs.back();
    program.threads = largest.threads;
    program.device = largest.device;
    program.manifest = link.programs.programs.back()->manifest;
    program.arena_bytes = std::max(program.arena_bytes, largest.arena_bytes);
    program.scratch_bytes = std::max(program.scratch_bytes, largest.scratch_bytes);
    program.launches.insert(program.launches.end(), largest.launches.begin(),
                            largest.launches.end());
    program.constants.insert(program.constants.end(), largest.constants.begin(),
                             largest.constants.end());
  }
  return program;
}

std::string Chain::table() const {
  std::string text;
  for (std::size_t l = 0; l < links.size(); ++l) {
    const Link& link = links[l];
    text += fmt::format("link {}:", l);
    if (link.counts.empty()) text += " what is computed first";
    for (const Count& count : link.counts)
      text += count.axis < 0
                  ? fmt::format(" {} is the number '{}'", count.name, count.value)
                  : fmt::format(" {} is extent {} of '{}'", count.name, count.axis, count.value);
    text += "\n" + link.programs.table();
  }
  return text;
}

std::shared_ptr<Session> chain_session(std::shared_ptr<const Chain> chain, CaseSession sessions) {
  return std::make_shared<ChainSession>(std::move(chain), std::move(sessions));
}

}  // namespace heddle::runtime
