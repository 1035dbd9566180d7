#include <algorithm>

#include "ops/classical.h"
#include "ops/families.h"
#include "prim/interpret.h"

/// ai.onnx.ml: support vector machines.
namespace heddle::ops {
namespace {

using ir::ScalarFn;

/// The kernel function of each row of x with each support vector: [N, vectors].
Result<NodeId> svm_kernel(const Call& call, Builder& b, NodeId x, NodeId vectors) {
  const int kind =
      HEDDLE_TRY(choice(call, "kernel_type", "LINEAR", {"LINEAR", "POLY", "RBF", "SIGMOID"}));
  std::vector<double> p = HEDDLE_TRY(number_list(call, "kernel_params"));
  p.resize(3, 0);
  const NodeId products = b.matmul(x, b.transpose(vectors, {1, 0}));
  if (kind == 0) return products;
  if (kind == 2) {
    const NodeId away = b.sub(b.unsqueeze(x, {1}), b.unsqueeze(vectors, {0}));
    return b.exp(b.mul(b.reduce_sum(b.mul(away, away), {2}, false), -p[0]));
  }
  const NodeId scaled = b.add(b.mul(products, p[0]), p[1]);
  if (kind == 3) return b.tanh(scaled);
  return b.map(ScalarFn::pow, {scaled, b.scalar(b.dtype(x), p[2])});
}

Result<Values> svm_regressor(const Call& call, Builder& b) {
  const NodeId x = HEDDLE_TRY(feature_rows(call, b));
  const std::int64_t vectors = call.attribute_int("n_supports", 0), features = b.shape(x)[1];
  const auto rho = HEDDLE_TRY(number_list(call, "rho"));
  if (rho.empty()) return call.error("attribute rho is missing");
  NodeId y;
  if (vectors > 0) {
    const auto support = HEDDLE_TRY(number_list(call, "support_vectors"));
    const auto weights = HEDDLE_TRY(number_list(call, "coefficients"));
    if (static_cast<std::int64_t>(support.size()) != vectors * features ||
        static_cast<std::int64_t>(weights.size()) != vectors)
      return call.error("{} support values and {} coefficients for {} vectors of {}",
                        support.size(), weights.size(), vectors, features);
    const NodeId kernel = HEDDLE_TRY(
        svm_kernel(call, b, x, constant_real(b, b.dtype(x), support, {vectors, features})));
    y = b.matmul(kernel, constant_real(b, b.dtype(x), weights, {vectors, 1}));
  } else {
    y = HEDDLE_TRY(linear_scores(call, b, x, 1));
  }
  y = b.add(y, rho[0]);
  if (call.attribute_int("one_class", 0) != 0) {
    const DType type = b.dtype(y);
    y = b.select(b.map(ScalarFn::greater, {y, b.scalar(type, 0)}), b.scalar(type, 1),
                 b.scalar(type, -1));
  }
  return Values{transformed(b, y, HEDDLE_TRY(post_of(call)))};
}

/// Support vectors by class, and the sign of the decision between each two classes (libsvm).
struct Machines {
  NodeId scores;  ///< [N, pairs]
  NodeId votes;   ///< [N, classes]
  std::int64_t classes = 0;
};

Result<Machines> svm_scores(const Call& call, Builder& b, NodeId x,
                            const std::vector<std::int64_t>& counts) {
  std::int64_t vectors = 0;
  for (const std::int64_t c : counts) {
    if (c < 0 || c > kMaxTableElements) return call.error("vectors_per_class holds {}", c);
    vectors += c;
  }
  const DType type = b.dtype(x);
  const auto classes = static_cast<std::int64_t>(counts.size());
  const std::int64_t features = b.shape(x)[1], pairs = classes * (classes - 1) / 2;
  const auto support = HEDDLE_TRY(number_list(call, "support_vectors"));
  const auto weights = HEDDLE_TRY(number_list(call, "coefficients"));
  const auto rho = HEDDLE_TRY(number_list(call, "rho"));
  if (classes < 2 || classes > 256 || vectors < 1 ||
      static_cast<std::int64_t>(support.size()) != vectors * features ||
      static_cast<std::int64_t>(weights.size()) != vectors * (classes - 1) ||
      static_cast<std::int64_t>(rho.size()) != pairs)
    return call.error(
        "{} support values, {} coefficients and {} offsets for {} vectors of {} in {} "
        "classes",
        support.size(), weights.size(), rho.size(), vectors, features, classes);
  // Column p holds the coefficients of pair p (i, j): row j-1 for vectors of i, row i for those of
  // j.
  std::vector<double> columns(static_cast<std::size_t>(vectors * pairs), 0);
  std::vector<double> votes(static_cast<std::size_t>(pairs * classes), 0), losses = votes;
  std::int64_t pair = 0, first_i = 0;
  for (std::int64_t i = 0; i < classes; first_i += counts[static_cast<std::size_t>(i++)]) {
    std::int64_t first_j = first_i + counts[static_cast<std::size_t>(i)];
    for (std::int64_t j = i + 1; j < classes; first_j += counts[static_cast<std::size_t>(j++)]) {
      const auto put = [&](std::int64_t first, std::int64_t of, std::int64_t row) {
        for (std::int64_t v = first; v < first + counts[static_cast<std::size_t>(of)]; ++v)
          columns[static_cast<std::size_t>(v * pairs + pair)] =
              weights[static_cast<std::size_t>(row * vectors + v)];
      };
      put(first_i, i, j - 1);
      put(first_j, j, i);
      votes[static_cast<std::size_t>(pair * classes + i)] = 1;
      losses[static_cast<std::size_t>(pair * classes + j)] = 1;
      ++pair;
    }
  }
  const NodeId kernel =
      HEDDLE_TRY(svm_kernel(call, b, x, constant_real(b, type, support, {vectors, features})));
  Machines m;
  m.classes = classes;
  m.scores = b.add(b.matmul(kernel, constant_real(b, type, columns, {vectors, pairs})),
                   constant_real(b, type, rho, {pairs}));
  const NodeId won = b.cast(b.map(ScalarFn::greater, {m.scores, b.scalar(type, 0)}), type);
  const NodeId lost = b.sub(b.full(b.type(won), 1), won);
  m.votes = b.add(b.matmul(won, constant_real(b, type, votes, {pairs, classes})),
                  b.matmul(lost, constant_real(b, type, losses, {pairs, classes})));
  return m;
}

/// Probabilities of two classes from their score: p = 1 - σ(a·s + b) (Platt), and what coupled()
/// below makes of it. With two classes its step takes the distance d to p, from 1/2 - p, to
/// q·d² / (q² - q·d + d²), then likewise from the other side: it ends in the second.
Result<NodeId> svm_probabilities(const Call& call, Builder& b, const Machines& m) {
  const auto pa = HEDDLE_TRY(number_list(call, "prob_a"));
  const auto pb = HEDDLE_TRY(number_list(call, "prob_b"));
  const auto pairs = static_cast<std::size_t>(m.classes * (m.classes - 1) / 2);
  if (pa.size() != pairs || pb.size() != pairs)
    return call.error("{} prob_a and {} prob_b, want {}", pa.size(), pb.size(), pairs);
  if (m.classes != 2)
    return call.unsupported(
        "probabilities of {} classes take as many steps as the data say: `heddle run` and `heddle "
        "verify` do that on the host, in stages; it cannot be part of one compiled program",
        m.classes);
  const DType type = b.dtype(m.scores);
  const NodeId raw = b.sigmoid(b.neg(b.add(b.mul(m.scores, pa[0]), pb[0])));
  const NodeId p = b.min(b.max(raw, b.scalar(type, 1e-7)), b.scalar(type, 1 - 1e-7));
  const NodeId q = b.sub(b.full(b.type(p), 1), p);
  NodeId d = b.mul(b.sub(q, p), 0.5);
  const auto error = [&](NodeId r) {
    return b.map(ScalarFn::abs, {b.sub(b.mul(r, d), b.mul(d, d))});
  };
  const auto step = [&](NodeId r, NodeId from) {
    const NodeId square = b.mul(from, from);
    return b.div(b.mul(r, square), b.add(b.mul(r, b.sub(r, from)), square));
  };
  for (int i = 0; i < 2; ++i) {
    const NodeId worst = b.max(error(q), error(b.neg(p)));
    const NodeId done = b.map(ScalarFn::less, {worst, b.scalar(type, 0.005 / 2)});
    d = b.select(done, d, b.neg(step(p, b.neg(step(q, d)))));
  }
  const NodeId first = b.add(p, d);
  return b.concat({first, b.sub(b.full(b.type(p), 1), first)}, 1);
}

/// Label of the most votes (or, without support vectors, of the largest linear score) and scores.
Result<Values> svm_classifier(const Call& call, Builder& b) {
  const NodeId x = HEDDLE_TRY(feature_rows(call, b));
  const auto counts = call.attribute_ints("vectors_per_class", {});
  const auto rho = HEDDLE_TRY(number_list(call, "rho"));
  const std::size_t classes =
      HEDDLE_TRY(labels_of(call, "classlabels_ints", "classlabels_strings")).size();
  if (classes < 2 || rho.empty()) return call.unsupported("{} classes", classes);
  NodeId scores, ranked;
  if (counts.empty()) {
    scores = ranked =
        b.add(HEDDLE_TRY(linear_scores(call, b, x, static_cast<std::int64_t>(classes))), rho[0]);
  } else {
    if (counts.size() != classes)
      return call.error("vectors of {} classes, {} labels", counts.size(), classes);
    const Machines m = HEDDLE_TRY(svm_scores(call, b, x, counts));
    scores = m.scores;
    ranked = m.votes;
    if (call.has_attribute("prob_a")) scores = HEDDLE_TRY(svm_probabilities(call, b, m));
  }
  const NodeId best = b.reduce(ir::Monoid::argmax, ranked, {1}, false);
  const Post post = HEDDLE_TRY(post_of(call));
  if (b.shape(scores)[1] == 1 && post == Post::probit) {  // ONNX Runtime writes no second
    scores = b.concat({transformed(b, scores, post), b.full(b.type(scores), 0)}, 1);
  } else {
    if (b.shape(scores)[1] == 1) scores = b.concat({b.neg(scores), scores}, 1);
    scores = transformed(b, scores, post);
  }
  return Values{HEDDLE_TRY(labelled(call, b, best, "classlabels_ints", classes)),
                b.cast(scores, DType::f32)};
}

/// libsvm's iteration from the probabilities r [K, K] of pairs to those of classes (Wu, Lin and
/// Weng 2004, second method), which stops near the optimum or after 100 steps; in f32, as in ONNX
/// Runtime, since the last step decides.
std::vector<float> coupled(const std::vector<float>& r, std::size_t k) {
  std::vector<float> q(k * k, 0), product(k), p(k, 1.0F / static_cast<float>(k));
  for (std::size_t i = 0; i < k; ++i)
    for (std::size_t j = 0; j < k; ++j) {
      if (i == j) continue;
      q[i * k + i] += r[j * k + i] * r[j * k + i];
      q[i * k + j] = -r[j * k + i] * r[i * k + j];
    }
  const float enough = 0.005F / static_cast<float>(k);
  for (int step = 0; step < 100; ++step) {
    float total = 0, worst = 0;
    for (std::size_t i = 0; i < k; ++i) {
      product[i] = 0;
      for (std::size_t j = 0; j < k; ++j) product[i] += q[i * k + j] * p[j];
      total += p[i] * product[i];
    }
    for (const float v : product) worst = std::max(worst, std::fabs(v - total));
    if (worst < enough) break;
    for (std::size_t i = 0; i < k; ++i) {
      const float more = (total - product[i]) / q[i * k + i], sum = 1 + more;
      p[i] += more;
      total = (total + more * (more * q[i * k + i] + 2 * product[i])) / sum / sum;
      for (std::size_t j = 0; j < k; ++j) {
        product[j] = (product[j] + more * q[i * k + j]) / sum;
        p[j] /= sum;
      }
    }
  }
  return p;
}

/// Probabilities [N, classes] from the scores [N, pairs] of Platt's sigmoids.
Result<Tensor> coupled_probabilities(const Call& call, const Tensor& scores, std::size_t classes) {
  const auto pa = HEDDLE_TRY(number_list(call, "prob_a"));
  const auto pb = HEDDLE_TRY(number_list(call, "prob_b"));
  const std::int64_t rows = scores.shape()[0];
  if (const std::size_t pairs = classes * (classes - 1) / 2;
      pa.size() != pairs || pb.size() != pairs)
    return call.error("{} prob_a and {} prob_b, want {}", pa.size(), pb.size(), pairs);
  Tensor out({DType::f32, {rows, static_cast<std::int64_t>(classes)}});
  std::vector<float> r(classes * classes, 0);
  std::int64_t at = 0, to = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    std::size_t pair = 0;
    for (std::size_t i = 0; i < classes; ++i)
      for (std::size_t j = i + 1; j < classes; ++j, ++pair) {
        const double raw = 1 / (1 + std::exp(scores.at(at++) * pa[pair] + pb[pair]));
        const float one = std::clamp(static_cast<float>(raw), 1e-7F, 1 - 1e-7F);
        r[i * classes + j] = one;
        r[j * classes + i] = 1 - one;
      }
    for (const float p : coupled(r, classes)) out.set(to++, static_cast<double>(p));
  }
  return out;
}

/// Probabilities of three and more classes. Only the coupling is the host's own: the rest are
/// primitives, interpreted.
Result<std::vector<HostValue>> host_svm_classifier(const Call& call, std::span<const Tensor> args) {
  prim::Graph before, after;
  Builder b(before), c(after);
  Call inner = call;
  inner.args = {before.add_input("x", args[0].type())};
  inner.graph = &before;
  const NodeId x = HEDDLE_TRY(feature_rows(inner, b));
  const auto counts = call.attribute_ints("vectors_per_class", {});
  const Machines m = HEDDLE_TRY(svm_scores(inner, b, x, counts));
  const NodeId best = b.reduce(ir::Monoid::argmax, m.votes, {1}, false);
  before.outputs = {
      {"label", HEDDLE_TRY(labelled(inner, b, best, "classlabels_ints", counts.size()))},
      {"scores", m.scores}};
  const auto found = HEDDLE_TRY(prim::interpret(before, {args[0]}));
  const Tensor p = HEDDLE_TRY(coupled_probabilities(call, found[1], counts.size()));
  const NodeId y = transformed(c, after.add_input("p", p.type()), HEDDLE_TRY(post_of(call)));
  after.outputs = {{"y", y}};
  const auto shown = HEDDLE_TRY(prim::interpret(after, {p}));
  return std::vector<HostValue>{{found[0], inner.result_format}, {shown[0], Format::plain}};
}

constexpr OpDef kSvmOps[] = {
    {"ai.onnx.ml::SVMRegressor", 1, 1, 1, svm_regressor},
    {"ai.onnx.ml::SVMClassifier", 1, 1, 1, svm_classifier, OpDef::Stored::refuses,
     host_svm_classifier},
};

}  // namespace

std::span<const OpDef> svm_ops() { return kSvmOps; }

}  // namespace heddle::ops
