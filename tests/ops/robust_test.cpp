#include <gtest/gtest.h>

#include <random>

#include "ops/ops.h"
#include "rows.h"

/// Operators are called with valid uses that were changed in a place or two. Whatever a model
/// file holds must end in a value that verifies or in an error, never in an InternalError.
namespace heddle::ops {
namespace {

using Random = std::mt19937_64;

template <class T>
const T& pick(Random& random, const std::vector<T>& from) {
  return from[random() % from.size()];
}

/// Mostly small, sometimes absurd.
std::int64_t any_int(Random& random) {
  static const std::vector<std::int64_t> kOdd{
      INT64_MIN, INT64_MAX, std::int64_t{1} << 40, -(std::int64_t{1} << 40), 1 << 20, -100, 1000};
  if (random() % 25 == 0) return pick(random, kOdd);
  return static_cast<std::int64_t>(random() % 8) - 2;
}
double any_real(Random& random) {
  static const std::vector<double> kOdd{0.0, -1.0, 1e30, std::nan(""), INFINITY, 1e-30};
  if (random() % 10 == 0) return pick(random, kOdd);
  return static_cast<double>(random() % 9) / 3;
}
std::vector<std::int64_t> any_ints(Random& random) {
  std::vector<std::int64_t> out;
  const bool sane = random() % 2 == 0;
  for (std::size_t n = random() % 6; out.size() < n;)
    out.push_back(sane ? static_cast<std::int64_t>(random() % 3) : any_int(random));
  return out;
}

Shape any_shape(Random& random) {
  static const std::vector<std::int64_t> kExtents{1, 1, 2, 2, 3, 4, 6, 0};
  Shape out;
  for (std::size_t n = random() % 6; out.size() < n;) out.push_back(pick(random, kExtents));
  return out;
}

struct Named {
  std::string name;
  std::vector<std::string> texts;  ///< of a string attribute
  char kind;                       ///< i, f, s, I, F, S, T
};
const std::vector<Named>& attributes() {
  static const std::vector<Named> all{
      {"axis", {}, 'i'},
      {"axes", {}, 'I'},
      {"perm", {}, 'I'},
      {"keepdims", {}, 'i'},
      {"noop_with_empty_axes", {}, 'i'},
      {"select_last_index", {}, 'i'},
      {"kernel_shape", {}, 'I'},
      {"strides", {}, 'I'},
      {"pads", {}, 'I'},
      {"dilations", {}, 'I'},
      {"group", {}, 'i'},
      {"output_padding", {}, 'I'},
      {"output_shape", {}, 'I'},
      {"ceil_mode", {}, 'i'},
      {"count_include_pad", {}, 'i'},
      {"storage_order", {}, 'i'},
      {"p", {}, 'i'},
      {"auto_pad", {"SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET", "odd"}, 's'},
      {"mode",
       {"constant", "reflect", "edge", "wrap", "linear", "cubic", "nearest", "bilinear", "DCR",
        "CRD", "avg", "max", "TF", "TFIDF", "odd"},
       's'},
      {"coordinate_transformation_mode",
       {"align_corners", "asymmetric", "tf_crop_and_resize", "half_pixel", "pytorch_half_pixel"},
       's'},
      {"nearest_mode", {"floor", "ceil", "round_prefer_ceil"}, 's'},
      {"antialias", {}, 'i'},
      {"keep_aspect_ratio_policy", {"not_larger", "not_smaller", "stretch"}, 's'},
      {"exclude_outside", {}, 'i'},
      {"scales", {}, 'F'},
      {"padding_mode", {"border", "reflection"}, 's'},
      {"align_corners", {}, 'i'},
      {"sampling_ratio", {}, 'i'},
      {"output_height", {}, 'i'},
      {"output_width", {}, 'i'},
      {"shape", {}, 'I'},
      {"split", {}, 'I'},
      {"num_outputs", {}, 'i'},
      {"to", {}, 'i'},
      {"dtype", {}, 'i'},
      {"k", {}, 'i'},
      {"largest", {}, 'i'},
      {"blocksize", {}, 'i'},
      {"equation", {"ij,jk->ik", "ii->i", "ij->", "...i,i", "i,,j", "a->b->c"}, 's'},
      {"direction", {"forward", "reverse", "bidirectional"}, 's'},
      {"hidden_size", {}, 'i'},
      {"layout", {}, 'i'},
      {"linear_before_reset", {}, 'i'},
      {"clip", {}, 'f'},
      {"activations", {"Relu", "Tanh", "odd"}, 'S'},
      {"alpha", {}, 'f'},
      {"beta", {}, 'f'},
      {"gamma", {}, 'f'},
      {"epsilon", {}, 'f'},
      {"lambd", {}, 'f'},
      {"bias", {}, 'f'},
      {"size", {}, 'i'},
      {"transA", {}, 'i'},
      {"transB", {}, 'i'},
      {"batch_dims", {}, 'i'},
      {"batch_axis", {}, 'i'},
      {"time_axis", {}, 'i'},
      {"reduction", {"none", "sum", "mean", "add", "mul"}, 's'},
      {"ignore_index", {}, 'i'},
      {"value", {}, 'T'},
      {"value_ints", {}, 'I'},
      {"start", {}, 'i'},
      {"end", {}, 'i'},
      {"starts", {}, 'I'},
      {"ends", {}, 'I'},
      {"upper", {}, 'i'},
      {"exclusive", {}, 'i'},
      {"reverse", {}, 'i'},
      {"inverse", {}, 'i'},
      {"onesided", {}, 'i'},
      {"sample_size", {}, 'i'},
      {"seed", {}, 'f'},
      {"num_groups", {}, 'i'},
      {"stash_type", {}, 'i'},
      {"num_heads", {}, 'i'},
      {"q_num_heads", {}, 'i'},
      {"kv_num_heads", {}, 'i'},
      {"is_causal", {}, 'i'},
      {"interleaved", {}, 'i'},
      {"rotary_embedding_dim", {}, 'i'},
      {"training_mode", {}, 'i'},
      {"min", {}, 'f'},
      {"max", {}, 'f'},
      {"broadcast", {}, 'i'},
      {"fmod", {}, 'i'},
      {"pool_int64s", {}, 'I'},
      {"ngram_counts", {}, 'I'},
      {"ngram_indexes", {}, 'I'},
      {"block_size", {}, 'i'},
      {"approximate", {"none", "tanh"}, 's'}};
  return all;
}

Tensor any_tensor(Random& random, DType type, const Shape& shape) {
  Tensor t(TensorType{type, shape});
  const bool sane = random() % 3 != 0;
  for (std::int64_t i = 0; i < t.count(); ++i) {
    if (is_float(type))
      t.set(i, any_real(random));
    else
      t.set_int(i, sane ? static_cast<std::int64_t>(random() % 4) : any_int(random));
  }
  return t;
}

Attribute any_attribute(Random& random, const Named& row) {
  switch (random() % 30 == 0 ? 's' : row.kind) {  // sometimes of a wrong type
    case 'i':
      return any_int(random);
    case 'f':
      return any_real(random);
    case 'I':
      return any_ints(random);
    case 'F':
      return std::vector<double>{1, 1, any_real(random), any_real(random)};
    case 'S':
      return std::vector<std::string>{pick(random, row.texts)};
    case 'T':
      return any_tensor(random, DType::f32, random() % 2 == 0 ? Shape{1} : any_shape(random));
    default:
      return row.texts.empty() ? std::string("odd") : pick(random, row.texts);
  }
}

DType any_type(Random& random) {
  return static_cast<DType>(random() % (static_cast<std::uint64_t>(DType::b1) + 1));
}

void change_value(Random& random, rows::Value& v) {
  Shape& shape = v.type.shape;
  switch (random() % 9) {
    case 0:
      v.type.dtype = any_type(random);
      break;
    case 1:
      v.absent = !v.absent;
      break;
    case 2:
      v.known = !v.known;
      break;
    case 3:
      shape = any_shape(random);
      break;
    case 4:
      shape.insert(shape.begin(), 1 + static_cast<std::int64_t>(random() % 2));
      break;
    case 5:
      if (!shape.empty()) shape.pop_back();
      break;
    case 6:
    case 7:
      if (!shape.empty()) shape[random() % shape.size()] = static_cast<std::int64_t>(random() % 5);
      break;
    default:
      for (double& d : v.data)
        if (random() % 2 == 0) d = static_cast<double>(any_int(random));
  }
}

void change_attribute(Random& random, rows::Attributes& all) {
  const Named& named = pick(random, attributes());
  if (all.empty() || random() % 2 == 0) {
    all.insert_or_assign(named.name, any_attribute(random, named));
    return;
  }
  auto it = all.begin();
  std::advance(it, static_cast<std::ptrdiff_t>(random() % all.size()));
  if (random() % 4 == 0) {
    all.erase(it);
  } else if (auto* number = std::get_if<std::int64_t>(&it->second)) {
    *number = any_int(random);
  } else if (auto* list = std::get_if<std::vector<std::int64_t>>(&it->second)) {
    if (!list->empty() && random() % 3 != 0)
      (*list)[random() % list->size()] = any_int(random);
    else
      *list = any_ints(random);
  } else {
    it->second = any_attribute(random, named);
  }
}

/// One to three things wrong, or none.
void change(Random& random, rows::Row& row) {
  for (std::uint64_t n = random() % 4; n > 0; --n) {
    switch (random() % 8) {
      case 0:
        row.opset = 1 + static_cast<int>(random() % 25);
        break;
      case 1:
        row.want.resize(random() % 4);
        break;
      case 2:
        if (!row.inputs.empty() && random() % 2 == 0)
          row.inputs.pop_back();
        else
          row.inputs.push_back(rows::f32(Shape{2}, {1, 2}));
        break;
      case 3:
      case 4:
        change_attribute(random, row.attributes);
        break;
      default:
        if (!row.inputs.empty()) change_value(random, row.inputs[random() % row.inputs.size()]);
    }
  }
}

/// Fills `call`, sometimes with other constants (`scramble`); returns a description.
std::string make_call(Random& random, const rows::Row& row, bool scramble, prim::Graph& graph,
                      Call& call) {
  std::string text = fmt::format("{} {}", row.op, row.opset);
  call.op = row.op;
  call.name = "it";
  call.opset = row.opset;
  call.outputs = std::max<int>(1, static_cast<int>(row.want.size()));
  call.output_used.assign(static_cast<std::size_t>(call.outputs), true);
  call.graph = &graph;
  call.attributes = row.attributes;
  for (const rows::Value& v : row.inputs) {
    if (v.absent) {
      call.args.emplace_back();
      text += " none";
      continue;
    }
    text += fmt::format(" {}{}", v.known ? "const " : "", to_string(v.type));
    if (!v.known) {
      call.args.emplace_back(graph.add_input("x" + std::to_string(call.args.size()), v.type));
      continue;
    }
    Tensor t = any_tensor(random, v.type.dtype, v.type.shape);
    if (!scramble || random() % 4 != 0)
      for (std::int64_t i = 0; i < t.count() && i < static_cast<std::int64_t>(v.data.size()); ++i)
        t.set(i, v.data[static_cast<std::size_t>(i)]);
    call.args.emplace_back(graph.add_constant(t));
  }
  for (const auto& [key, value] : row.attributes) {
    text += " " + key;
    if (const auto* i = std::get_if<std::int64_t>(&value)) text += fmt::format("={}", *i);
    if (const auto* is = std::get_if<std::vector<std::int64_t>>(&value))
      text += "=" + to_string(*is);
  }
  return text;
}

/// Expands one call and checks what comes of it; true if it was accepted.
bool try_call(Random& random, const rows::Row& row, bool scramble) {
  prim::Graph graph;
  prim::Builder b(graph);
  Call call;
  const std::string text = make_call(random, row, scramble, graph, call);
  try {
    const Result<Values> values = expand(call, b);
    if (!values) {
      EXPECT_FALSE(values.error().message.empty()) << text;
      return false;
    }
    for (std::size_t i = 0; i < values->size(); ++i)
      graph.outputs.push_back({std::to_string(i), (*values)[i]});
    const Status sound = prim::verify(graph);
    EXPECT_TRUE(sound.ok()) << "unsound " << text << ": " << sound.error().message;
  } catch (const std::exception& e) {
    ADD_FAILURE() << "thrown " << text << ": " << e.what();
  }
  return true;
}

TEST(Robust, SeedsAreValid) {
  Random random(1);
  for (const rows::Row& row : rows::seeds()) EXPECT_TRUE(try_call(random, row, false)) << row.op;
}

TEST(Robust, ChangedCallsGiveValuesOrErrors) {
  const std::vector<rows::Row> all = rows::all_rows();
  int accepted = 0, refused = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::uint64_t trial = 0; trial < 200; ++trial) {
      Random random(i * 100003 + trial);
      rows::Row row = all[i];
      change(random, row);
      ++(try_call(random, row, true) ? accepted : refused);
    }
  }
  // Both kinds must be common, or the generator tests nothing.
  EXPECT_GT(accepted, 5000);
  EXPECT_GT(refused, 5000);
}

