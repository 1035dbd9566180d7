#include "prim/interpret.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <numeric>

#include "ir/philox.h"
#include "prim/lines.h"
#include "support/match.h"

namespace heddle::prim {
namespace {

using ir::Monoid;
using ir::ScalarFn;

Tensor working(DType type, Shape shape) {
  return Tensor({is_float(type) ? DType::f64 : DType::i64, std::move(shape)});
}

double unsigned_value(std::int64_t bits) {
  return static_cast<double>(static_cast<std::uint64_t>(bits));
}

/// Evaluates one node; `args` are working values, `types` the declared types of the arguments.
class Evaluator {
 public:
  Evaluator(const Graph& g, NodeId id, std::span<const Tensor> args)
      : g_(g), n_(g[id]), args_(args), out_(working(n_.type.dtype, n_.type.shape)) {}

  Tensor run() {
    match(n_.op, [&](const auto& op) { eval(op); });
    return std::move(out_);
  }

 private:
  const TensorType& type(std::size_t i) const { return g_[n_.args[i]].type; }
  bool floating() const { return is_float(n_.type.dtype); }
  /// Calls f with the output's elements and a zero, both of its working type.
  template <class F>
  void typed(F&& f) {
    if (floating())
      f(out_.as_mutable<double>(), double{});
    else
      f(out_.as_mutable<std::int64_t>(), std::int64_t{});
  }
  /// The binary meaning of fn on the working type, wrapped to `t` for integers.
  static double combine2(ScalarFn fn, double a, double b, DType) {
    const double args[] = {a, b};
    return ir::apply(fn, args);
  }
  static std::int64_t combine2(ScalarFn fn, std::int64_t a, std::int64_t b, DType t) {
    const std::int64_t args[] = {a, b};
    return ir::apply_int(fn, args, t);
  }
  template <class T>
  static T identity_of(Monoid m, DType t) {
    if constexpr (std::is_same_v<T, double>)
      return ir::identity(m, t);
    else
      return ir::identity_int(m, t);
  }

  void eval(const Input&) { HEDDLE_CHECK(false, "inputs have no arguments to be evaluated from"); }
  void eval(const Constant& op) { out_ = to_reference(g_.constant(op)); }
  void eval(const Iota& op) {
    const auto [outer, extent, inner] = around(n_.type.shape, op.axis);
    const Around a{outer, extent, inner};
    typed([&](auto out, auto zero) {
      std::size_t at = 0;
      for (std::int64_t o = 0; o < a.outer; ++o)
        for (std::int64_t i = 0; i < a.extent; ++i)
          for (std::int64_t k = 0; k < a.inner; ++k) out[at++] = static_cast<decltype(zero)>(i);
    });
    if (!floating()) out_ = to_reference(from_reference(out_, n_.type.dtype));
  }
  void eval(const Random& op) {
    const auto out = out_.as_mutable<double>();
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = op.kind == Random::Kind::uniform ? ir::philox_uniform(op.seed, i)
                                                : ir::philox_normal(op.seed, i);
  }
  void eval(const AllReduce&) { out_ = args_[0]; }  // over a process alone
  void eval(const Map& op) {
    if (op.fn == ScalarFn::cast) return eval_cast();
    if (op.fn == ScalarFn::bitcast) return eval_bitcast();
    const DType t = type(n_.args.size() - 1).dtype;
    if (is_float(t)) {
      eval_map<double>(op.fn, t);
    } else {
      eval_map<std::int64_t>(op.fn, t);
    }
  }

  template <class T>
  void eval_map(ScalarFn fn, DType t) {
    const auto count = static_cast<std::size_t>(out_.count());
    const std::size_t arity = args_.size();
    const bool is_select = fn == ScalarFn::select;
    const T* in[3] = {};
    for (std::size_t k = is_select ? 1 : 0; k < arity; ++k) in[k] = args_[k].as<T>().data();
    const auto value_at = [&](std::size_t i) {
      if (is_select) return (args_[0].as<std::int64_t>().data()[i] != 0 ? in[1] : in[2])[i];
      T a[3] = {};
      for (std::size_t k = 0; k < arity; ++k) a[k] = in[k][i];
      if constexpr (std::is_same_v<T, double>)
        return ir::apply(fn, std::span<const double>(a, arity));
      else
        return ir::apply_int(fn, std::span<const std::int64_t>(a, arity), t);
    };
    if (floating()) {
      double* out = out_.as_mutable<double>().data();
      for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<double>(value_at(i));
    } else {
      std::int64_t* out = out_.as_mutable<std::int64_t>().data();
      for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<std::int64_t>(value_at(i));
    }
  }

