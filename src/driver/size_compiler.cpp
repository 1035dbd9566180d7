#include "driver/size_compiler.h"

#include <algorithm>

#include "support/log.h"

namespace heddle::driver {
namespace {

/// What masking may cost, by the model, before a bucket's own size gets a program without it.
constexpr double kMaskingCost = 1.02;
/// Sizes of one dimension that get programs of their own because they do not fit their bucket.
constexpr int kMaxAlone = 4;
/// Programs of one table: where several dimensions have such sizes, they multiply.
constexpr std::size_t kMaxPrograms = 512;

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
  if (out_.program.programs.size() == kMaxPrograms)
    return unsupported(
        "these sizes take more than {} programs (at {}); say fewer, or list those wanted "
        "(NAME=16,32)",
        kMaxPrograms, text_of(sizes.back()));
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

/// The size to blame where a case does not fit the largest: the first for which the largest, with
/// that one size as in the case, does not fit either.
std::string SizeCompiler::blamed(const Bucket& bucket, std::size_t misfit) {
  const Sizes &largest = bucket.sizes.back(), &unlike = bucket.sizes[misfit];
  for (const auto& [name, extent] : unlike) {
    if (extent == largest.at(name)) continue;
    Sizes one = largest;
    one[name] = extent;
    const auto found = std::ranges::find(bucket.sizes, one);
    if (found == bucket.sizes.end()) continue;
    const auto c = static_cast<std::size_t>(found - bucket.sizes.begin());
    prim::Misfit ignored;
    if (!prim::merge_sizes(std::vector{*bucket.graphs[c], *bucket.graphs.back()}, 1, &ignored))
      return name;
  }
  return "";
}

Status SizeCompiler::add(const std::vector<Sizes>& sizes, const std::vector<prim::Graph>& graphs) {
  seconds_["import"] += lap();
  Bucket bucket{sizes, {}, {}, ""};
  for (const prim::Graph& graph : graphs) bucket.graphs.push_back(&graph);
  return add_bucket(std::move(bucket));
}

Status SizeCompiler::add_bucket(Bucket bucket) {
  while (true) {
    std::vector<prim::Graph> cases;
    for (const prim::Graph* graph : bucket.graphs) cases.push_back(*graph);
    prim::Misfit misfit;
    Result<prim::Sizes> merged = prim::merge_sizes(cases, cases.size() - 1, &misfit);
    seconds_["merge"] += lap();
    if (merged) {
      HEDDLE_TRY(
          add_program(*std::move(merged), bucket.sizes, bucket.graphs, std::move(bucket.note)));
      if (cases.size() > 1) HEDDLE_TRY(own_program(bucket.sizes.back(), *bucket.graphs.back()));
      return Ok{};
    }
    const Sizes unlike = bucket.sizes[misfit.case_number];
    const std::string name =
        misfit.case_number + 1 == cases.size() ? "" : blamed(bucket, misfit.case_number);
    if (misfit.case_number + 1 == cases.size() || ++bucket.apart[name] > kMaxAlone)
      return fail(misfit.error.code,
                  "sizes {} to {} cannot share a program: {} (at {}); list the sizes wanted "
                  "(NAME=16,32) for a program of each",
                  text_of(bucket.sizes.front()), text_of(bucket.sizes.back()), misfit.error.message,
                  text_of(unlike));
    Bucket apart{{}, {}, bucket.apart, ""}, rest{{}, {}, bucket.apart, std::move(bucket.note)};
    for (std::size_t c = 0; c < cases.size(); ++c) {
      const Sizes& own = bucket.sizes[c];
      Bucket& part =
          (name.empty() ? own == unlike : own.at(name) == unlike.at(name)) ? apart : rest;
      part.sizes.push_back(own);
      part.graphs.push_back(bucket.graphs[c]);
    }
    const std::string of = name.empty() ? text_of(unlike) : text_of({{name, unlike.at(name)}});
    apart.note = fmt::format("{} has a program of its own: {}", of, misfit.error.message);
    log(LogLevel::info, "{}", apart.note);
    HEDDLE_TRY(add_bucket(std::move(apart)));
    bucket = std::move(rest);
  }
}

}  // namespace heddle::driver
