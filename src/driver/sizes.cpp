#include "driver/sizes.h"

#include <algorithm>
#include <charconv>
#include <chrono>

#include "driver/cache.h"
#include "prim/sizes.h"
#include "support/log.h"

namespace heddle::driver {
namespace {

constexpr std::size_t kMaxCases = 4096;
/// What masking may cost, by the model, before a bucket's own size gets a program without it.
constexpr double kMaskingCost = 1.02;
/// Sizes that get a program of their own because they do not fit their bucket.
constexpr int kMaxAlone = 4;
constexpr int kDefaultPrograms = 4;

std::optional<std::int64_t> number_in(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > 1 << 24)
    return std::nullopt;
  return value;
}

std::optional<std::vector<std::int64_t>> numbers_in(std::string_view text) {
  std::vector<std::int64_t> all;
  while (true) {
    const std::size_t comma = text.find(',');
    const auto value = number_in(text.substr(0, comma));
    if (!value) return std::nullopt;
    all.push_back(*value);
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

/// "1..512" or "32..640:32".
std::optional<std::vector<std::int64_t>> range_in(std::string_view text) {
  const std::size_t dots = text.find(".."), colon = text.find(':');
  const auto step = colon == std::string_view::npos ? 1 : number_in(text.substr(colon + 1));
  const auto low = number_in(text.substr(0, dots));
  const auto high = number_in(text.substr(0, colon).substr(dots + 2));
  if (!low || !high || !step || *low > *high ||
      (*high - *low) / *step >= static_cast<std::int64_t>(kMaxCases))
    return std::nullopt;
  std::vector<std::int64_t> all;
  for (std::int64_t n = *low; n <= *high; n += *step) all.push_back(n);
  return all;
}

}  // namespace

Result<SizeRange> parse_size_range(const std::string& text) {
  const auto wrong = [&] {
    return fail(ErrorCode::usage,
                "--dynamic: found '{}', want NAME=LOW..HIGH, NAME=LOW..HIGH:STEP, "
                "NAME=LOW..HIGH@SIZE,SIZE or NAME=SIZE,SIZE (at most {} sizes)",
                text, kMaxCases);
  };
  const std::size_t equals = text.find_last_of('=');
  if (equals == std::string::npos || equals == 0) return wrong();
  SizeRange range{text.substr(0, equals), {}, {}};
  const std::string_view rest = std::string_view(text).substr(equals + 1);
  if (rest.find("..") == std::string_view::npos) {
    const auto sizes = numbers_in(rest);
    if (!sizes) return wrong();
    range.sizes = range.programs = *sizes;
    return range;
  }
  const std::size_t at = rest.find('@');
  const auto sizes = range_in(rest.substr(0, at));
  if (!sizes) return wrong();
  range.sizes = *sizes;
  if (at != std::string_view::npos) {
    const auto programs = numbers_in(rest.substr(at + 1));
    if (!programs) return wrong();
    for (const std::int64_t p : *programs)
      if (!std::binary_search(sizes->begin(), sizes->end(), p)) return wrong();
    range.programs = *programs;
  } else {
    // Halves: the largest is at most twice what is needed.
    for (std::size_t i = sizes->size(); range.programs.size() < kDefaultPrograms && i > 0; i /= 2)
      range.programs.insert(range.programs.begin(), (*sizes)[i - 1]);
  }
  if (range.programs.back() != sizes->back()) range.programs.push_back(sizes->back());
  return range;
}

namespace {

using Sizes = std::map<std::string, std::int64_t>;

/// All combinations of sizes, by the sizes of the program that each runs in.
Result<std::map<std::vector<std::int64_t>, std::vector<Sizes>>> buckets_of(
    const std::vector<SizeRange>& ranges) {
  std::vector<std::pair<std::vector<std::int64_t>, Sizes>> all = {{}};
  for (const SizeRange& range : ranges) {
    std::vector<std::pair<std::vector<std::int64_t>, Sizes>> next;
    for (const auto& [program, sizes] : all)
      for (const std::int64_t n : range.sizes) {
        auto more = std::pair{program, sizes};
        more.first.push_back(*std::lower_bound(range.programs.begin(), range.programs.end(), n));
        if (!more.second.emplace(range.name, n).second)
          return fail(ErrorCode::usage, "--dynamic: '{}' is given twice", range.name);
        next.push_back(std::move(more));
        if (next.size() > kMaxCases)
          return fail(ErrorCode::usage,
                      "--dynamic: found more than {} combinations of sizes; take steps "
                      "({}=32..640:32)",
                      kMaxCases, range.name);
      }
    all = std::move(next);
  }
  std::map<std::vector<std::int64_t>, std::vector<Sizes>> buckets;
  for (auto& [program, sizes] : all) buckets[program].push_back(std::move(sizes));
  return buckets;
}

std::string text_of(const Sizes& sizes) {
  std::string text;
  for (const auto& [name, extent] : sizes)
    text += fmt::format("{}{}={}", text.empty() ? "" : ", ", name, extent);
  return text;
}

class SizeCompiler {
 public:
  SizeCompiler(const std::string& path, const CompileOptions& options)
      : path_(path), options_(options) {}

  Status add(std::vector<Sizes> sizes);
  Result<CompiledSizes> finish() {
    for (const auto& [name, seconds] : seconds_) out_.times.push_back({name, seconds});
    out_.program = std::make_shared<const runtime::SizedProgram>(std::move(sized_));
    return std::move(out_);
  }

 private:
  /// One program for these sizes, the last of which is the largest.
  Status add_program(prim::Sizes merged, const std::vector<Sizes>& sizes,
                     const std::vector<const prim::Graph*>& graphs, std::string note);
  /// The last case of the last program is as large as that: without padding, where that is faster.
  Status own_program(const Sizes& sizes, const prim::Graph& graph);
  std::size_t value(const Tensor& tensor);
  double lap();

  const std::string& path_;
  const CompileOptions& options_;
  runtime::SizedProgram sized_;
  CompiledSizes out_;
  std::map<std::string, double> seconds_;
  std::map<Hash, std::size_t> values_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

double SizeCompiler::lap() {
  const auto now = std::chrono::steady_clock::now();
  return std::chrono::duration<double>(now - std::exchange(last_, now)).count();
}

std::size_t SizeCompiler::value(const Tensor& tensor) {
  const Hash key = hash_bytes(to_string(tensor.type()) +
                              std::string(reinterpret_cast<const char*>(tensor.data()),
                                          static_cast<std::size_t>(tensor.bytes())));
  const auto [at, fresh] = values_.try_emplace(key, sized_.values.size());
  if (fresh) sized_.values.push_back(tensor);
  return at->second;
}

Status SizeCompiler::add_program(prim::Sizes merged, const std::vector<Sizes>& sizes,
                                 const std::vector<const prim::Graph*>& graphs, std::string note) {
  lap();
  Compiled compiled = HEDDLE_TRY(compile(std::move(merged.graph), options_));
  seconds_["compile"] += lap();
  for (std::size_t c = 0; c < sizes.size(); ++c) {
    runtime::SizeCase row{sizes[c], sized_.programs.size(), {}, {}, {}};
    for (const prim::GraphInput& input : graphs[c]->inputs) row.inputs.push_back(input.type.shape);
    for (const prim::GraphOutput& output : graphs[c]->outputs)
      row.outputs.push_back((*graphs[c])[output.node].type.shape);
    for (const prim::SizeInput& given : merged.given) row.given.push_back(value(given.values[c]));
    sized_.cases.push_back(std::move(row));
  }
  sized_.programs.push_back(compiled.program);
  out_.buckets.push_back({std::move(compiled), std::move(note)});
  return Ok{};
}

Status SizeCompiler::own_program(const Sizes& sizes, const prim::Graph& graph) {
  const Compiled planned = HEDDLE_TRY(plan_only(graph, options_));
  seconds_["compile"] += lap();
  if (out_.buckets.back().compiled.plan.cost_us <= kMaskingCost * planned.plan.cost_us) return Ok{};
  sized_.cases.pop_back();
  return add_program(
      prim::Sizes{graph, {}}, {sizes}, {&graph},
      fmt::format("{} has a program of its own, which masks nothing", text_of(sizes)));
}

Status SizeCompiler::add(std::vector<Sizes> sizes) {
  if (options_.progress) options_.progress(text_of(sizes.back()), 0);
  const std::vector<prim::Graph> graphs =
      HEDDLE_TRY(onnx::import_sizes(path_, import_options(options_), sizes));
  seconds_["import"] += lap();
  std::vector<std::size_t> together(graphs.size());
  for (std::size_t c = 0; c < together.size(); ++c) together[c] = c;
  std::string note;
  for (int alone = 0;; ++alone) {
    std::vector<prim::Graph> cases;
    for (const std::size_t c : together) cases.push_back(graphs[c]);
    prim::Misfit misfit;
    Result<prim::Sizes> merged = prim::merge_sizes(cases, cases.size() - 1, &misfit);
    seconds_["merge"] += lap();
    const auto add = [&](prim::Sizes what, const std::vector<std::size_t>& which) {
      std::vector<Sizes> of;
      std::vector<const prim::Graph*> theirs;
      for (const std::size_t c : which) {
        of.push_back(sizes[c]);
        theirs.push_back(&graphs[c]);
      }
      return add_program(std::move(what), of, theirs, note);
    };
    if (merged) {
      HEDDLE_TRY(add(*std::move(merged), together));
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
    note = fmt::format("{} has a program of its own: {}", text_of(sizes[c]), misfit.error.message);
    log(LogLevel::info, "{}", note);
    HEDDLE_TRY(add(prim::Sizes{graphs[c], {}}, {c}));
    together.erase(together.begin() + static_cast<std::ptrdiff_t>(misfit.case_number));
  }
}

}  // namespace

Result<CompiledSizes> compile_sizes(const std::string& path, const std::vector<SizeRange>& ranges,
                                    const CompileOptions& options) {
  const std::set<std::string> known = HEDDLE_TRY(onnx::symbolic_dimensions(path));
  std::string names;
  for (const std::string& name : known) names += " '" + name + "'";
  for (const SizeRange& range : ranges)
    if (!known.contains(range.name))
      return fail(ErrorCode::usage, "--dynamic: the model has no symbolic dimension '{}', it has{}",
                  range.name, names.empty() ? " none" : names);
  SizeCompiler compiler(path, options);
  for (auto& [program, sizes] : HEDDLE_TRY(buckets_of(ranges)))
    HEDDLE_TRY(compiler.add(std::move(sizes)));
  return compiler.finish();
}

Result<std::shared_ptr<SizedModel>> SizedModel::load(
    std::shared_ptr<const runtime::SizedProgram> program, const CompileOptions& options) {
  auto model = std::make_shared<SizedModel>();
  std::shared_ptr<ThreadPool> pool;
  if (!program->programs.empty())
    pool = std::make_shared<ThreadPool>(options.threads > 0 ? options.threads
                                                            : program->programs[0]->threads);
  for (const auto& part : program->programs) {
    const auto executor = HEDDLE_TRY(executor_for(*part, options, pool));
    model->programs_.push_back(HEDDLE_TRY(executor->session(part)));
  }
  model->program_ = std::move(program);
  return model;
}

Result<std::shared_ptr<runtime::Session>> SizedModel::session(std::size_t number) {
  HEDDLE_CHECK(number < program_->cases.size(), "case {} of {}", number, program_->cases.size());
  return runtime::size_session(program_, number, programs_[program_->cases[number].program]);
}

}  // namespace heddle::driver
