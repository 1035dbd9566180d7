// Lines of generated CUDA lead to source nodes: those of values, and of copies and tiles of
// products.
#include "driver/source_map.h"

#include <gtest/gtest.h>

#include <sstream>

#include "driver/report.h"
#include "driver/test_util.h"
#include "prim/builder.h"

namespace heddle::driver {
namespace {

using prim::Builder;
using prim::NodeId;

struct Line {
  std::string text, source;  ///< the name of the source node, empty for none alone
};

/// All lines of the graph's kernels with the source nodes that the report's map names.
std::vector<Line> lines_of(prim::Graph graph, const std::string& arch) {
  CompileOptions options;
  options.device = "cuda";
  options.arch = arch;
  const auto compiled = plan_only(std::move(graph), options);
  EXPECT_TRUE(compiled.ok()) << (compiled.ok() ? "" : compiled.error().message);
  std::vector<Line> out;
  if (!compiled.ok()) return out;
  for (const CompiledKernel& kernel : compiled->kernels) {
    const nlohmann::json map = source_map(compiled->graph, kernel.code.lines);
    std::map<int, std::string> names;
    for (const nlohmann::json& run : map["lines"]) {
      const auto& sources = map["primitives"][std::to_string(run[2].get<int>())]["sources"];
      for (int i = run[0]; i <= run[1]; ++i)
        for (const auto& s : sources) names[i] += s["name"].get<std::string>();
    }
    std::istringstream text(kernel.code.source);
    int number = 0;
    for (std::string line; std::getline(text, line);) out.push_back({line, names[++number]});
  }
  return out;
}

/// What the lines with `part` say they come from.
std::set<std::string> sources_of(const std::vector<Line>& lines, const std::string& part) {
  std::set<std::string> out;
  for (const Line& line : lines)
    if (line.text.find(part) != std::string::npos) out.insert(line.source);
  return out;
}

constexpr DType f16 = DType::f16;
using Names = std::set<std::string>;

prim::Graph linear() {
  prim::Graph g;
  Builder b(g);
  const NodeId x = in(g, {256, 192}, f16), w = in(g, {192, 384}, f16), bias = in(g, {384}, f16);
  g.set_origin({"MatMul", "fc"});
  const NodeId product = b.matmul(x, w);
  g.set_origin({"Add", "bias"});
  const NodeId sum = b.add(product, bias);
  g.set_origin({"Tanh", "act"});
  g.outputs.push_back({"y", b.tanh(sum)});
  return g;
}

TEST(SourceMap, ProductsCopiesAndEpilogues) {
  for (const char* arch : {"sm_80", "sm_90a"}) {
    const std::vector<Line> lines = lines_of(linear(), arch);
    EXPECT_EQ(sources_of(lines, "hd::tanh("), Names{"act"});
    EXPECT_EQ(sources_of(lines, "hd::add("), Names{"bias"});
    const Names all = [&] {
      Names out;
      for (const char* part : {"hd::copy_async<", "hd::tma_load_", "hd::multiply_tiles<",
                               "hd::start_products<", "hd::start_tile_products<"})
        out.merge(sources_of(lines, part));
      return out;
    }();
    EXPECT_EQ(all, Names{"fc"}) << arch;
  }
}

void attend(prim::Graph& g, Builder& b, NodeId q, NodeId k, NodeId v) {
  g.set_origin({"MatMul", "scores"});
  const NodeId scores = b.matmul(q, k);
  g.set_origin({"Softmax", "attn"});
  const NodeId weights = b.softmax(scores, {2});
  g.set_origin({"MatMul", "mixed"});
  g.outputs.push_back({"y", b.matmul(weights, v)});
}

/// The two contractions of attention are told apart.
TEST(SourceMap, Attention) {
  prim::Graph g;
  Builder b(g);
  const NodeId q = in(g, {4, 128, 64}, f16), k = in(g, {4, 64, 128}, f16),
               v = in(g, {4, 128, 64}, f16);
  attend(g, b, q, k, v);
  const std::vector<Line> lines = lines_of(std::move(g), "sm_80");
  EXPECT_EQ(sources_of(lines, "hd::multiply_tiles<"), (Names{"mixed", "scores"}));
  EXPECT_EQ(sources_of(lines, "hd::copy_async<"), (Names{"mixed", "scores"}));
  EXPECT_TRUE(sources_of(lines, "hd::exp(").contains("attn"));
}

/// Multiplied by CUDA cores: a step of a product is told from the softmax's sums.
TEST(SourceMap, AttentionInF32) {
  prim::Graph g;
  Builder b(g);
  const DType f32 = DType::f32;
  const NodeId q = in(g, {3, 19, 8}, f32), k = in(g, {3, 8, 19}, f32), v = in(g, {3, 19, 8}, f32);
  attend(g, b, q, k, v);
  const std::vector<Line> lines = lines_of(std::move(g), "sm_90a");
  EXPECT_EQ(sources_of(lines, "hd::copy_async<"), (Names{"mixed", "scores"}));
  const Names products = sources_of(lines, "hd::mul("),
              exponentials = sources_of(lines, "hd::exp(");
  EXPECT_TRUE(products.contains("scores") && products.contains("mixed"));
  // Corrections of what ran before are no primitive's alone.
  EXPECT_EQ(exponentials, (Names{"", "attn"}));
  EXPECT_FALSE(sources_of(lines, "hdk::combine<").contains("scores"));
}

TEST(SourceMap, AnnotatesTheFirstLineOfEach) {
  prim::Graph g;
  Builder b(g);
  g.set_origin({"Exp", "a\\\n b"});
  const NodeId e = b.exp(in(g, {8}));
  const auto map = source_map(g, {-1, e.value, -1, e.value});
  EXPECT_EQ(map["lines"].dump(), fmt::format("[[2,2,{0}],[4,4,{0}]]", e.value));
  const std::string comment = fmt::format("  // %{} Exp 'a?? b'", e.value);
  EXPECT_EQ(annotated("{\nx\ny\nz\n", map), "{\nx" + comment + "\ny\nz\n");
}

}  // namespace
}  // namespace heddle::driver
