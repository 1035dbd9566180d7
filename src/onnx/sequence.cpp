// Sequences and optional values: lists of known length, which exist only while importing.
#include <algorithm>

#include "onnx/importer.h"

namespace heddle::onnx {

using ::onnx::NodeProto;
using prim::NodeId;

namespace {

constexpr std::size_t kMaxItems = 1 << 12;

constexpr std::string_view kSequenceOps[] = {
    "SequenceEmpty", "SequenceConstruct",  "SequenceInsert",    "SequenceErase",
    "SequenceAt",    "SequenceLength",     "SplitToSequence",   "ConcatFromSequence",
    "Optional",      "OptionalGetElement", "OptionalHasElement"};

}  // namespace

bool Importer::is_sequence_operator(const std::string& op) {
  return std::find(std::begin(kSequenceOps), std::end(kSequenceOps), op) != std::end(kSequenceOps);
}

std::optional<Status> Importer::add_sequence_node(const NodeProto& node, int opset, Scope& scope) {
  const bool known = is_sequence_operator(node.op_type());
  bool identity = false;  // Identity passes a sequence on; of tensors it is an ordinary operator
  if (node.op_type() == "Identity" && node.input_size() == 1) {
    const Value* value = scope.find(node.input(0));
    identity = value != nullptr &&
               (value->kind == Value::Kind::sequence || value->kind == Value::Kind::absent ||
                value->kind == Value::Kind::bounded);
  }
  if (!known && !identity) return std::nullopt;
  graph_.set_origin(prim::Origin{node.op_type(), label_of(node)});
  for (int i = 0; i < node.input_size(); ++i) {
    const Result<const Value*> value = argument(node, i, scope);
    if (!value) return Status(value.error());
    if ((*value)->kind == Value::Kind::unknown)  // has been reported
      return bind_outputs(node, std::vector<Value>(static_cast<std::size_t>(node.output_size())),
                          scope);
  }
  const Result<Value> result = sequence_result(node, opset, scope);
  if (!result) return Status(result.error());
  if (result->items.size() > kMaxItems)
    return Status(node_unsupported(node, "the sequence has more than {} items", kMaxItems));
  return bind_outputs(node, {*result}, scope);
}

/// Input i, a constant integer, as a position in [0, count); negative ones count from the end.
Result<std::size_t> Importer::position(const NodeProto& node, int i, std::size_t count,
                                       const Scope& scope) {
  const auto at = known_int(HEDDLE_TRY(argument(node, i, scope)));
  if (!at) {
    wanted_ = {i};
    return node_unsupported(node, "input {} is computed while running, want a constant", i);
  }
  const auto n = static_cast<std::int64_t>(count);
  if (*at < -n || *at >= n)
    return node_error(node, "position {} of a sequence of {} items", *at, n);
  return static_cast<std::size_t>(*at < 0 ? *at + n : *at);
}

Result<Value> Importer::sequence_result(const NodeProto& node, int opset, const Scope& scope) {
  const std::string& op = node.op_type();
  const Value first = *HEDDLE_TRY(argument(node, 0, scope));
  if (op == "SequenceEmpty") return Value::list({});
  if (op == "Identity" || op == "Optional") return first;
  if (op == "OptionalHasElement")
    return Value::of(builder_.scalar_int(DType::b1, first.kind != Value::Kind::absent));
  if (op == "OptionalGetElement") {
    if (first.kind == Value::Kind::absent) return node_error(node, "the optional value is absent");
    return first;
  }
  if (op == "SplitToSequence") return split_to_sequence(node, scope);
  if (op == "SequenceConstruct") {
    std::vector<NodeId> items;
    for (int i = 0; i < node.input_size(); ++i) {
      const Value* item = HEDDLE_TRY(argument(node, i, scope));
      if (!item->is_tensor()) return node_error(node, "input {} is no tensor", i);
      items.push_back(item->node());
    }
    return Value::list(std::move(items));
  }
  if (first.kind != Value::Kind::sequence) return node_error(node, "input 0 is no sequence");
  std::vector<NodeId> items = first.items;
  if (op == "SequenceLength")
    return Value::of(builder_.scalar_int(DType::i64, static_cast<std::int64_t>(items.size())));
  if (op == "ConcatFromSequence") return concat_from_sequence(node, opset, scope);
  if (op == "SequenceAt")
    return Value::of(items[HEDDLE_TRY(position(node, 1, items.size(), scope))]);
  if (op == "SequenceErase") {
    if (items.empty()) return node_error(node, "the sequence is empty");
    const std::size_t at = node.input_size() > 1
                               ? HEDDLE_TRY(position(node, 1, items.size(), scope))
                               : items.size() - 1;
    items.erase(items.begin() + static_cast<std::ptrdiff_t>(at));
    return Value::list(std::move(items));
  }
  // SequenceInsert: before a position, which may be one past the end; at the end if not given.
  const Value* item = HEDDLE_TRY(argument(node, 1, scope));
  if (!item->is_tensor()) return node_error(node, "input 1 is no tensor");
  std::size_t at = items.size();
  if (node.input_size() > 2) {
    const auto given = known_int(HEDDLE_TRY(argument(node, 2, scope)));
    const auto n = static_cast<std::int64_t>(items.size());
    if (!given) {
      wanted_ = {2};
      return node_unsupported(node, "input 2 is computed while running, want a constant");
    }
    if (*given < -n || *given > n)
      return node_error(node, "position {} of a sequence of {} items", *given, n);
    at = static_cast<std::size_t>(*given < 0 ? *given + n : *given);
  }
  items.insert(items.begin() + static_cast<std::ptrdiff_t>(at), item->node());
  return Value::list(std::move(items));
}

/// `split` is absent (slices of extent 1, which lose the axis unless keepdims), one extent for all
/// but the last, or one extent each.
Result<Value> Importer::split_to_sequence(const NodeProto& node, const Scope& scope) {
  const Value input = *HEDDLE_TRY(argument(node, 0, scope));
  const Value split = *HEDDLE_TRY(argument(node, 1, scope));
  if (!input.is_tensor()) return node_error(node, "input 0 is no tensor");
  const Shape shape = builder_.shape(input.node());
  const auto rank = static_cast<std::int64_t>(shape.size());
  std::int64_t axis = int_attribute(node, "axis", 0);
  if (axis < -rank || axis >= rank)
    return node_error(node, "axis is {}, want one in [{}, {})", axis, -rank, rank);
  if (axis < 0) axis += rank;
  const std::int64_t extent = shape[static_cast<std::size_t>(axis)];
  const bool absent = split.kind == Value::Kind::absent;
  std::vector<std::int64_t> parts;
  const auto equal_parts = [&](std::int64_t size) {
    for (std::int64_t at = 0; at < extent && parts.size() <= kMaxItems; at += size)
      parts.push_back(std::min(size, extent - at));
  };
  if (absent) {
    equal_parts(1);
  } else {
    const Tensor* sizes = split.is_tensor() ? graph_.constant_of(split.node()) : nullptr;
    if (sizes == nullptr) wanted_ = {1};
    if (sizes == nullptr || sizes->count() > static_cast<std::int64_t>(kMaxItems))
      return node_unsupported(node, "input 1 is computed while running or long, want a constant");
    if (sizes->shape().empty()) {
      if (sizes->int_at(0) < 1) return node_error(node, "the split is {}", sizes->int_at(0));
      equal_parts(sizes->int_at(0));
    } else {
      for (std::int64_t i = 0; i < sizes->count(); ++i) parts.push_back(sizes->int_at(i));
    }
  }
  const bool drop = absent && int_attribute(node, "keepdims", 1) == 0;
  std::vector<NodeId> items;
  std::int64_t at = 0;
  for (const std::int64_t size : parts) {
    if (size < 0 || size > extent - at)
      return node_error(node, "the split does not fit extent {}", extent);
    NodeId item = builder_.slice_axis(input.node(), static_cast<int>(axis), at, size);
    if (drop) item = builder_.squeeze(item, {static_cast<int>(axis)});
    items.push_back(folded(item));
    at += size;
  }
  if (at != extent && items.size() <= kMaxItems)
    return node_error(node, "the split covers {} of extent {}", at, extent);
  return Value::list(std::move(items));
}

/// Concat of the items, or a stack along a new axis.
Result<Value> Importer::concat_from_sequence(const NodeProto& node, int opset, const Scope& scope) {
  const Value input = *HEDDLE_TRY(argument(node, 0, scope));
  if (input.items.empty()) return node_error(node, "the sequence is empty");
  ops::Call call;
  call.op = "Concat";
  call.name = label_of(node);
  call.opset = opset;
  call.graph = &graph_;
  call.output_used = {true};
  std::int64_t axis = int_attribute(node, "axis", 0);
  const bool fresh = int_attribute(node, "new_axis", 0) != 0;
  const std::int64_t rank = builder_.rank(input.items[0]) + fresh;
  if (axis < -rank || axis >= rank)
    return node_error(node, "axis is {}, want one in [{}, {})", axis, -rank, rank);
  if (axis < 0) axis += rank;
  for (const NodeId item : input.items) {
    if (builder_.rank(item) + fresh != rank) return node_error(node, "items differ in rank");
    call.args.emplace_back(fresh ? builder_.unsqueeze(item, {static_cast<int>(axis)}) : item);
  }
  call.attributes.emplace("axis", axis);
  return Value::of(folded(HEDDLE_TRY(expand(call))[0]));
}

}  // namespace heddle::onnx
