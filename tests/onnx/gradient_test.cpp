// The operator Gradient: derivatives inside a model.
#include "models.h"

namespace heddle::onnx::test {
namespace {

using Names = std::vector<std::string>;
using Values = std::vector<double>;

void set_names(NodeProto& n, const std::string& name, const Names& values) {
  AttributeProto& a = *n.add_attribute();
  a.set_name(name);
  a.set_type(AttributeProto::STRINGS);
  for (const std::string& value : values) a.add_strings(value);
}
NodeProto& add_gradient(GraphProto& g, const Names& inputs, const Names& xs, const Names& zs,
                        const std::string& y, const Names& outputs) {
  NodeProto& n = add_node(g, "Gradient", inputs, outputs);
  n.set_domain("ai.onnx.preview.training");
  set_names(n, "xs", xs);
  if (!zs.empty()) set_names(n, "zs", zs);
  AttributeProto& a = *n.add_attribute();
  a.set_name("y");
  a.set_type(AttributeProto::STRING);
  a.set_s(y);
  return n;
}

/// y = a·b + a
ModelProto product() {
  ModelProto m = model();
  GraphProto& g = *m.mutable_graph();
  add_input(g, "a", {2});
  add_input(g, "b", {2});
  add_node(g, "Mul", {"a", "b"}, {"p"});
  add_node(g, "Add", {"p", "a"}, {"y"});
  return m;
}

TEST(Gradient, OfSeveralInputs) {
  ModelProto m = product();
  add_gradient(*m.mutable_graph(), {"a", "b"}, {"a", "b"}, {}, "y", {"da", "db"});
  add_output(*m.mutable_graph(), "da");
  add_output(*m.mutable_graph(), "db");
  const auto graph = read(m);
  ASSERT_TRUE(graph) << error_of(graph);
  EXPECT_EQ(graph->inputs.size(), 2u);
  const auto found = prim::interpret(*graph, {f32({2}, {1, 2}), f32({2}, {3, 5})});
  ASSERT_TRUE(found);
  EXPECT_EQ((*found)[0].at(1), 6);
  EXPECT_EQ((*found)[1].at(1), 2);
}

TEST(Gradient, IsTakenAtTheInputsOfTheNode) {
  ModelProto m = product();
  add_gradient(*m.mutable_graph(), {"b", "a"}, {"a"}, {"b"}, "y", {"da"});  // they are swapped
  add_output(*m.mutable_graph(), "da");
  EXPECT_EQ(run(m, {f32({2}, {1, 2}), f32({2}, {3, 5})}), (Values{2, 3}));
}

TEST(Gradient, OfAGradient) {
  ModelProto m = model();
  GraphProto& g = *m.mutable_graph();
  add_input(g, "a", {2});
  add_node(g, "Mul", {"a", "a"}, {"s"});
  add_node(g, "Mul", {"s", "a"}, {"y"});
  add_gradient(g, {"a"}, {"a"}, {}, "y", {"d"});
  add_gradient(g, {"a"}, {"a"}, {}, "d", {"dd"});
  add_output(g, "dd");
  EXPECT_EQ(run(m, {f32({2}, {1, 2})}), (Values{6, 12}));
}

TEST(Gradient, TellsEqualConstantsApart) {
  ModelProto m = model();
  GraphProto& g = *m.mutable_graph();
  add_floats(g, "w", {1}, {2});
  add_floats(g, "c", {1}, {2});
  add_node(g, "Mul", {"w", "c"}, {"y"});
  add_gradient(g, {"w"}, {"w"}, {}, "y", {"d"});
  add_output(g, "d");
  EXPECT_EQ(run(m, {}), (Values{2}));
}

TEST(Gradient, ErrorsSayWhatIsWrong) {
  const auto refusal = [](const Names& inputs, const Names& xs, const std::string& y) {
    ModelProto m = product();
    add_gradient(*m.mutable_graph(), inputs, xs, {}, y, {"d"});
    add_output(*m.mutable_graph(), "d");
    return error_of(read(m));
  };
  EXPECT_EQ(refusal({"a"}, {"a"}, "nothing"),
            "Gradient 'd': no node of the main graph makes 'nothing'");
  EXPECT_EQ(refusal({"a", "b"}, {"a"}, "y"),
            "Gradient 'd': found 2 inputs and 1 outputs for 1 xs and 0 zs");
  EXPECT_EQ(refusal({"a"}, {"a"}, "d"),  // its own
            "Gradient 'd': gradients are not taken inside functions, or 4 deep");
}

}  // namespace
}  // namespace heddle::onnx::test
