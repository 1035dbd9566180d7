// What well-formed models become.
#include <fstream>
#include <memory>

#include "models.h"

namespace heddle::onnx::test {
namespace {

using Values = std::vector<double>;

ModelProto add_one() {
  ModelProto m = model();
  add_input(*m.mutable_graph(), "x", {2});
  add_floats(*m.mutable_graph(), "one", {}, {1});
  add_node(*m.mutable_graph(), "Add", {"x", "one"}, {"y"}, "sum");
  add_output(*m.mutable_graph(), "y");
  return m;
}

TEST(Reader, RunsANode) { EXPECT_EQ(run(add_one(), {f32({2}, {1, 2})}), (Values{2, 3})); }

TEST(Reader, KeepsNamesAndOrigins) {
  const auto graph = read(add_one());
  ASSERT_TRUE(graph.ok());
  EXPECT_EQ(graph->inputs[0].name, "x");
  EXPECT_EQ(graph->outputs[0].name, "y");
  const auto origin = graph->origin(graph->origin_id(graph->outputs[0].node));
  EXPECT_EQ(origin, (prim::Origin{"Add", "sum"}));
}

TEST(Reader, InitializerWinsOverInputOfItsName) {
  ModelProto m = add_one();
  add_input(*m.mutable_graph(), "one", {});
  const auto graph = read(m);
  ASSERT_TRUE(graph.ok());
  EXPECT_EQ(graph->inputs.size(), 1u);
}

TEST(Reader, SortsNodes) {
  ModelProto m = model();
  add_input(*m.mutable_graph(), "x", {1});
  add_node(*m.mutable_graph(), "Neg", {"t"}, {"y"});
  add_node(*m.mutable_graph(), "Exp", {"x"}, {"t"});
  add_output(*m.mutable_graph(), "y");
  EXPECT_EQ(run(m, {f32({1}, {0})}), Values{-1});
}

/// Shape → Gather → Concat → Reshape is arithmetic on constants, because shapes are known.
TEST(Reader, FoldsShapeArithmetic) {
  ModelProto m = model();
  GraphProto& g = *m.mutable_graph();
  add_input(g, "x", {2, 3, 4});
  add_ints(g, "zero", {1}, {0});
  add_ints(g, "rest", {1}, {-1});
  add_node(g, "Shape", {"x"}, {"shape"});
  add_node(g, "Gather", {"shape", "zero"}, {"batch"});
  add_node(g, "Concat", {"batch", "rest"}, {"target"});
  set_int(*g.mutable_node(2), "axis", 0);
  add_node(g, "Reshape", {"x", "target"}, {"y"});
  add_output(g, "y");
  const auto graph = read(m);
  ASSERT_TRUE(graph.ok()) << error_of(graph);
  EXPECT_EQ((*graph)[graph->outputs[0].node].type.shape, (Shape{2, 12}));
}

TEST(Reader, DoesNotFoldWhatIsLarge) {
  ModelProto m = model();
  GraphProto& g = *m.mutable_graph();
  add_ints(g, "shape", {1}, {1 << 20});
  add_node(g, "ConstantOfShape", {"shape"}, {"y"});
  add_output(g, "y");
  ImportOptions options;
  options.fold_elements = 1 << 10;
  const auto graph = read(m, options);
  ASSERT_TRUE(graph.ok());
  EXPECT_EQ(graph->constant_of(graph->outputs[0].node), nullptr);
}

TEST(Reader, AsksForSymbolicExtents) {
  ModelProto m = add_one();
  auto& dim = *m.mutable_graph()
                   ->mutable_input(0)
                   ->mutable_type()
                   ->mutable_tensor_type()
                   ->mutable_shape()
                   ->mutable_dim(0);
  dim.set_dim_param("batch");
  EXPECT_NE(error_of(read(m)).find("--shape x="), std::string::npos) << error_of(read(m));
  ImportOptions options;
  options.shapes["x"] = {3};
  EXPECT_EQ(run(m, {f32({3}, {1, 2, 3})}, options), (Values{2, 3, 4}));
}

TEST(Reader, OneSymbolHasOneExtent) {
  ModelProto m = add_one();
  GraphProto& g = *m.mutable_graph();
  add_input(g, "z", {0});
  for (int i : {0, 1})
    g.mutable_input(i)
        ->mutable_type()
        ->mutable_tensor_type()
        ->mutable_shape()
        ->mutable_dim(0)
        ->set_dim_param("n");
  ImportOptions options;
  options.shapes["x"] = {3};
  const auto graph = read(m, options);
  ASSERT_TRUE(graph.ok()) << error_of(graph);
  EXPECT_EQ(graph->inputs[1].type.shape, Shape{3});
  options.shapes["z"] = {4};
  EXPECT_NE(error_of(read(m, options)).find("'n'"), std::string::npos);
}

TEST(Reader, BoundInputsDecideShapes) {
  ModelProto m = model();
  GraphProto& g = *m.mutable_graph();
  add_input(g, "x", {4});
  add_input(g, "to", {2}, TensorProto::INT64);
  add_node(g, "Reshape", {"x", "to"}, {"y"});
  add_output(g, "y");
  EXPECT_EQ(read(m).error().code, ErrorCode::unsupported);
  ImportOptions options;
  options.values["to"] =
      Tensor::from<std::int64_t>(DType::i64, {2}, std::vector<std::int64_t>{2, 2});
  const auto graph = read(m, options);
  ASSERT_TRUE(graph.ok()) << error_of(graph);
  EXPECT_EQ(graph->inputs.size(), 1u);
  EXPECT_EQ((*graph)[graph->outputs[0].node].type.shape, (Shape{2, 2}));
}

TEST(Reader, CheckFindsEverything) {
  ModelProto m = add_one();
  GraphProto& g = *m.mutable_graph();
  add_node(g, "Nonsense", {"x"}, {"a"}, "first");
  add_node(g, "Exp", {"a"}, {"b"}, "behind it");
  add_node(g, "MatMul", {"x", "missing"}, {"c"}, "second");
  add_output(g, "c");
  const std::string path = testing::TempDir() + "heddle_check.onnx";
  ASSERT_TRUE(m.SerializeToOstream(std::make_unique<std::ofstream>(path).get()));
  const auto report = check(path);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->nodes, 4);
  ASSERT_EQ(report->problems.size(), 2u);
  EXPECT_EQ(report->problems[0].node, "first");
  EXPECT_NE(report->problems[0].reason.find("Nonsense (opset 17) is not supported"),
            std::string::npos);
  EXPECT_EQ(report->problems[1].node, "second");
  EXPECT_NE(report->problems[1].reason.find("'missing'"), std::string::npos);
}

}  // namespace
}  // namespace heddle::onnx::test
