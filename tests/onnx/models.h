#pragma once
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "onnx/protobuf.h"
#include "onnx/reader.h"
#include "prim/builder.h"
#include "prim/interpret.h"

/// Small models made in place, read and interpreted.
namespace heddle::onnx::test {

using ::onnx::AttributeProto;
using ::onnx::GraphProto;
using ::onnx::ModelProto;
using ::onnx::NodeProto;
using ::onnx::TensorProto;

inline ModelProto model(int opset = 17) {
  ModelProto m;
  m.set_ir_version(8);
  m.add_opset_import()->set_version(opset);
  m.mutable_graph()->set_name("g");
  return m;
}
inline void add_value(::onnx::ValueInfoProto& v, const std::string& name, const Shape& shape,
                      int type = TensorProto::FLOAT) {
  v.set_name(name);
  auto* tensor = v.mutable_type()->mutable_tensor_type();
  tensor->set_elem_type(type);
  tensor->mutable_shape();
  for (const std::int64_t extent : shape) tensor->mutable_shape()->add_dim()->set_dim_value(extent);
}
inline void add_input(GraphProto& g, const std::string& name, const Shape& shape,
                      int type = TensorProto::FLOAT) {
  add_value(*g.add_input(), name, shape, type);
}
inline void add_output(GraphProto& g, const std::string& name, int type = TensorProto::FLOAT) {
  add_value(*g.add_output(), name, {}, type);
}
inline NodeProto& add_node(GraphProto& g, const std::string& op,
                           const std::vector<std::string>& inputs,
                           const std::vector<std::string>& outputs, const std::string& name = "") {
  NodeProto& n = *g.add_node();
  n.set_op_type(op);
  n.set_name(name);
  for (const std::string& i : inputs) n.add_input(i);
  for (const std::string& o : outputs) n.add_output(o);
  return n;
}
inline void set_ints(NodeProto& n, const std::string& name,
                     const std::vector<std::int64_t>& values) {
  AttributeProto& a = *n.add_attribute();
  a.set_name(name);
  a.set_type(AttributeProto::INTS);
  for (const std::int64_t v : values) a.add_ints(v);
}
inline void set_int(NodeProto& n, const std::string& name, std::int64_t value) {
  AttributeProto& a = *n.add_attribute();
  a.set_name(name);
  a.set_type(AttributeProto::INT);
  a.set_i(value);
}
inline GraphProto& set_graph(NodeProto& n, const std::string& name) {
  AttributeProto& a = *n.add_attribute();
  a.set_name(name);
  a.set_type(AttributeProto::GRAPH);
  return *a.mutable_g();
}
inline TensorProto& add_ints(GraphProto& g, const std::string& name, const Shape& shape,
                             const std::vector<std::int64_t>& values) {
  TensorProto& t = *g.add_initializer();
  t.set_name(name);
  t.set_data_type(TensorProto::INT64);
  for (const std::int64_t extent : shape) t.add_dims(extent);
  for (const std::int64_t v : values) t.add_int64_data(v);
  return t;
}
inline TensorProto& add_floats(GraphProto& g, const std::string& name, const Shape& shape,
                               const std::vector<float>& values) {
  TensorProto& t = *g.add_initializer();
  t.set_name(name);
  t.set_data_type(TensorProto::FLOAT);
  for (const std::int64_t extent : shape) t.add_dims(extent);
  for (const float v : values) t.add_float_data(v);
  return t;
}

inline Result<prim::Graph> read(const ModelProto& m, const ImportOptions& options = {},
                                const std::string& folder = "") {
  const std::string bytes = m.SerializeAsString();
  return import_bytes(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size(), folder,
                      options);
}
inline std::string error_of(const Result<prim::Graph>& graph) {
  return graph ? "" : graph.error().message;
}
inline Tensor f32(Shape shape, const std::vector<float>& values) {
  return Tensor::from<float>(DType::f32, std::move(shape), values);
}
/// Output 0 of the model for these inputs, as doubles; empty, and a failure, if that cannot be.
inline std::vector<double> run(const ModelProto& m, const std::vector<Tensor>& inputs = {},
                               const ImportOptions& options = {}) {
  const auto graph = read(m, options);
  EXPECT_TRUE(graph.ok()) << error_of(graph);
  if (!graph) return {};
  const Status sound = prim::verify(*graph);
  EXPECT_TRUE(sound.ok());
  const auto outputs = prim::interpret(*graph, inputs);
  EXPECT_TRUE(outputs.ok());
  if (!outputs) return {};
  std::vector<double> values;
  for (std::int64_t i = 0; i < (*outputs)[0].count(); ++i) values.push_back((*outputs)[0].at(i));
  return values;
}

}  // namespace heddle::onnx::test
