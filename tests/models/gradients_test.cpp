// Gradients of every network of the zoo against differences in float64, by the reference
// interpreter: the derivative along a random direction of all weights and floating inputs. Images
// are small where the network takes others, and of what is still too much to interpret, the first
// part is looked at.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>

#include "grad/grad.h"
#include "onnx/model.h"
#include "onnx/training.h"
#include "prim/builder.h"
#include "prim/interpret.h"

namespace heddle {
namespace {

using prim::Graph;
using prim::NodeId;

/// Multiplications and elements of one pass that are interpreted.
constexpr double kMostWork = 6e6;
/// Weights that are moved: more would only be copied.
constexpr double kMostWeights = 4e6;

double work_of(const Graph& g, NodeId id) {
  double work = static_cast<double>(element_count(g[id].type.shape));
  if (const auto* c = std::get_if<prim::Contract>(&g[id].op))
    work *= static_cast<double>(element_count(c->reduced));
  for (const NodeId arg : g[id].args)
    if (!std::holds_alternative<prim::Input>(g[arg].op))
      work = std::max(work, static_cast<double>(element_count(g[arg].type.shape)));
  return work;
}

/// The nodes that come first, as much as may be interpreted; what nothing of them reads are
/// outputs.
struct First {
  Graph graph;
  double share = 1;  ///< of the nodes
};
First first_part(const Graph& g) {
  const std::vector<NodeId> live = prim::live_nodes(g);
  std::vector<bool> taken(static_cast<std::size_t>(g.size())), read(taken.size());
  double work = 0, weights = 0;
  std::size_t count = 0;
  for (const NodeId id : live) {
    if (std::holds_alternative<prim::Input>(g[id].op)) {
      taken[static_cast<std::size_t>(id.value)] = true;
      continue;
    }
    double own_weights = 0;
    for (const NodeId arg : g[id].args)
      if (std::holds_alternative<prim::Input>(g[arg].op) &&
          !read[static_cast<std::size_t>(arg.value)])
        own_weights += static_cast<double>(element_count(g[arg].type.shape));
    bool there = true;
    for (const NodeId arg : g[id].args) there &= taken[static_cast<std::size_t>(arg.value)];
    const double own = work_of(g, id);
    if (!there || work + own > kMostWork || weights + own_weights > kMostWeights) continue;
    work += own;
    weights += own_weights;
    taken[static_cast<std::size_t>(id.value)] = true;
    ++count;
    for (const NodeId arg : g[id].args) read[static_cast<std::size_t>(arg.value)] = true;
  }
  First out{g, static_cast<double>(count) / static_cast<double>(live.size())};
  out.graph.outputs.clear();
  std::vector<bool> moves(taken.size());
  for (const NodeId id : live) {
    const auto at = static_cast<std::size_t>(id.value);
    const bool real = is_float(g[id].type.dtype);
    moves[at] = real && std::holds_alternative<prim::Input>(g[id].op);
    for (const NodeId arg : g[id].args)
      moves[at] = moves[at] || (real && moves[static_cast<std::size_t>(arg.value)]);
    if (taken[at] && !read[at] && moves[at] && !g[id].args.empty())
      out.graph.outputs.push_back({fmt::format("o{}", id.value), id});
  }
  return out;
}

/// f(t) = Σ weights · outputs at inputs + t · direction, and f'(t), as one graph.
struct Line {
  Graph graph;
  NodeId value, slope;
};
Result<Line> along_a_line(const Graph& g) {
  Graph wide = g;
  std::vector<int> direction(g.inputs.size(), -1);
  for (std::size_t i = 0; i < g.inputs.size(); ++i)
    if (is_float(g.inputs[i].type.dtype)) {
      direction[i] = static_cast<int>(wide.inputs.size());
      wide.add_input("direction", g.inputs[i].type);
    }
  const int slot = static_cast<int>(wide.inputs.size());
  wide.add_input("t", {DType::f32, {}});
  Line line;
  line.graph = prim::rebuild(wide, [&](Graph& out, const prim::Node& n, NodeId) {
    const auto* in = std::get_if<prim::Input>(&n.op);
    const NodeId same = out.add(n.op, n.args, n.type);
    if (in == nullptr || direction[static_cast<std::size_t>(in->slot)] < 0) return same;
    prim::Builder b(out);
    const NodeId d =
        out.add(prim::Input{direction[static_cast<std::size_t>(in->slot)]}, {}, n.type);
    const NodeId t = out.add(prim::Input{slot}, {}, {DType::f32, {}});
    return b.add(same, b.mul(d, b.cast(t, n.type.dtype)));
  });
  Graph& out = line.graph;
  prim::Builder b(out);
  std::optional<NodeId> sum;
  for (const auto& o : std::exchange(out.outputs, {})) {
    const NodeId w = out.add_input("weight", {DType::f32, out[o.node].type.shape});
    std::vector<int> axes;
    for (int k = 0; k < b.rank(o.node); ++k) axes.push_back(k);
    const NodeId part = b.reduce_sum(b.mul(b.cast(o.node, DType::f32), w), axes, false);
    sum = sum ? b.add(*sum, part) : part;
  }
  if (!sum) return fail("no floating output");
  line.value = *sum;
  const std::vector<grad::Seed> seeds = {{line.value, b.full(out[line.value].type, 1)}};
  const NodeId t = out.add(prim::Input{slot}, {}, {DType::f32, {}});
  line.slope = HEDDLE_TRY(grad::gradients(out, seeds, std::vector<NodeId>{t}))[0];
  return line;
}

double evaluate(const Line& line, NodeId node, const std::vector<Tensor>& inputs) {
  Graph g = line.graph;
  g.outputs = {{"it", node}};
  double found = NAN;
  const Status done = prim::interpret_each(g, inputs, [&](NodeId id, const Tensor& v) {
    if (id == node) found = v.at(0);  // before it is rounded
  });
  EXPECT_TRUE(done) << done.error().message;
  return found;
}

/// Weights as they are, small integers, ones for masks, normal numbers for everything else; zeros
/// for what the line does not read.
std::vector<Tensor> inputs_for(Line& line, const onnx::TrainingModel& model, std::mt19937& rng) {
  std::normal_distribution<double> normal;
  line.graph.outputs = {{"value", line.value}, {"slope", line.slope}};
  std::vector<bool> live(line.graph.inputs.size());
  for (const NodeId id : prim::live_nodes(line.graph))
    if (const auto* in = std::get_if<prim::Input>(&line.graph[id].op))
      live[static_cast<std::size_t>(in->slot)] = true;
  std::map<std::string, const Tensor*> known;
  for (const auto* list : {&model.parameters, &model.statistics})
    for (const auto& named : *list) known[named.name] = &named.value;
  std::vector<Tensor> inputs;
  for (std::size_t slot = 0; slot < live.size(); ++slot) {
    const auto& in = line.graph.inputs[slot];
    const auto weight = known.find(in.name);
    Tensor t = weight == known.end() ? Tensor(in.type) : *weight->second;
    const double scale = in.name == "direction" ? 0.02 : in.name == "t" ? 0 : 1;
    for (std::int64_t i = 0; i < t.count() && live[slot] && weight == known.end(); ++i)
      if (is_float(in.type.dtype))
        t.set(i, scale * normal(rng));
      else
        t.set_int(i, in.name.find("mask") != std::string::npos ? 1 : rng() % 3);
    inputs.push_back(std::move(t));
  }
  return inputs;
}

struct Network {
  const char* name;
  std::int64_t side = 0;  ///< of its image; 0: as it is
};
const Network kNetworks[] = {
    {"bert-base"},
    {"candy", 32},
    {"dcgan"},
    {"densenet121", 32},
    {"dlrm"},
    {"efficientnet-b0", 32},
    {"efficientvit-b1", 64},
    {"gpt2-decode"},
    {"gpt2-prefill"},
    {"inception-v3", 75},
    {"lstm-tagger"},
    {"minilm-l6"},
    {"mlp"},
    {"mobilenetv2", 32},
    {"resnet50", 32},
    {"segformer-b0", 64},
    {"shufflenetv2", 64},
    {"squeezenet", 32},
    {"swin-t"},
    {"t5-decoder"},
    {"t5-encoder"},
    {"unet", 32},
    {"vit-b16"},
    {"yolov4", 64},
    {"yolox-nano", 64},
};

/// The model with a smaller image; deleted with its file.
class Smaller {
 public:
  Smaller(const std::string& path, std::int64_t side) {
    const auto loaded = onnx::load_model(path);
    EXPECT_TRUE(loaded) << loaded.error().message;
    ::onnx::ModelProto model = *loaded->model;
    auto& graph = *model.mutable_graph();
    graph.clear_value_info();
    for (auto& in : *graph.mutable_input()) {
      if (in.name() != "image") continue;
      auto& shape = *in.mutable_type()->mutable_tensor_type()->mutable_shape();
      for (int d = 2; d < 4; ++d) shape.mutable_dim(d)->set_dim_value(side);
    }
    for (auto& out : *graph.mutable_output())
      out.mutable_type()->mutable_tensor_type()->clear_shape();
    const std::string name = fmt::format("heddle-{}.onnx", ::getpid());
    path_ = (std::filesystem::temp_directory_path() / name).string();
    std::ofstream file(path_, std::ios::binary);
    EXPECT_TRUE(model.SerializeToOstream(&file));
  }
  ~Smaller() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class ZooGradients : public testing::TestWithParam<Network> {};

TEST_P(ZooGradients, AgreeWithDifferences) {
  const std::string path = std::string(HEDDLE_SOURCE_DIR "/build/zoo/") + GetParam().name;
  const auto model = [&] {
    if (GetParam().side == 0) return onnx::import_for_training(path, {});
    const Smaller smaller(path, GetParam().side);
    auto small = onnx::import_for_training(smaller.path(), {});
    // Some reshape to constants.
    return small ? std::move(small) : onnx::import_for_training(path, {});
  }();
  ASSERT_TRUE(model) << model.error().message;
  const First first = first_part(model->graph);
  auto line = along_a_line(first.graph);
  ASSERT_TRUE(line) << line.error().message;
  std::mt19937 rng(1);
  auto inputs = inputs_for(*line, *model, rng);
  std::size_t t = 0;
  while (line->graph.inputs[t].name != "t") ++t;
  const auto at = [&](double where) {
    inputs[t] = Tensor(TensorType{DType::f32, {}});
    inputs[t].set(0, where);
    return evaluate(*line, line->value, inputs);
  };
  const double slope = evaluate(*line, line->slope, inputs);
  const auto difference = [&](double h) { return (at(h) - at(-h)) / (2 * h); };
  const double coarse = difference(0x1p-22), fine = difference(0x1p-23);
  const double error = std::fabs(fine - slope) / (std::fabs(slope) + 1e-3);
  std::cout << fmt::format(
      "{}: {:.0f} % of the nodes, slope {:.6g}, differences {:.6g}, error {:.1e}\n",
      GetParam().name, 100 * first.share, slope, fine, error);
  // Where a rectifier or a maximum turns between the two points, differences are off by the step.
  EXPECT_LT(error, 1e-4 + 4 * std::fabs(fine - coarse) / (std::fabs(slope) + 1e-3));
  EXPECT_LT(error, 1e-2);
  EXPECT_GT(first.share, 0);
}
INSTANTIATE_TEST_SUITE_P(Networks, ZooGradients, testing::ValuesIn(kNetworks),
                         [](const auto& info) {
                           std::string name = info.param.name;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace heddle
