#include "driver/chain.h"

#include <algorithm>

#include "driver/cache.h"
#include "driver/size_compiler.h"
#include "onnx/stage_cases.h"

namespace heddle::driver {
namespace {

using runtime::Chain;

/// Extents up to this are compiled for without being asked to.
constexpr std::int64_t kMostUnasked = 1024;
constexpr std::size_t kMostLinks = 64;

/// A case of all sizes found so far.
struct Branch {
  Sizes sizes;
  onnx::StageCase stage;
};

/// Values that are known when a link has run; those whose extents are one number are together.
struct Question {
  std::string name;                               ///< of the first value, and of the size
  std::vector<std::pair<std::string, int>> keys;  ///< values and their axes
  int axis = 0;       ///< of the first; -1: the number of the only value
  std::string value;  ///< what tells the size at run time
};

class ChainCompiler {
 public:
  ChainCompiler(onnx::StageImporter importer, const std::vector<SizeRange>& ranges,
                const CompileOptions& options)
      : importer_(std::move(importer)), ranges_(ranges), options_(options) {}
  Result<CompiledChain> run(const onnx::Ports& ports);

 private:
  using Stages = std::vector<onnx::Stage>;
  Result<Stages> import_all();
  Result<Stages> import_all(const onnx::Cuts& cuts);
  Status check_alike(const Stages& stages) const;
  Status add_link(const Stages& stages);
  /// Adds what the stage makes to each branch, once for each size that it may have.
  /// (`given`: the questions are about inputs of the stage, which has not run.)
  Status go_on(const Stages& stages, bool given);
  Result<std::vector<Question>> questions_of(const onnx::Stage& stage, bool given) const;
  Result<std::vector<Branch>> with_sizes(const std::vector<Branch>& branches, const Stages& stages,
                                         const Question& question);
  Result<SizeRange> range_of(const Question& question, std::int64_t most, bool flag);
  const SizeRange* stated(const Question& question);
  Status note_results(const Stages& stages);
  std::string found_sizes() const;
  Status add_ports(const onnx::Ports& ports);
  std::string label(const std::string& key) const;
  Error other_way(const Branch& branch, std::string_view what) const;

