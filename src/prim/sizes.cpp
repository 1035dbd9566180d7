#include "prim/sizes.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "prim/fold.h"
#include "prim/sizes_merge.h"
#include "support/match.h"
#include "support/resized.h"

namespace heddle::prim {

using ir::ScalarFn;

namespace {

/// Of all constants that are not the same for every size.
constexpr std::int64_t kMaxGivenBytes = std::int64_t{256} << 20;

bool is_first_part(const Tensor& part, const Tensor& whole) {
  if (part.dtype() != whole.dtype() || part.shape().size() != whole.shape().size()) return false;
  const Tensor cut = resized(whole, part.shape());
  return std::memcmp(cut.data(), part.data(), static_cast<std::size_t>(part.bytes())) == 0;
}

}  // namespace

std::size_t SizeMerger::NodesHash::operator()(const Nodes& nodes) const {
  std::size_t h = nodes.size();
  for (const NodeId n : nodes) h = combine(h, static_cast<std::size_t>(n.value));
  return h;
}

Error SizeMerger::misfit(const Nodes& nodes, std::size_t c, std::string_view reason) {
  misfit_ = c;
  const Graph& g = cases_[largest_];
  const OriginId origin = g.origin_id(nodes[largest_]);
  const std::string label =
      origin.value < 0 ? std::string(kind_name(largest(nodes).op))
                       : fmt::format("{} '{}'", g.origin(origin).op, g.origin(origin).name);
  return unsupported("{}: {}", label, reason);
}

std::vector<std::int64_t> SizeMerger::extents(const Nodes& nodes, std::size_t dim) const {
  std::vector<std::int64_t> all;
  for (std::size_t c = 0; c < cases_.size(); ++c) all.push_back(shape(c, nodes)[dim]);
  return all;
}

bool SizeMerger::varies(const std::vector<std::int64_t>& numbers) {
  return std::any_of(numbers.begin(), numbers.end(),
                     [&](std::int64_t n) { return n != numbers[0]; });
}

NodeId SizeMerger::given(std::vector<Tensor> values) {
  std::vector<Hash> key;
  for (const Tensor& v : values) key.push_back(hash_of(v));
  const auto [found, fresh] = tensors_.try_emplace(std::move(key));
  if (!fresh) return found->second;
  for (const Tensor& v : values) given_bytes_ += v.bytes();
  const std::string name = fmt::format("heddle:size{}", out_.given.size());
  found->second = out_.graph.add_input(name, values[0].type());
  out_.given.push_back({name, std::move(values)});
  return found->second;
}

NodeId SizeMerger::number(const std::vector<std::int64_t>& numbers) {
  if (!varies(numbers)) return b_.scalar_int(DType::i32, numbers[0]);
  const auto [found, fresh] = numbers_.try_emplace(numbers);
  if (!fresh) return found->second;
  std::vector<Tensor> values;
  for (const std::int64_t n : numbers) {
    values.emplace_back(TensorType{DType::i32, {}});
    values.back().set_int(0, n);
  }
  return found->second = given(std::move(values));
}

NodeId SizeMerger::identity_of(ir::Monoid fn, DType type) {
  return is_float(type) ? b_.scalar(type, ir::identity(fn, type))
                        : b_.scalar_int(type, ir::identity_int(fn, type));
}

NodeId SizeMerger::counts(const Nodes& value, std::size_t dim) {
  Shape along(largest(value).type.shape.size(), 1);
  along[dim] = largest(value).type.shape[dim];
  const NodeId position = b_.iota({DType::i32, along}, static_cast<int>(dim));
  return b_.map(ScalarFn::less, {position, number(extents(value, dim))});
}

NodeId SizeMerger::masked(NodeId x, const Nodes& extents_of, const std::vector<int>& dims,
                          NodeId fill) {
  // One for all dimensions, and no larger than they are: many values share it.
  std::optional<NodeId> mask;
  for (const int d : dims) {
    const auto dim = static_cast<std::size_t>(d);
    if (!varies(extents_of, dim)) continue;
    const NodeId along = counts(extents_of, dim);
    mask = mask ? b_.map(ScalarFn::logical_and, {*mask, along}) : along;
  }
  return mask ? b_.select(*mask, x, fill) : x;
}

NodeId SizeMerger::zeroed(const Nodes& value, const std::vector<int>& dims) {
  std::vector<int> varying;
  for (const int d : dims)
    if (varies(value, static_cast<std::size_t>(d))) varying.push_back(d);
  if (varying.empty()) return merged(value);
  std::vector<int>& wanted = wanted_[value];
  wanted.insert(wanted.end(), varying.begin(), varying.end());
  std::sort(wanted.begin(), wanted.end());
  wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
  const auto made = zeros_.find(value);
  if (made != zeros_.end())
    std::erase_if(varying, [&](int d) {
      return std::binary_search(made->second.begin(), made->second.end(), d);
    });
  return masked(value, varying, zero(b_.dtype(merged(value))));
}

NodeId SizeMerger::with_zeros(const Nodes& nodes, NodeId made) {
  const auto wanted = zeros_.find(nodes);
  return wanted == zeros_.end() ? made : masked(made, nodes, wanted->second, zero(b_.dtype(made)));
}

/// The value of a node that depends on constants only; null if it does not, or is large.
const Tensor* SizeMerger::value_in(std::size_t c, NodeId id) {
  if (const Tensor* constant = cases_[c].constant_of(id)) return constant;
  auto [found, fresh] = evaluated_.try_emplace({c, id});
  if (fresh) found->second = evaluate_constant(cases_[c], id);
  return found->second ? &*found->second : nullptr;
}

bool SizeMerger::evaluates(const Nodes& nodes) {
  for (std::size_t c = 0; c < cases_.size(); ++c)
    if (value_in(c, nodes[c]) == nullptr) return false;
  return true;
}

Result<SizeMerger::Form> SizeMerger::form_of(const Nodes& nodes) {
  const Node& l = largest(nodes);
  bool alike = true, any_view = false, any_constant = false;
  std::size_t other = largest_;
  for (std::size_t c = 0; c < cases_.size(); ++c) {
    const Node& n = at(c, nodes);
    const bool same = n.op.index() == l.op.index() && n.args.size() == l.args.size();
    if (!same && alike) other = c;
    alike &= same;
    any_view |= std::holds_alternative<View>(n.op) && n.args.size() == 1;
    any_constant |= std::holds_alternative<Constant>(n.op);
    if (n.type.dtype != l.type.dtype || n.type.shape.size() != l.type.shape.size())
      return misfit(nodes, c, "its rank or type depends on the size");
    for (std::size_t d = 0; d < l.type.shape.size(); ++d)
      if (n.type.shape[d] > l.type.shape[d])
        return misfit(nodes, c, "an extent is smaller for a larger size");
  }
  Form form;
  if (any_constant && evaluates(nodes)) {
    form.kind = Form::Kind::constant;
    return form;
  }
  // A broadcast that one size does not need is missing there.
  form.steps.assign(cases_.size(), true);
  for (std::size_t c = 0; any_view && c < cases_.size(); ++c) form.steps[c] = steps_along(nodes, c);
  const bool missing = std::count(form.steps.begin(), form.steps.end(), false) > 0;
  if (!alike && !missing) return misfit(nodes, other, "it is computed in another way there");
  if (missing) form.kind = Form::Kind::view;
  for (std::size_t a = 0; a < (missing ? 1 : l.args.size()); ++a) {
    Nodes arg;
    for (std::size_t c = 0; c < cases_.size(); ++c)
      arg.push_back(form.steps[c] ? at(c, nodes).args[a] : nodes[c]);
    form.args.push_back(std::move(arg));
  }
  return form;
}

/// Whether case c has the view that others have, or goes on without it.
bool SizeMerger::steps_along(const Nodes& nodes, std::size_t c) const {
  const auto behind = [&](std::size_t i) -> const Node* {
    const Node& m = at(i, nodes);
    if (!std::holds_alternative<View>(m.op) || m.args.size() != 1) return nullptr;
    return &cases_[i][m.args[0]];
  };
  std::size_t typical = largest_;
  for (std::size_t i = 0; behind(typical) == nullptr && i < cases_.size(); ++i) typical = i;
  const Node *l = behind(typical), *own = behind(c);
  if (own == nullptr || c == typical) return own != nullptr;
  const auto like = [&](const Node& other) {
    return other.op.index() == l->op.index() && other.args.size() == l->args.size() &&
           other.type.shape.size() == l->type.shape.size();
  };
  return like(*own) || !like(at(c, nodes));
}

/// Arguments before what reads them, with a stack of its own: graphs are deep.
Status SizeMerger::add_root(const Nodes& root) {
  std::vector<Nodes> stack = {root};
  while (!stack.empty()) {
    const Nodes nodes = stack.back();
    if (merged_.contains(nodes)) {
      stack.pop_back();
      continue;
    }
    const Form form = HEDDLE_TRY(form_of(nodes));
    bool ready = true;
    for (const Nodes& arg : form.args) {
      if (merged_.contains(arg)) continue;
      stack.push_back(arg);
      ready = false;
    }
    if (!ready) continue;
    out_.graph.set_origin(cases_[largest_].origin_id(nodes[largest_]));
    const NodeId made = with_zeros(nodes, HEDDLE_TRY(merge(nodes, form)));
    HEDDLE_CHECK(b_.type(made) == largest(nodes).type, "merged {} as {}",
                 to_string(largest(nodes).type), to_string(b_.type(made)));
    merged_.emplace(nodes, made);
    stack.pop_back();
  }
  return Ok{};
}

Result<NodeId> SizeMerger::merge(const Nodes& nodes, const Form& form) {
  if (form.kind == Form::Kind::constant) return merge_constant(nodes);
  if (form.kind == Form::Kind::view) return merge_view(nodes, form);
  return match(
      largest(nodes).op,
      [&](const Input&) -> Result<NodeId> { return misfit(nodes, largest_, "inputs differ"); },
      [&](const Constant&) { return merge_constant(nodes); },
      [&](const View&) { return merge_view(nodes, form); },
      [&](const Map&) { return plain(nodes, form); },
      [&](const Iota&) { return plain(nodes, form); },
      [&](const Random&) -> Result<NodeId> {
        for (std::size_t d = 0; d < largest(nodes).type.shape.size(); ++d)
          if (varies(nodes, d))
            return misfit(nodes, largest_, "random numbers depend on the shape");
        return plain(nodes, form);
      },
      [&](const AllReduce&) -> Result<NodeId> {
        return misfit(nodes, largest_, "sums over processes are of one size");
      },
      [&](const auto& op) { return merge_kind(nodes, form, op); });
}

/// The same operation in every case, on merged arguments.
Result<NodeId> SizeMerger::plain(const Nodes& nodes, const Form& form) {
  for (std::size_t c = 0; c < cases_.size(); ++c)
    if (at(c, nodes).op != largest(nodes).op)
      return misfit(nodes, c, "its parameters depend on the size");
  std::vector<NodeId> args;
  for (const Nodes& arg : form.args) args.push_back(merged(arg));
  return out_.graph.add(largest(nodes).op, std::move(args), largest(nodes).type);
}

Result<NodeId> SizeMerger::merge_constant(const Nodes& nodes) {
  const auto same_content = [&](std::size_t c) {
    const auto* a = std::get_if<Constant>(&at(c, nodes).op);
    const auto* b = std::get_if<Constant>(&largest(nodes).op);
    return a != nullptr && b != nullptr && *a == *b;
  };
  const Tensor* whole = value_in(largest_, nodes[largest_]);
  if (whole == nullptr) return misfit(nodes, largest_, "a constant is too large");
  bool part = true;
  for (std::size_t c = 0; c < cases_.size() && part; ++c)
    part = same_content(c) || is_first_part(*value_in(c, nodes[c]), *whole);
  if (part) {
    const auto* constant = std::get_if<Constant>(&largest(nodes).op);
    if (constant == nullptr) return out_.graph.add_constant(*whole);
    out_.graph.adopt_constant(cases_[largest_], *constant);
    return out_.graph.add(*constant, {}, whole->type());
  }
  std::vector<Tensor> values;
  for (std::size_t c = 0; c < cases_.size(); ++c)
    values.push_back(resized(*value_in(c, nodes[c]), whole->shape()));
  if (given_bytes_ + whole->bytes() * static_cast<std::int64_t>(values.size()) > kMaxGivenBytes)
    return misfit(nodes, largest_, "constants that depend on the size take too much memory");
  return given(std::move(values));
}

Result<NodeId> SizeMerger::merge_kind(const Nodes& nodes, const Form& form, const Reduce& op) {
  for (std::size_t c = 0; c < cases_.size(); ++c)
    if (at(c, nodes).op != largest(nodes).op)
      return misfit(nodes, c, "its axes depend on the size");
  const NodeId none = identity_of(op.fn, b_.dtype(merged(form.args[0])));
  return out_.graph.add(op, {masked(form.args[0], op.axes, none)}, largest(nodes).type);
}

Result<NodeId> SizeMerger::merge_kind(const Nodes& nodes, const Form& form, const Scan& op) {
  if (!op.reverse) return plain(nodes, form);
  const NodeId none = identity_of(op.fn, b_.dtype(merged(form.args[0])));
  return out_.graph.add(op, {masked(form.args[0], {op.axis}, none)}, largest(nodes).type);
}

/// Padding goes behind everything: NaN is the largest, and among equals the order stays.
Result<NodeId> SizeMerger::merge_kind(const Nodes& nodes, const Form& form, const Sort& op) {
  for (std::size_t c = 0; c < cases_.size(); ++c) {
    const Sort& other = std::get<Sort>(at(c, nodes).op);
    if (other.axis != op.axis || other.descending != op.descending)
      return misfit(nodes, c, "its axis or order depends on the size");
  }
  const DType type = b_.dtype(merged(form.args[0]));
  const NodeId last = is_float(type) && !op.descending
                          ? b_.scalar(type, std::numeric_limits<double>::quiet_NaN())
                          : identity_of(op.descending ? ir::Monoid::max : ir::Monoid::min, type);
  return out_.graph.add(op, {masked(form.args[0], {op.axis}, last)}, largest(nodes).type);
}

Status SizeMerger::run() {
  const Graph& l = cases_[largest_];
  out_.graph.adopt_origins(l);
  for (std::size_t c = 0; c < cases_.size(); ++c)
    if (cases_[c].inputs.size() != l.inputs.size() ||
        cases_[c].outputs.size() != l.outputs.size()) {
      misfit_ = c;
      return unsupported("the number of inputs or outputs depends on the size");
    }
  std::vector<std::map<int, NodeId>> slots(cases_.size());
  for (std::size_t c = 0; c < cases_.size(); ++c)
    for (std::int32_t i = 0; i < cases_[c].size(); ++i)
      if (const auto* input = std::get_if<Input>(&cases_[c][NodeId{i}].op))
        slots[c][input->slot] = NodeId{i};
  std::vector<Nodes> inputs;
  for (std::size_t i = 0; i < l.inputs.size(); ++i) {
    Nodes& nodes = inputs.emplace_back();
    for (std::size_t c = 0; c < cases_.size(); ++c)
      nodes.push_back(slots[c].at(static_cast<int>(i)));
    HEDDLE_TRY(form_of(nodes));
    merged_.emplace(nodes, out_.graph.add_input(l.inputs[i].name, l.inputs[i].type));
  }
  // The model's inputs come first.
  for (const Nodes& nodes : inputs) merged_[nodes] = with_zeros(nodes, merged_[nodes]);
  for (std::size_t o = 0; o < l.outputs.size(); ++o) {
    Nodes nodes;
    for (std::size_t c = 0; c < cases_.size(); ++c) nodes.push_back(cases_[c].outputs[o].node);
    HEDDLE_TRY(add_root(nodes));
    out_.graph.outputs.push_back({l.outputs[o].name, merged(nodes)});
  }
  out_.graph.set_origin(OriginId{});
  return verify(out_.graph);
}

Result<Sizes> merge_sizes(std::span<const Graph> cases, std::size_t largest, Misfit* misfit) {
  HEDDLE_CHECK(largest < cases.size(), "case {} of {}", largest, cases.size());
  // Twice: what is read with zeros for padding is known in the end. A mask where the value is made
  // costs a comparison for each element; where windows read it, one for each element of each
  // window.
  SizeMerger trial(cases, largest, {});
  if (const Status status = trial.run(); !status) {
    if (misfit != nullptr) *misfit = {status.error(), trial.misfit()};
    return status.error();
  }
  SizeMerger::Zeros zeros = trial.take_wanted();
  if (zeros.empty()) return trial.take();
  SizeMerger merger(cases, largest, std::move(zeros));
  HEDDLE_TRY(merger.run());
  return merger.take();
}

}  // namespace heddle::prim
