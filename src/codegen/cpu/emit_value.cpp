// Values: each node once per level and constants of unrolled variables, while what it reads is
// unchanged.
#include <algorithm>
#include <cmath>

#include "codegen/cpu/emitter.h"
#include "kernel/halves.h"
#include "support/match.h"

namespace heddle::codegen::cpu {

using namespace kernel;

namespace {

bool contains(const std::vector<std::int32_t>& sorted, std::int32_t x) {
  return std::binary_search(sorted.begin(), sorted.end(), x);
}

const Apply* application(const Value& v, ir::ScalarFn fn) {
  const Apply* x = std::get_if<Apply>(&v->op);
  return x && x->fn == fn ? x : nullptr;
}

bool is_number(const Value& v, double number) {
  const Imm* x = std::get_if<Imm>(&v->op);
  return x && x->real == number;
}

/// y of 1 / (1 + e^y).
std::optional<Value> logistic_argument(const Apply* quotient) {
  const bool is_quotient = quotient && quotient->fn == ir::ScalarFn::recip;
  const Apply* sum = is_quotient ? application(quotient->args[0], ir::ScalarFn::add) : nullptr;
  for (const std::size_t one : {0, 1}) {
    if (!sum || !is_number(sum->args[one], 1)) continue;
    if (const Apply* e = application(sum->args[1 - one], ir::ScalarFn::exp)) return e->args[0];
  }
  return std::nullopt;
}

/// Whether y is x times a number, so that x is NaN where y is: the number is neither that, nor 0 or
/// infinite, which make it of infinities and zeros.
bool follows(Value y, const Value& x) {
  const auto scales = [](const Value& v) {
    const Imm* factor = std::get_if<Imm>(&v->op);
    return factor && std::isnormal(static_cast<float>(factor->real));
  };
  if (const Apply* product = application(y, ir::ScalarFn::mul); product && y != x)
    for (const std::size_t side : {0, 1})
      if (scales(product->args[side])) y = product->args[1 - side];
  return y == x;
}

}  // namespace

/// The outermost depth where the value may be computed: inside the loops whose variables it uses,
/// inside those that write what it reads, and, if it reads memory, inside conditions.
int Emitter::level_of(const Value& v) {
  const Dependence& d = analysis_.of(v);
  int level = 0;
  for (const std::int32_t x : d.variables) {
    const auto at = static_cast<std::size_t>(x);
    if (!bound_[at]) level = std::max(level, levels_[at]);
  }
  if (d.buffers.empty()) return level;
  for (int i = depth(); i > level; --i) {
    const Scope& s = *scopes_[static_cast<std::size_t>(i)];
    if (s.conditional) return i;
    if (!s.writes) continue;
    const bool written = std::any_of(d.buffers.begin(), d.buffers.end(),
                                     [&](std::int32_t id) { return contains(*s.writes, id); });
    if (written) return i;
  }
  return level;
}

/// The value as a scalar if it is the same in all lanes, else as a vector.
Emitter::V Emitter::value(const Value& v) {
  if (const Imm* x = std::get_if<Imm>(&v->op)) return ops_.constant(v->dtype, x->real, x->integer);
  const Dependence& d = analysis_.of(v);
  ValueKey key{v.get(), {}};
  for (const std::int32_t x : d.variables) {
    if (const auto& c = bound_[static_cast<std::size_t>(x)]) key.constants.push_back(*c);
  }
  const int level = level_of(v);
  for (int i = depth(); i >= 0; --i) {
    const auto& memo = scopes_[static_cast<std::size_t>(i)]->values;
    const auto found = memo.find(key);
    if (found == memo.end()) continue;
    const std::int64_t time = found->second.time;
    const bool fresh = std::all_of(d.buffers.begin(), d.buffers.end(), [&](std::int32_t id) {
      return stored_[static_cast<std::size_t>(id)] <= time;
    });
    if (fresh) return found->second.value;
  }
  V out = at_level(level, [&] { return make_value(*v); });
  scopes_[static_cast<std::size_t>(level)]->values.insert_or_assign(key, Remembered{out, time_});
  return out;
}

Emitter::V Emitter::make_value(const ValueNode& v) {
  return match(
      v.op, [&](const Imm& x) -> V { return ops_.constant(v.dtype, x.real, x.integer); },
      [&](const Load& x) { return load(x, v.dtype); },
      [&](const Apply& x) {
        return make_apply(x, v.dtype,
                          !machine_.exact_functions && analysis_.narrow(k_).contains(&v));
      },
      [&](const Index& x) { return index_data(bound(x.expr), v.dtype); },
      [&](const Guard& x) { return make_guard(x); },
      [&](const LaneReduce& x) { return lane_reduce(x, v.dtype); },
      [&](const RandomBits& x) { return make_random(x); });
}

Emitter::V Emitter::make_apply(const Apply& x, DType dtype, bool narrow) {
  if (V word = load_parts(x)) return word;
  if (V sum = add_product(x)) return sum;
  if (x.fn == ir::ScalarFn::cast && is_int(dtype) && size_of(dtype) <= 2)
    if (V whole = low_bits(x.args[0])) return ops_.cast(whole, DType::i32, dtype);
  if (V s = dtype == DType::f32 ? make_logistic(x, narrow) : nullptr) return s;
  if (V s = dtype == DType::f32 && narrow ? make_one_plus(x) : nullptr) return s;
  llvm::SmallVector<V> args;
  bool varying = false;
  for (const Value& arg : x.args) {
    args.push_back(value(arg));
    varying |= args.back()->getType()->isVectorTy();
  }
  if (varying) {
    for (V& arg : args) arg = ops_.splat(arg, vector_->width);
  }
  if (narrow && varying && x.fn == ir::ScalarFn::exp)
    if (V out = ops_.narrow_exp(args[0])) return out;
  return ops_.apply(x.fn, args, x.args.back()->dtype, dtype);
}

/// Rounded values and a zero point as integers of which 16 bits are kept at most, so that the
/// others, which NaN has, do not count; null where it is something else.
Emitter::V Emitter::low_bits(const Value& v) {
  constexpr double kMost = 1 << 30;
  const auto* x = std::get_if<Apply>(&v->op);
  if (x == nullptr || v->dtype != DType::i32) return nullptr;
  if (x->fn == ir::ScalarFn::cast && x->args[0]->dtype == DType::f32)
    return ops_.bounded_to_nearest(value(x->args[0]), -kMost, kMost);
  const bool adds = x->fn == ir::ScalarFn::add;
  if ((!adds && x->fn != ir::ScalarFn::sub) || !std::holds_alternative<Imm>(x->args[1]->op))
    return nullptr;
  V whole = low_bits(x->args[0]);
  if (whole == nullptr) return nullptr;
  V zero = ops_.splat(value(x->args[1]), width_of(whole));
  return adds ? b_.CreateAdd(whole, zero) : b_.CreateSub(whole, zero);
}

/// A sum and a product of bytes or of halves are one instruction; null where it is something else.
Emitter::V Emitter::add_product(const Apply& x) {
  if (x.fn != ir::ScalarFn::add) return nullptr;
  if (const auto words = machine_.bf16_pairs ? factors_of_halves(x.args[1]) : std::nullopt) {
    V args[] = {value(x.args[0]), value(words->first), value(words->second)};
    if (std::ranges::any_of(args, [](V v) { return v->getType()->isVectorTy(); }))
      for (V& arg : args) arg = ops_.splat(arg, vector_->width);
    if (V sum = ops_.add_bf16_products(args[0], args[1], args[2])) return sum;
  }
  const auto* product = std::get_if<Apply>(&x.args[1]->op);
  if (product == nullptr || product->fn != ir::ScalarFn::dot4) return nullptr;
  V args[] = {value(x.args[0]), value(product->args[0]), value(product->args[1])};
  if (std::ranges::any_of(args, [](V v) { return v->getType()->isVectorTy(); }))
    for (V& arg : args) arg = ops_.splat(arg, vector_->width);
  return ops_.dot4(args[0], args[1], args[2]);
}

/// Sigmoid, and x·sigmoid(c·x) (SiLU), which is one division; null where it is something else.
Emitter::V Emitter::make_logistic(const Apply& x, bool narrow) {
  const auto made = [&](const Value* numerator, Value y) -> V {
    const Apply* minus = application(y, ir::ScalarFn::neg);
    if (minus) y = minus->args[0];
    if (numerator && !follows(y, *numerator)) return nullptr;
    V argument = value(y);
    if (!argument->getType()->isVectorTy()) return nullptr;
    V above = numerator ? ops_.splat(value(*numerator), vector_->width) : nullptr;
    return ops_.logistic(above, argument, minus != nullptr, narrow);
  };
  if (x.fn == ir::ScalarFn::mul)
    for (const std::size_t side : {0, 1})
      if (const auto y = logistic_argument(std::get_if<Apply>(&x.args[side]->op)))
        if (V out = made(&x.args[1 - side], *y)) return out;
  const auto y = logistic_argument(&x);
  return y ? made(nullptr, *y) : nullptr;
}

/// 1 + erf(y) and 1 + tanh(y), of GELU; null where it is something else.
Emitter::V Emitter::make_one_plus(const Apply& x) {
  if (x.fn != ir::ScalarFn::add) return nullptr;
  for (const std::size_t one : {0, 1})
    for (const ir::ScalarFn fn : {ir::ScalarFn::erf, ir::ScalarFn::tanh}) {
      const Apply* f = application(x.args[1 - one], fn);
      V y = f && is_number(x.args[one], 1) ? value(f->args[0]) : nullptr;
      if (y && y->getType()->isVectorTy()) return ops_.narrow_one_plus(fn, y);
    }
  return nullptr;
}

Emitter::V Emitter::make_guard(const Guard& x) {
  std::vector<ir::Condition> conditions = x.conditions;
  for (ir::Condition& c : conditions) c.expr = bound(c.expr);
  const auto left = ir::simplify(conditions, ranges_);
  if (!left) return value(x.otherwise);
  if (V column = guarded_column(x, *left)) return column;
  test(x.conditions, 1);
  V chosen = make_choice(x, *left);
  test(x.conditions, -1);
  return chosen;
}

/// The same where `left` of its conditions are to be tested.
Emitter::V Emitter::make_choice(const Guard& x, const std::vector<ir::Condition>& left) {
  std::vector<ir::Condition> uniform, varying;
  for (const ir::Condition& c : left) (varies(c.expr) ? varying : uniform).push_back(c);
  const auto then = [&]() -> V {
    return varying.empty() ? value(x.then) : masked_guard(varying, x);
  };
  if (uniform.empty()) return then();
  // Lanes that some of them decide are masked by all: a chain of such guards would else hold the
  // rest of the chain twice at each step, and a load is over sooner than a branch.
  const bool reads = !analysis_.of(x.otherwise).buffers.empty(),
             loads = std::holds_alternative<Load>(x.then->op);
  if (!varying.empty() && (reads || loads)) return masked_guard(left, x);
  V all = nullptr;
  for (const ir::Condition& c : uniform) {
    V one = condition(c);
    all = all ? b_.CreateAnd(all, one) : one;
  }
  // A phi needs one shape, known only after both sides: in a vector loop make it the vector.
  const bool vector =
      vector_ &&
      (!varying.empty() || contains(analysis_.of(x.then).variables, vector_->var.index) ||
       contains(analysis_.of(x.otherwise).variables, vector_->var.index));
  const unsigned width = vector ? vector_->width : 1;
  return branch_value(
      all, [&] { return ops_.splat(then(), width); },
      [&] { return ops_.splat(value(x.otherwise), width); });
}

/// Both branches in all lanes, each reading memory only where it is taken.
Emitter::V Emitter::masked_guard(const std::vector<ir::Condition>& conditions, const Guard& x) {
  V mask = nullptr;
  for (const ir::Condition& c : conditions) {
    V one = ops_.splat(condition(c), vector_->width);
    mask = mask ? b_.CreateAnd(mask, one) : one;
  }
  const auto under = [&](V active, const Value& v) {
    auto inner = std::make_shared<Scope>();
    inner->conditional = true;
    inner->mask = scope().mask ? b_.CreateAnd(scope().mask, active) : active;
    scopes_.push_back(inner);
    V out = vector_value(v);
    scopes_.pop_back();
    return out;
  };
  const bool reads = !analysis_.of(x.otherwise).buffers.empty();
  V then = under(mask, x.then);
  V otherwise = reads ? under(b_.CreateNot(mask), x.otherwise) : vector_value(x.otherwise);
  return b_.CreateSelect(mask, then, otherwise);
}

/// Random numbers come from a routine shared with the reference interpreter, one call per lane.
Emitter::V Emitter::make_random(const RandomBits& x) {
  const Expr e = bound(x.counter);
  V counter = varies(e) ? lane_index(e, b_.getInt64Ty()) : index(e);
  V seed = ops_.splat(b_.getInt64(x.seed), varies(e) ? vector_->width : 1);
  return ops_.per_lane(x.normal ? "heddle_random_normal" : "heddle_random_uniform", {counter, seed},
                       b_.getFloatTy());
}

Emitter::V Emitter::lane_reduce(const LaneReduce& x, DType dtype) {
  const Buffer& buf = k_.buffers[x.buffer];
  V ptr = address(x.buffer.value, bound(x.offset));
  V lanes = load_at(x.buffer.value, ptr, static_cast<unsigned>(buf.lanes));
  return ops_.reduce(x.fn, lanes, dtype);
}

}  // namespace heddle::codegen::cpu
