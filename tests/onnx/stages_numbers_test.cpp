// Numbers that the model computes itself decide shapes, branches, and how often loops run.
#include <algorithm>

#include "staged.h"

namespace heddle::onnx::test {
namespace {

using Values = std::vector<double>;

Values values_of(const Result<std::map<std::string, Output>>& outputs, const std::string& name) {
  EXPECT_TRUE(outputs.ok()) << (outputs ? "" : outputs.error().message);
  if (!outputs || !outputs->contains(name)) return {-12345};
  const Tensor& t = outputs->at(name).tensor;
  Values values;
  for (std::int64_t i = 0; i < t.count(); ++i) values.push_back(t.at(i));
  return values;
}
Shape shape_of(const Result<std::map<std::string, Output>>& outputs, const std::string& name) {
  return outputs ? outputs->at(name).tensor.shape() : Shape{-1};
}
Tensor number(std::int64_t value) {
  Tensor t({DType::i64, {}});
  t.set_int(0, value);
  return t;
}
/// An output of any shape.
void add_free_output(GraphProto& g, const std::string& name, int type = TensorProto::FLOAT) {
  auto& output = *g.add_output();
  output.set_name(name);
  output.mutable_type()->mutable_tensor_type()->set_elem_type(type);
}
int count_contractions(const prim::Graph& graph) {
  int count = 0;
  for (const prim::NodeId id : prim::live_nodes(graph))
    count += std::holds_alternative<prim::Contract>(graph[id].op);
  return count;
}

/// s = x; n times: s = s·2 + k, where k = x0 is captured; scans give each s.
ModelProto counted_loop() {
  ModelProto m = model();
  GraphProto& g = *m.mutable_graph();
  add_input(g, "x", {2});
  add_input(g, "n", {}, TensorProto::INT64);
  add_floats(g, "two", {}, {2});
  add_node(g, "Neg", {"x"}, {"k"});
  NodeProto& n = add_node(g, "Loop", {"n", "", "x"}, {"y", "each"});
  GraphProto& body = set_graph(n, "body");
  add_input(body, "i", {}, TensorProto::INT64);
  add_input(body, "go", {}, TensorProto::BOOL);
  add_input(body, "s", {2});
  add_node(body, "Identity", {"go"}, {"on"});
  add_node(body, "Mul", {"s", "two"}, {"t"});
  add_node(body, "Add", {"t", "k"}, {"u"});
  add_node(body, "Identity", {"u"}, {"out"});
  add_value(*body.add_output(), "on", {}, TensorProto::BOOL);
  add_value(*body.add_output(), "u", {2});
  add_value(*body.add_output(), "out", {2});
  add_output(g, "y");
  add_free_output(g, "each");
  return m;
}

TEST(StagesOfNumbers, ALoopRunsAsOftenAsAnInputSays) {
  Staged staged(counted_loop());
  const Tensor x = f32({2}, {1, 3});
  // s ← 2s − x leaves x as it is; from another start it would not.
  for (const int n : {3, 5, 0}) {
    const auto y = staged.run({{"x", x}, {"n", number(n)}});
    EXPECT_EQ(values_of(y, "y"), (Values{1, 3})) << n;
    EXPECT_EQ(shape_of(y, "each"), (Shape{n, 2}));
  }
  EXPECT_EQ(staged.compiled, 2) << "the stage before the loop, and one body for any count";
}

TEST(StagesOfNumbers, OneProgramRefusesSuchALoop) {
  EXPECT_NE(error_of(read(counted_loop())).find("Loop 'y': how often it runs"), std::string::npos);
}

/// Halves s until its sum is below 1, and notes the sums; how often depends on the values.
ModelProto halving() {
  ModelProto m = model();
  GraphProto& g = *m.mutable_graph();
  add_input(g, "x", {2});
  add_floats(g, "half", {}, {0.5});
  add_floats(g, "one", {}, {1});
  add_node(g, "ReduceSum", {"x"}, {"sum0"});
  add_node(g, "Squeeze", {"sum0"}, {"sum"});
  add_node(g, "Less", {"one", "sum"}, {"start"});
  NodeProto& n = add_node(g, "Loop", {"", "start", "x"}, {"y", "sums"});
  GraphProto& body = set_graph(n, "body");
  add_input(body, "i", {}, TensorProto::INT64);
  add_input(body, "go", {}, TensorProto::BOOL);
  add_input(body, "s", {2});
  add_node(body, "Mul", {"s", "half"}, {"t"});
  add_node(body, "ReduceSum", {"t"}, {"t1"});
  add_node(body, "Squeeze", {"t1"}, {"t0"});
  add_node(body, "Less", {"one", "t0"}, {"on"});
  add_value(*body.add_output(), "on", {}, TensorProto::BOOL);
  add_value(*body.add_output(), "t", {2});
  add_value(*body.add_output(), "t0", {});
  add_output(g, "y");
  add_free_output(g, "sums");
  return m;
}

TEST(StagesOfNumbers, ALoopEndsWhenItsConditionSays) {
  Staged staged(halving());
  auto y = staged.run({{"x", f32({2}, {3, 5})}});
  EXPECT_EQ(values_of(y, "y"), (Values{0.375, 0.625}));
  EXPECT_EQ(values_of(y, "sums"), (Values{4, 2, 1}));
  y = staged.run({{"x", f32({2}, {0.25, 0.25})}});
  EXPECT_EQ(values_of(y, "y"), (Values{0.25, 0.25}));
  EXPECT_EQ(shape_of(y, "sums"), (Shape{0}));
}

/// Appends the iteration's number to s: its type changes; then y = s + 1.
TEST(StagesOfNumbers, ALoopMayCarryWhatGrows) {
  ModelProto m = model();
  GraphProto& g = *m.mutable_graph();
  add_input(g, "n", {}, TensorProto::INT64);
  add_ints(g, "empty", {0}, {});
  add_ints(g, "one", {1}, {1});
  NodeProto& n = add_node(g, "Loop", {"n", "", "empty"}, {"all"});
  GraphProto& body = set_graph(n, "body");
  add_input(body, "i", {}, TensorProto::INT64);
  add_input(body, "go", {}, TensorProto::BOOL);
  add_free_output(body, "unused");
  body.clear_output();
  auto& s = *body.add_input();
  s.set_name("s");
  s.mutable_type()->mutable_tensor_type()->set_elem_type(TensorProto::INT64);
  add_node(body, "Identity", {"go"}, {"on"});
  add_ints(body, "axis", {1}, {0});
  add_node(body, "Unsqueeze", {"i", "axis"}, {"item"});
  set_int(add_node(body, "Concat", {"s", "item"}, {"t"}), "axis", 0);
  add_value(*body.add_output(), "on", {}, TensorProto::BOOL);
  add_free_output(body, "t", TensorProto::INT64);
  add_node(g, "Add", {"all", "one"}, {"y"});
  add_free_output(g, "y", TensorProto::INT64);
  Staged staged(m);
  EXPECT_EQ(values_of(staged.run({{"n", number(4)}}), "y"), (Values{1, 2, 3, 4}));
  EXPECT_EQ(values_of(staged.run({{"n", number(2)}}), "y"), (Values{1, 2}));
  EXPECT_EQ(values_of(staged.run({{"n", number(0)}}), "y"), Values{});
}

/// A sequence is carried: iterations are unrolled, stage by stage.
TEST(StagesOfNumbers, ALoopMayCarryASequence) {
  ModelProto m = model();
  GraphProto& g = *m.mutable_graph();
  add_input(g, "x", {2});
  add_floats(g, "ten", {}, {10});
  add_node(g, "ReduceSum", {"x"}, {"sum0"});
  add_node(g, "Squeeze", {"sum0"}, {"sum"});
  add_node(g, "Less", {"sum", "ten"}, {"start"});
  add_node(g, "SequenceEmpty", {}, {"none"});
  NodeProto& n = add_node(g, "Loop", {"", "start", "x", "none"}, {"last", "list"});
  GraphProto& body = set_graph(n, "body");
  add_input(body, "i", {}, TensorProto::INT64);
  add_input(body, "go", {}, TensorProto::BOOL);
  add_input(body, "s", {2});
  body.add_input()->set_name("l");
  add_node(body, "Add", {"s", "s"}, {"t"});
  add_node(body, "ReduceSum", {"t"}, {"t1"});
  add_node(body, "Squeeze", {"t1"}, {"t0"});
  add_node(body, "Less", {"t0", "ten"}, {"on"});
  add_node(body, "SequenceInsert", {"l", "t"}, {"longer"});
  add_value(*body.add_output(), "on", {}, TensorProto::BOOL);
  add_value(*body.add_output(), "t", {2});
  body.add_output()->set_name("longer");
  set_int(add_node(g, "ConcatFromSequence", {"list"}, {"y"}), "axis", 0);
  add_free_output(g, "y");
  Staged staged(m);
  EXPECT_EQ(values_of(staged.run({{"x", f32({2}, {1, 2})}}), "y"), (Values{2, 4, 4, 8}));
  EXPECT_EQ(values_of(staged.run({{"x", f32({2}, {1, 1})}}), "y"), (Values{2, 2, 4, 4, 8, 8}));
}

/// The branches differ in type, and one of them in a shape that a number decides.
TEST(StagesOfNumbers, TheBranchOfAnIfIsTaken) {
  ModelProto m = model();
  GraphProto& g = *m.mutable_graph();
  add_input(g, "x", {4});
  add_floats(g, "zero", {}, {0});
  set_int(add_node(g, "ReduceSum", {"x"}, {"sum"}), "keepdims", 0);
  add_node(g, "Less", {"zero", "sum"}, {"c"});
  NodeProto& n = add_node(g, "If", {"c"}, {"y"});
  GraphProto& yes = set_graph(n, "then_branch");
  add_ints(yes, "pair", {2}, {2, 2});
  add_node(yes, "Reshape", {"x", "pair"}, {"a"});
  add_output(yes, "a");
  GraphProto& no = set_graph(n, "else_branch");
  add_node(no, "NonZero", {"x"}, {"where"});
  set_int(add_node(no, "Cast", {"where"}, {"b"}), "to", TensorProto::FLOAT);
  add_output(no, "b");
  add_free_output(g, "y");
  Staged staged(m);
  auto y = staged.run({{"x", f32({4}, {1, 2, 3, 4})}});
  EXPECT_EQ(shape_of(y, "y"), (Shape{2, 2}));
  EXPECT_EQ(values_of(y, "y"), (Values{1, 2, 3, 4}));
  y = staged.run({{"x", f32({4}, {-1, 0, 0, -4})}});
  EXPECT_EQ(shape_of(y, "y"), (Shape{1, 2}));
  EXPECT_EQ(values_of(y, "y"), (Values{0, 3}));
}

/// h = x·w; rows of h whose first element is positive, times v: what the first stage has multiplied
/// is not multiplied again.
TEST(StagesOfNumbers, ShapesThatValuesDecideGoOn) {
  ModelProto m = model();
  GraphProto& g = *m.mutable_graph();
  add_input(g, "x", {3, 2});
  add_floats(g, "w", {2, 2}, {1, 2, 3, 4});
  add_floats(g, "v", {2, 1}, {1, 10});
  add_floats(g, "zero", {}, {0});
  add_ints(g, "first", {}, {0});
  add_ints(g, "axis", {1}, {0});
  add_node(g, "MatMul", {"x", "w"}, {"h"});
  set_int(add_node(g, "Gather", {"h", "first"}, {"column"}), "axis", 1);
  add_node(g, "Less", {"zero", "column"}, {"mask"});
  add_node(g, "NonZero", {"mask"}, {"where"});
  add_node(g, "Squeeze", {"where", "axis"}, {"rows"});
  add_node(g, "Gather", {"h", "rows"}, {"kept"});
  add_node(g, "MatMul", {"kept", "v"}, {"y"});
  add_free_output(g, "y");
  Staged staged(m);
  auto y = staged.run({{"x", f32({3, 2}, {1, 0, -1, 0, 0, 1})}});
  EXPECT_EQ(shape_of(y, "y"), (Shape{2, 1}));
  EXPECT_EQ(values_of(y, "y"), (Values{21, 43}));
  ASSERT_EQ(staged.compiled, 2);
  EXPECT_EQ(count_contractions(staged.graphs[0]), 1);
  EXPECT_EQ(count_contractions(staged.graphs[1]), 1) << "h is made once";
  y = staged.run({{"x", f32({3, 2}, {0, 1, 1, 0, -1, 0})}});
  EXPECT_EQ(values_of(y, "y"), (Values{43, 21}));
  EXPECT_EQ(staged.compiled, 2) << "as many rows as before";
  y = staged.run({{"x", f32({3, 2}, {-1, 0, -1, 0, -1, 0})}});
  EXPECT_EQ(shape_of(y, "y"), (Shape{0, 1}));
}

/// A slice from argmax(x) to its end, and how many there are as a tensor's extent.
TEST(StagesOfNumbers, ComputedNumbersDecideShapes) {
  ModelProto m = model();
  GraphProto& g = *m.mutable_graph();
  add_input(g, "x", {5});
  add_ints(g, "axis", {1}, {0});
  add_ints(g, "end", {1}, {5});
  set_int(add_node(g, "ArgMax", {"x"}, {"at"}), "axis", 0);
  add_node(g, "Slice", {"x", "at", "end", "axis"}, {"rest"});
  add_node(g, "Add", {"rest", "rest"}, {"y"});
  add_node(g, "Size", {"y"}, {"size"});
  add_node(g, "Unsqueeze", {"size", "axis"}, {"shape"});
  add_node(g, "ConstantOfShape", {"shape"}, {"zeros"});
  add_free_output(g, "y");
  add_free_output(g, "zeros");
  Staged staged(m);
  auto y = staged.run({{"x", f32({5}, {1, 2, 9, 4, 5})}});
  EXPECT_EQ(values_of(y, "y"), (Values{18, 8, 10}));
  EXPECT_EQ(values_of(y, "zeros"), (Values{0, 0, 0}));
  y = staged.run({{"x", f32({5}, {1, 2, 3, 4, 5})}});
  EXPECT_EQ(values_of(y, "y"), (Values{10}));
}

/// A loop in a loop, both as often as inputs say: counts n·k.
TEST(StagesOfNumbers, LoopsNest) {
  ModelProto m = model();
  GraphProto& g = *m.mutable_graph();
  add_input(g, "n", {}, TensorProto::INT64);
  add_input(g, "k", {}, TensorProto::INT64);
  add_ints(g, "zero", {}, {0});
  add_ints(g, "one", {}, {1});
  const auto counted = [](GraphProto& body, const std::string& p) {
    add_input(body, p + "i", {}, TensorProto::INT64);
    add_input(body, p + "go", {}, TensorProto::BOOL);
    add_input(body, p + "s", {}, TensorProto::INT64);
    add_node(body, "Identity", {p + "go"}, {p + "on"});
    add_value(*body.add_output(), p + "on", {}, TensorProto::BOOL);
    add_value(*body.add_output(), p + "t", {}, TensorProto::INT64);
  };
  GraphProto& outer = set_graph(add_node(g, "Loop", {"n", "", "zero"}, {"y"}), "body");
  counted(outer, "a");
  GraphProto& inner = set_graph(add_node(outer, "Loop", {"k", "", "as"}, {"at"}), "body");
  counted(inner, "b");
  add_node(inner, "Add", {"bs", "one"}, {"bt"});
  add_value(*g.add_output(), "y", {}, TensorProto::INT64);
  Staged staged(m);
  EXPECT_EQ(values_of(staged.run({{"n", number(3)}, {"k", number(4)}}), "y"), (Values{12}));
  EXPECT_EQ(values_of(staged.run({{"n", number(0)}, {"k", number(4)}}), "y"), (Values{0}));
  EXPECT_EQ(values_of(staged.run({{"n", number(5)}, {"k", number(1)}}), "y"), (Values{5}));
}

/// A trip count that is no single number is an error when it is known, whatever its value.
TEST(StagesOfNumbers, ATripCountIsASingleNumber) {
  ModelProto m = counted_loop();
  auto& shape =
      *m.mutable_graph()->mutable_input(1)->mutable_type()->mutable_tensor_type()->mutable_shape();
  shape.add_dim()->set_dim_value(0);
  Staged staged(m);
  const auto y = staged.run({{"x", f32({2}, {1, 3})}, {"n", Tensor({DType::i64, {0}})}});
  ASSERT_FALSE(y.ok());
  EXPECT_NE(y.error().message.find("Loop 'y': the trip count"), std::string::npos)
      << y.error().message;
}

/// More rounds than kernels take: the host does it, and boxes are gathered after it.
TEST(StagesOfNumbers, BoxesAreSuppressedOnTheHost) {
  ModelProto m = model();
  GraphProto& g = *m.mutable_graph();
  constexpr std::int64_t kBoxes = 300;
  add_input(g, "boxes", {1, kBoxes, 4});
  add_input(g, "scores", {1, 1, kBoxes});
  add_ints(g, "most", {1}, {kBoxes});
  add_floats(g, "overlap", {1}, {0.5});
  add_ints(g, "last", {}, {2});
  add_ints(g, "axis", {1}, {0});
  add_node(g, "NonMaxSuppression", {"boxes", "scores", "most", "overlap"}, {"kept"});
  set_int(add_node(g, "Gather", {"kept", "last"}, {"which"}), "axis", 1);
  add_node(g, "Squeeze", {"boxes", "axis"}, {"all"});
  add_node(g, "Gather", {"all", "which"}, {"y"});
  add_free_output(g, "y");
  // Pairs of equal boxes: the second of each, which scores higher, stays.
  std::vector<float> boxes, scores;
  for (int i = 0; i < kBoxes; ++i) {
    const auto at = static_cast<float>(i / 2 * 10);
    boxes.insert(boxes.end(), {at, at, at + 5, at + 5});
    scores.push_back(static_cast<float>(i));
  }
  Staged staged(m);
  const auto y =
      staged.run({{"boxes", f32({1, kBoxes, 4}, boxes)}, {"scores", f32({1, 1, kBoxes}, scores)}});
  EXPECT_EQ(shape_of(y, "y"), (Shape{kBoxes / 2, 4}));
  const Values corners = values_of(y, "y");
  EXPECT_EQ(corners[0], 1490);
  EXPECT_EQ(corners.back(), 5);
}

}  // namespace
}  // namespace heddle::onnx::test
