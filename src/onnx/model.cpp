#include "onnx/model.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/unknown_field_set.h>
#include <sys/mman.h>

#include <cstring>
#include <filesystem>
#include <set>
#include <unordered_map>

#include "onnx/tensor_file.h"

namespace heddle::onnx {

namespace fs = std::filesystem;

std::string model_file(const std::string& path) {
  std::error_code error;
  return fs::is_directory(path, error) ? (fs::path(path) / "model.onnx").string() : path;
}

namespace {

constexpr std::size_t kMostBytes = 0x7fffffff;

Result<std::shared_ptr<const ::onnx::ModelProto>> parse_stream(
    google::protobuf::io::ZeroCopyInputStream& stream, std::size_t size) {
  if (size == 0) return fail("the model is empty");
  if (size > kMostBytes)
    return unsupported("the model has {} bytes, protobuf files end at 2 GB", size);
  google::protobuf::io::CodedInputStream coded(&stream);
  coded.SetTotalBytesLimit(0x7fffffff);
  coded.SetRecursionLimit(400);  // four levels for each branch in a branch
  auto model = std::make_shared<::onnx::ModelProto>();
  if (!model->ParseFromCodedStream(&coded) || !coded.ConsumedEntireMessage())
    return fail("not an ONNX model: the file is damaged, truncated, or something else");
  if (!model->has_graph()) return fail("not an ONNX model: it holds no graph");
  return std::shared_ptr<const ::onnx::ModelProto>(std::move(model));
}

/// A mapped file, block by block; what has been read need not stay in memory.
class FileStream final : public google::protobuf::io::CopyingInputStream {
 public:
  explicit FileStream(const FileBytes& file) : file_(file) {}
  int Read(void* buffer, int size) override {
    const std::size_t count = std::min(static_cast<std::size_t>(size), file_.size - at_);
    std::memcpy(buffer, file_.data + at_, count);
    at_ += count;
    constexpr std::size_t kBlock = std::size_t{4} << 20;
    if (at_ - dropped_ >= kBlock) {
      auto* begin =
          const_cast<std::byte*>(file_.data + dropped_);  // of a file: read again if need be
      ::madvise(begin, kBlock, MADV_DONTNEED);
      dropped_ += kBlock;
    }
    return static_cast<int>(count);
  }

