// Every malformed model ends in an error that says what is wrong; none crashes, hangs or allocates
// what its own size does not justify.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>

#include "models.h"

namespace heddle::onnx::test {
namespace {

struct Row {
  std::string name;
  std::function<void(GraphProto&, ModelProto&)> damage;  ///< of a graph with input x [2]
  std::string error;                                     ///< a part of the message
};

void conv(GraphProto& g, const Shape& x, const Shape& w, const std::string& key,
          const std::vector<std::int64_t>& values) {
  add_input(g, "image", x);
  add_input(g, "weights", w);
  NodeProto& n = add_node(g, "Conv", {"image", "weights"}, {"y"}, "c");
  if (!key.empty()) set_ints(n, key, values);
}

const Row kRows[] = {
    {"missing_input",
     [](GraphProto& g, ModelProto&) { add_node(g, "Exp", {"nowhere"}, {"y"}, "e"); },
     "Exp 'e': input 0: no node, input or initializer makes 'nowhere'"},
    {"missing_output", [](GraphProto&, ModelProto&) {}, "output 'y': no node makes it"},
    {"cycle",
     [](GraphProto& g, ModelProto&) {
       add_node(g, "Add", {"x", "y"}, {"t"}, "one");
       add_node(g, "Exp", {"t"}, {"y"}, "two");
     },
     "Add 'one': it is part of a cycle"},
    {"self_cycle",
     [](GraphProto& g, ModelProto&) {
       add_node(g, "Add", {"x", "y"}, {"y"}, "me");
     },
     "cycle"},
    {"made_twice",
     [](GraphProto& g, ModelProto&) {
       add_node(g, "Exp", {"x"}, {"y"});
       add_node(g, "Neg", {"x"}, {"y"});
     },
     "'y' is made by two nodes"},
    {"overwrites_input",
     [](GraphProto& g, ModelProto&) {
       add_input(g, "z", {2});
       add_node(g, "Exp", {"x"}, {"z"}, "e");
     },
     "Exp 'e': makes 'z', which is an input or initializer already"},
    {"input_declared_twice",
     [](GraphProto& g, ModelProto&) {
       add_input(g, "x", {2});
       add_node(g, "Exp", {"x"}, {"y"});
     },
     "input 'x' is declared twice"},
    {"unknown_operator",
     [](GraphProto& g, ModelProto&) { add_node(g, "Frobnicate", {"x"}, {"y"}, "f"); },
     "Frobnicate 'f': operator Frobnicate (opset 17) is not supported"},
    {"too_many_inputs",
     [](GraphProto& g, ModelProto&) {
       add_node(g, "Exp", {"x", "x"}, {"y"}, "e");
     },
     "Exp 'e': has 2 inputs, want 1"},
    {"absent_required_input",
     [](GraphProto& g, ModelProto&) {
       add_node(g, "Add", {"", "x"}, {"y"}, "a");
     },
     "Add 'a': input 0 is missing"},
    {"too_many_outputs",
     [](GraphProto& g, ModelProto&) {
       add_node(g, "Exp", {"x"}, {"y", "z"}, "e");
     },
     "2 outputs are used, 1 are supported"},
    {"type_confusion",
     [](GraphProto& g, ModelProto&) {
       add_input(g, "i", {2}, TensorProto::INT64);
       add_node(g, "Add", {"x", "i"}, {"y"}, "a");
     },
     "Add 'a': input 1 is i64, want f32"},
    {"attribute_type_confusion",
     [](GraphProto& g, ModelProto&) {
       set_ints(add_node(g, "Softmax", {"x"}, {"y"}, "s"), "axis", {1});
     },
     "Softmax 's': attribute 'axis' is integers, want an integer"},
    {"axis_outside",
     [](GraphProto& g, ModelProto&) {
       set_int(add_node(g, "Softmax", {"x"}, {"y"}, "s"), "axis", 7);
     },
     "Softmax 's': axis is 7, want one in [-1, 1)"},
    {"shapes_do_not_broadcast",
     [](GraphProto& g, ModelProto&) {
       add_input(g, "z", {3});
       add_node(g, "Mul", {"x", "z"}, {"y"}, "m");
     },
     "Mul 'm': input 1 has shape [3], which does not broadcast with [2]"},
    {"complex_input",
     [](GraphProto& g, ModelProto&) {
       add_input(g, "s", {1}, TensorProto::COMPLEX64);
       add_node(g, "Identity", {"s"}, {"y"});
     },
     "input 's': element type COMPLEX64 is not supported"},
    {"input_without_type", [](GraphProto& g, ModelProto&) { g.add_input()->set_name("z"); }, "'z'"},
    {"negative_extent", [](GraphProto& g, ModelProto&) { add_input(g, "z", {-3}); }, "-3"},
    {"absurd_input",
     [](GraphProto& g, ModelProto&) {
       add_input(g, "z", {1 << 30, 1 << 30, 1 << 30, 1 << 30});
     },
     "above the limit"},
    {"absurd_initializer",
     [](GraphProto& g, ModelProto&) {
       add_floats(g, "w", {1 << 15, 1 << 15}, {1, 2});
     },
     "tensor 'w': found 2 values, want 1073741824"},
    {"absurd_raw_initializer",
     [](GraphProto& g, ModelProto&) {
       add_floats(g, "w", {1 << 15, 1 << 15}, {}).set_raw_data("abcd");
     },
     "tensor 'w': found 4 bytes, want 4294967296"},
    {"overflowing_initializer",
     [](GraphProto& g, ModelProto&) {
       add_floats(g, "w", {std::int64_t{1} << 62, 4, 1 << 30}, {}).set_raw_data("");
     },
     "impossible shape"},
    {"negative_initializer", [](GraphProto& g, ModelProto&) { add_floats(g, "w", {-1}, {1}); },
     "impossible shape [-1]"},
    {"wrong_field",
     [](GraphProto& g, ModelProto&) {
       TensorProto& t = add_floats(g, "w", {2}, {1, 2});
       t.set_data_type(TensorProto::INT64);
     },
     "tensor 'w': found 0 values, want 2"},
    {"unknown_element_type",
     [](GraphProto& g, ModelProto&) { add_floats(g, "w", {1}, {1}).set_data_type(99); },
     "tensor 'w': element type number 99 is not supported"},
    {"initializer_twice",
     [](GraphProto& g, ModelProto&) {
       add_floats(g, "w", {1}, {1});
       add_floats(g, "w", {1}, {2});
     },
     "initializer 'w' is given twice"},
    {"reshape_bomb",
     [](GraphProto& g, ModelProto&) {
       add_ints(g, "to", {2}, {std::int64_t{1} << 40, std::int64_t{1} << 40});
       add_node(g, "Expand", {"x", "to"}, {"y"}, "e");
     },
     "Expand 'e'"},
    {"constant_bomb",
     [](GraphProto& g, ModelProto&) {
       add_ints(g, "to", {1}, {std::int64_t{1} << 50});
       add_node(g, "ConstantOfShape", {"to"}, {"y"}, "c");
     },
     "ConstantOfShape 'c'"},
    {"conv_groups",
     [](GraphProto& g, ModelProto&) {
       conv(g, {1, 3, 8, 8}, {4, 2, 3, 3}, "", {});
     },
     "groups"},
    {"conv_zero_stride",
     [](GraphProto& g, ModelProto&) {
       conv(g, {1, 2, 8, 8}, {4, 2, 3, 3}, "strides", {0, 1});
     },
     "strides holds 0"},
    {"conv_pads_missing",
     [](GraphProto& g, ModelProto&) {
       conv(g, {1, 2, 8, 8}, {4, 2, 3, 3}, "pads", {1, 1});
     },
     "pads has 2 entries, want 4"},
    {"conv_window_too_large",
     [](GraphProto& g, ModelProto&) {
       conv(g, {1, 2, 8, 8}, {4, 2, 9, 3}, "", {});
     },
     "a window of 9 does not fit"},
    {"conv_rank",
     [](GraphProto& g, ModelProto&) {
       conv(g, {2, 8}, {4, 2}, "", {});
     },
     "ranks"},
    {"if_without_branches",
     [](GraphProto& g, ModelProto&) {
       add_input(g, "c", {}, TensorProto::BOOL);
       add_node(g, "If", {"c"}, {"y"}, "i");
     },
     "If 'i': attribute 'then_branch' is missing"},
    {"endless_loop",
     [](GraphProto& g, ModelProto&) {
       NodeProto& n = add_node(g, "Loop", {"", "", "x"}, {"y"}, "l");
       GraphProto& body = set_graph(n, "body");
       add_input(body, "i", {}, TensorProto::INT64);
       add_input(body, "go", {}, TensorProto::BOOL);
       add_input(body, "s", {2});
       add_node(body, "Identity", {"go"}, {"on"});
       add_node(body, "Exp", {"s"}, {"t"});
       add_output(body, "on", TensorProto::BOOL);
       add_output(body, "t");
     },
     "Loop 'l': runs more than"},
    {"function_recursion",
     [](GraphProto& g, ModelProto& m) {
       auto& f = *m.add_functions();
       f.set_name("F");
       f.set_domain("d");
       f.add_input("a");
       f.add_output("b");
       NodeProto& n = *f.add_node();
       n.set_op_type("F");
       n.set_domain("d");
       n.add_input("a");
       n.add_output("b");
       add_node(g, "F", {"x"}, {"y"}).set_domain("d");
     },
     "function 'F' calls itself"},
    {"function_depth",
     [](GraphProto& g, ModelProto& m) {
       for (int level = 0; level < 300; ++level) {
         auto& f = *m.add_functions();
         f.set_name("F" + std::to_string(level));
         f.set_domain("d");
         f.add_input("a");
         f.add_output("b");
         NodeProto& n = *f.add_node();
         n.set_op_type(level == 299 ? "Exp" : "F" + std::to_string(level + 1));
         n.set_domain(level == 299 ? "" : "d");
         n.add_input("a");
         n.add_output("b");
       }
       add_node(g, "F0", {"x"}, {"y"}).set_domain("d");
     },
     "functions are nested deeper than 256"},
    {"loop_inputs",
     [](GraphProto& g, ModelProto&) {
       add_input(g, "n", {}, TensorProto::INT64);
       GraphProto& body = set_graph(add_node(g, "Loop", {"n", "", "x"}, {"y"}, "l"), "body");
       add_input(body, "i", {}, TensorProto::INT64);
       add_input(body, "go", {}, TensorProto::BOOL);
       add_node(body, "Identity", {"go"}, {"on"});
       add_node(body, "Identity", {"x"}, {"t"});
       add_output(body, "on", TensorProto::BOOL);
       add_output(body, "t");
     },
     "Loop 'l': its body wants 2 inputs, there are 3"},
    {"if_types",
     [](GraphProto& g, ModelProto&) {
       add_input(g, "c", {}, TensorProto::BOOL);
       NodeProto& n = add_node(g, "If", {"c"}, {"y"}, "i");
       GraphProto& yes = set_graph(n, "then_branch");
       add_node(yes, "Identity", {"x"}, {"a"});
       add_output(yes, "a");
       GraphProto& no = set_graph(n, "else_branch");
       add_node(no, "Shape", {"x"}, {"b"});
       add_output(no, "b", TensorProto::INT64);
     },
     "If 'i': output 0 is FLOAT in one branch and INT64 in the other"},
    {"if_counts",
     [](GraphProto& g, ModelProto&) {
       add_input(g, "c", {}, TensorProto::BOOL);
       NodeProto& n = add_node(g, "If", {"c"}, {"y", "z"}, "i");
       for (const char* name : {"then_branch", "else_branch"}) {
         GraphProto& branch = set_graph(n, name);
         add_node(branch, "Identity", {"x"}, {"a"});
         add_output(branch, "a");
       }
     },
     "If 'i': the branches make 1 and 1 outputs, want 2"},
    {"body_type",
     [](GraphProto& g, ModelProto&) {
       add_input(g, "c", {}, TensorProto::BOOL);
       NodeProto& n = add_node(g, "If", {"c"}, {"y"}, "i");
       for (const char* name : {"then_branch", "else_branch"}) {
         GraphProto& branch = set_graph(n, name);
         add_node(branch, "Identity", {"x"}, {"a"});
         add_output(branch, "a", TensorProto::INT64);
       }
     },
     "If 'i': its body's output 'a': the model declares i64, its nodes make f32"},
    {"function_bomb",  // each level calls the next eight times: 8^12 nodes
     [](GraphProto& g, ModelProto& m) {
       for (int level = 0; level < 12; ++level) {
         auto& f = *m.add_functions();
         f.set_name("F" + std::to_string(level));
         f.set_domain("d");
         f.add_input("v0");
         f.add_output("v8");
         for (int i = 0; i < 8; ++i) {
           NodeProto& n = *f.add_node();
           n.set_op_type(level == 11 ? "Exp" : "F" + std::to_string(level + 1));
           n.set_domain(level == 11 ? "" : "d");
           n.add_input("v" + std::to_string(i));
           n.add_output("v" + std::to_string(i + 1));
         }
       }
       add_node(g, "F0", {"x"}, {"y"}).set_domain("d");
     },
     "nodes with its functions and loops expanded"},
};

class Malformed : public testing::TestWithParam<Row> {};

TEST_P(Malformed, IsRefused) {
  ModelProto m = model();
  GraphProto& g = *m.mutable_graph();
  add_input(g, "x", {2});
  add_output(g, "y");
  GetParam().damage(g, m);
  const auto graph = read(m);
  ASSERT_FALSE(graph.ok());
  EXPECT_NE(graph.error().message.find(GetParam().error), std::string::npos)
      << graph.error().message;
  EXPECT_EQ(graph.error().message.find("internal error"), std::string::npos)
      << graph.error().message;
}
INSTANTIATE_TEST_SUITE_P(Models, Malformed, testing::ValuesIn(kRows),
                         [](const auto& info) { return info.param.name; });

std::string bytes_of_a_model() {
  ModelProto m = model();
  GraphProto& g = *m.mutable_graph();
  add_input(g, "x", {2, 3});
  add_floats(g, "w", {3, 4}, std::vector<float>(12, 1.0f));
  add_node(g, "MatMul", {"x", "w"}, {"t"});
  add_node(g, "Relu", {"t"}, {"y"});
  add_output(g, "y");
  return m.SerializeAsString();
}

Result<prim::Graph> read_bytes(const std::string& bytes) {
  return import_bytes(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size(), "", {});
}

/// No prefix crashes; protobuf cannot tell some from a whole model, and those still import or fail.
TEST(MalformedBytes, EveryTruncationEnds) {
  const std::string bytes = bytes_of_a_model();
  ASSERT_TRUE(read_bytes(bytes).ok());
  int refused = 0;
  for (std::size_t n = 0; n < bytes.size(); ++n) refused += !read_bytes(bytes.substr(0, n)).ok();
  EXPECT_GT(refused, static_cast<int>(bytes.size()) * 9 / 10);
}

TEST(MalformedBytes, EveryChangedByteEnds) {
  const std::string bytes = bytes_of_a_model();
  for (std::size_t i = 0; i < bytes.size(); ++i)
    for (const int change : {0x01, 0x80, 0xff}) {
      std::string damaged = bytes;
      damaged[i] = static_cast<char>(damaged[i] ^ change);
      const auto graph = read_bytes(damaged);
      EXPECT_TRUE(!graph || prim::verify(*graph).ok()) << "byte " << i << " ^ " << change;
    }
}

TEST(MalformedBytes, NoModelAtAll) {
  EXPECT_NE(error_of(read_bytes("")).find("empty"), std::string::npos);
  EXPECT_NE(error_of(read_bytes("this is text")).find("not an ONNX model"), std::string::npos);
  EXPECT_FALSE(import("/nowhere/at/all.onnx").ok());
}

/// Bodies inside bodies, deeper than protobuf is told to follow.
TEST(MalformedBytes, NestingIsBounded) {
  ModelProto m = model();
  GraphProto* g = m.mutable_graph();
  for (int depth = 0; depth < 200; ++depth)
    g = &set_graph(add_node(*g, "If", {"c"}, {"y"}), "then_branch");
  EXPECT_FALSE(read(m).ok());
}

/// External data: where the file points, and what happens.
class External : public testing::Test {
 protected:
  void SetUp() override {
    root_ = std::filesystem::path(testing::TempDir()) /
            ("heddle_external_" + std::to_string(::getpid()));
    std::filesystem::create_directories(root_ / "model/sub");
    write(root_ / "secret", "01234567");
    write(root_ / "model/data", "01234567");
    write(root_ / "model/sub/data", "01234567");
    std::filesystem::create_symlink(root_ / "secret", root_ / "model/link");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  static void write(const std::filesystem::path& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
  }
  std::string error(const std::vector<std::pair<std::string, std::string>>& entries) {
    ModelProto m = model();
    GraphProto& g = *m.mutable_graph();
    TensorProto& t = add_floats(g, "w", {2}, {});
    t.set_data_location(TensorProto::EXTERNAL);
    for (const auto& [key, value] : entries) {
      auto& entry = *t.add_external_data();
      entry.set_key(key);
      entry.set_value(value);
    }
    add_node(g, "Exp", {"w"}, {"y"});
    add_output(g, "y");
    return error_of(read(m, {}, (root_ / "model").string()));
  }
  std::filesystem::path root_;
};

TEST_F(External, StaysInTheModelsFolder) {
  EXPECT_EQ(error({{"location", "data"}}), "");
  EXPECT_EQ(error({{"location", "sub/data"}, {"offset", "0"}, {"length", "8"}}), "");
  EXPECT_EQ(error({{"location", "sub/../data"}}), "");
  for (const std::string location : {"../secret", "sub/../../secret", "link", "/etc/passwd"})
    EXPECT_NE(error({{"location", location}}), "") << location;
  EXPECT_NE(error({{"location", (root_ / "model/data").string()}}), "");
}

TEST_F(External, SizesAreChecked) {
  EXPECT_NE(error({{"location", "data"}, {"offset", "4"}}).find("has 8 bytes, want 8 at 4"),
            std::string::npos);
  EXPECT_NE(error({{"location", "data"}, {"offset", "-1"}}).find("want a number"),
            std::string::npos);
  EXPECT_NE(error({{"location", "data"}, {"offset", "99999999999999999999"}}), "");
  EXPECT_NE(error({{"location", "data"}, {"length", "4"}}).find("length 4, want 8"),
            std::string::npos);
  EXPECT_NE(error({{"location", "absent"}}), "");
  EXPECT_NE(error({{"location", "sub"}}), "");
  EXPECT_NE(error({}), "");
}

}  // namespace
}  // namespace heddle::onnx::test
