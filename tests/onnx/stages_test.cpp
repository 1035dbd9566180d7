// Strings: numbers in kernels, host operators between stages.
#include "staged.h"
#include "support/text_id.h"

namespace heddle::onnx::test {
namespace {

using Texts = std::vector<std::string>;

Tensor texts(const Shape& shape, const Texts& values) {
  Tensor t({DType::i64, shape});
  for (std::size_t i = 0; i < values.size(); ++i)
    t.set_int(static_cast<std::int64_t>(i), *text_id(values[i]));
  return t;
}
Texts texts_in(const Tensor& t) {
  Texts out;
  for (std::int64_t i = 0; i < t.count(); ++i) out.push_back(text_of(t.int_at(i)).value_or("?"));
  return out;
}

void set_text(NodeProto& n, const std::string& name, const std::string& value) {
  AttributeProto& a = *n.add_attribute();
  a.set_name(name);
  a.set_type(AttributeProto::STRING);
  a.set_s(value);
}
void set_texts(NodeProto& n, const std::string& name, const Texts& values) {
  AttributeProto& a = *n.add_attribute();
  a.set_name(name);
  a.set_type(AttributeProto::STRINGS);
  for (const std::string& value : values) a.add_strings(value);
}

Tensor bytes(const std::string& text) {
  Tensor t({DType::u8, {static_cast<std::int64_t>(text.size())}});
  for (std::size_t i = 0; i < text.size(); ++i)
    t.as_mutable<std::uint8_t>()[i] = static_cast<std::uint8_t>(text[i]);
  return t;
}

/// x → ImageDecoder → Cast to float → sum over the pixels
ModelProto picture_sums() {
  ModelProto m = model(20);
  GraphProto& g = *m.mutable_graph();
  auto& x = *g.add_input();
  add_value(x, "x", {}, TensorProto::UINT8);
  x.mutable_type()->mutable_tensor_type()->mutable_shape()->add_dim()->set_dim_param("n");
  set_text(add_node(g, "ImageDecoder", {"x"}, {"pixels"}), "pixel_format", "BGR");
  set_int(add_node(g, "Cast", {"pixels"}, {"numbers"}), "to", TensorProto::FLOAT);
  add_ints(g, "axes", {2}, {0, 1});
  set_int(add_node(g, "ReduceSum", {"numbers", "axes"}, {"y"}), "keepdims", 0);
  add_value(*g.add_output(), "y", {3});
  return m;
}

/// x → StringSplit → Cast to float → + 1 → Cast to string, and the number of pieces.
ModelProto sums() {
  ModelProto m = model(20);
  GraphProto& g = *m.mutable_graph();
  auto& x = *g.add_input();
  add_value(x, "x", {}, TensorProto::STRING);
  x.mutable_type()->mutable_tensor_type()->mutable_shape()->add_dim()->set_dim_param("n");
  set_text(add_node(g, "StringSplit", {"x"}, {"pieces", "count"}), "delimiter", ",");
  set_int(add_node(g, "Cast", {"pieces"}, {"numbers"}), "to", TensorProto::FLOAT);
  add_floats(g, "one", {}, {1});
  add_node(g, "Add", {"numbers", "one"}, {"more"});
  set_int(add_node(g, "Cast", {"more"}, {"y"}), "to", TensorProto::STRING);
  add_value(*g.add_output(), "y", {}, TensorProto::STRING);
  add_value(*g.add_output(), "count", {}, TensorProto::INT64);
  return m;
}

TEST(Stages, OfPicturesOfSeveralSizes) {
  Staged staged(picture_sums());
  for (const auto& [file, sums] : std::map<std::string, std::vector<double>>{
           {"P3 2 1 255  1 2 3  10 20 30", {33, 22, 11}},
           {"P2 1 2 100  100 # white\n 0", {255, 255, 255}},
           {"not a picture", {0, 0, 0}}}) {  // empty, by the standard
    const auto found = staged.run({{"x", bytes(file)}});
    ASSERT_TRUE(found) << found.error().message;
    for (int c = 0; c < 3; ++c)
      EXPECT_EQ(found->at("y").tensor.at(c), sums[static_cast<std::size_t>(c)]);
  }
}

TEST(Stages, HostOperatorsAndKernelsTakeTurns) {
  Staged model(sums());
  const auto y = model.run({{"x", texts({2}, {"1,2.5", "-3,40"})}});
  ASSERT_TRUE(y.ok()) << y.error().message;
  EXPECT_EQ(texts_in(y->at("y").tensor), (Texts{"2", "3.5", "-2", "41"}));
  EXPECT_EQ(y->at("y").tensor.shape(), (Shape{2, 2}));
  EXPECT_EQ(y->at("y").format, ops::Format::text);
  EXPECT_EQ(y->at("count").tensor.int_at(1), 2);
}

TEST(Stages, AreCompiledOnceForEachShape) {
  Staged model(sums());
  ASSERT_TRUE(model.run({{"x", texts({1}, {"1,2"})}}).ok());
  const int compiled = model.compiled;
  ASSERT_TRUE(model.run({{"x", texts({1}, {"5,6"})}}).ok());
  EXPECT_EQ(model.compiled, compiled);
  const auto wider = model.run({{"x", texts({1}, {"5,6,7"})}});
  ASSERT_TRUE(wider.ok());
  EXPECT_EQ(wider->at("y").tensor.shape(), (Shape{1, 3}));
  EXPECT_GT(model.compiled, compiled);
}

/// Reshape's target is an input: the program holds for its value.
TEST(Stages, SmallInputsThatDecideShapesAreBound) {
  ModelProto m = model(20);
  GraphProto& g = *m.mutable_graph();
  add_input(g, "x", {6});
  add_input(g, "target", {2}, TensorProto::INT64);
  add_node(g, "Reshape", {"x", "target"}, {"y"});
  add_output(g, "y");
  Staged model(m);
  Tensor x({DType::f32, {6}}), target({DType::i64, {2}});
  for (const auto& [rows, columns] : {std::pair{2, 3}, {3, 2}, {3, 2}}) {
    target = Tensor({DType::i64, {2}});
    target.set_int(0, rows);
    target.set_int(1, columns);
    const auto y = model.run({{"x", x}, {"target", target}});
    ASSERT_TRUE(y.ok()) << y.error().message;
    EXPECT_EQ(y->at("y").tensor.shape(), (Shape{rows, columns}));
  }
  EXPECT_EQ(model.compiled, 2);
}

TEST(Stages, WhatIsNoNumberIsAnErrorThatNamesIt) {
  Staged model(sums());
  const auto y = model.run({{"x", texts({1}, {"1,two"})}});
  ASSERT_FALSE(y.ok());
  EXPECT_NE(y.error().message.find("element 1 is 'two', want a number (f32)"), std::string::npos)
      << y.error().message;
}

TEST(Stages, OneProgramRefusesHostOperators) {
  Staged model(sums());
  EXPECT_TRUE(*runs_in_stages(model.path()));
  ImportOptions options;
  options.shapes["x"] = {1};
  const auto graph = import(model.path(), options);
  ASSERT_FALSE(graph.ok());
  EXPECT_EQ(graph.error().code, ErrorCode::unsupported);
  EXPECT_NE(graph.error().message.find("StringSplit 'pieces': it works on the host"),
            std::string::npos)
      << graph.error().message;
}

/// As ONNX Runtime 1.31.
TEST(Stages, UniqueOfStrings) {
  ModelProto m = model(20);
  GraphProto& g = *m.mutable_graph();
  add_input(g, "x", {3, 2}, TensorProto::STRING);
  set_int(add_node(g, "Unique", {"x"}, {"y", "first", "inverse", "counts"}), "axis", 0);
  add_value(*g.add_output(), "y", {}, TensorProto::STRING);
  for (const char* name : {"first", "inverse", "counts"})
    add_value(*g.add_output(), name, {}, TensorProto::INT64);
  Staged staged(m);
  const auto found = staged.run({{"x", texts({3, 2}, {"b", "a", "b", "a", "a", "z"})}});
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(found->at("y").tensor.shape(), (Shape{2, 2}));
  const std::vector<std::string> y{"a", "z", "b", "a"};
  for (std::int64_t i = 0; i < 4; ++i)
    EXPECT_EQ(text_of(found->at("y").tensor.int_at(i)), y[static_cast<std::size_t>(i)]);
  const std::map<std::string, std::vector<std::int64_t>> want{
      {"first", {2, 0}}, {"inverse", {1, 1, 0}}, {"counts", {1, 2}}};
  for (const auto& [name, values] : want)
    for (std::size_t i = 0; i < values.size(); ++i)
      EXPECT_EQ(found->at(name).tensor.int_at(static_cast<std::int64_t>(i)), values[i]) << name;
}

/// Moving and comparing strings needs no host: one graph over their numbers.
TEST(Stages, KernelsMoveAndCompareStrings) {
  ModelProto m = model(20);
  GraphProto& g = *m.mutable_graph();
  add_input(g, "x", {3}, TensorProto::STRING);
  add_ints(g, "order", {2}, {2, 0});
  add_node(g, "Gather", {"x", "order"}, {"y"});
  set_texts(add_node(g, "Constant", {}, {"want"}), "value_strings", {"c", "b"});
  add_node(g, "Equal", {"y", "want"}, {"same"});
  add_value(*g.add_output(), "y", {}, TensorProto::STRING);
  add_value(*g.add_output(), "same", {}, TensorProto::BOOL);
  const std::string bytes = m.SerializeAsString();
  const auto graph =
      import_bytes(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size(), "");
  ASSERT_TRUE(graph.ok()) << graph.error().message;
  const auto out = prim::interpret(*graph, {texts({3}, {"a", "b", "c"})});
  ASSERT_TRUE(out.ok());
  EXPECT_EQ(texts_in((*out)[0]), (Texts{"c", "a"}));
  EXPECT_EQ((*out)[1].int_at(0), 1);
  EXPECT_EQ((*out)[1].int_at(1), 0);
}

TEST(Stages, ArithmeticOnStringsIsRefused) {
  ModelProto m = model(20);
  GraphProto& g = *m.mutable_graph();
  add_input(g, "x", {3}, TensorProto::STRING);
  add_node(g, "Neg", {"x"}, {"y"});
  add_output(g, "y");
  const std::string bytes = m.SerializeAsString();
  const auto graph =
      import_bytes(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size(), "");
  ASSERT_FALSE(graph.ok());
  EXPECT_NE(graph.error().message.find("input 0 is string"), std::string::npos);
}

struct TextRow {
  const char* name;
  const char* op;
  std::function<void(NodeProto&)> attributes;
  Texts input;
  Texts want;
};

TEST(Stages, TextOperators) {
  const TextRow rows[] = {
      {"lower",
       "StringNormalizer",
       [](NodeProto& n) { set_text(n, "case_change_action", "LOWER"); },
       {"ÄB", "Cé"},
       {"äb", "cé"}},
      {"stop",
       "StringNormalizer",
       [](NodeProto& n) { set_texts(n, "stopwords", {"b"}); },
       {"a", "B", "c"},
       {"a", "c"}},
      {"nothing left",
       "StringNormalizer",
       [](NodeProto& n) { set_texts(n, "stopwords", {"a"}); },
       {"a"},
       {""}},
      {"spaces", "StringSplit", [](NodeProto&) {}, {"  a  b "}, {"a", "b"}},
      {"one cut",
       "StringSplit",
       [](NodeProto& n) { set_int(n, "maxsplit", 1); },
       {" a  b c "},
       {"a", "b c"}},
      {"padded",
       "StringSplit",
       [](NodeProto& n) { set_text(n, "delimiter", "--"); },
       {"a--b", "", "--c--"},
       {"a", "b", "", "", "", "", "", "c", ""}},
  };
  for (const TextRow& row : rows) {
    ModelProto m = model(20);
    GraphProto& g = *m.mutable_graph();
    add_input(g, "x", {static_cast<std::int64_t>(row.input.size())}, TensorProto::STRING);
    row.attributes(add_node(g, row.op, {"x"}, {"y"}));
    add_value(*g.add_output(), "y", {}, TensorProto::STRING);
    Staged model(m);
    const auto y =
        model.run({{"x", texts({static_cast<std::int64_t>(row.input.size())}, row.input)}});
    ASSERT_TRUE(y.ok()) << row.name << ": " << y.error().message;
    EXPECT_EQ(texts_in(y->at("y").tensor), row.want) << row.name;
  }
}

TEST(Stages, ABadPatternIsAnError) {
  ModelProto m = model(20);
  GraphProto& g = *m.mutable_graph();
  add_input(g, "x", {1}, TensorProto::STRING);
  set_text(add_node(g, "RegexFullMatch", {"x"}, {"y"}), "pattern", "(");
  add_value(*g.add_output(), "y", {}, TensorProto::BOOL);
  Staged model(m);
  const auto y = model.run({{"x", texts({1}, {"a"})}});
  ASSERT_FALSE(y.ok());
  EXPECT_NE(y.error().message.find("attribute 'pattern' is '('"), std::string::npos);
}

}  // namespace
}  // namespace heddle::onnx::test
