#pragma once
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "onnx/protobuf.h"
#include "onnx/reader.h"

namespace heddle::onnx {

/// Parses a serialised ModelProto, with protobuf's recursion limit against nesting bombs.
Result<std::shared_ptr<const ::onnx::ModelProto>> parse_model(const std::byte* data,
                                                              std::size_t size);
/// The same from a file, which is never in memory as a whole.
Result<std::shared_ptr<const ::onnx::ModelProto>> parse_model_file(const std::string& path);

/// A parsed model and the folder where its external data may lie.
struct Loaded {
  std::shared_ptr<const ::onnx::ModelProto> model;
  std::string folder;
};
/// Reads an ONNX file, or the model.onnx of a test-data folder.
Result<Loaded> load_model(const std::string& path);

/// Tensors whose data lie in other files: initializers and attributes, those of bodies and of
/// functions too.
std::vector<const ::onnx::TensorProto*> external_tensors(const ::onnx::ModelProto& model);

/// Positions of a graph's nodes in an order in which every value is made before it is used. ONNX
/// asks for such an order; files that lack it are sorted, cyclic ones are an error that names a
/// node.
Result<std::vector<int>> execution_order(
    const google::protobuf::RepeatedPtrField<::onnx::NodeProto>& nodes);

/// What a port holds, and the type of its tensors: its own, its items' or its optional value's.
struct PortType {
  Port::Kind kind = Port::Kind::other;
  const ::onnx::TypeProto::Tensor* tensor = nullptr;  ///< null for `other`
};
PortType port_type(const ::onnx::TypeProto& type);
/// The element type of a model input or output (`kind`), which must be made of tensors.
Result<DType> tensor_type(const ::onnx::ValueInfoProto& port, std::string_view kind);

/// Names a node reads: its inputs, and what its bodies read from around them.
std::set<std::string> names_read(const ::onnx::NodeProto& node);
/// Names a body reads from around it.
std::set<std::string> names_read(const ::onnx::GraphProto& body);
/// Defaults of a function's attributes (ONNX IR 9 and up).
std::vector<::onnx::AttributeProto> default_attributes(const ::onnx::FunctionProto& function);
/// Which of several functions of one name (ONNX IR 10 and up); mostly empty.
std::string overload_of(const ::onnx::FunctionProto& function);
std::string overload_of(const ::onnx::NodeProto& node);
/// The node's name, or that of its first output.
std::string label_of(const ::onnx::NodeProto& node);

}  // namespace heddle::onnx
