#include "driver/size_compiler.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "support/log.h"

namespace heddle::driver {
namespace {

/// What masking may cost, by the model, before a bucket's own size gets a program without it.
constexpr double kMaskingCost = 1.02;
/// Families of sizes, of which one does not fit the next, that a bucket is divided into.
constexpr int kMostFamilies = 64;
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
  const auto [at, fresh] = values_.try_emplace(hash_of(tensor), out_.program.values.size());
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
  Bucket bucket{sizes, {}, 0, {}, ""};
  for (const prim::Graph& graph : graphs) bucket.graphs.push_back(&graph);
  return add_bucket(std::move(bucket));
}

namespace {

std::set<std::string> varying(const std::vector<Sizes>& cases) {
  std::set<std::string> names;
  for (const Sizes& sizes : cases)
    for (const auto& [name, extent] : sizes)
      if (extent != cases[0].at(name)) names.insert(name);
  return names;
}

/// "H=41" where that alone tells the cases, which are of a bucket in which these names vary.
std::string family_text(const std::vector<Sizes>& cases, const std::set<std::string>& names) {
  const std::set<std::string> still = varying(cases);
  Sizes fixed;
  for (const std::string& name : names)
    if (!still.contains(name)) fixed.emplace(name, cases[0].at(name));
  if (!fixed.empty()) return text_of(fixed) + " has a program of its own";
  return fmt::format("{} sizes from {} to {} have a program of their own", cases.size(),
                     text_of(cases.front()), text_of(cases.back()));
}

bool is_larger(const Sizes& a, const Sizes& b) {
  return std::ranges::any_of(a, [&](const auto& size) { return size.second > b.at(size.first); });
}

}  // namespace

/// In ascending order: the last is the largest, if one is.
void SizeCompiler::sort(Bucket& bucket) {
  std::vector<std::pair<Sizes, const prim::Graph*>> cases;
  for (std::size_t c = 0; c < bucket.sizes.size(); ++c)
    cases.emplace_back(bucket.sizes[c], bucket.graphs[c]);
  std::ranges::sort(cases, {}, &std::pair<Sizes, const prim::Graph*>::first);
  for (std::size_t c = 0; c < cases.size(); ++c)
    std::tie(bucket.sizes[c], bucket.graphs[c]) = cases[c];
}

/// Moves the cases that `unlike` holds of.
void SizeCompiler::part(Bucket& bucket, Bucket& family,
                        const std::function<bool(const Sizes&)>& unlike) {
  Bucket rest{{}, {}, bucket.families, bucket.varied, bucket.reason};
  for (std::size_t c = 0; c < bucket.sizes.size(); ++c) {
    Bucket& part = unlike(bucket.sizes[c]) ? family : rest;
    part.sizes.push_back(bucket.sizes[c]);
    part.graphs.push_back(bucket.graphs[c]);
  }
  bucket = std::move(rest);
}

Status SizeCompiler::add_bucket(Bucket bucket) {
  Bucket family{{}, {}, bucket.families + 1, varying(bucket.sizes), ""};
  const Sizes largest = bucket.sizes.back();
  part(bucket, family, [&](const Sizes& own) { return is_larger(own, largest); });
  if (!family.sizes.empty()) family.reason = "no size is the largest in every dimension";
  prim::Misfit misfit;
  Result<prim::Sizes> merged = unsupported("");
  while (!(merged = merge(bucket, &misfit))) {
    const Sizes unlike = bucket.sizes[misfit.case_number];
    const bool none = misfit.case_number + 1 == bucket.sizes.size();
    if (none || bucket.families == kMostFamilies)
      return fail(misfit.error.code,
                  "sizes {} to {} cannot share a program: {} (at {}); list the sizes wanted "
                  "(NAME=16,32) for a program of each",
                  text_of(bucket.sizes.front()), text_of(bucket.sizes.back()), misfit.error.message,
                  text_of(unlike));
    const std::string name = blamed(bucket, misfit.case_number);
    part(bucket, family, [&](const Sizes& own) {
      return name.empty() ? own == unlike : own.at(name) == unlike.at(name);
    });
    if (family.reason.empty()) family.reason = misfit.error.message;
  }
  if (!family.sizes.empty()) {
    sort(family);
    HEDDLE_TRY(add_bucket(std::move(family)));
  }
  std::string note;
  if (!bucket.reason.empty())
    note = fmt::format("{}: {}", family_text(bucket.sizes, bucket.varied), bucket.reason);
  HEDDLE_TRY(add_program(*std::move(merged), bucket.sizes, bucket.graphs, std::move(note)));
  return bucket.sizes.size() > 1 ? own_program(bucket.sizes.back(), *bucket.graphs.back()) : Ok{};
}

Result<prim::Sizes> SizeCompiler::merge(const Bucket& bucket, prim::Misfit* misfit) {
  std::vector<prim::Graph> cases;
  for (const prim::Graph* graph : bucket.graphs) cases.push_back(*graph);
  auto merged = prim::merge_sizes(cases, cases.size() - 1, misfit);
  seconds_["merge"] += lap();
  return merged;
}

}  // namespace heddle::driver