  void eval_bitcast() {
    const Tensor stored = from_reference(args_[0], type(0).dtype);
    Tensor out({n_.type.dtype, n_.type.shape});
    std::memcpy(out.mutable_data(), stored.data(), static_cast<std::size_t>(out.bytes()));
    out_ = to_reference(out);
  }

  void eval_cast() {
    const DType from = type(0).dtype, to = n_.type.dtype;
    Tensor stored({to, n_.type.shape});
    for (std::int64_t i = 0; i < stored.count(); ++i) {
      const auto at = static_cast<std::size_t>(i);
      if (is_float(from))
        stored.set(i, args_[0].as<double>()[at]);
      else if (is_float(to) && from == DType::u64)
        stored.set(i, unsigned_value(args_[0].as<std::int64_t>()[at]));
      else
        stored.set_int(i, args_[0].as<std::int64_t>()[at]);
    }
    // Widening a floating value keeps the double as it is: there is nothing to round.
    const bool widens = is_float(from) && is_float(to) && size_of(to) > size_of(from);
    out_ = widens ? args_[0] : to_reference(stored);
  }

  void eval(const View& op) {
    typed([&](auto out, auto zero) {
      using T = decltype(zero);
      std::fill(out.begin(), out.end(), static_cast<T>(op.fill));
      const Access place = identity_access(n_.type.shape);
      // The first piece that holds wins, so it is written last.
      for (std::size_t p = op.pieces.size(); p-- > 0;) {
        const auto in = args_[p].template as<T>();
        LineWalker lines(n_.type.shape,
                         {{&place, &n_.type.shape}, {&op.pieces[p], &type(p).shape}});
        lines.walk([&](const auto& base, const auto& step, std::int64_t length) {
          for (std::int64_t i = 0; i < length; ++i)
            out[static_cast<std::size_t>(base[0] + i * step[0])] =
                in[static_cast<std::size_t>(base[1] + i * step[1])];
        });
      }
    });
  }

  void eval(const Reduce& op) {
    if (op.fn == Monoid::argmax || op.fn == Monoid::argmin) return eval_arg_reduce(op);
    const ScalarFn fn = ir::combiner(op.fn);
    const DType t = n_.type.dtype;
    typed([&](auto out, auto zero) {
      using T = decltype(zero);
      std::fill(out.begin(), out.end(), identity_of<T>(op.fn, t));
      const auto in = args_[0].template as<T>();
      const Access read = identity_access(type(0).shape);
      Access place;
      for (std::size_t k = 0; k < read.index.size(); ++k)
        if (!std::binary_search(op.axes.begin(), op.axes.end(), static_cast<int>(k)))
          place.index.push_back(read.index[k]);
      LineWalker lines(type(0).shape, {{&place, &n_.type.shape}, {&read, &type(0).shape}});
      lines.walk([&](const auto& base, const auto& step, std::int64_t length) {
        for (std::int64_t i = 0; i < length; ++i) {
          T& into = out[static_cast<std::size_t>(base[0] + i * step[0])];
          into = combine2(fn, into, in[static_cast<std::size_t>(base[1] + i * step[1])], t);
        }
      });
    });
  }

  struct Around {
    std::int64_t outer, extent, inner;
  };
  static Around around(const Shape& shape, int axis) {
    Around a{1, shape[static_cast<std::size_t>(axis)], 1};
    for (std::size_t k = 0; k < shape.size(); ++k) {
      if (static_cast<int>(k) < axis) a.outer *= shape[k];
      if (static_cast<int>(k) > axis) a.inner *= shape[k];
    }
    return a;
  }
  /// True if element x of argument 0 comes strictly before y in increasing order, NaN last.
  bool less(std::size_t x, std::size_t y) const {
    const DType t = type(0).dtype;
    if (is_float(t)) {
      const double a = args_[0].as<double>()[x], b = args_[0].as<double>()[y];
      return std::isnan(a) ? false : std::isnan(b) ? true : a < b;
    }
    const std::int64_t pair[] = {args_[0].as<std::int64_t>()[x], args_[0].as<std::int64_t>()[y]};
    return ir::apply_int(ScalarFn::less, pair, t) != 0;
  }

