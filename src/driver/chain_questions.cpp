// What earlier links find out, and the sizes that it may have.
#include <algorithm>

#include "driver/chain_compiler.h"

namespace heddle::driver {
namespace {

/// Extents up to this are compiled for without being asked to.
constexpr std::int64_t kMostUnasked = 1024;

}  // namespace

const TensorType& output_type(const prim::Graph& graph, std::size_t port) {
  return graph[graph.outputs[port].node].type;
}

std::optional<std::size_t> port_named(const prim::Graph& graph, const std::string& name) {
  for (std::size_t o = 0; o < graph.outputs.size(); ++o)
    if (graph.outputs[o].name == name) return o;
  return std::nullopt;
}

std::optional<TensorType> type_of(const prim::Graph& graph, const std::string& name) {
  if (const auto port = port_named(graph, name)) return output_type(graph, *port);
  for (const prim::GraphInput& input : graph.inputs)
    if (input.name == name) return input.type;
  return std::nullopt;
}

std::vector<std::pair<int, std::size_t>> extents_of(const prim::Graph& graph, std::size_t port) {
  std::vector<std::pair<int, std::size_t>> extents;
  for (std::size_t axis = 0; axis < output_type(graph, port).shape.size(); ++axis)
    if (const auto tells =
            port_named(graph, onnx::extent_name(graph.outputs[port].name, static_cast<int>(axis))))
      extents.emplace_back(static_cast<int>(axis), *tells);
  return extents;
}

std::set<std::size_t> telling_ports(const prim::Graph& graph) {
  std::set<std::size_t> telling;
  for (std::size_t o = 0; o < graph.outputs.size(); ++o)
    for (const auto& [axis, port] : extents_of(graph, o)) telling.insert(port);
  return telling;
}

namespace {

/// No element of the integer value is larger, and none is negative, as far as its definition shows
/// (counts of what holds, positions, sums of these).
std::optional<std::int64_t> upper_bound(const prim::Graph& g, prim::NodeId id, int depth = 0) {
  constexpr int kDeepest = 32;
  constexpr std::int64_t kLarge = (std::int64_t{1} << 31) - 1;
  const prim::Node& n = g[id];
  if (n.type.dtype == DType::b1) return 1;
  // Narrower ones wrap.
  if (!is_int(n.type.dtype) || size_of(n.type.dtype) < 4 || depth > kDeepest) return std::nullopt;
  if (const Tensor* t = g.constant_of(id)) {
    if (t->count() == 0 || t->count() > kMostUnasked) return std::nullopt;
    std::int64_t least = t->int_at(0), most = least;
    for (std::int64_t i = 1; i < t->count(); ++i) {
      least = std::min(least, t->int_at(i));
      most = std::max(most, t->int_at(i));
    }
    return least < 0 ? std::nullopt : std::optional(most);
  }
  std::vector<std::optional<std::int64_t>> args;
  for (const prim::NodeId arg : n.args) args.push_back(upper_bound(g, arg, depth + 1));
  const auto small = [&](std::int64_t value) {
    return value <= kLarge ? std::optional(value) : std::nullopt;
  };
  if (std::holds_alternative<prim::View>(n.op)) {
    const auto& view = std::get<prim::View>(n.op);
    if (args.size() != 1 || !args[0]) return std::nullopt;
    if (view.pieces[0].inside.empty()) return args[0];
    return view.fill < 0 ? std::nullopt
                         : small(std::max(*args[0], static_cast<std::int64_t>(view.fill)));
  }
  if (std::holds_alternative<prim::Gather>(n.op)) return args[0];
  if (const auto* reduce = std::get_if<prim::Reduce>(&n.op)) {
    const Shape& from = g[n.args[0]].type.shape;
    std::int64_t count = 1;
    for (const int axis : reduce->axes) count *= from[static_cast<std::size_t>(axis)];
    if (reduce->fn == ir::Monoid::argmax || reduce->fn == ir::Monoid::argmin) return count - 1;
    if (!args[0]) return std::nullopt;
    if (reduce->fn == ir::Monoid::sum && count < kLarge) return small(*args[0] * count);
    return reduce->fn == ir::Monoid::max && count > 0 ? args[0] : std::nullopt;
  }
  const auto* map = std::get_if<prim::Map>(&n.op);
  if (map == nullptr) return std::nullopt;
  if (std::ranges::any_of(args, [](const auto& arg) { return !arg; })) return std::nullopt;
  switch (map->fn) {
    case ir::ScalarFn::cast:
      return args[0];
    case ir::ScalarFn::add:
      return small(*args[0] + *args[1]);
    case ir::ScalarFn::min:
      return std::min(*args[0], *args[1]);
    case ir::ScalarFn::max:
      return std::max(*args[0], *args[1]);
    case ir::ScalarFn::select:
      return std::max(*args[1], *args[2]);
    default:
      return std::nullopt;
  }
}

}  // namespace

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
  std::vector<std::optional<std::int64_t>> limits, fixed;  // by branch of branches_
  bool flag = false;
  for (const onnx::Stage& stage : stages) {
    const TensorType type = *type_of(stage.graph, question.value);
    const auto port = port_named(stage.graph, question.value);
    fixed.emplace_back();
    limits.emplace_back();
    if (question.axis >= 0) {
      limits.back() = type.shape[static_cast<std::size_t>(question.axis)];
      continue;
    }
    flag |= type.dtype == DType::b1;
    if (!port) continue;
    const prim::NodeId node = stage.graph.outputs[*port].node;
    limits.back() = upper_bound(stage.graph, node);
    if (const Tensor* is = stage.graph.constant_of(node)) fixed.back() = is->int_at(0);
  }
  std::int64_t most = 0;
  for (const auto& limit : limits) most = most < 0 || !limit ? -1 : std::max(most, *limit);
  const SizeRange range = HEDDLE_TRY(range_of(question, most, flag));
  programs_[question.name] = range.programs;
  std::vector<Branch> next;
  for (const Branch& branch : branches) {
    std::size_t from = 0;  // the one of branches_ that this is of
    while (!std::ranges::includes(branch.sizes, branches_[from].sizes)) ++from;
    for (const std::int64_t n : range.sizes) {
      if (limits[from] && n > *limits[from]) break;
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

}  // namespace heddle::driver
