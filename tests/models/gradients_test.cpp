// Gradients of every network of the zoo against differences in float64, by the reference
// interpreter. A network is cut into parts of consecutive nodes, each as much as may be interpreted
// several times; of each part the derivative along a random direction of all weights and floating
// values that it reads is compared, at the values that the network computes there. Images are small
// where the network takes others.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <future>
#include <random>
#include <set>

#include "grad/grad.h"
#include "onnx/model.h"
#include "onnx/training.h"
#include "prim/builder.h"
#include "prim/interpret.h"
#include "prim/text.h"

namespace heddle {
namespace {

using prim::Graph;
using prim::NodeId;

/// Multiplications and elements of one pass over a part; a node above that is a part of its own.
constexpr double kMostWork = 2e7;

double work_of(const Graph& g, NodeId id) {
  double work = static_cast<double>(element_count(g[id].type.shape));
  if (const auto* c = std::get_if<prim::Contract>(&g[id].op))
    work *= static_cast<double>(element_count(c->reduced));
  for (const NodeId arg : g[id].args)
    work = std::max(work, static_cast<double>(element_count(g[arg].type.shape)));
  return work;
}

std::size_t at(NodeId id) { return static_cast<std::size_t>(id.value); }

/// Consecutive nodes without leaves.
std::vector<std::vector<NodeId>> parts_of(const Graph& g) {
  std::vector<std::vector<NodeId>> parts;
  double work = 0;
  for (const NodeId id : prim::live_nodes(g)) {
    if (g[id].args.empty()) continue;
    const double own = work_of(g, id);
    if (parts.empty() || work + own > kMostWork) {
      parts.emplace_back();
      work = 0;
    }
    parts.back().push_back(id);
    work += own;
  }
  return parts;
}

/// Floating values that a weight or a floating input moves, by id.
std::vector<bool> moved_values(const Graph& g) {
  std::vector<bool> moved(static_cast<std::size_t>(g.size()));
  for (const NodeId id : prim::live_nodes(g)) {
    if (!is_float(g[id].type.dtype)) continue;
    moved[at(id)] = std::holds_alternative<prim::Input>(g[id].op);
    for (const NodeId arg : g[id].args) moved[at(id)] = moved[at(id)] || moved[at(arg)];
  }
  return moved;
}

/// Nodes as a graph of their own.
struct Part {
  Graph graph;
  std::vector<NodeId> inputs, outputs;  ///< in the network
};
Part part_of(const Graph& g, const std::vector<NodeId>& nodes, const std::vector<int>& uses) {
  Part part;
  std::unordered_map<NodeId, NodeId> made;
  std::unordered_map<NodeId, int> inner;
  const auto here = [&](NodeId id) {
    if (const auto known = made.find(id); known != made.end()) return known->second;
    const prim::Node& n = g[id];
    const bool leaf = n.args.empty() && !std::holds_alternative<prim::Input>(n.op);
    if (!leaf) part.inputs.push_back(id);
    if (const auto* c = std::get_if<prim::Constant>(&n.op)) part.graph.adopt_constant(g, *c);
    const NodeId it = leaf ? part.graph.add(n.op, {}, n.type)
                           : part.graph.add_input(fmt::format("i{}", part.inputs.size()), n.type);
    return made[id] = it;
  };
  for (const NodeId id : nodes) {
    std::vector<NodeId> args;
    for (const NodeId arg : g[id].args) {
      args.push_back(here(arg));
      ++inner[arg];
    }
    made[id] = part.graph.add(g[id].op, args, g[id].type);
  }
  for (const NodeId id : nodes)
    if (uses[at(id)] > inner[id]) {
      part.outputs.push_back(id);
      part.graph.outputs.push_back({fmt::format("o{}", part.outputs.size()), made.at(id)});
    }
  return part;
}

/// f(t) = Σ weights · outputs at inputs + t · direction, and f'(t), as one graph.
struct Line {
  Graph graph;
  NodeId value, slope;
};
Result<Line> along_a_line(const Graph& g, const std::vector<bool>& moved_inputs,
                          const std::vector<bool>& moved_outputs) {
  Graph wide = g;
  std::vector<int> direction(g.inputs.size(), -1);
  for (std::size_t i = 0; i < g.inputs.size(); ++i)
    if (moved_inputs[i]) {
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
  std::size_t position = 0;
  for (const auto& o : std::exchange(out.outputs, {})) {
    if (!moved_outputs[position++]) continue;
    const NodeId w = out.add_input("weight", {DType::f32, out[o.node].type.shape});
    std::vector<int> axes;
    for (int k = 0; k < b.rank(o.node); ++k) axes.push_back(k);
    const NodeId part = b.reduce_sum(b.mul(b.cast(o.node, DType::f32), w), axes, false);
    sum = sum ? b.add(*sum, part) : part;
  }
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

/// Weights as they are, small integers, ones for masks, normal numbers for everything else.
std::vector<Tensor> network_inputs(const onnx::TrainingModel& model, std::mt19937& rng) {
  std::normal_distribution<double> normal;
  std::map<std::string, const Tensor*> known;
  for (const auto* list : {&model.parameters, &model.statistics})
    for (const auto& named : *list) known[named.name] = &named.value;
  std::vector<Tensor> inputs;
  for (const auto& in : model.graph.inputs) {
    const auto weight = known.find(in.name);
    Tensor t = weight == known.end() ? Tensor(in.type) : *weight->second;
    for (std::int64_t i = 0; i < t.count() && weight == known.end(); ++i)
      if (is_float(in.type.dtype))
        t.set(i, normal(rng));
      else
        t.set_int(i, in.name.find("mask") != std::string::npos ? 1 : rng() % 3);
    inputs.push_back(std::move(t));
  }
  return inputs;
}

/// How far the derivative of a part at `given` is from differences, and how far may be.
struct Error {
  double relative = 0, allowed = 1e-4;
};
Error error_of(const Line& line, std::vector<Tensor> given, std::mt19937& rng) {
  std::normal_distribution<double> normal;
  std::size_t t = 0;
  for (std::size_t i = given.size(); i < line.graph.inputs.size(); ++i) {
    const auto& in = line.graph.inputs[i];
    const double scale = in.name == "direction" ? 0.02 : 1;
    given.emplace_back(in.type);
    if (in.name == "t") t = i;
    for (std::int64_t k = 0; k < given[i].count() && t != i; ++k)
      given[i].set(k, scale * normal(rng));
  }
  // Takes as long as several values.
  auto slope_apart = std::async(
      std::launch::async, [&line, given] { return evaluate(line, line.slope, given); });
  double size = 0;
  const auto value_at = [&](double where) {
    given[t] = Tensor(TensorType{DType::f32, {}});
    given[t].set(0, where);
    const double value = evaluate(line, line.value, given);
    size = std::fabs(value);
    return value;
  };
  const auto difference = [&](double h) { return (value_at(h) - value_at(-h)) / (2 * h); };
  const double fine = difference(0x1p-23), slope = slope_apart.get();
  const double scale = std::fabs(slope) + 1e-3 + 1e-6 * size;
  Error error{std::fabs(fine - slope) / scale};
  // Where a rectifier or a maximum turns between the two points, differences are off by the step.
  if (!(error.relative < error.allowed))
    error.allowed = std::min(1e-2, 1e-4 + 4 * std::fabs(fine - difference(0x1p-22)) / scale);
  return error;
}

/// Away from where many are equal (zeros of rectifiers), and still in the domain of logarithms.
Tensor apart(const Tensor& values, std::mt19937& rng) {
  std::uniform_real_distribution<double> little(0, 1e-3);
  Tensor out(values.type());
  for (std::int64_t i = 0; i < values.count(); ++i) out.set(i, values.at(i) + little(rng));
  return out;
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

/// Each part that differs from all before in more than its values.
void check_parts(const Graph& g, const std::vector<Tensor>& inputs, std::mt19937& rng) {
  std::unordered_map<NodeId, Tensor> values;
  std::vector<int> uses(static_cast<std::size_t>(g.size()));
  for (const NodeId id : prim::live_nodes(g)) {
    if (const auto* in = std::get_if<prim::Input>(&g[id].op))
      values[id] = inputs[static_cast<std::size_t>(in->slot)];
    for (const NodeId arg : g[id].args) ++uses[at(arg)];
  }
  for (const auto& o : g.outputs) ++uses[at(o.node)];
  const std::vector<bool> moved = moved_values(g);
  const auto moves = [&](const std::vector<NodeId>& ids) {
    std::vector<bool> which;
    for (const NodeId id : ids) which.push_back(moved[at(id)]);
    return which;
  };
  std::set<std::pair<std::string, std::vector<bool>>> seen;
  double worst = 0;
  const auto parts = parts_of(g);
  for (const auto& nodes : parts) {
    const Part part = part_of(g, nodes, uses);
    std::vector<Tensor> given;
    for (const NodeId id : part.inputs) given.push_back(values.at(id));
    const auto in = moves(part.inputs), out = moves(part.outputs);
    if (std::ranges::count(out, true) > 0 && seen.emplace(prim::print(part.graph), in).second) {
      const auto line = along_a_line(part.graph, in, out);
      ASSERT_TRUE(line) << line.error().message;
      std::vector<Tensor> near = given;
      for (std::size_t i = 0; i < near.size(); ++i)
        if (in[i] && !g[part.inputs[i]].args.empty()) near[i] = apart(near[i], rng);
      const Error error = error_of(*line, std::move(near), rng);
      EXPECT_LT(error.relative, error.allowed) << prim::print(part.graph);
      worst = std::max(worst, error.relative);
    }
    auto results = prim::interpret(part.graph, given);
    ASSERT_TRUE(results) << results.error().message;
    for (std::size_t i = 0; i < part.outputs.size(); ++i)
      values[part.outputs[i]] = std::move((*results)[i]);
    for (const NodeId id : nodes)
      for (const NodeId arg : g[id].args)
        if (--uses[at(arg)] == 0) values.erase(arg);
  }
  std::cout << fmt::format("{} nodes in {} parts, {} of them unlike, error {:.1e}\n",
                           prim::live_nodes(g).size(), parts.size(), seen.size(), worst);
}

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
  std::mt19937 rng(1);
  check_parts(model->graph, network_inputs(*model, rng), rng);
}
INSTANTIATE_TEST_SUITE_P(Networks, ZooGradients, testing::ValuesIn(kNetworks),
                         [](const auto& info) {
                           std::string name = info.param.name;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace heddle