  void eval_arg_reduce(const Reduce& op) {
    const auto [outer, extent, inner] = around(type(0).shape, op.axes[0]);
    const auto out = out_.as_mutable<std::int64_t>();
    for (std::int64_t o = 0; o < outer; ++o)
      for (std::int64_t k = 0; k < inner; ++k) {
        const auto at = [&](std::int64_t i) {
          return static_cast<std::size_t>((o * extent + i) * inner + k);
        };
        std::int64_t best = 0;
        for (std::int64_t i = 1; i < extent; ++i)
          if (op.fn == Monoid::argmax ? less(at(best), at(i)) : less(at(i), at(best))) best = i;
        out[static_cast<std::size_t>(o * inner + k)] = best;
      }
  }

  /// o[i] += a[i] · b[i] along a line; a step of 0 is a sum or the same factor everywhere.
  template <class Sum, class T>
  static void add_products(T* o, std::int64_t so, const T* a, std::int64_t sa, const T* b,
                           std::int64_t sb, std::int64_t length) {
    const auto product = [&](std::int64_t i) {
      return static_cast<Sum>(a[i * sa]) * static_cast<Sum>(b[i * sb]);
    };
    if (so == 0) {
      constexpr std::int64_t kSums = 4;  // additions that do not wait for each other
      Sum sums[kSums] = {};
      std::int64_t i = 0;
      for (; i + kSums <= length; i += kSums)
        for (std::int64_t j = 0; j < kSums; ++j) sums[j] += product(i + j);
      for (; i < length; ++i) sums[0] += product(i);
      *o = static_cast<T>(static_cast<Sum>(*o) + (sums[0] + sums[1]) + (sums[2] + sums[3]));
    } else if (so == 1 && sa == 0 && sb == 1) {
      const auto same = static_cast<Sum>(*a);
      for (std::int64_t i = 0; i < length; ++i)
        o[i] = static_cast<T>(static_cast<Sum>(o[i]) + same * static_cast<Sum>(b[i]));
    } else if (so == 1 && sa == 1 && sb == 0) {
      add_products<Sum>(o, so, b, sb, a, sa, length);
    } else {
      for (std::int64_t i = 0; i < length; ++i)
        o[i * so] = static_cast<T>(static_cast<Sum>(o[i * so]) + product(i));
    }
  }

  void eval(const Contract& op) {
    Shape variables = n_.type.shape;
    variables.insert(variables.end(), op.reduced.begin(), op.reduced.end());
    const Access place = identity_access(n_.type.shape);
    typed([&](auto out, auto zero) {
      using T = decltype(zero);
      using Sum = std::conditional_t<std::is_same_v<T, double>, double, std::uint64_t>;
      const auto l = args_[0].template as<T>();
      const auto r = args_[1].template as<T>();
      LineWalker lines(
          variables,
          {{&place, &n_.type.shape}, {&op.lhs, &type(0).shape}, {&op.rhs, &type(1).shape}},
          n_.type.shape.size());
      lines.walk([&](const auto& base, const auto& step, std::int64_t length) {
        add_products<Sum>(out.data() + base[0], step[0], l.data() + base[1], step[1],
                          r.data() + base[2], step[2], length);
      });
    });
    // Integer sums wrap once, at the end: that is the same modulo the width.
    if (!floating()) out_ = to_reference(from_reference(out_, n_.type.dtype));
  }

  /// Coordinate of data that position `at` addresses; `outside` is set if it is not in data.
  std::int64_t address(const std::vector<int>& axes, const std::vector<IndexForm>& base,
                       const Shape& data, std::size_t first, const std::vector<std::int64_t>& at,
                       std::size_t position, bool clamp, bool& outside) const {
    std::int64_t flat = 0;
    for (std::size_t k = 0; k < data.size(); ++k) {
      std::int64_t c = base[k].at(at);
      for (std::size_t j = 0; j < axes.size(); ++j) {
        if (axes[j] != static_cast<int>(k)) continue;
        const std::int64_t from_data = args_[first + j].as<std::int64_t>()[position];
        if (__builtin_add_overflow(c, from_data, &c)) c = from_data < 0 ? INT64_MIN : INT64_MAX;
      }
      if (c < 0 || c >= data[k]) {
        outside = true;
        if (!clamp) return 0;
        c = std::clamp<std::int64_t>(c, 0, data[k] - 1);
      }
      flat = flat * data[k] + c;
    }
    return flat;
  }
  static std::vector<IndexForm> forms_of(const std::vector<ir::Expr>& base,
                                         const Shape& variables) {
    std::vector<IndexForm> forms;
    for (const ir::Expr& e : base) forms.emplace_back(e, variables);
    return forms;
  }
  /// Calls f(point, row-major position) over a shape.
  template <class F>
  static void for_each_point(const Shape& shape, F&& f) {
    std::vector<std::int64_t> at(shape.size(), 0);
    const std::int64_t count = element_count(shape);
    for (std::int64_t p = 0; p < count; ++p) {
      f(at, static_cast<std::size_t>(p));
      for (std::size_t k = shape.size(); k-- > 0;) {
        if (++at[k] < shape[k]) break;
        at[k] = 0;
      }
    }
  }