 private:
  const FileBytes& file_;
  std::size_t at_ = 0, dropped_ = 0;
};

}  // namespace

Result<std::shared_ptr<const ::onnx::ModelProto>> parse_model(const std::byte* data,
                                                              std::size_t size) {
  google::protobuf::io::ArrayInputStream stream(data, static_cast<int>(std::min(size, kMostBytes)));
  return parse_stream(stream, size);
}

Result<std::shared_ptr<const ::onnx::ModelProto>> parse_model_file(const std::string& path) {
  const FileBytes file = HEDDLE_TRY(map_file(path));
  FileStream blocks(file);
  google::protobuf::io::CopyingInputStreamAdaptor stream(&blocks, 1 << 16);
  auto model = parse_stream(stream, file.size);
  if (!model) return fail(model.error().code, "{}: {}", path, model.error().message);
  return model;
}

namespace {

/// Values of a field that the installed onnx.proto does not have yet, as they are stored.
template <class Message>
std::vector<std::string> newer_field(const Message& message, int number) {
  std::vector<std::string> values;
  const auto& fields = message.unknown_fields();
  for (int i = 0; i < fields.field_count(); ++i)
    if (fields.field(i).number() == number &&
        fields.field(i).type() == google::protobuf::UnknownField::TYPE_LENGTH_DELIMITED)
      values.push_back(fields.field(i).length_delimited());
  return values;
}

template <class Message>
std::string newer_text(const Message& message, int number) {
  const auto values = newer_field(message, number);
  return values.empty() ? "" : values.back();
}

}  // namespace

std::vector<::onnx::AttributeProto> default_attributes(const ::onnx::FunctionProto& function) {
  std::vector<::onnx::AttributeProto> attributes;
  for (const std::string& bytes : newer_field(function, 11))
    if (::onnx::AttributeProto a; a.ParseFromString(bytes)) attributes.push_back(std::move(a));
  return attributes;
}
std::string overload_of(const ::onnx::FunctionProto& function) { return newer_text(function, 13); }
std::string overload_of(const ::onnx::NodeProto& node) { return newer_text(node, 8); }

std::string label_of(const ::onnx::NodeProto& node) {
  if (!node.name().empty()) return node.name();
  return node.output_size() > 0 ? node.output(0) : std::string();
}

PortType port_type(const ::onnx::TypeProto& type) {
  using Kind = Port::Kind;
  if (type.has_tensor_type()) return {Kind::tensor, &type.tensor_type()};
  if (type.has_sequence_type() && type.sequence_type().elem_type().has_tensor_type())
    return {Kind::sequence, &type.sequence_type().elem_type().tensor_type()};
  if (!type.has_optional_type()) return {};
  const PortType inner = port_type(type.optional_type().elem_type());
  if (inner.kind == Kind::tensor) return {Kind::optional, inner.tensor};
  if (inner.kind == Kind::sequence) return {Kind::optional_sequence, inner.tensor};
  return {};
}

Result<DType> tensor_type(const ::onnx::ValueInfoProto& port, std::string_view kind) {
  const PortType found = port_type(port.type());
  if (found.tensor == nullptr)
    return unsupported("{} '{}': {} not supported, want tensors", kind, port.name(),
                       port.type().has_map_type()             ? "maps are"
                       : port.type().has_sparse_tensor_type() ? "sparse tensors are"
                       : port.type().value_case() == ::onnx::TypeProto::VALUE_NOT_SET
                           ? "a value without a type is"
                           : "nested sequences and optional values are");
  Result<DType> type = dtype_from_onnx(found.tensor->elem_type());
  if (!type) return fail(type.error().code, "{} '{}': {}", kind, port.name(), type.error().message);
  return type;
}

namespace {

/// Names that a body makes itself may be among them; protobuf's recursion limit bounds the depth.
void collect_reads(const ::onnx::NodeProto& node, std::set<std::string>& names) {
  names.insert(node.input().begin(), node.input().end());
  for (const auto& attribute : node.attribute())
    if (attribute.has_g()) names.merge(names_read(attribute.g()));
}

}  // namespace

std::set<std::string> names_read(const ::onnx::GraphProto& body) {
  std::set<std::string> inner;
  for (const auto& nested : body.node()) collect_reads(nested, inner);
  for (const auto& output : body.output()) inner.insert(output.name());
  for (const auto& nested : body.node())
    for (const std::string& output : nested.output()) inner.erase(output);
  for (const auto& input : body.input()) inner.erase(input.name());
  return inner;
}

std::set<std::string> names_read(const ::onnx::NodeProto& node) {
  std::set<std::string> names;
  collect_reads(node, names);
  return names;
}

Result<std::vector<int>> execution_order(
    const google::protobuf::RepeatedPtrField<::onnx::NodeProto>& nodes) {
  std::unordered_map<std::string, int> producer;
  for (int i = 0; i < nodes.size(); ++i)
    for (const std::string& output : nodes[i].output())
      if (!output.empty() && !producer.emplace(output, i).second)
        return fail("value '{}' is made by two nodes", output);
  std::vector<std::vector<int>> users(static_cast<std::size_t>(nodes.size()));
  std::vector<int> waiting(static_cast<std::size_t>(nodes.size()), 0);
  for (int i = 0; i < nodes.size(); ++i) {
    std::set<int> sources;
    for (const std::string& name : names_read(nodes[i]))
      if (const auto p = producer.find(name); p != producer.end()) sources.insert(p->second);
    for (const int source : sources) users[static_cast<std::size_t>(source)].push_back(i);
    waiting[static_cast<std::size_t>(i)] = static_cast<int>(sources.size());
  }
  std::set<int> ready;  // smallest first: the file's order where it is valid
  for (int i = 0; i < nodes.size(); ++i)
    if (waiting[static_cast<std::size_t>(i)] == 0) ready.insert(i);
  std::vector<int> order;
  while (!ready.empty()) {
    const int i = *ready.begin();
    ready.erase(ready.begin());
    order.push_back(i);
    for (int user : users[static_cast<std::size_t>(i)])
      if (--waiting[static_cast<std::size_t>(user)] == 0) ready.insert(user);
  }
  for (int i = 0; i < nodes.size(); ++i)
    if (waiting[static_cast<std::size_t>(i)] != 0)
      return fail("{} '{}': it is part of a cycle", nodes[i].op_type(), label_of(nodes[i]));
  return order;
}

Result<Ports> ports(const std::string& path) {
  const auto model = HEDDLE_TRY(parse_model_file(model_file(path)));
  std::set<std::string> given;
  for (const auto& tensor : model->graph().initializer()) given.insert(tensor.name());
  Ports out;
  const auto port = [](const auto& declared) {
    const PortType type = port_type(declared.type());
    return Port{declared.name(), type.kind,
                type.tensor != nullptr && type.tensor->elem_type() == ::onnx::TensorProto::STRING};
  };
  for (const auto& input : model->graph().input())
    if (!given.contains(input.name())) out.inputs.push_back(port(input));
  for (const auto& output : model->graph().output()) out.outputs.push_back(port(output));
  return out;
}

namespace {

using Tensors = std::vector<const ::onnx::TensorProto*>;

void add_external(const ::onnx::TensorProto& tensor, Tensors& all) {
  if (tensor.data_location() == ::onnx::TensorProto::EXTERNAL) all.push_back(&tensor);
}
void add_external(const ::onnx::NodeProto& node, Tensors& all);
void add_external(const ::onnx::GraphProto& graph, Tensors& all) {
  for (const auto& tensor : graph.initializer()) add_external(tensor, all);
  for (const auto& node : graph.node()) add_external(node, all);
}
void add_external(const ::onnx::NodeProto& node, Tensors& all) {
  for (const auto& attribute : node.attribute()) {
    add_external(attribute.t(), all);
    for (const auto& tensor : attribute.tensors()) add_external(tensor, all);
    add_external(attribute.g(), all);
    for (const auto& graph : attribute.graphs()) add_external(graph, all);
  }
}

}  // namespace

std::vector<const ::onnx::TensorProto*> external_tensors(const ::onnx::ModelProto& model) {
  Tensors all;
  add_external(model.graph(), all);
  for (const auto& function : model.functions())
    for (const auto& node : function.node()) add_external(node, all);
  return all;
}

std::vector<std::string> model_files(const std::string& path) {
  const fs::path model = model_file(path);
  std::vector<std::string> files{model.string()};
  const auto parsed = parse_model_file(files[0]);
  if (!parsed) return files;
  std::set<std::string> names;
  for (const ::onnx::TensorProto* tensor : external_tensors(**parsed))
    for (const auto& entry : tensor->external_data())
      if (entry.key() == "location") names.insert(entry.value());
  for (const std::string& name : names) files.push_back((model.parent_path() / name).string());
  return files;
}

}  // namespace heddle::onnx
