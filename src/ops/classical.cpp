#include "ops/classical.h"

#include <algorithm>

#include "ops/families.h"
#include "support/text_id.h"

/// ai.onnx.ml: scaling, encoding and linear models.
namespace heddle::ops {

using ir::ScalarFn;

Result<std::vector<double>> number_list(const Call& call, const std::string& key) {
  for (const std::string& name : {key, key + "_as_tensor"}) {
    const auto found = call.attributes.find(name);
    if (found == call.attributes.end()) continue;
    if (const auto* reals = std::get_if<std::vector<double>>(&found->second)) return *reals;
    if (const auto* ints = std::get_if<std::vector<std::int64_t>>(&found->second))
      return std::vector<double>(ints->begin(), ints->end());
    if (const auto* texts = std::get_if<std::vector<std::string>>(&found->second)) {
      const auto ids = HEDDLE_TRY(text_ids(*texts));
      return std::vector<double>(ids.begin(), ids.end());
    }
    const Tensor* t = std::get_if<Tensor>(&found->second);
    if (t == nullptr) return call.unsupported("attribute '{}' holds no numbers", name);
    std::vector<double> values;
    for (std::int64_t i = 0; i < t->count(); ++i) values.push_back(t->at(i));
    return values;
  }
  return std::vector<double>();
}

Result<Post> post_of(const Call& call) {
  const auto found = call.attributes.find("post_transform");
  if (found != call.attributes.end() && std::holds_alternative<std::int64_t>(found->second)) {
    const std::int64_t number = std::get<std::int64_t>(found->second);
    if (number < 0 || number > 4) return call.error("post_transform is {}", number);
    return static_cast<Post>(number);
  }
  return static_cast<Post>(HEDDLE_TRY(choice(
      call, "post_transform", "NONE", {"NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"})));
}

namespace {

/// sqrt(2)·erf⁻¹(2x - 1) by Winitzki's formula, which the standard's reference uses.
NodeId probit(Builder& b, NodeId x) {
  const DType type = b.dtype(x);
  const NodeId y = b.sub(b.mul(x, 2.0), 1.0), one = b.scalar(type, 1);
  const NodeId log = b.log(b.mul(b.sub(one, y), b.add(y, one)));
  const NodeId v = b.add(b.mul(log, 0.5), 2 / (M_PI * 0.147));
  const NodeId inner = b.sub(b.sqrt(b.sub(b.mul(v, v), b.div(log, 0.147))), v);
  return b.mul(b.mul(b.map(ScalarFn::sign, {y}), b.sqrt(inner)), 1.41421356);
}

/// softmax in which zeros stay zero.
NodeId softmax_zero(Builder& b, NodeId x) {
  const NodeId most = b.reduce_max(x, {1});
  const NodeId large =
      b.map(ScalarFn::greater, {b.map(ScalarFn::abs, {x}), b.scalar(b.dtype(x), 1e-7)});
  const NodeId e = b.select(large, b.exp(b.sub(x, most)), b.mul(x, b.exp(b.neg(most))));
  return b.div(e, b.reduce_sum(e, {1}));
}

}  // namespace

NodeId transformed(Builder& b, NodeId scores, Post post) {
  switch (post) {
    case Post::none:
      return scores;
    case Post::softmax:
      return b.softmax(scores, {1});
    case Post::logistic:
      return b.sigmoid(scores);
    case Post::softmax_zero:
      return softmax_zero(b, scores);
    case Post::probit:
      return probit(b, scores);
  }
  return scores;
}

Result<NodeId> feature_rows(const Call& call, Builder& b) {
  HEDDLE_TRY(want_number(call, b, 0));
  HEDDLE_TRY(want_rank(call, b, 0, 1, 2));
  NodeId x = call.in(0);
  if (b.rank(x) == 1) x = b.unsqueeze(x, {0});
  if (element_count(b.shape(x)) == 0)
    return call.error("input 0 has shape {}", to_string(b.shape(call.in(0))));
  return is_float(b.dtype(x)) ? x : b.cast(x, DType::f32);
}

Result<NodeId> labelled(const Call& call, Builder& b, NodeId chosen, const std::string& key,
                        std::size_t classes) {
  const auto labels = HEDDLE_TRY(labels_of(call, key, "classlabels_strings"));
  if (labels.size() != classes)
    return call.unsupported("{} labels, want {}", labels.size(), classes);
  return b.take(constant_i64(b, labels), chosen, 0);
}

namespace {

/// Values that apply to all features, or one to each.
Result<NodeId> per_feature(const Call& call, Builder& b, NodeId x, const std::string& key,
                           double otherwise) {
  std::vector<double> values = HEDDLE_TRY(number_list(call, key));
  if (values.empty()) values = {otherwise};
  const std::int64_t features = b.shape(x).back();
  if (values.size() != 1 && static_cast<std::int64_t>(values.size()) != features)
    return call.error("attribute '{}' has {} values for {} features", key, values.size(), features);
  return constant_real(b, b.dtype(x), values, {static_cast<std::int64_t>(values.size())});
}

/// (x - offset)·scale
Result<Values> scaler(const Call& call, Builder& b) {
  const NodeId x = HEDDLE_TRY(feature_rows(call, b));
  const NodeId offset = HEDDLE_TRY(per_feature(call, b, x, "offset", 0));
  const NodeId scale = HEDDLE_TRY(per_feature(call, b, x, "scale", 1));
  const NodeId y = b.mul(b.sub(x, offset), scale);
  return Values{b.reshape(y, b.shape(call.in(0)))};
}

Result<Values> binarizer(const Call& call, Builder& b) {
  HEDDLE_TRY(want_number(call, b, 0));
  const NodeId x = call.in(0);
  const NodeId threshold = b.scalar(b.dtype(x), call.attribute_float("threshold", 0));
  return Values{b.cast(b.map(ScalarFn::greater, {x, threshold}), b.dtype(x))};
}

Result<Values> normalizer(const Call& call, Builder& b) {
  const NodeId x = HEDDLE_TRY(feature_rows(call, b));
  const int norm = HEDDLE_TRY(choice(call, "norm", "MAX", {"MAX", "L1", "L2"}));
  const NodeId size = b.map(ScalarFn::abs, {x});
  const NodeId length = norm == 0   ? b.reduce_max(size, {1})
                        : norm == 1 ? b.reduce_sum(size, {1})
                                    : b.sqrt(b.reduce_sum(b.mul(x, x), {1}));
  const NodeId y = b.div(x, b.max(length, b.scalar(b.dtype(x), 1e-30)));
  return Values{b.reshape(y, b.shape(call.in(0)))};
}

/// Features that equal the replaced value (or are NaN, if that is) get the imputed one.
Result<Values> imputer(const Call& call, Builder& b) {
  HEDDLE_TRY(want_rank(call, b, 0, 2, 2));
  HEDDLE_TRY(want_number(call, b, 0));
  const NodeId x = call.in(0);
  const bool floats = call.has_attribute("imputed_value_floats");
  const NodeId value = HEDDLE_TRY(
      per_feature(call, b, x, floats ? "imputed_value_floats" : "imputed_value_int64s", 0));
  const double replaced = floats
                              ? call.attribute_float("replaced_value_float", 0)
                              : static_cast<double>(call.attribute_int("replaced_value_int64", 0));
  const NodeId hit = std::isnan(replaced)
                         ? b.map(ScalarFn::isnan, {x})
                         : b.map(ScalarFn::equal, {x, b.scalar(b.dtype(x), replaced)});
  return Values{b.select(hit, value, x)};
}

/// Inputs [N, c] side by side, each cut or padded with zeros to the width given.
Result<Values> feature_vectorizer(const Call& call, Builder& b) {
  const auto widths = call.attribute_ints("inputdimensions", {});
  if (widths.size() != call.args.size())
    return call.error("{} inputdimensions for {} inputs", widths.size(), call.args.size());
  std::vector<NodeId> parts;
  for (int i = 0; i < static_cast<int>(widths.size()); ++i) {
    HEDDLE_TRY(want_rank(call, b, i, 1, 2));
    HEDDLE_TRY(want_number(call, b, i));
    NodeId x = b.cast(call.in(i), DType::f32);
    if (b.rank(x) == 1) x = b.unsqueeze(x, {1});
    const std::int64_t width = widths[static_cast<std::size_t>(i)], own = b.shape(x)[1];
    if (width < 1 || width > kMaxTableElements || b.shape(x)[0] != b.shape(call.in(0))[0])
      return call.error("input {} has shape {}, width {}", i, to_string(b.shape(x)), width);
    parts.push_back(width <= own ? b.slice_axis(x, 1, 0, width)
                                 : b.pad(x, {0, 0}, {0, width - own}, 0));
  }
  return Values{parts.size() == 1 ? parts[0] : b.concat(parts, 1)};
}

/// 1 at the category's position, in a new last axis.
Result<Values> one_hot_encoder(const Call& call, Builder& b) {
  HEDDLE_TRY(want_number(call, b, 0));
  const auto categories = HEDDLE_TRY(labels_of(call, "cats_int64s", "cats_strings"));
  const bool texts = call.result_format == Format::text;
  call.result_format = Format::plain;
  if (categories.empty()) return call.error("no categories");
  if (texts != (call.format(0) == Format::text))
    return call.error("categories and input 0 differ in type");
  if (call.attribute_int("zeros", 1) == 0)
    return call.unsupported("zeros = 0, which fails while running on an unknown category");
  const NodeId x = b.cast(call.in(0), DType::i64);
  const NodeId same =
      b.map(ScalarFn::equal, {b.unsqueeze(x, {b.rank(x)}), constant_i64(b, categories)});
  return Values{b.cast(same, DType::f32)};
}

/// Columns of the last axis.
Result<Values> array_feature_extractor(const Call& call, Builder& b) {
  HEDDLE_TRY(want_int(call, b, 1));
  HEDDLE_TRY(want_rank(call, b, 0, 1, 8));
  NodeId x = call.in(0);
  if (b.rank(x) == 1) x = b.unsqueeze(x, {0});
  if (b.shape(x).back() < 1) return call.error("input 0 has shape {}", to_string(b.shape(x)));
  const NodeId columns = b.reshape(call.in(1), {element_count(b.shape(call.in(1)))});
  return Values{b.take(x, columns, b.rank(x) - 1)};
}

/// Keys to values, numbers or strings by their numbers: the last key that matches wins.
Result<Values> label_encoder(const Call& call, Builder& b) {
  struct List {
    const char* suffix;
    DType type;
  };
  std::optional<std::vector<double>> keys, values;
  DType type = DType::f32;
  double otherwise = 0;
  for (const List& list :
       {List{"floats", DType::f32}, List{"int64s", DType::i64}, List{"strings", DType::i64}}) {
    const bool texts = std::string_view(list.suffix) == "strings";
    const std::string k = fmt::format("keys_{}", list.suffix);
    const std::string v = fmt::format("values_{}", list.suffix);
    if (call.has_attribute(k)) keys = HEDDLE_TRY(number_list(call, k));
    if (!call.has_attribute(v)) continue;
    values = HEDDLE_TRY(number_list(call, v));
    type = list.type;
    if (texts) call.result_format = Format::text;
    otherwise = texts ? static_cast<double>(
                            HEDDLE_TRY(text_id(call.attribute_string("default_string", "_Unused"))))
                : type == DType::f32 ? call.attribute_float("default_float", 0)
                                     : static_cast<double>(call.attribute_int("default_int64", -1));
  }
  if (call.has_attribute("keys_tensor")) keys = HEDDLE_TRY(number_list(call, "keys_tensor"));
  if (const auto found = call.attributes.find("values_tensor"); found != call.attributes.end()) {
    values = HEDDLE_TRY(number_list(call, "values_tensor"));
    if (const Tensor* t = std::get_if<Tensor>(&found->second)) type = t->dtype();
    const auto given = HEDDLE_TRY(number_list(call, "default_tensor"));
    otherwise = given.empty() ? (is_float(type) ? 0 : -1) : given[0];
    call.result_format = call.value_format;
  }
  constexpr std::size_t kMostKeys = 4096;
  if (!keys || !values || keys->size() != values->size() || keys->size() > kMostKeys)
    return call.unsupported("keys and values must be as many numbers, at most {}", kMostKeys);
  NodeId y = b.full({type, b.shape(call.in(0))}, otherwise);
  for (std::size_t i = 0; i < keys->size(); ++i) {
    const double key = (*keys)[i];
    if (std::isnan(key) && !is_float(b.dtype(call.in(0)))) continue;
    const NodeId hit =
        std::isnan(key) ? b.map(ScalarFn::isnan, {call.in(0)})
                        : b.map(ScalarFn::equal, {call.in(0), b.scalar(b.dtype(call.in(0)), key)});
    y = b.select(hit, b.scalar(type, (*values)[i]), y);
  }
  return Values{y};
}

/// Strings to integers or back: an encoder of labels whose direction is the input's type.
Result<Values> category_mapper(const Call& call, Builder& b) {
  HEDDLE_TRY(want_type(call, b, 0, DType::i64));
  const bool texts = call.format(0) == Format::text;
  if (!texts && call.format(0) != Format::plain)
    return call.error("input 0 is {}", name_of(call.format(0)));
  Call encoder = call;
  for (const auto& [from, suffix] :
       {std::pair{"cats_strings", "strings"}, {"cats_int64s", "int64s"}}) {
    const auto found = encoder.attributes.find(from);
    if (found == encoder.attributes.end()) return call.error("attribute {} is missing", from);
    const bool key = texts == (std::string_view(suffix) == "strings");
    encoder.attributes[fmt::format("{}_{}", key ? "keys" : "values", suffix)] = found->second;
  }
  const auto y = label_encoder(encoder, b);
  call.result_format = encoder.result_format;
  call.misread = encoder.misread;
  return y;
}

}  // namespace

Result<NodeId> linear_scores(const Call& call, Builder& b, NodeId x, std::int64_t rows) {
  const auto weights = HEDDLE_TRY(number_list(call, "coefficients"));
  const std::int64_t features = b.shape(x)[1];
  if (rows < 1) rows = static_cast<std::int64_t>(weights.size()) / features;
  if (rows < 1 || static_cast<std::int64_t>(weights.size()) != rows * features)
    return call.error("{} coefficients for {} features", weights.size(), features);
  const NodeId w = constant_real(b, b.dtype(x), weights, {rows, features});
  NodeId y = b.matmul(x, b.transpose(w, {1, 0}));
  const auto intercepts = HEDDLE_TRY(number_list(call, "intercepts"));
  if (intercepts.empty()) return y;
  if (static_cast<std::int64_t>(intercepts.size()) != rows)
    return call.error("{} intercepts, want {}", intercepts.size(), rows);
  return b.add(y, constant_real(b, b.dtype(x), intercepts, {rows}));
}

namespace {

Result<Values> linear_regressor(const Call& call, Builder& b) {
  const NodeId x = HEDDLE_TRY(feature_rows(call, b));
  const NodeId y = HEDDLE_TRY(linear_scores(call, b, x, call.attribute_int("targets", 1)));
  return Values{transformed(b, y, HEDDLE_TRY(post_of(call)))};
}

Result<Values> linear_classifier(const Call& call, Builder& b) {
  const NodeId x = HEDDLE_TRY(feature_rows(call, b));
  const std::size_t classes =
      HEDDLE_TRY(labels_of(call, "classlabels_ints", "classlabels_strings")).size();
  NodeId y = b.cast(HEDDLE_TRY(linear_scores(call, b, x, 0)), DType::f32);
  if (b.shape(y)[1] == 1 && classes == 2) y = b.concat({b.neg(y), y}, 1);
  if (b.shape(y)[1] < 2) return call.unsupported("a single score and {} classes", classes);
  const NodeId scores = transformed(b, y, HEDDLE_TRY(post_of(call)));
  const NodeId best = b.reduce(ir::Monoid::argmax, scores, {1}, false);
  return Values{HEDDLE_TRY(labelled(call, b, best, "classlabels_ints",
                                    static_cast<std::size_t>(b.shape(y)[1]))),
                scores};
}

constexpr OpDef kClassicalOps[] = {
    {"ai.onnx.ml::Scaler", 1, 1, 1, scaler},
    {"ai.onnx.ml::Binarizer", 1, 1, 1, binarizer},
    {"ai.onnx.ml::Normalizer", 1, 1, 1, normalizer},
    {"ai.onnx.ml::Imputer", 1, 1, 1, imputer},
    {"ai.onnx.ml::FeatureVectorizer", 1, 1, -1, feature_vectorizer},
    {"ai.onnx.ml::OneHotEncoder", 1, 1, 1, one_hot_encoder, OpDef::Stored::knows},
    {"ai.onnx.ml::ArrayFeatureExtractor", 1, 2, 2, array_feature_extractor, OpDef::Stored::moves},
    {"ai.onnx.ml::LabelEncoder", 2, 1, 1, label_encoder, OpDef::Stored::knows},
    {"ai.onnx.ml::CategoryMapper", 1, 1, 1, category_mapper, OpDef::Stored::knows},
    {"ai.onnx.ml::LinearRegressor", 1, 1, 1, linear_regressor},
    {"ai.onnx.ml::LinearClassifier", 1, 1, 1, linear_classifier},
};

}  // namespace

std::span<const OpDef> classical_ops() { return kClassicalOps; }

}  // namespace heddle::ops
