#include <algorithm>
#include <map>

#include "ops/families.h"
#include "ops/util.h"

/// Matrix products.
namespace heddle::ops {
namespace {

/// Shapes that NumPy's matmul accepts.
Status want_matmul(const Call& call, Builder& b, NodeId x, NodeId y) {
  const Shape& s = b.shape(x);
  const Shape& t = b.shape(y);
  if (s.empty() || t.empty()) return call.error("found a scalar, want rank 1 or more");
  const std::int64_t inner = t.size() == 1 ? t[0] : t[t.size() - 2];
  if (s.back() != inner)
    return call.error("shapes {} and {} do not multiply", to_string(s), to_string(t));
  if (s.size() > 2 && t.size() > 2 &&
      !broadcast_shapes({s.begin(), s.end() - 2}, {t.begin(), t.end() - 2})) {
    return call.error("batch dimensions of {} and {} do not broadcast", to_string(s), to_string(t));
  }
  return Ok{};
}

Result<Values> matmul(const Call& call, Builder& b) {
  HEDDLE_TRY(want_number(call, b, 0));
  HEDDLE_TRY(want_type(call, b, 1, b.dtype(call.in(0))));
  HEDDLE_TRY(want_matmul(call, b, call.in(0), call.in(1)));
  return Values{b.matmul(call.in(0), call.in(1))};
}

/// alpha·op(A)·op(B) + beta·C
Result<Values> gemm(const Call& call, Builder& b) {
  HEDDLE_TRY(want_number(call, b, 0));
  HEDDLE_TRY(want_type(call, b, 1, b.dtype(call.in(0))));
  HEDDLE_TRY(want_rank(call, b, 0, 2, 2));
  HEDDLE_TRY(want_rank(call, b, 1, 2, 2));
  NodeId x = call.in(0), y = call.in(1);
  if (call.attribute_int("transA", 0) != 0) x = b.transpose(x, {1, 0});
  if (call.attribute_int("transB", 0) != 0) y = b.transpose(y, {1, 0});
  HEDDLE_TRY(want_matmul(call, b, x, y));
  NodeId product = b.matmul(x, y);
  const double alpha = call.attribute_float("alpha", 1), beta = call.attribute_float("beta", 1);
  if (alpha != 1) product = b.mul(product, alpha);
  if (!call.has(2)) return Values{product};
  NodeId c = call.in(2);
  HEDDLE_TRY(want_type(call, b, 2, b.dtype(x)));
  const auto shape = broadcast_shapes(b.shape(c), b.shape(product));
  if (!shape || *shape != b.shape(product))
    return call.error("input 2 has shape {}, want one that broadcasts to {}", to_string(b.shape(c)),
                      to_string(b.shape(product)));
  if (beta != 1) c = b.mul(c, beta);
  return Values{b.add(product, c)};
}

/// One operand of an einsum: its labels, repeated ones taken on the diagonal.
struct Operand {
  NodeId value;
  std::string labels;
};

/// Replaces "..." by upper-case letters from `ellipsis` that stand for the broadcast dimensions.
Result<std::string> expand_labels(const Call& call, const std::string& text, int rank,
                                  int& ellipsis) {
  std::string labels;
  const std::size_t dots = text.find("...");
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (dots != std::string::npos && i == dots) {
      const int extra = rank - static_cast<int>(text.size() - 3);
      if (extra < 0 || extra > 8) return call.error("'{}' does not fit rank {}", text, rank);
      ellipsis = std::max(ellipsis, extra);
      for (int k = extra; k > 0; --k)
        labels += static_cast<char>('0' + k - 1);  // aligned at the right
      i += 2;
    } else if (std::isalpha(static_cast<unsigned char>(text[i]))) {
      labels += text[i];
    } else {
      return call.error("the equation holds '{}'", text[i]);
    }
  }
  if (rank >= 0 && static_cast<int>(labels.size()) != rank)
    return call.error("'{}' does not fit rank {}", text, rank);
  return labels;
}

std::string unique_labels(const std::string& labels) {
  std::string unique;
  for (char c : labels)
    if (unique.find(c) == std::string::npos) unique += c;
  return unique;
}

/// Indexes `x` (labels `from`) by the dimensions named `to`, of extents `extent`.
prim::Access access_of(Builder& b, NodeId x, const std::string& from, const std::string& to) {
  prim::Access access;
  for (std::size_t d = 0; d < from.size(); ++d)
    access.index.push_back(at(b.shape(x), static_cast<int>(d)) == 1
                               ? ir::Expr(0)
                               : dim(static_cast<int>(to.find(from[d]))));
  return access;
}

/// Sums of products over named dimensions: two operands at a time, each pair one contraction.
Result<Values> einsum(const Call& call, Builder& b) {
  std::string equation = call.attribute_string("equation", "");
  std::erase(equation, ' ');
  const std::size_t arrow = equation.find("->");
  const std::string left = equation.substr(0, arrow);
  std::vector<Operand> operands;
  int ellipsis = 0;
  std::map<char, std::int64_t> extent;
  std::map<char, int> count;
  for (std::size_t begin = 0, i = 0; begin <= left.size(); ++i) {
    const std::size_t end = std::min(left.find(',', begin), left.size());
    if (!call.has(static_cast<int>(i)))
      return call.error("the equation has more operands than inputs");
    const NodeId x = call.in(static_cast<int>(i));
    HEDDLE_TRY(want_number(call, b, static_cast<int>(i)));
    HEDDLE_TRY(want_type(call, b, static_cast<int>(i), b.dtype(call.in(0))));
    operands.push_back(
        {x, HEDDLE_TRY(expand_labels(call, left.substr(begin, end - begin), b.rank(x), ellipsis))});
    for (std::size_t d = 0; d < operands.back().labels.size(); ++d) {
      const char c = operands.back().labels[d];
      const std::int64_t e = at(b.shape(x), static_cast<int>(d));
      std::int64_t& known = extent.try_emplace(c, e).first->second;
      if (known == 1) known = e;
      if (e != known && e != 1)
        return call.error("dimension '{}' has extents {} and {}", c, known, e);
      ++count[c];
    }
    begin = end + 1;
  }
  if (operands.size() != call.args.size())
    return call.error("found {} inputs, the equation has {} operands", call.args.size(),
                      operands.size());
  std::string out;
  if (arrow != std::string::npos) {
    std::string text = equation.substr(arrow + 2);
    if (const std::size_t dots = text.find("..."); dots != std::string::npos) {
      std::string batch;
      for (int k = ellipsis; k > 0; --k) batch += static_cast<char>('0' + k - 1);
      out = HEDDLE_TRY(expand_labels(call, text.substr(0, dots), -1, ellipsis)) + batch +
            HEDDLE_TRY(expand_labels(call, text.substr(dots + 3), -1, ellipsis));
    } else {
      out = HEDDLE_TRY(expand_labels(call, text, -1, ellipsis));
    }
  } else {
    for (int k = ellipsis; k > 0; --k) out += static_cast<char>('0' + k - 1);
    for (const auto& [c, n] : count)
      if (n == 1 && std::isalpha(static_cast<unsigned char>(c))) out += c;
  }
  if (unique_labels(out) != out) return call.error("the result names a dimension twice");
  for (char c : out)
    if (!extent.contains(c)) return call.error("the result names '{}', no operand has it", c);

  const auto shape_of = [&](const std::string& labels) {
    Shape shape;
    for (char c : labels) shape.push_back(extent[c]);
    return shape;
  };
  Operand result = operands[0];
  for (std::size_t i = 1; i < operands.size(); ++i) {
    // Keep what the result or a later operand needs.
    std::string needed = out;
    for (std::size_t later = i + 1; later < operands.size(); ++later)
      needed += operands[later].labels;
    const std::string all = unique_labels(result.labels + operands[i].labels);
    std::string kept, summed;
    for (char c : all) (needed.find(c) != std::string::npos ? kept : summed) += c;
    const std::string loops = kept + summed;
    HEDDLE_TRY(checked(call, shape_of(kept), b.dtype(result.value)));
    result.value = b.contract(result.value, operands[i].value, shape_of(kept), shape_of(summed),
                              access_of(b, result.value, result.labels, loops),
                              access_of(b, operands[i].value, operands[i].labels, loops),
                              b.dtype(result.value));
    result.labels = kept;
  }
  // Diagonals, sums and the order of the result.
  const std::string unique = unique_labels(result.labels);
  std::string order = out;
  std::vector<int> axes;
  for (char c : unique)
    if (out.find(c) == std::string::npos) {
      axes.push_back(static_cast<int>(order.size()));
      order += c;
    }
  NodeId y =
      b.view(result.value, shape_of(order), access_of(b, result.value, result.labels, order));
  if (!axes.empty()) y = b.reduce_sum(y, axes, false);
  return Values{y};
}

constexpr OpDef kOps[] = {
    {"MatMul", 1, 2, 2, matmul},
    {"Gemm", 1, 2, 3, gemm},
    {"Einsum", 12, 1, -1, einsum},
};

}  // namespace

std::span<const OpDef> linear_ops() { return kOps; }

}  // namespace heddle::ops
