// Functions, control flow and sequences are expanded while reading.
#include "models.h"

namespace heddle::onnx::test {
namespace {

using Values = std::vector<double>;

/// y = c ? x + 1 : -x
ModelProto if_model() {
  ModelProto m = model();
  GraphProto& g = *m.mutable_graph();
  add_input(g, "x", {2});
  add_input(g, "c", {}, TensorProto::BOOL);
  add_floats(g, "one", {}, {1});
  NodeProto& n = add_node(g, "If", {"c"}, {"y"});
  GraphProto& yes = set_graph(n, "then_branch");
  add_node(yes, "Add", {"x", "one"}, {"a"});
  add_output(yes, "a");
  GraphProto& no = set_graph(n, "else_branch");
  add_node(no, "Neg", {"x"}, {"b"});
  add_output(no, "b");
  add_output(g, "y");
  return m;
}

TEST(Control, IfWithAComputedConditionChooses) {
  const Tensor x = f32({2}, {1, 2});
  for (const std::uint8_t c : {0, 1}) {
    const Tensor condition =
        Tensor::from<std::uint8_t>(DType::b1, {}, std::vector<std::uint8_t>{c});
    EXPECT_EQ(run(if_model(), {x, condition}), c != 0 ? (Values{2, 3}) : (Values{-1, -2}));
  }
}

TEST(Control, IfWithAKnownConditionIsItsBranch) {
  ImportOptions options;
  options.values["c"] = Tensor::from<std::uint8_t>(DType::b1, {}, std::vector<std::uint8_t>{0});
  EXPECT_EQ(run(if_model(), {f32({2}, {1, 2})}, options), (Values{-1, -2}));
}

/// Doubles `trips` times; the scan output has each state.
ModelProto loop_model(std::int64_t trips, bool scan) {
  ModelProto m = model();
  GraphProto& g = *m.mutable_graph();
  add_input(g, "x", {2});
  add_ints(g, "trips", {}, {trips});
  NodeProto& n =
      add_node(g, "Loop", {"trips", "", "x"},
               scan ? std::vector<std::string>{"", "y"} : std::vector<std::string>{"y", ""});
  GraphProto& body = set_graph(n, "body");
  add_input(body, "i", {}, TensorProto::INT64);
  add_input(body, "go", {}, TensorProto::BOOL);
  add_input(body, "s", {2});
  add_node(body, "Identity", {"go"}, {"on"});
  add_node(body, "Add", {"s", "s"}, {"t"});
  add_node(body, "Identity", {"t"}, {"out"});
  add_value(*body.add_output(), "on", {}, TensorProto::BOOL);
  add_value(*body.add_output(), "t", {2});
  add_value(*body.add_output(), "out", {2});
  add_output(g, "y");
  return m;
}

TEST(Control, LoopCarries) {
  EXPECT_EQ(run(loop_model(3, false), {f32({2}, {1, 2})}), (Values{8, 16}));
}
TEST(Control, LoopScans) {
  EXPECT_EQ(run(loop_model(2, true), {f32({2}, {1, 2})}), (Values{2, 4, 4, 8}));
}
TEST(Control, LoopWithoutIterations) {
  EXPECT_EQ(run(loop_model(0, false), {f32({2}, {1, 2})}), (Values{1, 2}));
  EXPECT_EQ(run(loop_model(0, true), {f32({2}, {1, 2})}), Values{});
}
TEST(Control, LoopIsBounded) {
  EXPECT_NE(error_of(read(loop_model(std::int64_t{1} << 40, false))).find("iterations"),
            std::string::npos);
}

/// The body of a scan that carries the sum so far, and gives it for each item.
void add_running_sum(GraphProto& body) {
  add_input(body, "sum", {});
  add_input(body, "item", {});
  add_node(body, "Add", {"sum", "item"}, {"next"});
  add_node(body, "Identity", {"next"}, {"out"});
  add_output(body, "next");
  add_output(body, "out");
}

/// Running sums along axis 0, backwards if asked.
TEST(Control, ScanTakesApartAndStacks) {
  for (const bool backwards : {false, true}) {
    ModelProto m = model();
    GraphProto& g = *m.mutable_graph();
    add_input(g, "x", {3});
    add_floats(g, "zero", {}, {0});
    NodeProto& n = add_node(g, "Scan", {"zero", "x"}, {"", "y"});
    set_int(n, "num_scan_inputs", 1);
    if (backwards) {
      set_ints(n, "scan_input_directions", {1});
      set_ints(n, "scan_output_directions", {1});
    }
    add_running_sum(set_graph(n, "body"));
    add_output(g, "y");
    EXPECT_EQ(run(m, {f32({3}, {1, 2, 3})}), backwards ? (Values{6, 5, 3}) : (Values{1, 3, 6}));
  }
}

/// Opset 8: everything has a batch dimension in front.
TEST(Control, ScanOfOpset8RunsOverABatch) {
  ModelProto m = model(8);
  GraphProto& g = *m.mutable_graph();
  add_input(g, "x", {2, 3});
  add_input(g, "start", {2});
  NodeProto& n = add_node(g, "Scan", {"", "start", "x"}, {"", "y"});
  set_int(n, "num_scan_inputs", 1);
  add_running_sum(set_graph(n, "body"));
  add_output(g, "y");
  EXPECT_EQ(run(m, {f32({2, 3}, {1, 2, 3, 4, 5, 6}), f32({2}, {0, 10})}),
            (Values{1, 3, 6, 14, 19, 25}));
}

/// Adds a function mine.Leak(a) = LeakyRelu(a) with its attribute `slope`.
::onnx::FunctionProto& add_leak(ModelProto& m) {
  auto& f = *m.add_functions();
  f.set_name("Leak");
  f.set_domain("mine");
  f.add_input("a");
  f.add_output("b");
  f.add_opset_import()->set_version(17);
  NodeProto& n = *f.add_node();
  n.set_op_type("LeakyRelu");
  n.add_input("a");
  n.add_output("b");
  AttributeProto& reference = *n.add_attribute();
  reference.set_name("alpha");
  reference.set_type(AttributeProto::FLOAT);
  reference.set_ref_attr_name("slope");
  return f;
}
void set_slope(AttributeProto& slope, float value) {
  slope.set_name("slope");
  slope.set_type(AttributeProto::FLOAT);
  slope.set_f(value);
}

/// Each calls the next one, and negates what it gives.
TEST(Control, FunctionsMayBeNestedDeeply) {
  constexpr int kDepth = 255;
  ModelProto m = model();
  m.add_opset_import()->set_domain("mine");
  for (int i = 0; i < kDepth; ++i) {
    auto& f = *m.add_functions();
    f.set_name("F" + std::to_string(i));
    f.set_domain("mine");
    f.add_input("a");
    f.add_output("b");
    f.add_opset_import()->set_version(17);
    NodeProto& inner = *f.add_node();
    inner.set_op_type(i + 1 < kDepth ? "F" + std::to_string(i + 1) : "Exp");
    inner.set_domain(i + 1 < kDepth ? "mine" : "");
    inner.add_input("a");
    inner.add_output("c");
    NodeProto& outer = *f.add_node();
    outer.set_op_type("Neg");
    outer.add_input("c");
    outer.add_output("b");
  }
  GraphProto& g = *m.mutable_graph();
  add_input(g, "x", {1});
  add_node(g, "F0", {"x"}, {"y"}).set_domain("mine");
  add_output(g, "y");
  EXPECT_EQ(run(m, {f32({1}, {0})}), (Values{-1}));
}

/// A function whose attribute comes from the call.
TEST(Control, FunctionsAreInlined) {
  ModelProto m = model();
  m.add_opset_import()->set_domain("mine");
  add_leak(m);
  GraphProto& g = *m.mutable_graph();
  add_input(g, "x", {2});
  NodeProto& call = add_node(g, "Leak", {"x"}, {"y"});
  call.set_domain("mine");
  set_slope(*call.add_attribute(), 0.5f);
  add_output(g, "y");
  EXPECT_EQ(run(m, {f32({2}, {-4, 4})}), (Values{-2, 4}));
}

/// Fields that the installed onnx.proto does not know: a default (11), which of two functions of
/// one name is meant (13, of a node 8).
TEST(Control, FunctionsHaveDefaultsAndOverloads) {
  const auto set_newer = [](auto& message, int number, const std::string& bytes) {
    message.GetReflection()->MutableUnknownFields(&message)->AddLengthDelimited(number, bytes);
  };
  ModelProto m = model();
  m.add_opset_import()->set_domain("mine");
  for (const std::string overload : {"half", "quarter"}) {
    auto& f = add_leak(m);
    AttributeProto standard;
    set_slope(standard, overload == "half" ? 0.5f : 0.25f);
    set_newer(f, 11, standard.SerializeAsString());
    set_newer(f, 13, overload);
  }
  GraphProto& g = *m.mutable_graph();
  add_input(g, "x", {2});
  std::string from = "x";
  for (const std::string overload : {"half", "quarter"}) {
    NodeProto& call = add_node(g, "Leak", {from}, {overload});
    call.set_domain("mine");
    set_newer(call, 8, overload);
    from = overload;
  }
  add_output(g, from);
  EXPECT_EQ(run(m, {f32({2}, {-8, 4})}), (Values{-1, 4}));
}

TEST(Control, SequencesAreLists) {
  ModelProto m = model();
  GraphProto& g = *m.mutable_graph();
  add_input(g, "x", {4});
  add_ints(g, "two", {}, {2});
  add_ints(g, "last", {}, {-1});
  add_node(g, "SplitToSequence", {"x", "two"}, {"parts"});
  add_node(g, "SequenceAt", {"parts", "last"}, {"tail"});
  add_node(g, "SequenceInsert", {"parts", "tail"}, {"more"});
  NodeProto& n = add_node(g, "ConcatFromSequence", {"more"}, {"y"});
  set_int(n, "axis", 0);
  add_output(g, "y");
  EXPECT_EQ(run(m, {f32({4}, {1, 2, 3, 4})}), (Values{1, 2, 3, 4, 3, 4}));
}

}  // namespace
}  // namespace heddle::onnx::test
