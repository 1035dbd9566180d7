#include "driver/chain.h"

#include <algorithm>

#include "driver/cache.h"
#include "driver/chain_compiler.h"

namespace heddle::driver {
namespace {

constexpr std::size_t kMostLinks = 64;

}  // namespace

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

namespace {

/// Where the stage ends by itself.
onnx::Cuts cuts_of(const onnx::Stage& stage) {
  onnx::Cuts cuts;
  for (const auto& [key, asked] : stage.asked) cuts.asked[key] = {asked.axis, asked.numbers};
  for (std::size_t o = 0; o < stage.graph.outputs.size(); ++o)
    for (const auto& [axis, tells] : extents_of(stage.graph, o))
      cuts.extents[stage.graph.outputs[o].name] = axis;
  return cuts;
}

}  // namespace

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
      const auto found = programs_.find(count.name);
      if (found == programs_.end()) continue;  // it follows from others
      program.push_back(*std::lower_bound(found->second.begin(), found->second.end(),
                                          branches_[b].sizes.at(count.name)));
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

Status ChainCompiler::start(const onnx::Dimensions& known) {
  std::vector<SizeRange> of_inputs;
  const std::set<std::string> free = known.free();
  for (const SizeRange& range : ranges_) {
    if (const auto fact = known.facts.find(range.name); fact != known.facts.end())
      return fail(ErrorCode::usage, "--dynamic: '{}' follows from {}", range.name,
                  fact->second.text());
    if (!free.contains(range.name)) continue;
    of_inputs.push_back(range);
    used_.insert(range.name);
    programs_[range.name] = range.programs;
  }
  if (of_inputs.empty()) return Ok{};
  branches_.clear();
  for (SizeCombination& found : HEDDLE_TRY(combinations(of_inputs, known))) {
    branches_.push_back({found.sizes, {}});
    branches_.back().stage.dimensions = std::move(found.sizes);
  }
  for (const auto& [name, size] : branches_[0].sizes) {
    const std::size_t before = counts_.size();
    for (const auto& [input, axes] : known.of_inputs)
      for (std::size_t d = 0; d < axes.size() && counts_.size() == before; ++d)
        if (axes[d] == name) counts_.push_back({name, input, static_cast<int>(d)});
    if (counts_.size() == before)
      return unsupported(
          "dimension '{}' is no extent of an input by itself, from which it could "
          "be told while running",
          name);
  }
  return Ok{};
}

namespace {

/// The model's inputs at the largest sizes.
std::vector<runtime::Port> largest_inputs(const std::vector<onnx::Stage>& stages) {
  std::vector<runtime::Port> ports;
  for (const prim::GraphInput& input : stages[0].graph.inputs)
    ports.push_back({input.name, input.type});
  for (const onnx::Stage& stage : stages)
    for (std::size_t i = 0; i < ports.size(); ++i)
      for (std::size_t d = 0; d < ports[i].type.shape.size(); ++d)
        ports[i].type.shape[d] =
            std::max(ports[i].type.shape[d], stage.graph.inputs[i].type.shape[d]);
  return ports;
}

}  // namespace

Result<CompiledChain> ChainCompiler::run(const onnx::Ports& ports, const onnx::Dimensions& known) {
  HEDDLE_TRY(start(known));
  for (bool last = false; !last;) {
    const Stages stages = HEDDLE_TRY(import_all());
    HEDDLE_TRY(check_alike(stages));
    const onnx::Stage& stage = stages.back();
    if (chain_.inputs.empty()) chain_.inputs = largest_inputs(stages);
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
  runtime::SizedProgram& first = chain_.links[0].programs;
  first.facts = known.facts;
  first.dimensions = dimensions_of_inputs(first, known);
  out_.chain = std::make_shared<const Chain>(std::move(chain_));
  for (const auto& [name, seconds] : seconds_) out_.times.push_back({name, seconds});
  return std::move(out_);
}

Result<CompiledChain> compile_chain(const std::string& path, const std::vector<SizeRange>& ranges,
                                    const CompileOptions& options) {
  ChainCompiler compiler(HEDDLE_TRY(onnx::StageImporter::open(path, import_options(options))),
                         ranges, options);
  return compiler.run(HEDDLE_TRY(onnx::ports(path)),
                      HEDDLE_TRY(dimensions_at(path, ranges, options)));
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
