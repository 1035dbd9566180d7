#include "driver/sizes.h"

#include <algorithm>
#include <charconv>

#include "driver/cache.h"
#include "driver/size_compiler.h"

namespace heddle::driver {
namespace {

constexpr int kDefaultPrograms = 4;

std::optional<std::int64_t> number_in(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0 || value > 1 << 24)
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
  if (!low || !high || !step || *step < 1 || *low > *high ||
      (*high - *low) / *step >= static_cast<std::int64_t>(kMaxCases))
    return std::nullopt;
  std::vector<std::int64_t> all;
  for (std::int64_t n = *low; n <= *high; n += *step) all.push_back(n);
  return all;
}

Result<SizeRange> parse_size_range(const std::string& text) {
  const auto wrong = [&] {
    return fail(ErrorCode::usage,
                "--dynamic: found '{}', want NAME=LOW..HIGH, NAME=LOW..HIGH:STEP, "
                "NAME=LOW..HIGH@SIZE,SIZE or NAME=SIZE,SIZE (at most {} sizes), or what it follows "
                "from: NAME=OTHER+1 (names, whole numbers, + - * / // and parentheses)",
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
    const std::size_t first = sizes->front() == 0 ? 1 : 0;  // of nothing is no half
    for (std::size_t i = sizes->size() - first; range.programs.size() < kDefaultPrograms && i > 0;
         i /= 2)
      range.programs.insert(range.programs.begin(), (*sizes)[i - 1 + first]);
    if (range.programs.empty()) range.programs = *sizes;
  }
  if (range.programs.back() != sizes->back()) range.programs.push_back(sizes->back());
  return range;
}

/// "total=past+seq": what is behind the last '=' has names.
bool states_fact(std::string_view text) {
  const std::size_t equals = text.find_last_of('=');
  const auto is_letter = [](char c) { return (c | 32) >= 'a' && (c | 32) <= 'z'; };
  return equals != std::string_view::npos && equals > 0 &&
         std::any_of(text.begin() + static_cast<std::ptrdiff_t>(equals) + 1, text.end(), is_letter);
}

std::string trimmed_name(std::string_view text) {
  while (text.ends_with(' ')) text.remove_suffix(1);
  while (text.starts_with(' ')) text.remove_prefix(1);
  return std::string(text);
}

}  // namespace

Result<SizeWishes> parse_sizes(const std::vector<std::string>& texts) {
  SizeWishes wishes;
  for (const std::string& text : texts) {
    if (!states_fact(text)) {
      wishes.ranges.push_back(HEDDLE_TRY(parse_size_range(text)));
      continue;
    }
    const std::size_t equals = text.find_last_of('=');
    const std::string name = trimmed_name(std::string_view(text).substr(0, equals));
    const auto expr = DimensionExpr::parse(trimmed_name(std::string_view(text).substr(equals + 1)));
    if (!expr || name.empty())
      return fail(ErrorCode::usage,
                  "--dynamic: found '{}', want NAME=EXPRESSION of names of dimensions, whole "
                  "numbers, + - * / // and parentheses",
                  text);
    if (!wishes.facts.emplace(name, *expr).second)
      return fail(ErrorCode::usage, "--dynamic: '{}' is given twice", name);
  }
  for (const SizeRange& range : wishes.ranges)
    if (wishes.facts.contains(range.name))
      return fail(ErrorCode::usage, "--dynamic: '{}' has sizes, and follows from {}", range.name,
                  wishes.facts.at(range.name).text());
  return wishes;
}

Result<std::pair<std::string, std::int64_t>> parse_size(const std::string& text) {
  const std::size_t equals = text.find_last_of('=');
  const auto size = equals == std::string::npos || equals == 0
                        ? std::nullopt
                        : number_in(std::string_view(text).substr(equals + 1));
  if (!size) return fail(ErrorCode::usage, "--size: found '{}', want NAME=SIZE", text);
  return std::pair{text.substr(0, equals), *size};
}

Result<std::vector<SizeCombination>> combinations(const std::vector<SizeRange>& ranges,
                                                  const onnx::Dimensions& known) {
  std::vector<SizeCombination> all = {{}};
  for (const SizeRange& range : ranges) {
    std::vector<SizeCombination> next;
    for (const auto& [sizes, program] : all)
      for (const std::int64_t n : range.sizes) {
        SizeCombination more{sizes, program};
        more.program.push_back(*std::lower_bound(range.programs.begin(), range.programs.end(), n));
        if (!more.sizes.emplace(range.name, n).second)
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
  for (auto& [sizes, program] : all) {
    HEDDLE_TRY(derive(known.facts, sizes, known.described));
    for (const auto& [name, expr] : known.facts)
      if (name == expr.text()) sizes.erase(name);
  }
  return all;
}

Result<onnx::Dimensions> dimensions_at(const std::string& path,
                                       const std::vector<SizeRange>& ranges,
                                       const CompileOptions& options) {
  onnx::ImportOptions given = import_options(options);
  for (const SizeRange& range : ranges) given.dimensions[range.name] = range.sizes.back();
  return onnx::dimensions(path, given);
}

std::vector<std::vector<std::string>> dimensions_of_inputs(const runtime::SizedProgram& sized,
                                                           const onnx::Dimensions& known) {
  std::vector<std::vector<std::string>> all;
  for (std::size_t i = 0; i < sized.cases[0].inputs.size(); ++i) {
    const auto found = known.of_inputs.find(sized.programs[0]->inputs[i].name);
    all.push_back(found == known.of_inputs.end() ? std::vector<std::string>() : found->second);
    all.back().resize(sized.cases[0].inputs[i].size());
  }
  return all;
}

Result<CompiledSizes> compile_sizes(const std::string& path, const std::vector<SizeRange>& ranges,
                                    const CompileOptions& options) {
  const onnx::Dimensions known = HEDDLE_TRY(dimensions_at(path, ranges, options));
  const std::set<std::string> free = known.free();
  std::string names;
  for (const std::string& name : free) names += " '" + name + "'";
  for (const SizeRange& range : ranges) {
    if (const auto fact = known.facts.find(range.name); fact != known.facts.end())
      return fail(ErrorCode::usage, "--dynamic: '{}' follows from {}; give sizes of{} only",
                  range.name, fact->second.text(), names);
    if (!free.contains(range.name))
      return fail(ErrorCode::usage,
                  "--dynamic: the model has no symbolic dimension '{}', it has{}{}", range.name,
                  names.empty() ? " none" : names,
                  ranges.size() > 1 && !names.empty()
                      ? "; for sizes of what it computes, all of these must be given"
                      : "");
  }
  SizeCompiler compiler(options);
  std::map<std::vector<std::int64_t>, std::vector<Sizes>> buckets;
  for (auto& [sizes, program] : HEDDLE_TRY(combinations(ranges, known)))
    buckets[program].push_back(std::move(sizes));
  for (const auto& [program, sizes] : buckets) {
    if (options.progress) options.progress(text_of(sizes.back()), 0);
    HEDDLE_TRY(
        compiler.add(sizes, HEDDLE_TRY(onnx::import_sizes(path, import_options(options), sizes))));
  }
  SizeCompiler::Made made = compiler.take();
  runtime::SizedProgram& sized = made.program;
  sized.facts = known.facts;
  sized.dimensions = dimensions_of_inputs(sized, known);
  return CompiledSizes{std::make_shared<const runtime::SizedProgram>(std::move(sized)),
                       std::move(made.buckets), std::move(made.times)};
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