/// Every operator, those without rows too, with unrelated random inputs.
TEST(Robust, RandomCallsGiveValuesOrErrors) {
  static const std::vector<DType> kTypes{DType::f32, DType::f32, DType::i64, DType::b1, DType::f16};
  for (const auto family : families()) {
    for (const OpDef& def : family) {
      for (std::uint64_t trial = 0; trial < 100; ++trial) {
        Random random(trial * 7919 + def.name.size() * 31 +
                      static_cast<std::uint64_t>(def.name[0]));
        rows::Row row{"", std::string(def.name), def.since, {}, {}, {}, ""};
        const int most = def.max_inputs < 0 ? def.min_inputs + 2 : def.max_inputs;
        const rows::Value first{{pick(random, kTypes), any_shape(random)}, {}};
        for (int i = 0; i < def.min_inputs || (i < most && random() % 2 == 0); ++i) {
          row.inputs.push_back(first);
          if (random() % 4 == 0) row.inputs.back().type.shape = any_shape(random);
          if (random() % 4 == 0) row.inputs.back().type.dtype = pick(random, kTypes);
          row.inputs.back().known = random() % 2 == 0;
        }
        for (std::uint64_t n = random() % 12; n > 0; --n) change_attribute(random, row.attributes);
        try_call(random, row, true);
      }
    }
  }
}

}  // namespace
}  // namespace heddle::ops
