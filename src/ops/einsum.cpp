#include <algorithm>
#include <cctype>

#include "ops/families.h"
#include "ops/util.h"

/// Einsum: sums of products over named dimensions, two operands at a time.
namespace heddle::ops {
namespace {

/// One label per dimension; those of an ellipsis are digits, 0 the last.
struct Operand {
  NodeId value;
  std::string labels;
};

struct Equation {
  std::vector<Operand> operands;
  std::string result;
  std::map<char, std::int64_t> extent;
};

std::string ellipsis_labels(int count) {
  std::string labels;
  for (int k = count; k > 0; --k) labels += static_cast<char>('0' + k - 1);
  return labels;
}

std::string unique_labels(const std::string& labels) {
  std::string unique;
  for (const char c : labels)
    if (unique.find(c) == std::string::npos) unique += c;
  return unique;
}

/// The labels of `text`, its "..." replaced by `ellipsis` labels.
Result<std::string> expand_labels(const Call& call, const std::string& text, int ellipsis) {
  std::string labels;
  const std::size_t dots = text.find("...");
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (i == dots) {
      labels += ellipsis_labels(ellipsis);
      i += 2;
    } else if (std::isalpha(static_cast<unsigned char>(text[i])) != 0) {
      labels += text[i];
    } else {
      return call.error("the equation holds '{}'", text[i]);
    }
  }
  return labels;
}

/// Labels of an operand of the rank; the ellipsis stands for the dimensions that letters leave.
Result<std::string> operand_labels(const Call& call, const std::string& text, int rank,
                                   int& ellipsis) {
  int rest = 0;
  if (text.find("...") != std::string::npos) {
    rest = rank - (static_cast<int>(text.size()) - 3);
    if (rest < 0 || rest > 9) return call.error("'{}' does not fit rank {}", text, rank);
    ellipsis = std::max(ellipsis, rest);
  }
  std::string labels = HEDDLE_TRY(expand_labels(call, text, rest));
  if (static_cast<int>(labels.size()) != rank)
    return call.error("'{}' does not fit rank {}", text, rank);
  return labels;
}

/// Without "->": ellipsis first, then the letters that appear once, in order.
std::string implied_result(const Equation& e, int ellipsis) {
  std::string out = ellipsis_labels(ellipsis), all;
  for (const Operand& operand : e.operands) all += operand.labels;
  for (const auto& [c, extent] : e.extent)
    if (std::isalpha(static_cast<unsigned char>(c)) != 0 &&
        std::count(all.begin(), all.end(), c) == 1)
      out += c;
  return out;
}

Result<Equation> parse(const Call& call, Builder& b) {
  std::string text = call.attribute_string("equation", "");
  std::erase(text, ' ');
  const std::size_t arrow = text.find("->");
  const std::string left = text.substr(0, arrow);
  Equation e;
  int ellipsis = 0;
  std::size_t begin = 0;
  for (int i = 0; begin <= left.size(); ++i) {
    const std::size_t end = std::min(left.find(',', begin), left.size());
    if (!call.has(i)) return call.error("the equation has more operands than inputs");
    HEDDLE_TRY(want_number(call, b, i));
    HEDDLE_TRY(want_type(call, b, i, b.dtype(call.in(0))));
    const Shape shape = b.shape(call.in(i));
    std::string labels = HEDDLE_TRY(operand_labels(call, left.substr(begin, end - begin),
                                                   static_cast<int>(shape.size()), ellipsis));
    for (std::size_t d = 0; d < labels.size(); ++d) {
      std::int64_t& known = e.extent.try_emplace(labels[d], shape[d]).first->second;
      if (known == 1) known = shape[d];
      if (shape[d] != known && shape[d] != 1)
        return call.error("dimension '{}' has extents {} and {}", labels[d], known, shape[d]);
    }
    e.operands.push_back({call.in(i), std::move(labels)});
    begin = end + 1;
  }
  if (e.operands.size() != call.args.size())
    return call.error("found {} inputs, the equation has {} operands", call.args.size(),
                      e.operands.size());
  e.result = arrow == std::string::npos
                 ? implied_result(e, ellipsis)
                 : HEDDLE_TRY(expand_labels(call, text.substr(arrow + 2), ellipsis));
  if (unique_labels(e.result) != e.result)
    return call.error("the result '{}' names a dimension twice", e.result);
  for (const char c : e.result)
    if (!e.extent.contains(c)) return call.error("the result names '{}', no operand has it", c);
  return e;
}

Shape shape_of(const Equation& e, const std::string& labels) {
  Shape shape;
  for (const char c : labels) shape.push_back(e.extent.at(c));
  return shape;
}

/// Indexes an operand by the dimensions named `loops`; an extent of 1 is broadcast, a label that
/// comes twice reads the diagonal.
prim::Access access_of(Builder& b, const Operand& x, const std::string& loops) {
  prim::Access access;
  for (std::size_t d = 0; d < x.labels.size(); ++d) {
    const bool one = at(b.shape(x.value), static_cast<int>(d)) == 1;
    access.index.push_back(one ? ir::Expr(0) : dim(static_cast<int>(loops.find(x.labels[d]))));
  }
  return access;
}

/// The product of two operands, summed over what `needed` does not name.
Result<Operand> contracted(const Call& call, Builder& b, const Equation& e, const Operand& x,
                           const Operand& y, const std::string& needed) {
  std::string kept, summed;
  for (const char c : unique_labels(x.labels + y.labels))
    (needed.find(c) != std::string::npos ? kept : summed) += c;
  const DType type = b.dtype(x.value);
  const Shape out = HEDDLE_TRY(checked(call, shape_of(e, kept), type));
  const std::string loops = kept + summed;
  return Operand{b.contract(x.value, y.value, out, shape_of(e, summed), access_of(b, x, loops),
                            access_of(b, y, loops), type),
                 kept};
}

Result<Values> einsum(const Call& call, Builder& b) {
  const Equation e = HEDDLE_TRY(parse(call, b));
  Operand product = e.operands[0];
  for (std::size_t i = 1; i < e.operands.size(); ++i) {
    std::string needed = e.result;  // and what later operands share
    for (std::size_t later = i + 1; later < e.operands.size(); ++later)
      needed += e.operands[later].labels;
    product = HEDDLE_TRY(contracted(call, b, e, product, e.operands[i], needed));
  }
  // What is left: diagonals, sums of a single operand, the order of the result.
  std::string order = e.result;
  std::vector<int> axes;
  for (const char c : unique_labels(product.labels)) {
    if (e.result.find(c) != std::string::npos) continue;
    axes.push_back(static_cast<int>(order.size()));
    order += c;
  }
  const Shape shape = HEDDLE_TRY(checked(call, shape_of(e, order), b.dtype(product.value)));
  const NodeId y = b.view(product.value, shape, access_of(b, product, order));
  return Values{axes.empty() ? y : b.reduce_sum(y, axes, false)};
}

constexpr OpDef kEinsumOps[] = {{"Einsum", 12, 1, -1, einsum}};

}  // namespace

std::span<const OpDef> einsum_ops() { return kEinsumOps; }

}  // namespace heddle::ops
