#include "driver/size_compiler.h"

#include "support/log.h"

namespace heddle::driver {
namespace {

/// What masking may cost, by the model, before a bucket's own size gets a program without it.
constexpr double kMaskingCost = 1.02;
/// Sizes that get a program of their own because they do not fit their bucket.
constexpr int kMaxAlone = 4;

}  // namespace

std::string text_of(const Sizes& sizes) {
  std::string text;
  for (const auto& [name, extent] : sizes)
    text += fmt::format("{}{}={}", text.empty() ? "" : ", ", name, extent);
  return text;
}

SizeCompiler::Made SizeCompiler::take() {
  for (const auto& [name, seconds] : seconds_) out_.times.push_back({name, seconds});
  return std::move(out_);
}

double SizeCompiler::lap() {
  const auto now = std::chrono::steady_clock::now();
  return std::chrono::duration<double>(now - std::exchange(last_, now)).count();
}

std::size_t SizeCompiler::value(const Tensor& tensor) {
  const Hash key = hash_bytes(to_string(tensor.type()) +
                              std::string(reinterpret_cast<const char*>(tensor.data()),
                                          static_cast<std::size_t>(tensor.bytes())));
  const auto [at, fresh] = values_.try_emplace(key, out_.program.values.size());
  if (fresh) out_.program.values.push_back(tensor);
  return at->second;
}

Status SizeCompiler::add_program(prim::Sizes merged, const std::vector<Sizes>& sizes,
                                 const std::vector<const prim::Graph*>& graphs, std::string note) {
  lap();
  Compiled compiled = HEDDLE_TRY(compile(std::move(merged.graph), options_));
  seconds_["compile"] += lap();
  for (std::size_t c = 0; c < sizes.size(); ++c) {
    runtime::SizeCase row{sizes[c], out_.program.programs.size(), {}, {}, {}};
    for (const prim::GraphInput& input : graphs[c]->inputs) row.inputs.push_back(input.type.shape);
    for (const prim::GraphOutput& output : graphs[c]->outputs)
      row.outputs.push_back((*graphs[c])[output.node].type.shape);
    for (const prim::SizeInput& given : merged.given) row.given.push_back(value(given.values[c]));
    out_.program.cases.push_back(std::move(row));
  }
  out_.program.programs.push_back(compiled.program);
  out_.buckets.push_back({std::move(compiled), std::move(note)});
  return Ok{};
}

Status SizeCompiler::own_program(const Sizes& sizes, const prim::Graph& graph) {
  const Compiled planned = HEDDLE_TRY(plan_only(graph, options_));
  seconds_["compile"] += lap();
  if (out_.buckets.back().compiled.plan.cost_us <= kMaskingCost * planned.plan.cost_us) return Ok{};
  out_.program.cases.pop_back();
  return add_program(
      prim::Sizes{graph, {}}, {sizes}, {&graph},
      fmt::format("{} has a program of its own, which masks nothing", text_of(sizes)));
}

Status SizeCompiler::add(const std::vector<Sizes>& sizes, const std::vector<prim::Graph>& graphs) {
  seconds_["import"] += lap();
  std::vector<std::size_t> together(graphs.size());
  for (std::size_t c = 0; c < together.size(); ++c) together[c] = c;
  for (int alone = 0;; ++alone) {
    std::vector<prim::Graph> cases;
    for (const std::size_t c : together) cases.push_back(graphs[c]);
    prim::Misfit misfit;
    Result<prim::Sizes> merged = prim::merge_sizes(cases, cases.size() - 1, &misfit);
    seconds_["merge"] += lap();
    const auto add = [&](prim::Sizes what, const std::vector<std::size_t>& which,
                         std::string note) {
      std::vector<Sizes> of;
      std::vector<const prim::Graph*> theirs;
      for (const std::size_t c : which) {
        of.push_back(sizes[c]);
        theirs.push_back(&graphs[c]);
      }
      return add_program(std::move(what), of, theirs, std::move(note));
    };
    if (merged) {
      HEDDLE_TRY(add(*std::move(merged), together, ""));
      if (together.size() > 1) HEDDLE_TRY(own_program(sizes.back(), graphs.back()));
      return Ok{};
    }
    const bool largest = misfit.case_number + 1 == cases.size();
    if (largest || alone == kMaxAlone)
      return fail(misfit.error.code,
                  "sizes {} to {} cannot share a program: {} (at {}); list the sizes wanted "
                  "(NAME=16,32) for a program of each",
                  text_of(sizes.front()), text_of(sizes.back()), misfit.error.message,
                  text_of(sizes[together[misfit.case_number]]));
    const std::size_t c = together[misfit.case_number];
    const std::string note =
        fmt::format("{} has a program of its own: {}", text_of(sizes[c]), misfit.error.message);
    log(LogLevel::info, "{}", note);
    HEDDLE_TRY(add(prim::Sizes{graphs[c], {}}, {c}, note));
    together.erase(together.begin() + static_cast<std::ptrdiff_t>(misfit.case_number));
  }
}

}  // namespace heddle::driver