  void eval(const Gather& op) {
    const std::vector<IndexForm> base = forms_of(op.base, n_.type.shape);
    typed([&](auto out, auto zero) {
      const auto in = args_[0].template as<decltype(zero)>();
      for_each_point(n_.type.shape, [&](const auto& at, std::size_t p) {
        bool outside = false;
        out[p] = in[static_cast<std::size_t>(
            address(op.axes, base, type(0).shape, 1, at, p, true, outside))];
      });
    });
  }

  void eval(const Scatter& op) {
    const std::vector<IndexForm> base = forms_of(op.base, type(1).shape);
    const DType t = n_.type.dtype;
    typed([&](auto out, auto zero) {
      using T = decltype(zero);
      const auto in = args_[0].template as<T>(), updates = args_[1].template as<T>();
      std::copy(in.begin(), in.end(), out.begin());
      for_each_point(type(1).shape, [&](const auto& at, std::size_t p) {
        bool outside = false;
        const std::int64_t to = address(op.axes, base, n_.type.shape, 2, at, p, false, outside);
        if (outside) return;
        T& into = out[static_cast<std::size_t>(to)];
        switch (op.combine) {
          case Scatter::Combine::assign:
            into = updates[p];
            break;
          case Scatter::Combine::add:
            into = combine2(ScalarFn::add, into, updates[p], t);
            break;
          case Scatter::Combine::mul:
            into = combine2(ScalarFn::mul, into, updates[p], t);
            break;
          case Scatter::Combine::max:
            into = combine2(ScalarFn::max, into, updates[p], t);
            break;
          case Scatter::Combine::min:
            into = combine2(ScalarFn::min, into, updates[p], t);
            break;
        }
      });
    });
  }

  void eval(const Scan& op) {
    const DType t = n_.type.dtype;
    const ScalarFn fn = ir::combiner(op.fn);
    const auto [outer, extent, inner] = around(n_.type.shape, op.axis);
    const Around a{outer, extent, inner};
    typed([&](auto out, auto zero) {
      using T = decltype(zero);
      const auto in = args_[0].template as<T>();
      for (std::int64_t o = 0; o < a.outer; ++o)
        for (std::int64_t k = 0; k < a.inner; ++k) {
          T sum = identity_of<T>(op.fn, t);
          for (std::int64_t i = 0; i < a.extent; ++i) {
            const std::int64_t step = op.reverse ? a.extent - 1 - i : i;
            const auto at = static_cast<std::size_t>((o * a.extent + step) * a.inner + k);
            const T next = combine2(fn, sum, in[at], t);
            out[at] = op.exclusive ? sum : next;
            sum = next;
          }
        }
    });
  }

  void eval(const Sort& op) {
    const auto [outer, extent, inner] = around(type(0).shape, op.axis);
    const auto out = out_.as_mutable<std::int64_t>();
    std::vector<std::int64_t> order(static_cast<std::size_t>(extent));
    for (std::int64_t o = 0; o < outer; ++o)
      for (std::int64_t k = 0; k < inner; ++k) {
        const std::int64_t first = o * extent * inner + k, stride = inner;
        const auto before = [&](std::int64_t x, std::int64_t y) {
          const auto a = static_cast<std::size_t>(first + x * stride);
          const auto b = static_cast<std::size_t>(first + y * stride);
          return op.descending ? less(b, a) : less(a, b);
        };
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), before);
        for (std::int64_t i = 0; i < op.count; ++i)
          out[static_cast<std::size_t>((o * op.count + i) * inner + k)] =
              order[static_cast<std::size_t>(i)];
      }
  }

