// Gradients of every operator of the library against differences in float64: those of its rows, and
// all others that take simple inputs. What has none is listed with the reason.
#include <set>

#include "grad/differences.h"
#include "rows.h"

namespace heddle::ops::rows {
namespace {

/// The row's inputs, finite and moved off the points where functions have corners or steps.
std::vector<Tensor> nearby(const std::vector<Tensor>& inputs, std::mt19937& rng) {
  std::vector<Tensor> out;
  for (const Tensor& t : inputs) {
    out.push_back(t);
    if (!is_float(t.type().dtype)) continue;
    out.back() = Tensor(t.type());
    for (std::int64_t i = 0; i < t.count(); ++i)
      out.back().set(
          i, (std::fabs(t.at(i)) < 100 ? t.at(i) : 1) + static_cast<double>(16 + rng() % 64) / 512);
  }
  return out;
}

bool floats_in_and_out(const Built& built) {
  bool in = false, out = false;
  for (const auto& i : built.graph.inputs) in |= is_float(i.type.dtype);
  for (const auto& o : built.graph.outputs) out |= is_float(built.graph[o.node].type.dtype);
  return in && out;
}

/// What checking found, by operator.
struct Found {
  std::set<std::string> checked, refused, discrete;

  void check(const Built& built, const std::string& op, const std::string& row, std::mt19937& rng) {
    if (!floats_in_and_out(built)) {
      discrete.insert(op);
      return;
    }
    for (int round = 0; round < 3; ++round) {
      const std::string wrong = grad::check(built.graph, rng, nearby(built.inputs, rng));
      if (wrong == "not smooth here") continue;
      if (wrong.find("no derivative") != std::string::npos) {
        refused.insert(op);
        // The error names the operator where there is one, and the primitive.
        EXPECT_NE(wrong.find(": "), std::string::npos) << wrong;
        continue;
      }
      EXPECT_EQ(wrong, "") << op << " " << row;
      checked.insert(op);
    }
  }
};

void check_rows(const std::vector<Row>& rows, Found& found) {
  std::map<std::string, int> times;
  for (const Row& row : rows) {
    if (!row.error.empty()) continue;
    const auto built = build(row);
    if (!built) continue;
    // Its own numbers for each row, so that no other row can change them.
    std::string key = row.op + " " + row.name;
    key += std::to_string(times[key]++);
    std::seed_seq seed(key.begin(), key.end());
    std::mt19937 rng(seed);
    found.check(*built, row.op, row.name, rng);
  }
}

/// Tensors of values between 0 and 1, or above 1 (Acosh).
void check_on_simple_inputs(const OpDef& op, Found& found, std::mt19937& rng) {
  for (int inputs = std::max(1, op.min_inputs); inputs <= 3; ++inputs) {
    if (op.max_inputs >= 0 && inputs > op.max_inputs) break;
    for (const double shift : {0.1, 1.1}) {
      Row row{"simple", std::string(op.name), 25, {}, {}, {}, ""};
      for (int k = 0; k < inputs; ++k) {
        Value v = f32({2, 3, 4}, {});
        for (int e = 0; e < 24; ++e)
          v.data.push_back(shift + static_cast<double>(rng() % 64) / 128);
        row.inputs.push_back(std::move(v));
      }
      const auto built = build(row);
      if (!built) continue;
      const auto values = prim::interpret(built->graph, built->inputs);
      ASSERT_TRUE(values);
      bool defined = true;
      for (std::int64_t i = 0; i < (*values)[0].count(); ++i)
        defined &= std::isfinite((*values)[0].at(i));
      if (defined) found.check(*built, row.op, row.name, rng);
    }
  }
}

Value simple(Shape shape) {
  Value v = count_up(std::move(shape));
  for (double& e : v.data) e = 0.25 + e / 16;
  return v;
}

/// Operators whose other rows have no floating input or output.
std::vector<Row> more_rows() {
  const auto row = [](const char* op, int opset, Attributes attributes, std::vector<Value> inputs,
                      std::vector<Value> want = {}) {
    return Row{"more", op, opset, std::move(attributes), std::move(inputs), std::move(want), ""};
  };
  const Attributes linear = {{"q_num_heads", std::int64_t{1}},
                             {"kv_num_heads", std::int64_t{1}},
                             {"update_rule", text("linear")}};
  const std::vector<Value> heads = {simple({1, 3, 4}), simple({1, 3, 4}), simple({1, 3, 4})};
  const std::vector<Value> causal = {simple({1, 2, 5}), simple({2, 1, 3})};
  return {
      row("Mod", 13, {{"fmod", std::int64_t{1}}}, {simple({2, 3}), f32({3}, {2.5, 3.5, 1.25})}),
      row("Cast", 13, {{"to", std::int64_t{11}}}, {simple({4})}),
      row("com.microsoft::Pad", 1, {}, {simple({2, 3}), ints({1, 0, 0, 2})}),
      row("com.microsoft::GatherND", 1, {}, {simple({3, 2}), known(i64({2, 1}, {2, 0}))}),
      row("Scatter", 9, {}, {simple({3, 2}), known(i64({1, 2}, {2, 0})), simple({1, 2})}),
      row("com.microsoft::BiasGelu", 1, {}, {simple({2, 3}), simple({3})}),
      row("com.microsoft::TransposeMatMul", 1, {}, {simple({2, 3}), simple({3, 4})}),
      row("com.microsoft::NhwcFusedConv", 1, {}, {simple({1, 3, 3, 2}), simple({4, 2, 2, 2})}),
      row("ai.onnx.preview.training::Adagrad", 1, {},
          {one(0.1), known(i64({}, {1})), simple({3}), simple({3}), simple({3})}),
      row("CumProd", 26, {}, {simple({2, 3}), known(i64({}, {1}))}),
      row("ai.onnx.ml::Scaler", 1, {{"offset", Reals{0.5}}, {"scale", Reals{2}}}, {simple({2, 3})}),
      row("ai.onnx.ml::Normalizer", 1, {{"norm", text("L2")}}, {simple({2, 3})}),
      row("ai.onnx.ml::Imputer", 1,
          {{"imputed_value_floats", Reals{1}}, {"replaced_value_float", 0.0}}, {simple({2, 3})}),
      row("ai.onnx.ml::FeatureVectorizer", 1, {{"inputdimensions", Ints{3, 2}}},
          {simple({2, 3}), simple({2, 2})}),
      row("ai.onnx.ml::ArrayFeatureExtractor", 1, {}, {simple({2, 3}), known(i64({2}, {0, 2}))}),
      row("ai.onnx.ml::ZipMap", 1, {{"classlabels_int64s", Ints{1, 2, 3}}}, {simple({2, 3})}),
      row("ai.onnx.ml::LinearClassifier", 1,
          {{"coefficients", Reals{1, 2, 3, -1, 0.5, 2}},
           {"intercepts", Reals{0.5, 1}},
           {"classlabels_ints", Ints{0, 1}},
           {"post_transform", text("SOFTMAX")}},
          {simple({2, 3})}, {one(0), one(0)}),
      row("ai.onnx.ml::SVMRegressor", 1,
          {{"coefficients", Reals{1, -2}},
           {"kernel_params", Reals{0.5, 0, 3}},
           {"kernel_type", text("RBF")},
           {"n_supports", std::int64_t{2}},
           {"rho", Reals{0.25}},
           {"support_vectors", Reals{0.5, 1, 0, 1, -1, 0.5}}},
          {simple({2, 3})}),
      row("CausalConvWithState", 27, {}, causal),
      row("com.microsoft::CausalConvWithState", 1, {}, causal),
      row("LinearAttention", 27, linear, heads),
      row("com.microsoft::LinearAttention", 1, linear, heads),
  };
}

struct None {
  const char* reason;
  std::vector<std::string> ops;
};
/// Operators that are not compared with differences.
const None kNone[] = {
    {"truth values and bits",
     {"Not", "And", "Or", "Xor", "BitwiseNot", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitShift",
      "BitCast", "IsNaN", "IsInf", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"}},
    {"integers go in or come out",
     {"QuantizeLinear", "com.microsoft::QuantizeLinear", "MatMulInteger", "ConvInteger",
      "QLinearConv", "com.microsoft::QLinearConv", "QLinearMatMul", "com.microsoft::NhwcMaxPool",
      "com.microsoft::QLinearAdd", "com.microsoft::QLinearMul", "com.microsoft::QLinearSigmoid",
      "com.microsoft::QLinearLeakyRelu", "com.microsoft::QLinearSoftmax",
      "com.microsoft::QLinearGlobalAveragePool", "com.microsoft::QLinearAveragePool",
      "com.microsoft::QLinearWhere", "com.microsoft::QLinearReduceMean",
      "com.microsoft::QLinearConcat"}},
    {"a function of shapes, constants or a seed alone",
     {"Shape", "Size", "ConstantOfShape", "Constant", "GivenTensorFill", "Range",
      "com.microsoft::Range", "EyeLike", "HannWindow", "HammingWindow", "BlackmanWindow",
      "MelWeightMatrix", "RandomNormal", "RandomUniform"}},
    {"positions, counts or draws come out",
     {"ArgMax", "ArgMin", "Multinomial", "NonZero", "NonMaxSuppression", "TfIdfVectorizer",
      "com.microsoft::Unique"}},
    {"a running product has no derivative here", {"CumProd"}},
    {"leaves of trees do not change nearby",
     {"ai.onnx.ml::TreeEnsembleClassifier", "ai.onnx.ml::TreeEnsemble"}},
    {"labels, texts or pictures",
     {"ai.onnx.ml::OneHotEncoder", "ai.onnx.ml::LabelEncoder", "ai.onnx.ml::CategoryMapper",
      "StringNormalizer", "StringConcat", "StringSplit", "RegexFullMatch", "ImageDecoder"}},
    {"sequences and optional values are no operators on tensors",
     {"SequenceConstruct", "SequenceEmpty", "SequenceAt", "SequenceErase", "SequenceInsert",
      "SequenceLength", "SplitToSequence", "ConcatFromSequence", "Optional", "OptionalGetElement",
      "OptionalHasElement"}},
};

TEST(Gradients, OfEveryOperator) {
  Found found;
  check_rows(all_rows(), found);
  check_rows(more_rows(), found);
  std::mt19937 rng(9);
  std::set<std::string> known, none;
  for (const auto family : families())
    for (const OpDef& op : family) {
      check_on_simple_inputs(op, found, rng);
      known.emplace(op.name);
    }
  for (const None& group : kNone)
    for (const std::string& op : group.ops) {
      EXPECT_TRUE(known.contains(op) && none.insert(op).second) << op;
      EXPECT_FALSE(found.checked.contains(op)) << op << " has a derivative: not " << group.reason;
    }
  for (const std::string& op : known)
    EXPECT_TRUE(found.checked.contains(op) || none.contains(op))
        << op << (found.refused.contains(op) ? " is refused" : " was not tried");
  // Products and extremes scattered into a tensor; running products.
  for (const std::string& op : found.refused)
    EXPECT_TRUE(op.starts_with("Scatter") || op == "CumProd" || op == "TensorScatter") << op;
}

}  // namespace
}  // namespace heddle::ops::rows
