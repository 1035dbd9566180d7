// Rows over quantised values: products of dequantised integers become products of the integers
// (Jacob et al., CVPR'18, section 2.2), which are exact and two to an instruction.
#include <algorithm>

#include "prim/access.h"
#include "prim/fold.h"
#include "prim/integer_products.h"
#include "prim/rewrite.h"

namespace heddle::prim {
namespace {

using ir::Expr;
using ir::Interval;
using ir::ScalarFn;
using ir::Var;
using Rewritten = std::optional<NodeId>;

Interval range_of(DType t) {
  const int bits = static_cast<int>(size_of(t)) * 8 - (is_signed_int(t) ? 1 : 0);
  if (t == DType::b1) return {0, 1};
  if (bits > 32) return {INT64_MIN / 4, INT64_MAX / 4};
  const std::int64_t high = (std::int64_t{1} << bits) - 1;
  return {is_signed_int(t) ? -high - 1 : 0, high};
}
bool contains(Interval outer, Interval inner) {
  return outer.low <= inner.low && inner.high <= outer.high;
}

/// Integers that a cast of the floating value x = min(max(…, low), high) may give; NaN gives 0.
std::optional<Interval> bounds_of_cast(const Graph& g, NodeId x) {
  constexpr double kLarge = 1e15;
  if (!is_map(g[x], ScalarFn::min) || !is_map(g[g[x].args[0]], ScalarFn::max)) return std::nullopt;
  const auto high = splat_value(g, g[x].args[1]), low = splat_value(g, g[g[x].args[0]].args[1]);
  if (!high || !low || !(*low >= -kLarge && *low <= *high && *high <= kLarge)) return std::nullopt;
  return Interval{std::min<std::int64_t>(0, static_cast<std::int64_t>(*low)),
                  std::max<std::int64_t>(0, static_cast<std::int64_t>(*high))};
}

/// Bounds of the elements of an integer value, from types, numbers and sums.
Interval range_of(const Graph& g, NodeId id) {
  constexpr std::int64_t kFew = 4096;
  const Node& n = g[id];
  const Interval all = range_of(n.type.dtype);
  if (const Tensor* t = g.constant_of(id); t != nullptr && t->count() > 0 && t->count() <= kFew) {
    Interval range{t->int_at(0), t->int_at(0)};
    for (std::int64_t i = 1; i < t->count(); ++i)
      range = {std::min(range.low, t->int_at(i)), std::max(range.high, t->int_at(i))};
    return range;
  }
  if (const auto* v = std::get_if<View>(&n.op); v != nullptr && plain_view(g, id) != nullptr)
    return range_of(g, n.args[0]);
  const Map* m = std::get_if<Map>(&n.op);
  if (m == nullptr) return all;
  if (m->fn == ScalarFn::cast) {
    const bool real = is_float(g[n.args[0]].type.dtype);
    const auto x = real ? bounds_of_cast(g, n.args[0]) : std::optional(range_of(g, n.args[0]));
    return x && contains(all, *x) ? *x : all;
  }
  if (m->fn != ScalarFn::add && m->fn != ScalarFn::sub) return all;
  const Interval x = range_of(g, n.args[0]), y = range_of(g, n.args[1]);
  Interval sum;
  const bool wraps = m->fn == ScalarFn::add ? __builtin_add_overflow(x.low, y.low, &sum.low) ||
                                                  __builtin_add_overflow(x.high, y.high, &sum.high)
                                            : __builtin_sub_overflow(x.low, y.high, &sum.low) ||
                                                  __builtin_sub_overflow(x.high, y.low, &sum.high);
  return !wraps && contains(all, sum) ? sum : all;
}

/// Narrowing and widening again is one cast, or none, where the narrow type holds the value.
Rewritten cast_of_bounded(RewriteContext& c, const Node& n) {
  if (!is_map(n, ScalarFn::cast) || !is_int(n.type.dtype)) return std::nullopt;
  if (!is_map(c.g[n.args[0]], ScalarFn::cast)) return std::nullopt;
  const NodeId x = c.g[n.args[0]].args[0];
  const DType from = c.b.dtype(x), between = c.b.dtype(n.args[0]);
  if (!is_int(between) || (!is_float(from) && !is_int(from))) return std::nullopt;
  const auto range = is_float(from) ? bounds_of_cast(c.g, x) : std::optional(range_of(c.g, x));
  if (!range || !contains(range_of(between), *range)) return std::nullopt;
  if (!contains(range_of(n.type.dtype), *range)) return std::nullopt;
  return from == n.type.dtype ? x : c.b.cast(x, n.type.dtype);
}

/// (x + y) - y → x: integers wrap both ways.
Rewritten sum_less_part(RewriteContext& c, const Node& n) {
  if (!is_map(n, ScalarFn::sub) || !is_int(n.type.dtype)) return std::nullopt;
  if (!is_map(c.g[n.args[0]], ScalarFn::add)) return std::nullopt;
  const Node& sum = c.g[n.args[0]];
  if (sum.args[1] == n.args[1]) return sum.args[0];
  if (sum.args[0] == n.args[1]) return sum.args[1];
  return std::nullopt;
}

/// A dequantised operand: integers of 16 bits, times what does not change along reductions.
struct Dequantised {
  NodeId integers;
  Interval range;
  std::optional<NodeId> scale;  ///< a view of what does not change along reductions
  Access over;                  ///< of its source, over the contraction's output
  std::optional<View> through;  ///< reads what is dequantised (reflected borders)
};

/// How the output reads the source of an operand's scale, if it stays the same along reductions.
std::optional<Access> scale_over_output(RewriteContext& c, NodeId scale, const Access& operand,
                                        const Shape& out) {
  const Access* view = plain_view(c.g, scale);
  if (view == nullptr) return std::nullopt;
  const Access over{compose(operand, *view).index, {}};
  std::vector<Var> variables;
  for (const Expr& e : over.index) ir::collect_variables(e, variables);
  for (const Var v : variables)
    if (v.index >= static_cast<std::int32_t>(out.size())) return std::nullopt;
  if (!shown_in_bounds(over, out, c.b.shape(c.g[scale].args[0]))) return std::nullopt;
  return over;
}

std::optional<Dequantised> dequantised(RewriteContext& c, NodeId id, const Access& access,
                                       const Shape& out) {
  if (const auto* v = std::get_if<View>(&c.g[id].op); v && v->pieces.size() == 1 && v->fill == 0) {
    const View through = *v;
    auto whole = dequantised(c, c.g[id].args[0], compose(access, through.pieces[0]), out);
    if (!whole || whole->through) return std::nullopt;
    whole->range = {std::min<std::int64_t>(whole->range.low, 0),
                    std::max<std::int64_t>(whole->range.high, 0)};
    whole->through = through;
    return whole;
  }
  Dequantised d;
  if (is_map(c.g[id], ScalarFn::mul)) {
    const NodeId scale = c.g[id].args[1];
    const auto over = scale_over_output(c, scale, access, out);
    if (!over) return std::nullopt;
    d.over = *over;
    d.scale = c.g[scale].args[0];
    id = c.g[id].args[0];
  }
  if (!is_map(c.g[id], ScalarFn::cast)) return std::nullopt;
  d.integers = c.g[id].args[0];
  if (!is_int(c.b.dtype(d.integers))) return std::nullopt;
  d.range = range_of(c.g, d.integers);
  if (!contains(range_of(DType::i16), d.range)) return std::nullopt;
  return d;
}

/// y·s·t; one number of the two is multiplied into the other before that is spread out.
NodeId scaled(RewriteContext& c, NodeId y, const Dequantised& a, const Dequantised& b) {
  const Shape out = c.b.shape(y);
  const auto times = [&](NodeId source, const Access& over) {
    y = c.b.mul(y, c.b.view(source, out, over));
  };
  if (a.scale && b.scale)
    for (const auto& [one, other] : {std::pair{&a, &b}, {&b, &a}})
      if (element_count(c.b.shape(*one->scale)) == 1) {
        const Shape shape = c.b.shape(*other->scale);
        times(c.b.mul(*other->scale, c.b.broadcast(c.b.reshape(*one->scale, {}), shape)),
              other->over);
        return y;
      }
  if (a.scale) times(*a.scale, a.over);
  if (b.scale) times(*b.scale, b.over);
  return y;
}

/// A value of constants as one, though it may be larger than what it is of.
NodeId at_once(RewriteContext& c, NodeId x) {
  if (!c.constant(x)) return x;
  const auto value = evaluate_constant(c.g, x);
  return value ? c.b.constant(*value) : x;
}

/// The same integers in fewer bits.
NodeId narrow(RewriteContext& c, NodeId integers, DType type = DType::i16) {
  return at_once(c, c.b.cast(integers, type));
}

/// What the integers are read as: bytes, of which one operand's are signed, where four of them are
/// one product, else 16 bits.
std::pair<DType, DType> narrow_types(Interval a, Interval b, const ProductExtents& e) {
  for (const auto& [x, y] : {std::pair{DType::u8, DType::i8}, {DType::i8, DType::u8}})
    if (e.quads && contains(range_of(x), a) && contains(range_of(y), b)) return {x, y};
  return {DType::i16, DType::i16};
}

/// The operand with zeros behind the terms of a reduction, so that four divides their number.
NodeId with_zeros_behind(RewriteContext& c, NodeId x, const Access& access, Var v,
                         std::int64_t terms) {
  const Shape shape = c.b.shape(x);
  Shape none(shape.size(), 0), more = none;
  more[*whole_dimension(access, shape, v, terms)] = 4 - terms % 4;
  return at_once(c, c.b.pad(x, none, more, 0));
}

/// The sum of products of integers; a colour image's three channels become four.
NodeId product_of(RewriteContext& c, const Contract& k, const ProductExtents& e, NodeId lhs,
                  NodeId rhs, Shape out, DType type = DType::i32) {
  std::vector<std::int64_t> reduced = k.reduced;
  const auto with_zeros = [&](NodeId x, const Access& access, std::size_t i) {
    const Var v{static_cast<std::int32_t>(out.size() + i)};
    return with_zeros_behind(c, x, access, v, reduced[i]);
  };
  if (e.short_of_four) {
    lhs = with_zeros(lhs, k.lhs, *e.short_of_four);
    rhs = with_zeros(rhs, k.rhs, *e.short_of_four);
    std::int64_t& terms = reduced[*e.short_of_four];
    terms += 4 - terms % 4;
  } else if (e.ragged && c.constant(rhs)) {
    rhs = with_zeros(rhs, k.rhs, *e.many);  // so that none of its terms has to be tested
  }
  return c.b.contract(lhs, rhs, out, reduced, k.lhs, k.rhs, type);
}

/// `q` with `fill` wherever the access leaves it, and the access of that; false if the conditions
/// are not just those of the borders.
bool padded(RewriteContext& c, NodeId& q, Access& access, const Contract& k, const Shape& out,
            std::int64_t fill) {
  const Shape shape = c.b.shape(q);
  ir::Ranges ranges;
  for (const std::int64_t extent : out) ranges.push_back(Interval{0, extent - 1});
  for (const std::int64_t extent : k.reduced) ranges.push_back(Interval{0, extent - 1});
  Shape before(shape.size(), 0), after = before;
  Access whole{access.index, {}};
  for (const ir::Condition& condition : access.inside) {
    std::size_t d = 0;
    std::optional<std::int64_t> shift;
    while (d < shape.size() && !(shift = (access.index[d] - condition.expr).constant())) ++d;
    if (d == shape.size()) return false;
    const auto span = ir::bounds(access.index[d], ranges);
    if (!span || condition.low + *shift > 0 || condition.high + *shift < shape[d]) return false;
    before[d] = std::max<std::int64_t>(0, -span->low);
    after[d] = std::max<std::int64_t>(0, span->high - shape[d] + 1);
    whole.index[d] = access.index[d] + Expr(before[d]);
  }
  q = c.b.pad(q, before, after, static_cast<double>(fill));
  access = whole;
  return true;
}

/// Σ (q + low)·w is Σ q·w + low·Σ w, where no term is left out (for padding, q is -low): what does
/// not fit into unsigned bytes for its zero point alone is shifted into them.
std::optional<NodeId> product_of_shifted(RewriteContext& c, Contract k, const ProductExtents& e,
                                         const Dequantised& a, const Dequantised& b, Shape out) {
  const std::int64_t low = a.range.low;
  if (!k.lhs.inside.empty() && low > 0) return std::nullopt;  // no byte stands for 0
  if (!e.quads || low == 0 || a.range.high - low > 255 || !contains(range_of(DType::i8), b.range) ||
      !k.rhs.inside.empty() || !c.constant(b.integers))
    return std::nullopt;
  const NodeId w = narrow(c, b.integers, DType::i8);
  Shape along(out.size(), 1);
  for (std::size_t d = 0; d < out.size(); ++d)
    if (depends_on(k.rhs, Var{static_cast<std::int32_t>(d)})) along[d] = out[d];
  Tensor unit({DType::i8, {1}});
  unit.set_int(0, 1);
  const NodeId one = c.b.constant(unit);
  auto sums = evaluate_constant(
      c.g, c.b.contract(one, w, along, k.reduced, {{Expr(0)}, {}}, k.rhs, DType::i32));
  if (!sums) return std::nullopt;
  for (std::int64_t i = 0; i < sums->count(); ++i) sums->set_int(i, low * sums->int_at(i));
  const Node source = c.g[a.integers];
  const bool stored = is_map(source, ScalarFn::sub) && splat(c.g, source.args[1]) != nullptr &&
                      splat(c.g, source.args[1])->int_at(0) == -low;
  const NodeId q = stored
                       ? source.args[0]
                       : c.b.sub(c.b.cast(a.integers, DType::i32), c.b.scalar_int(DType::i32, low));
  NodeId bytes = narrow(c, q, DType::u8);
  if (!k.lhs.inside.empty() && !padded(c, bytes, k.lhs, k, out, -low)) return std::nullopt;
  const NodeId product = product_of(c, k, e, bytes, w, out);
  return c.b.add(product, c.b.broadcast(c.b.constant(*sums), out));
}

/// How terms go four, or two, to an instruction.
enum class Terms : std::uint8_t {
  groups,      ///< neighbours along a reduction, whose number divides into such groups
  ragged,      ///< the last group has fewer, or the reduction is two that run as one
  of_channels  ///< rows of taps: a depthwise convolution
};
/// (s·i) @ (t·j) → (i @ j)·(s·t) for integers i and j: no rounding before the scales.
Rewritten product_of_integers(RewriteContext& c, const Node& n, Terms terms) {
  const auto* k = std::get_if<Contract>(&n.op);
  if (k == nullptr || n.type.dtype != DType::f32) return std::nullopt;
  Contract contract = *k;
  const NodeId lhs = n.args[0], rhs = n.args[1];
  auto a = dequantised(c, lhs, contract.lhs, n.type.shape);
  auto b = a ? dequantised(c, rhs, contract.rhs, n.type.shape) : std::nullopt;
  if (!b) return std::nullopt;
  for (const auto& [d, id] : {std::pair{&*a, lhs}, {&*b, rhs}})
    if (d->through)
      d->integers = add_view(c.b, {d->integers}, d->through->pieces, 0,
                             {c.b.dtype(d->integers), c.b.shape(id)});
  const auto extents = [&] {
    return extents_of(contract, n.type.shape, c.b.shape(a->integers), c.b.shape(b->integers));
  };
  ProductExtents e = extents();
  if (terms == Terms::of_channels) {
    if (!is_depthwise(contract, e) || !c.constant(b->integers)) return std::nullopt;
    e.quads = true;
    e.short_of_four = {};
  } else if (terms == Terms::ragged) {
    if (e.quads) return std::nullopt;
    if (one_reduction(c, b->integers, contract, n.type.shape)) e = extents();
    if (!e.quads && !e.many) return std::nullopt;
    e.ragged = !e.quads;
    e.pairs = e.quads = true;
    if (!worth_pairs(e)) return std::nullopt;
  } else {
    if (!e.pairs && in_order_of_loops(c, b->integers, contract, n.type.shape)) e = extents();
    if (!worth_pairs(e)) return std::nullopt;
  }
  const auto largest = [](Interval r) { return std::max(-r.low, r.high); };
  if (largest(a->range) * largest(b->range) > INT32_MAX / e.reduced) return std::nullopt;
  const auto [x, y] = narrow_types(a->range, b->range, e);
  const bool channels = terms == Terms::of_channels;
  if (x == DType::i16 || (channels && x != DType::u8))
    if (const auto sum = product_of_shifted(c, contract, e, *a, *b, n.type.shape))
      return scaled(c, c.b.cast(*sum, DType::f32), *a, *b);
  const bool odd = e.ragged && contract.reduced[*e.many] % 2 != 0;  // or pairs need no last group
  if (channels ? x != DType::u8 : terms == Terms::ragged && x == DType::i16 && !odd)
    return std::nullopt;
  const NodeId sum = product_of(c, contract, e, narrow(c, a->integers, x),
                                narrow(c, b->integers, y), n.type.shape);
  return scaled(c, c.b.cast(sum, DType::f32), *a, *b);
}
Rewritten contract_of_integers(RewriteContext& c, const Node& n) {
  return product_of_integers(c, n, Terms::groups);
}
/// For machines with products of four bytes, which depthwise convolutions take by four rows of
/// taps.
Rewritten depthwise_of_bytes(RewriteContext& c, const Node& n) {
  return product_of_integers(c, n, Terms::of_channels);
}
/// For the same, many terms whose number no group divides.
Rewritten contract_of_ragged_integers(RewriteContext& c, const Node& n) {
  return product_of_integers(c, n, Terms::ragged);
}

/// Operands that 16 bits hold are read in 16 bits: products and sums are in i32 all the same.
Rewritten contract_of_narrow(RewriteContext& c, const Node& n) {
  const auto* k = std::get_if<Contract>(&n.op);
  if (k == nullptr || n.type.dtype != DType::i32) return std::nullopt;
  bool wide = false;
  for (const NodeId a : n.args) {
    wide |= size_of(c.b.dtype(a)) > 2;
    if (!contains(range_of(DType::i16), range_of(c.g, a))) return std::nullopt;
  }
  const Contract contract = *k;
  const ProductExtents e =
      extents_of(contract, n.type.shape, c.b.shape(n.args[0]), c.b.shape(n.args[1]));
  if (!wide || !worth_pairs(e)) return std::nullopt;
  const auto [x, y] = narrow_types(range_of(c.g, n.args[0]), range_of(c.g, n.args[1]), e);
  const NodeId rhs = n.args[1], lhs = narrow(c, n.args[0], x);
  return product_of(c, contract, e, lhs, narrow(c, rhs, y), n.type.shape);
}

/// For machines without products of four bytes. What is given in bytes stays so: it is read once,
/// and constants are packed as what is multiplied.
Rewritten bytes_in_halves(RewriteContext& c, const Node& n) {
  const auto* k = std::get_if<Contract>(&n.op);
  if (k == nullptr || n.type.dtype != DType::i32) return std::nullopt;
  for (const NodeId a : n.args)
    if (size_of(c.b.dtype(a)) != 1 || std::holds_alternative<Input>(c.g[a].op)) return std::nullopt;
  const Contract contract = *k;
  if (c.constant(n.args[0]) && c.constant(n.args[1])) return std::nullopt;
  const auto halves = [&](NodeId x) { return c.constant(x) ? x : narrow(c, x); };
  const NodeId rhs = n.args[1], lhs = halves(n.args[0]);
  return c.g.add(contract, {lhs, halves(rhs)}, n.type);
}

/// For machines with products of bf16 in pairs, which three channels have none of.
Rewritten bf16_in_pairs(RewriteContext& c, const Node& n) {
  const auto* k = std::get_if<Contract>(&n.op);
  if (k == nullptr || c.b.dtype(n.args[0]) != DType::bf16 || c.b.dtype(n.args[1]) != DType::bf16)
    return std::nullopt;
  const Contract contract = *k;
  const Shape out = n.type.shape;
  const DType type = n.type.dtype;
  const NodeId lhs = n.args[0], rhs = n.args[1];
  const ProductExtents e = extents_of(contract, out, c.b.shape(lhs), c.b.shape(rhs));
  if (!e.short_of_four || !worth_pairs(e) || !c.constant(rhs)) return std::nullopt;
  return product_of(c, contract, e, lhs, rhs, out, type);
}

NodeId bytes_of(Builder& b, Shape shape) {
  Tensor t({DType::i8, std::move(shape)});
  for (std::int64_t i = 0; i < t.count(); ++i) t.set_int(i, i * 37 % 255 - 127);
  return b.constant(t);
}

constexpr RewriteRule kIntegerRules[] = {
    {"sum-less-part", "(x + y) - y -> x  for integers", sum_less_part,
     [](Builder& b) {
       const NodeId x = b.graph().add_input("x", {DType::i32, {6}});
       const NodeId y = b.graph().add_input("y", {DType::i32, {6}});
       return b.sub(b.add(x, y), y);
     }},
    {"cast-of-bounded", "cast(cast(x)) -> cast(x)  where the middle type holds x's bounds",
     cast_of_bounded,
     [](Builder& b) {
       const NodeId x = b.graph().add_input("x", {DType::f32, {6}});
       const NodeId y = b.min(b.max(x, b.scalar(DType::f32, 0)), b.scalar(DType::f32, 255));
       return b.cast(b.cast(y, DType::u8), DType::i32);
     }},
    {"contract-of-narrow", "i @ j -> i' @ j' in 16 bits  where these hold i, j of more",
     contract_of_narrow,
     [](Builder& b) {
       const NodeId q = b.graph().add_input("q", {DType::u8, {8, 8}});
       const NodeId zero = b.graph().add_input("zero", {DType::u8, {8, 8}});
       const NodeId x = b.sub(b.cast(q, DType::i32), b.cast(zero, DType::i32));
       return b.matmul(x, b.cast(bytes_of(b, {8, 2}), DType::i32));
     }},
    {kBytesInHalves, "i @ j -> i' @ j' in 16 bits  for bytes i, j", bytes_in_halves,
     [](Builder& b) {
       const NodeId q = b.cast(b.graph().add_input("q", {DType::f32, {8, 8}}), DType::u8);
       const Op product = b.graph()[b.matmul(q, q)].op;
       return b.graph().add(product, {q, bytes_of(b, {8, 8})}, {DType::i32, {8, 8}});
     }},
    {kBf16InPairs, "x @ w -> x' @ w' with a fourth channel of zeros  for bf16 x, w of three",
     bf16_in_pairs,
     [](Builder& b) {
       const NodeId x = b.graph().add_input("x", {DType::bf16, {1, 3, 9, 9}});
       Tensor w({DType::bf16, {8, 3, 3, 3}});
       for (std::int64_t i = 0; i < w.count(); ++i) w.set(i, static_cast<double>(i % 7) - 3);
       return b.conv(x, b.constant(w), {{1, 1}, {1, 1}, {1, 1}, {1, 1}, 1});
     }},
    {kDepthwiseOfBytes, "(s*i) @ (t*j) -> (i @ j)*(s*t)  for bytes i, j of channels by themselves",
     depthwise_of_bytes,
     [](Builder& b) {
       const NodeId q = b.cast(b.graph().add_input("q", {DType::u8, {1, 16, 5, 5}}), DType::i32);
       const NodeId x = b.mul(b.cast(b.sub(q, b.scalar_int(DType::i32, 128)), DType::f32), 0.25);
       const NodeId w = b.mul(b.cast(bytes_of(b, {16, 1, 3, 3}), DType::f32), 0.125);
       return b.conv(x, w, {{1, 1}, {1, 1}, {1, 1}, {1, 1}, 16});
     }},
    {kContractOfRaggedIntegers,
     "(s*i) @ (t*j) -> (i @ j)*(s*t)  for integers i, j of 16 bits, many terms",
     contract_of_ragged_integers,
     [](Builder& b) {
       const NodeId q = b.graph().add_input("q", {DType::u8, {8, 37}});
       const NodeId w = b.mul(b.cast(bytes_of(b, {37, 2}), DType::f32), 0.125);
       return b.matmul(b.mul(b.cast(q, DType::f32), 0.25), w);
     }},
    {"contract-of-integers", "(s*i) @ (t*j) -> (i @ j)*(s*t)  for integers i, j of 16 bits",
     contract_of_integers,
     [](Builder& b) {
       const NodeId q = b.graph().add_input("q", {DType::u8, {8, 8}});
       const NodeId i = b.sub(b.cast(q, DType::i32), b.scalar(DType::i32, 128));
       const NodeId x = b.mul(b.cast(i, DType::f32), 0.25);
       const NodeId w = b.mul(b.cast(bytes_of(b, {8, 2}), DType::f32), 0.125);
       return b.matmul(x, w);
     }},
};

}  // namespace

ir::Interval range_of_integers(const Graph& g, NodeId id) { return range_of(g, id); }

std::span<const RewriteRule> integer_rules() { return kIntegerRules; }

}  // namespace heddle::prim