  const Graph& g_;
  const Node& n_;
  std::span<const Tensor> args_;
  Tensor out_;
};

}  // namespace

Status check_inputs(const Graph& g, const std::vector<Tensor>& inputs) {
  if (inputs.size() != g.inputs.size())
    return fail(ErrorCode::usage, "found {} inputs, want {}", inputs.size(), g.inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i].type() != g.inputs[i].type)
      return fail(ErrorCode::usage, "input '{}' is {}, want {}", g.inputs[i].name,
                  to_string(inputs[i].type()), to_string(g.inputs[i].type));
  return Ok{};
}

Tensor to_reference(const Tensor& value) {
  Tensor out = working(value.dtype(), value.shape());
  if (out.dtype() == DType::f64) {
    const auto to = out.as_mutable<double>();
    if (value.dtype() == DType::f32) {
      const auto from = value.as<float>();
      std::copy(from.begin(), from.end(), to.begin());
    } else {
      for (std::size_t i = 0; i < to.size(); ++i) to[i] = value.at(static_cast<std::int64_t>(i));
    }
  } else {
    const auto to = out.as_mutable<std::int64_t>();
    for (std::size_t i = 0; i < to.size(); ++i) to[i] = value.int_at(static_cast<std::int64_t>(i));
  }
  return out;
}

Tensor from_reference(const Tensor& value, DType type) {
  Tensor out({type, value.shape()});
  if (value.dtype() == DType::f64 && type == DType::f32) {
    const auto from = value.as<double>();
    std::transform(from.begin(), from.end(), out.as_mutable<float>().begin(),
                   [](double v) { return static_cast<float>(v); });
    return out;
  }
  const std::int64_t count = out.count();
  const std::byte* data = value.data();
  for (std::int64_t i = 0; i < count; ++i) {
    if (value.dtype() == DType::f64)
      out.set(i, reinterpret_cast<const double*>(data)[i]);
    else
      out.set_int(i, reinterpret_cast<const std::int64_t*>(data)[i]);
  }
  return out;
}

Tensor evaluate_node(const Graph& g, NodeId id, std::span<const Tensor> args) {
  return Evaluator(g, id, args).run();
}

Status interpret_each(const Graph& g, const std::vector<Tensor>& inputs,
                      const std::function<void(NodeId, const Tensor&)>& visit) {
  HEDDLE_TRY(check_inputs(g, inputs));
  const std::vector<NodeId> live = live_nodes(g);
  std::vector<int> uses(static_cast<std::size_t>(g.size()), 0);
  for (const NodeId id : live)
    for (const NodeId a : g[id].args) ++uses[static_cast<std::size_t>(a.value)];
  std::vector<Tensor> values(static_cast<std::size_t>(g.size()));
  try {
    for (const NodeId id : live) {
      const Node& n = g[id];
      std::vector<Tensor> args;
      for (const NodeId a : n.args) args.push_back(values[static_cast<std::size_t>(a.value)]);
      const auto* input = std::get_if<Input>(&n.op);
      Tensor value = input != nullptr ? to_reference(inputs[static_cast<std::size_t>(input->slot)])
                                      : evaluate_node(g, id, args);
      visit(id, value);
      values[static_cast<std::size_t>(id.value)] = std::move(value);
      for (const NodeId a : n.args)
        if (--uses[static_cast<std::size_t>(a.value)] == 0)
          values[static_cast<std::size_t>(a.value)] = Tensor();
    }
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::out_of_memory, "the reference interpreter ran out of memory");
  }
  return Ok{};
}

Result<std::vector<Tensor>> interpret_all(const Graph& g, const std::vector<Tensor>& inputs) {
  std::vector<Tensor> all(static_cast<std::size_t>(g.size()));
  HEDDLE_TRY(interpret_each(g, inputs, [&](NodeId id, const Tensor& value) {
    all[static_cast<std::size_t>(id.value)] = value;
  }));
  return all;
}

Result<std::vector<Tensor>> interpret(const Graph& g, const std::vector<Tensor>& inputs) {
  std::vector<Tensor> outputs(g.outputs.size());
  HEDDLE_TRY(interpret_each(g, inputs, [&](NodeId id, const Tensor& value) {
    for (std::size_t i = 0; i < outputs.size(); ++i)
      if (g.outputs[i].node == id) outputs[i] = from_reference(value, g[id].type.dtype);
  }));
  return outputs;
}

}  // namespace heddle::prim