  onnx::StageImporter importer_;
  const std::vector<SizeRange>& ranges_;
  const CompileOptions& options_;
  std::vector<Branch> branches_ = {{}};
  std::vector<Chain::Count> counts_;
  std::map<std::string, std::vector<std::int64_t>> programs_;  ///< of each count
  std::set<std::string> used_;                                 ///< of ranges_
  struct Output {
    std::string value;
    TensorType most;
    std::set<int> varies;  ///< axes
  };
  std::map<std::string, Output> outputs_;
  Chain chain_;
  CompiledChain out_;
  std::map<std::string, double> seconds_;
};

const TensorType& output_type(const prim::Graph& graph, std::size_t port) {
  return graph[graph.outputs[port].node].type;
}

std::optional<std::size_t> port_named(const prim::Graph& graph, const std::string& name) {
  for (std::size_t o = 0; o < graph.outputs.size(); ++o)
    if (graph.outputs[o].name == name) return o;
  return std::nullopt;
}

/// Of an output, or an input.
std::optional<TensorType> type_of(const prim::Graph& graph, const std::string& name) {
  if (const auto port = port_named(graph, name)) return output_type(graph, *port);
  for (const prim::GraphInput& input : graph.inputs)
    if (input.name == name) return input.type;
  return std::nullopt;
}

/// The outputs that tell the extents of another.
std::vector<std::pair<int, std::size_t>> extents_of(const prim::Graph& graph, std::size_t port) {
  std::vector<std::pair<int, std::size_t>> extents;
  for (std::size_t axis = 0; axis < output_type(graph, port).shape.size(); ++axis)
    if (const auto tells =
            port_named(graph, onnx::extent_name(graph.outputs[port].name, static_cast<int>(axis))))
      extents.emplace_back(static_cast<int>(axis), *tells);
  return extents;
}

/// The ports that tell extents only.
std::set<std::size_t> telling_ports(const prim::Graph& graph) {
  std::set<std::size_t> telling;
  for (std::size_t o = 0; o < graph.outputs.size(); ++o)
    for (const auto& [axis, port] : extents_of(graph, o)) telling.insert(port);
  return telling;
}

std::string ChainCompiler::label(const std::string& key) const {
  const std::string maker = importer_.maker_of(key);
  return maker.empty() ? "'" + key + "'" : fmt::format("'{}' ({})", key, maker);
}

Error ChainCompiler::other_way(const Branch& branch, std::string_view what) const {
  if (counts_.empty()) return unsupported("{}, which no artefact of several programs holds", what);
  const std::string& name = counts_.back().name;
  return unsupported("at {} {}; give sizes that are alike: --dynamic '{}=1..{}'",
                     text_of(branch.sizes), what, name, programs_.at(name).back());
}

/// Where the stage ends by itself.
onnx::Cuts cuts_of(const onnx::Stage& stage) {
  onnx::Cuts cuts;
  for (const auto& [key, asked] : stage.asked) cuts.asked[key] = {asked.axis, asked.numbers};
  for (std::size_t o = 0; o < stage.graph.outputs.size(); ++o)
    for (const auto& [axis, tells] : extents_of(stage.graph, o))
      cuts.extents[stage.graph.outputs[o].name] = axis;
  return cuts;
}

/// In some cases more can be computed at once than in others: all end where one of them has to.
Result<ChainCompiler::Stages> ChainCompiler::import_all() {
  constexpr int kMostTurns = 8;
  onnx::Cuts cuts;
  for (int turn = 0;; ++turn) {
    Stages stages = HEDDLE_TRY(import_all(cuts));
    onnx::Cuts found;
    for (const onnx::Stage& stage : stages) {
      onnx::Cuts own = cuts_of(stage);
      for (const auto& [key, cut] : own.asked) {
        onnx::Cuts::Cut& all = found.asked[key];
        all.axis = std::max(all.axis, cut.axis);
        all.numbers |= cut.numbers;
      }
      found.extents.merge(own.extents);
    }
    const bool alike = std::ranges::all_of(
        stages, [&](const onnx::Stage& stage) { return cuts_of(stage) == found; });
    if (alike || found == cuts || turn == kMostTurns) return stages;
    cuts = std::move(found);
  }
}

/// A size at which a node has an error (it picks from nothing) is none that a run can go on from.
Result<ChainCompiler::Stages> ChainCompiler::import_all(const onnx::Cuts& cuts) {
  Stages stages;
  std::vector<Branch> possible;
  std::optional<Error> first;
  for (Branch& branch : branches_) {
    auto stage = importer_.import(branch.stage, cuts);
    if (!stage) {
      out_.notes.push_back(
          fmt::format("no program for {}: {}", text_of(branch.sizes), stage.error().message));
      if (!first) first = stage.error();
      continue;
    }
    stages.push_back(*std::move(stage));
    possible.push_back(std::move(branch));
  }
  if (stages.empty()) return *first;
  branches_ = std::move(possible);
  return stages;
}

Status ChainCompiler::check_alike(const Stages& stages) const {
  const onnx::Stage& typical = stages.back();
  for (std::size_t b = 0; b < stages.size(); ++b) {
    const onnx::Stage& stage = stages[b];
    if (!stage.calls.empty())
      return unsupported(
          "{} '{}' works on the host, between compiled programs, which no artefact "
          "holds",
          stage.calls[0].op, stage.calls[0].name);
    if (stage.waiting != typical.waiting) {
      const auto [mine, theirs] = std::ranges::mismatch(stage.waiting, typical.waiting);
      return other_way(branches_[b], fmt::format("'{}' is computed in another way",
                                                 mine != stage.waiting.end()       ? *mine
                                                 : theirs != typical.waiting.end() ? *theirs
                                                                                   : ""));
    }
    const auto same = [](const auto& mine, const auto& theirs) {
      return mine.first == theirs.first && mine.second.numbers == theirs.second.numbers &&
             mine.second.input == theirs.second.input;
    };
    if (!std::ranges::equal(stage.asked, typical.asked, same) || stage.there != typical.there ||
        !std::ranges::equal(
            stage.graph.outputs, typical.graph.outputs,
            [](const auto& mine, const auto& theirs) { return mine.name == theirs.name; }))
      return other_way(branches_[b], "the model goes on in another way");
    for (const auto& [key, asked] : stage.asked)
      if (asked.format != ops::Format::plain)
        return unsupported("{} is {}, which no artefact holds between programs", label(key),
                           name_of(asked.format));
  }
  return Ok{};
}

Status ChainCompiler::add_link(const Stages& stages) {
  std::map<std::vector<std::int64_t>, std::pair<std::vector<Sizes>, std::vector<prim::Graph>>>
      buckets;
  for (std::size_t b = 0; b < stages.size(); ++b) {
    std::vector<std::int64_t> program;
    for (const Chain::Count& count : counts_) {
      const auto& programs = programs_.at(count.name);
      program.push_back(
          *std::lower_bound(programs.begin(), programs.end(), branches_[b].sizes.at(count.name)));
    }
    auto& [sizes, graphs] = buckets[program];
    sizes.push_back(branches_[b].sizes);
    graphs.push_back(stages[b].graph);
  }
  SizeCompiler compiler(options_);
  for (const auto& [program, bucket] : buckets) {
    if (options_.progress) options_.progress(text_of(bucket.first.back()), 0);
    HEDDLE_TRY(compiler.add(bucket.first, bucket.second));
  }
  SizeCompiler::Made made = compiler.take();
  for (const SizeBucket& bucket : made.buckets)
    if (!bucket.note.empty() && std::ranges::find(out_.notes, bucket.note) == out_.notes.end())
      out_.notes.push_back(bucket.note);
  for (const PhaseTime& time : made.times) seconds_[time.name] += time.seconds;
  Chain::Link link{std::move(made.program), counts_, {}};
  const prim::Graph& graph = stages.back().graph;
  const std::set<std::size_t> telling = telling_ports(graph);
  for (std::size_t o = 0; o < graph.outputs.size(); ++o)
    if (!telling.contains(o)) link.made.push_back({graph.outputs[o].name, o, extents_of(graph, o)});
  chain_.links.push_back(std::move(link));
  return Ok{};
}

/// Takes note of the model's outputs among what the stage makes, or that it has as inputs.
Status ChainCompiler::note_results(const Stages& stages) {
  const auto add = [&](const Branch& branch, const std::string& name, const std::string& value,
                       const TensorType& type) -> Status {
    const auto [at, fresh] = outputs_.try_emplace(name, Output{value, type, {}});
    if (at->second.most.dtype != type.dtype || at->second.most.shape.size() != type.shape.size())
      return other_way(branch, fmt::format("output '{}' is {}", name, to_string(type)));
    Shape& most = at->second.most.shape;
    for (std::size_t d = 0; d < most.size(); ++d) {
      if (most[d] != type.shape[d]) at->second.varies.insert(static_cast<int>(d));
      most[d] = std::max(most[d], type.shape[d]);
    }
    return Ok{};
  };
  for (std::size_t b = 0; b < stages.size(); ++b) {
    const onnx::Stage& stage = stages[b];
    const std::set<std::size_t> telling = telling_ports(stage.graph);
    for (std::size_t o = 0; o < stage.graph.outputs.size(); ++o) {
      const std::string& name = stage.graph.outputs[o].name;
      const bool asked = std::ranges::any_of(
          stage.asked, [&](const auto& entry) { return onnx::made_name(entry.first) == name; });
      if (asked || telling.contains(o)) continue;
      HEDDLE_TRY(add(branches_[b], name, name, output_type(stage.graph, o)));
      for (const auto& [axis, port] : extents_of(stage.graph, o))
        outputs_.at(name).varies.insert(axis);
    }
    for (const auto& [name, input] : stage.there)
      HEDDLE_TRY(add(branches_[b], name, input, *type_of(stage.graph, input)));
  }
  return Ok{};
}

std::string ChainCompiler::found_sizes() const {
  std::string text;
  for (const Chain::Count& count : counts_) text += " " + label(count.name);
  return text.empty() ? " none" : text;
}

Result<std::vector<Question>> ChainCompiler::questions_of(const onnx::Stage& stage,
                                                          bool given) const {
  std::vector<Question> questions;
  std::map<std::int32_t, std::size_t> by_extent;
  for (const auto& [key, asked] : stage.asked) {
    if (given && asked.input.empty()) continue;  // that is computed when the numbers are known
    const std::string value = given ? asked.input : onnx::made_name(key);
    const auto port = port_named(stage.graph, value);
    const auto extents =
        port ? extents_of(stage.graph, *port) : std::vector<std::pair<int, std::size_t>>();
    for (const auto& [axis, tells] : extents) {
      const auto [at, fresh] =
          by_extent.try_emplace(stage.graph.outputs[tells].node.value, questions.size());
      if (fresh) questions.push_back({key, {}, axis, value});
      questions[at->second].keys.emplace_back(key, axis);
    }
    if (!extents.empty() || !asked.numbers) continue;
    const TensorType type = *type_of(stage.graph, value);
    if (element_count(type.shape) != 1 || type.shape.size() > 1 ||
        (!is_int(type.dtype) && type.dtype != DType::b1))
      return unsupported(
          "the numbers of {}, {}, decide shapes or branches; an artefact can be made where that is "
          "one whole number",
          label(key), to_string(type));
    questions.push_back({key, {{key, -1}}, -1, value});
  }
  return questions;
}

const SizeRange* ChainCompiler::stated(const Question& question) {
  for (const SizeRange& range : ranges_)
    for (const auto& [key, axis] : question.keys)
      if (range.name == key || range.name == importer_.label_of_maker(key)) {
        used_.insert(range.name);
        return &range;
      }
  return nullptr;
}

/// Sizes from 0 to `most` (-1: nobody knows).
Result<SizeRange> ChainCompiler::range_of(const Question& question, std::int64_t most, bool flag) {
  if (flag) return SizeRange{question.name, {0, 1}, {0, 1}};
  if (const SizeRange* range = stated(question)) {
    SizeRange own{question.name, {}, range->programs};
    for (const std::int64_t n : range->sizes)
      if (most < 0 || n <= most) own.sizes.push_back(n);
    if (own.sizes.empty())
      return fail(ErrorCode::usage, "--dynamic: {} has at most {} positions, found sizes from {}",
                  label(question.name), most, range->sizes[0]);
    return own;
  }
  if (most < 0)
    return unsupported(
        "the number {} decides shapes, and nothing says how large it may be; say it: --dynamic "
        "'{}=0..300'",
        label(question.name), question.name);
  if (most > kMostUnasked)
    return unsupported(
        "{} may have up to {} positions, more than {} to make programs for; say how many there "
        "can be: --dynamic '{}=0..300'",
        label(question.name), most, kMostUnasked, question.name);
  SizeRange range = HEDDLE_TRY(parse_sizes({fmt::format("n=0..{}", most)})).ranges[0];
  range.name = question.name;
  return range;
}

Result<std::vector<Branch>> ChainCompiler::with_sizes(const std::vector<Branch>& branches,
                                                      const Stages& stages,
                                                      const Question& question) {
  std::int64_t most = -1;
  bool flag = false;
  std::vector<TensorType> types;  // of what tells, by branch of branches_
  std::vector<std::optional<std::int64_t>> fixed;
  for (const onnx::Stage& stage : stages) {
    types.push_back(*type_of(stage.graph, question.value));
    if (question.axis >= 0)
      most = std::max(most, types.back().shape[static_cast<std::size_t>(question.axis)]);
    flag |= types.back().dtype == DType::b1 && question.axis < 0;
    const auto port = port_named(stage.graph, question.value);
    const Tensor* is = port ? stage.graph.constant_of(stage.graph.outputs[*port].node) : nullptr;
    fixed.push_back(is != nullptr && question.axis < 0 ? std::optional(is->int_at(0))
                                                       : std::nullopt);
  }
  const SizeRange range = HEDDLE_TRY(range_of(question, most, flag));
  programs_[question.name] = range.programs;
  std::vector<Branch> next;
  for (const Branch& branch : branches) {
    std::size_t from = 0;  // the one of branches_ that this is of
    while (!std::ranges::includes(branch.sizes, branches_[from].sizes)) ++from;
    for (const std::int64_t n : range.sizes) {
      if (question.axis >= 0 && n > types[from].shape[static_cast<std::size_t>(question.axis)])
        break;
      if (fixed[from] && n != *fixed[from]) continue;
      Branch more = branch;
      more.sizes[question.name] = n;
      for (const auto& [key, axis] : question.keys) {
        onnx::Made& made = more.stage.made.at(key);
        if (axis >= 0) {
          made.type.shape[static_cast<std::size_t>(axis)] = n;
          continue;
        }
        made.numbers = Tensor(made.type);
        made.numbers->set_int(0, n);
      }
      next.push_back(std::move(more));
      if (next.size() > kMaxCases)
        return unsupported(
            "{} and what is found before it have more than {} combinations of sizes; say fewer: "
            "--dynamic '{}=0..20'",
            label(question.name), kMaxCases, question.name);
    }
  }
  return next;
}

Status ChainCompiler::go_on(const Stages& stages, bool given) {
  const std::vector<Question> questions = HEDDLE_TRY(questions_of(stages.back(), given));
  std::vector<Branch> next = branches_;
  for (std::size_t b = 0; b < stages.size(); ++b) {
    const onnx::Stage& stage = stages[b];
    for (const auto& [key, asked] : stage.asked) {
      if (given && asked.input.empty()) continue;
      const std::string value = given ? asked.input : onnx::made_name(key);
      next[b].stage.made[key] = {*type_of(stage.graph, value), asked.format, std::nullopt};
    }
    if (given) continue;
    const std::set<std::size_t> telling = telling_ports(stage.graph);
    for (std::size_t o = 0; o < stage.graph.outputs.size(); ++o)
      if (!telling.contains(o)) next[b].stage.done.insert(stage.graph.outputs[o].name);
    for (const auto& [name, input] : stage.there) next[b].stage.done.insert(name);
  }
  for (const Question& question : questions) {
    next = HEDDLE_TRY(with_sizes(next, stages, question));
    counts_.push_back({question.name, question.value, question.axis});
  }
  branches_ = std::move(next);
  return Ok{};
}

/// Outputs with extents that differ from case to case have room for the most, and tell them.
Status ChainCompiler::add_ports(const onnx::Ports& ports) {
  for (const onnx::Port& port : ports.outputs) {
    const auto found = outputs_.find(port.name);
    if (found == outputs_.end())
      return unsupported(
          "output '{}' is no tensor, which an artefact of several programs cannot "
          "hold",
          port.name);
    chain_.results.push_back({found->second.value, chain_.outputs.size(), {}});
    chain_.outputs.push_back({port.name, found->second.most});
    for (const int axis : found->second.varies) {
      chain_.results.back().extents.emplace_back(axis, chain_.outputs.size());
      chain_.outputs.push_back({onnx::extent_name(port.name, axis), {DType::i64, {}}});
    }
  }
  return Ok{};
}

Result<CompiledChain> ChainCompiler::run(const onnx::Ports& ports) {
  for (bool last = false; !last;) {
    const Stages stages = HEDDLE_TRY(import_all());
    HEDDLE_TRY(check_alike(stages));
    const onnx::Stage& stage = stages.back();
    if (chain_.inputs.empty())
      for (const prim::GraphInput& input : stage.graph.inputs)
        chain_.inputs.push_back({input.name, input.type});
    const bool given = std::ranges::any_of(
        stage.asked, [](const auto& entry) { return !entry.second.input.empty(); });
    if (!given && !stage.graph.outputs.empty()) HEDDLE_TRY(add_link(stages));
    if (!given) HEDDLE_TRY(note_results(stages));
    last = stage.is_last();
    if (!last) HEDDLE_TRY(go_on(stages, given));
    if (chain_.links.size() > kMostLinks)
      return unsupported("the model runs in more than {} stages", kMostLinks);
  }
  for (const SizeRange& range : ranges_)
    if (!used_.contains(range.name))
      return fail(ErrorCode::usage,
                  "--dynamic: '{}' is no extent or number that the model computes; found{}",
                  range.name, found_sizes());
  HEDDLE_TRY(add_ports(ports));
  out_.chain = std::make_shared<const Chain>(std::move(chain_));
  for (const auto& [name, seconds] : seconds_) out_.times.push_back({name, seconds});
  return std::move(out_);
}

}  // namespace

Result<CompiledChain> compile_chain(const std::string& path, const std::vector<SizeRange>& ranges,
                                    const CompileOptions& options) {
  ChainCompiler compiler(HEDDLE_TRY(onnx::StageImporter::open(path, import_options(options))),
                         ranges, options);
  return compiler.run(HEDDLE_TRY(onnx::ports(path)));
}

Result<std::shared_ptr<runtime::Session>> load_chain(std::shared_ptr<const Chain> chain,
                                                     const CompileOptions& options) {
  std::vector<std::shared_ptr<SizedModel>> links;
  for (const Chain::Link& link : chain->links)
    links.push_back(HEDDLE_TRY(SizedModel::load(
        std::shared_ptr<const runtime::SizedProgram>(chain, &link.programs), options)));
  return runtime::chain_session(chain, [links](std::size_t link, std::size_t number) {
    return links[link]->session(number);
  });
}

}  // namespace heddle::driver
