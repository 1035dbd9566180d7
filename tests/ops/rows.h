#pragma once
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "ops/ops.h"

/// Operator tests are rows: an operator, its attributes and inputs, and what comes out of the
/// reference interpreter, or the error that a malformed use gives.
namespace heddle::ops::rows {

struct Value {
  TensorType type;
  std::vector<double> data;
  bool known = false;   ///< a constant of the model, not an input
  bool absent = false;  ///< an optional input that is left out
};
inline Value tensor(DType type, Shape shape, std::vector<double> data) {
  return {{type, std::move(shape)}, std::move(data)};
}
inline Value f32(Shape shape, std::vector<double> data) {
  return tensor(DType::f32, std::move(shape), std::move(data));
}
inline Value i64(Shape shape, std::vector<double> data) {
  return tensor(DType::i64, std::move(shape), std::move(data));
}
inline Value b1(Shape shape, std::vector<double> data) {
  return tensor(DType::b1, std::move(shape), std::move(data));
}
/// 0, 1, 2, … as f32.
inline Value count_up(Shape shape) {
  Value v{{DType::f32, std::move(shape)}, {}};
  for (std::int64_t i = 0; i < element_count(v.type.shape); ++i)
    v.data.push_back(static_cast<double>(i));
  return v;
}
inline Value known(Value v) {
  v.known = true;
  return v;
}
/// A constant vector of i64.
inline Value ints(std::vector<double> data) {
  const auto n = static_cast<std::int64_t>(data.size());
  return known(i64({n}, std::move(data)));
}
inline Value none() { return {.type = {}, .data = {}, .known = false, .absent = true}; }

using Attributes = std::map<std::string, Attribute, std::less<>>;
using Ints = std::vector<std::int64_t>;
using Reals = std::vector<double>;
using Texts = std::vector<std::string>;
inline Attribute text(const char* s) { return std::string(s); }
inline Value u8(Shape shape, std::vector<double> data) {
  return tensor(DType::u8, std::move(shape), std::move(data));
}
inline Value i8(Shape shape, std::vector<double> data) {
  return tensor(DType::i8, std::move(shape), std::move(data));
}
inline Value one(double value) { return f32({}, {value}); }
/// An operator of com.microsoft.
inline std::string ms(const char* op) { return std::string("com.microsoft::") + op; }

struct Row {
  std::string name;  ///< of the test: letters, digits, _
  std::string op;
  int opset = 17;
  Attributes attributes;
  std::vector<Value> inputs;
  std::vector<Value> want;
  std::string error;  ///< a part of the message, when the use is wrong
};
inline std::string name_of_row(const testing::TestParamInfo<Row>& info) { return info.param.name; }

struct Built {
  prim::Graph graph;
  std::vector<Tensor> inputs;
};
/// The operator's primitives (or, where the host computes it, what that makes), with its first
/// output and all that the row wants.
Result<Built> build(const Row& row);
/// Builds the operator, interprets it, compares: shapes and types exactly, values to 1e-5.
void check(const Row& row);

/// The rows of each test file.
std::vector<Row> shape_rows();
std::vector<Row> index_rows();
std::vector<Row> reduce_rows();
std::vector<Row> gather_rows();
std::vector<Row> resize_rows();
std::vector<Row> vision_rows();
std::vector<Row> recurrent_rows();
std::vector<Row> signal_rows();
std::vector<Row> attention_rows();
std::vector<Row> quantize_rows();
std::vector<Row> contrib_rows();
std::vector<Row> layer_rows();
std::vector<Row> classical_rows();
std::vector<Row> misc_rows();
std::vector<Row> bounded_rows();
/// Valid uses of operators that have no rows of results.
std::vector<Row> seeds();
/// All of these.
std::vector<Row> all_rows();

class OpRows : public testing::TestWithParam<Row> {};

}  // namespace heddle::ops::rows
