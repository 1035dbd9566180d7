// Values, index expressions and conditions as CUDA C++.
#include <cmath>

#include "codegen/cuda/emitter.h"
#include "support/match.h"

namespace heddle::codegen::cuda {

using ir::Expr;
using ir::IndexNode;
using ir::ScalarFn;
using namespace kernel;

const std::set<std::int32_t>& PhaseEmitter::reads(const Value& v) {
  if (const auto found = reads_.find(v.get()); found != reads_.end()) return found->second;
  std::set<std::int32_t> out;
  if (const Load* x = std::get_if<Load>(&v->op)) out.insert(x->buffer.value);
  if (const LaneReduce* x = std::get_if<LaneReduce>(&v->op)) out.insert(x->buffer.value);
  for_each_child(*v, [&](const Value& c) {
    const auto& inner = reads(c);
    out.insert(inner.begin(), inner.end());
  });
  alive_.push_back(v);
  return reads_[v.get()] = std::move(out);
}

/// The name of a value, computed in the current block unless an enclosing one knows it.
std::string PhaseEmitter::value(const Value& v) {
  if (const Imm* x = std::get_if<Imm>(&v->op)) return literal(*x, v->dtype);
  for (const Scope& scope : scopes_)
    if (const auto found = scope.names.find(v.get()); found != scope.names.end())
      return found->second;
  (void)reads(v);
  const std::int32_t user = origin_;
  if (v->origin >= 0) origin_ = v->origin;
  std::string text = compute(*v);
  if (!std::holds_alternative<Guard>(v->op)) {
    const std::string name = fresh('t');
    line(fmt::format("const {} {} = {};", type_of(v->dtype), name, text));
    text = name;
  }
  origin_ = user;
  scopes_.back().names[v.get()] = text;
  return text;
}

std::string PhaseEmitter::compute(const ValueNode& v) {
  return match(
      v.op, [&](const Imm& x) { return literal(x, v.dtype); },
      [&](const Load& x) { return load(x, v.dtype); },
      [&](const Apply& x) { return apply(x, v.dtype); },
      [&](const Index& x) { return fmt::format("static_cast<hd::i64>({})", index(x.expr)); },
      [&](const Guard& x) { return guard(x, v.dtype); },
      [&](const LaneReduce& x) {
        const Buffer& b = k_.buffers[x.buffer];
        const std::string fn = fmt::format("{}", ir::info(ir::combiner(x.fn)).name);
        std::string text = fmt::format("b{}[{}]", x.buffer.value, index(x.offset));
        for (int i = 1; i < b.lanes; ++i) {
          const std::string next =
              fmt::format("b{}[{}]", x.buffer.value, index(x.offset + Expr(i)));
          text = is_float(v.dtype) || !fn.starts_with("logical")
                     ? fmt::format("hd::{}({}, {})", fn, text, next)
                     : fmt::format("({} {} {})", text, fn == "logical_or" ? "||" : "&&", next);
        }
        return text;
      },
      [&](const RandomBits& x) {
        return fmt::format("hd::random_{}({}ull, {})", x.normal ? "normal" : "uniform", x.seed,
                           index(x.counter));
      });
}

std::string PhaseEmitter::address(BufferId id, const Expr& offset,
                                  const std::vector<Load::Dynamic>& dynamic, bool) {
  std::string at = index(offset);
  for (const Load::Dynamic& d : dynamic)
    at += fmt::format(" + hdk::clamped({}, {}) * {}", value(d.value), d.extent, d.stride);
  return fmt::format("b{}[{}]", id.value, at);
}

std::string PhaseEmitter::load(const Load& x, DType) {
  if (x.dynamic.empty())
    if (const auto found = vectors_.find({x.buffer.value, x.offset}); found != vectors_.end())
      return fmt::format("hd::widen({})", found->second);
  return fmt::format("hd::widen({})", address(x.buffer, x.offset, x.dynamic, true));
}

std::string PhaseEmitter::apply(const Apply& x, DType type) {
  std::vector<std::string> args;
  for (const Value& arg : x.args) args.push_back(value(arg));
  return call_text(x, type, args);
}

std::string call_text(const Apply& x, DType type, const std::vector<std::string>& args) {
  const ir::ScalarFnInfo& fn = ir::info(x.fn);
  const auto infix = [&](const char* op) {
    return fmt::format("static_cast<{}>({} {} {})", type_of(type), args[0], op, args[1]);
  };
  const bool integer = !is_float(x.args.back()->dtype);
  switch (x.fn) {
    case ScalarFn::cast:
    case ScalarFn::bitcast:
      return fmt::format("hd::{}<{}>({})", fn.name, type_of(type), args[0]);
    case ScalarFn::select:
      return fmt::format("({} ? {} : {})", args[0], args[1], args[2]);
    case ScalarFn::logical_not:
      return fmt::format("!{}", args[0]);
    case ScalarFn::bit_not:
      return type == DType::b1 ? fmt::format("!{}", args[0])
                               : fmt::format("static_cast<{}>(~{})", type_of(type), args[0]);
    case ScalarFn::logical_and:
      return fmt::format("({} && {})", args[0], args[1]);
    case ScalarFn::logical_or:
      return fmt::format("({} || {})", args[0], args[1]);
    case ScalarFn::logical_xor:
      return fmt::format("(!{} != !{})", args[0], args[1]);
    case ScalarFn::bit_and:
      return infix("&");
    case ScalarFn::bit_or:
      return infix("|");
    case ScalarFn::bit_xor:
      return infix("^");
    case ScalarFn::dot2:
      return fmt::format("hd::dot2({}, {})", args[0], args[1]);
    case ScalarFn::dot4:
      return fmt::format("hd::dot4({}, {})", args[0], args[1]);
    case ScalarFn::equal:
      return fmt::format("({} == {})", args[0], args[1]);
    case ScalarFn::not_equal:
      return fmt::format("({} != {})", args[0], args[1]);
    case ScalarFn::less:
      return fmt::format("({} < {})", args[0], args[1]);
    case ScalarFn::less_equal:
      return fmt::format("({} <= {})", args[0], args[1]);
    case ScalarFn::greater:
      return fmt::format("({} > {})", args[0], args[1]);
    case ScalarFn::greater_equal:
      return fmt::format("({} >= {})", args[0], args[1]);
    case ScalarFn::floor:
    case ScalarFn::ceil:
    case ScalarFn::round:
    case ScalarFn::trunc:
      if (integer) return args[0];
      break;
    case ScalarFn::isnan:
    case ScalarFn::isinf:
      if (integer) return "false";
      break;
    case ScalarFn::pow:
      if (integer) return fmt::format("hd::int_pow({}, {})", args[0], args[1]);
      break;
    default:
      break;
  }
  std::string text = fmt::format("hd::{}({}", fn.name, args[0]);
  for (std::size_t i = 1; i < args.size(); ++i) text += ", " + args[i];
  return text + ")";
}

/// Each branch in a block of its own: what is not taken is not evaluated.
std::string PhaseEmitter::guard(const Guard& x, DType type) {
  const std::string name = fresh('t');
  const Imm* imm = std::get_if<Imm>(&x.otherwise->op);
  line(imm ? fmt::format("{} {} = {};", type_of(type), name, literal(*imm, type))
           : fmt::format("{} {};", type_of(type), name));
  const auto branch = [&](const Value& v) {
    scopes_.emplace_back();
    const std::string result = value(v);
    line(fmt::format("{} = {};", name, result));
    scopes_.pop_back();
  };
  open(fmt::format("if ({}) {{", conditions(x.conditions)));
  branch(x.then);
  if (!imm) {
    close("} else {");
    ++depth_;
    branch(x.otherwise);
  }
  close();
  return name;
}

std::string literal(const Imm& x, DType type) {
  if (type == DType::f32 || type == DType::f64) {
    const bool single = type == DType::f32;
    const double v = single ? static_cast<double>(static_cast<float>(x.real)) : x.real;
    if (std::isnan(v)) return fmt::format("hd::{}(hd::bits_to_f32(0x7fc00000u))", name_of(type));
    if (std::isinf(v))
      return fmt::format("hd::{}({}hd::bits_to_f32(0x7f800000u))", name_of(type), v < 0 ? "-" : "");
    std::string text = single ? fmt::format("{}", static_cast<float>(v)) : fmt::format("{}", v);
    if (text.find_first_of(".e") == std::string::npos) text += ".0";
    return v < 0 || std::signbit(v) ? fmt::format("({}{})", text, single ? "f" : "")
                                    : text + (single ? "f" : "");
  }
  if (type == DType::b1) return x.integer ? "true" : "false";
  if (type == DType::u64)
    return fmt::format("hd::u64({}ull)", static_cast<std::uint64_t>(x.integer));
  if (x.integer == INT64_MIN) return "hd::i64(-9223372036854775807ll - 1)";
  return fmt::format("static_cast<{}>({}ll)", type_of(type), x.integer);
}

std::string PhaseEmitter::index(const Expr& e) const {
  const IndexNode& n = e.node();
  const char* wide = wide_ ? "ll" : "";
  switch (n.kind) {
    case IndexNode::Kind::var:
      return fmt::format("d{}", n.var.index);
    case IndexNode::Kind::div:
    case IndexNode::Kind::mod: {
      const bool div = n.kind == IndexNode::Kind::div;
      const auto range = ir::bounds(n.args[0], ranges_);
      if (range && range->low >= 0)
        return fmt::format("({} {} {}{})", index(n.args[0]), div ? "/" : "%", n.constant, wide);
      return fmt::format("hdk::floor_{}<{}>({}, {}{})", div ? "div" : "rem",
                         wide_ ? "long long" : "int", index(n.args[0]), n.constant, wide);
    }
    case IndexNode::Kind::min:
    case IndexNode::Kind::max:
      return fmt::format("hd::{}<{}>({}, {})", n.kind == IndexNode::Kind::min ? "min" : "max",
                         wide_ ? "long long" : "int", index(n.args[0]), index(n.args[1]));
    case IndexNode::Kind::sum:
      break;
  }
  std::string text;
  for (const IndexNode::Term& t : n.terms) {
    const std::int64_t c = t.coefficient < 0 ? -t.coefficient : t.coefficient;
    const std::string sign =
        t.coefficient < 0 ? (text.empty() ? "-" : " - ") : (text.empty() ? "" : " + ");
    text += sign + index(t.atom) + (c == 1 ? "" : fmt::format(" * {}{}", c, wide));
  }
  if (text.empty()) return fmt::format("{}{}", n.constant, wide);
  if (n.constant > 0) text += fmt::format(" + {}{}", n.constant, wide);
  if (n.constant < 0) text += fmt::format(" - {}{}", -n.constant, wide);
  return "(" + text + ")";
}

std::string PhaseEmitter::conditions(const std::vector<ir::Condition>& list) const {
  std::string text;
  for (const ir::Condition& c : list) {
    const auto range = ir::bounds(c.expr, ranges_);
    const std::string e = index(c.expr);
    const auto add = [&](const std::string& one) { text += (text.empty() ? "" : " && ") + one; };
    if (!range || range->low < c.low) add(fmt::format("{} >= {}", e, c.low));
    if (!range || range->high >= c.high) add(fmt::format("{} < {}", e, c.high));
  }
  return text.empty() ? "true" : text;
}

}  // namespace heddle::codegen::cuda
