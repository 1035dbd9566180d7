#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <unordered_map>

#include "kernel/scalar.h"
#include "kernel/traverse.h"
#include "support/match.h"
#include "support/tensor.h"

namespace heddle::kernel {
namespace {

constexpr std::int64_t kMaxLocalElements = std::int64_t{1} << 28;

struct Failure {
  std::string message;
};

/// A local buffer: floats stay doubles, so that the reference has no rounding of its own; f16 and
/// bf16 round as their storage does.
struct Local {
  std::vector<double> reals;
  std::vector<std::int64_t> integers;
  /// Who touched each element last, and in which interval between barriers.
  struct Access {
    std::int64_t block = -1, warp = -1;  ///< intervals: of the block's barriers, of the warp's
    std::int64_t task = -1;
    int thread = -1;
  };
  struct Seen {
    Access write, read;
  };
  std::vector<Seen> seen;
};

class Interpreter {
 public:
  Interpreter(const Kernel& k, const std::vector<std::span<std::byte>>& args)
      : k_(k), vars_(static_cast<std::size_t>(k.variables), 0) {
    for (const Stmt& s : k.body)
      if (const For* phase = std::get_if<For>(&s.op))
        copies_ = std::max(copies_, threads_of(*phase));
    for (std::int32_t i = 0; i < k.buffers.size(); ++i) bind(k.buffers[BufferId{i}], args);
  }

  void run() {
    for (const Stmt& s : k_.body) exec(s);
  }

 private:
  void bind(const Buffer& b, const std::vector<std::span<std::byte>>& args) {
    Local local;
    std::span<std::byte> bytes;
    if (b.argument >= 0) {
      if (b.argument >= static_cast<int>(args.size()))
        throw Failure{fmt::format("buffer '{}' is argument {}, got {} arguments", b.name,
                                  b.argument, args.size())};
      bytes = args[static_cast<std::size_t>(b.argument)];
      if (static_cast<std::int64_t>(bytes.size()) < b.size * size_of(b.dtype))
        throw Failure{fmt::format("argument {} has {} bytes, '{}' wants {}", b.argument,
                                  bytes.size(), b.name, b.size * size_of(b.dtype))};
    } else if ((local_elements_ += copies(b) * b.size) > kMaxLocalElements) {
      throw Failure{fmt::format("local buffers hold more than {} elements", kMaxLocalElements)};
    } else if (is_float(b.dtype)) {
      local.reals.resize(static_cast<std::size_t>(copies(b) * b.size));
    } else {
      local.integers.resize(static_cast<std::size_t>(copies(b) * b.size));
    }
    if (copies_ > 0 && b.scope != Scope::lane && (b.written || b.argument < 0))
      local.seen.resize(static_cast<std::size_t>(b.size));
    locals_.push_back(std::move(local));
    tensors_.push_back(b.argument >= 0 ? Tensor({b.dtype, {b.size}}, nullptr, bytes.data())
                                       : Tensor());
    if (b.argument < 0) poison(locals_.back());
  }

  /// Scratch is undefined at the start of a task: make stale reads visible.
  static void poison(Local& local) {
    for (double& x : local.reals) x = std::numeric_limits<double>::quiet_NaN();
    for (std::int64_t& x : local.integers) x = 0x5a5a5a5a;
  }

  void exec(const Body& body) {
    for (const Stmt& s : body) exec(s);
  }

  void exec(const Stmt& s) {
    match(
        s.op, [&](const For& x) { exec(x); },
        [&](const Let& x) {
          auto& v = vars_[static_cast<std::size_t>(x.var.index)];
          v = ir::evaluate(x.value, vars_);
          if (v >= x.begin && v < x.end) exec(*x.body);
        },
        [&](const Store& x) {
          memo_.clear();
          std::int64_t offset = ir::evaluate(x.offset, vars_);
          for (const Load::Dynamic& d : x.dynamic) {
            const std::int64_t at = eval(d.value).integer;
            if (at < 0 || at >= d.extent) return;
            offset += at * d.stride;
          }
          write(x.buffer, offset, eval(x.value), x.value->dtype);
        },
        [&](const If& x) {
          if (hold(x.conditions)) exec(*x.body);
        },
        [](const Barrier&) {}, [&](const Combine& x) { combine(x); },
        [&](const Routine& x) { routine(x); }, [&](const Copy& x) { start_copy(x); },
        [&](const CopyGroup& x) { copy_group(x); }, [&](const Mma& x) { mma(x); },
        [](const Prefetch&) {});
  }

  // Threads: what they do between two barriers runs thread by thread, backwards, so that a kernel
  // that relies on an order is found out.

  void enter_threads(const For& x) {
    threads_.push_back({x.var, x.end});
    const For* inner = x.body->size() == 1 ? std::get_if<For>(&x.body->front().op) : nullptr;
    if (inner && inner->binding == Binding::thread) {
      enter_threads(*inner);
    } else {
      count_ = 1;
      for (const auto& [var, extent] : threads_) count_ *= static_cast<int>(extent);
      pending_.assign(static_cast<std::size_t>(count_), std::vector<std::vector<Arrival>>(1));
      together(*x.body);
      thread_ = 0;
      count_ = 0;
    }
    threads_.pop_back();
  }

  void set_thread(int t) {
    thread_ = t;
    for (std::size_t i = threads_.size(); i-- > 0;) {
      const auto& [var, extent] = threads_[i];
      vars_[static_cast<std::size_t>(var.index)] = t % extent;
      t = static_cast<int>(t / extent);
    }
    for (const Let* x : lets_)
      vars_[static_cast<std::size_t>(x->var.index)] = ir::evaluate(x->value, vars_);
  }

  bool collective(const Stmt& s) {
    const auto [found, fresh] = collective_.try_emplace(&s, false);
    if (fresh) found->second = is_collective(s);
    return found->second;
  }

  void together(const Body& body) {
    for (const Stmt& s : body) {
      if (!collective(s)) {
        for (int t = count_ - 1; t >= 0; --t) {
          set_thread(t);
          exec(s);
        }
        continue;
      }
      if (const For* x = std::get_if<For>(&s.op)) {
        for (std::int64_t i = x->begin; i < x->end; ++i) {
          vars_[static_cast<std::size_t>(x->var.index)] = i;
          together(*x->body);
        }
      } else if (const Let* let = std::get_if<Let>(&s.op)) {
        lets_.push_back(let);
        set_thread(0);
        const std::int64_t v = vars_[static_cast<std::size_t>(let->var.index)];
        if (v >= let->begin && v < let->end) together(*let->body);
        lets_.pop_back();
      } else if (const If* branch = std::get_if<If>(&s.op)) {
        if (hold(branch->conditions)) together(*branch->body);
      } else if (const Barrier* barrier = std::get_if<Barrier>(&s.op)) {
        ++(barrier->scope == Scope::warp ? warp_interval_ : block_interval_);
      } else {
        exec(s);
      }
    }
  }

  void combine(const Combine& x) {
    const Buffer& b = k_.buffers[x.buffer];
    const int run = x.width * x.stride;
    for (int t = 0; t < count_; ++t) {
      if (t % run >= x.stride) continue;
      for (int c = 0; c < x.count; ++c) {
        const std::int64_t at = x.offset + c;
        thread_ = t;
        Scalar total = read(x.buffer, at);
        for (int i = 1; i < x.width; ++i) {
          thread_ = t + i * x.stride;
          total = combined(x.fn, total, read(x.buffer, at), b.dtype);
        }
        for (int i = 0; i < x.width; ++i) {
          thread_ = t + i * x.stride;
          write(x.buffer, at, total, b.dtype);
        }
      }
    }
    ++(run <= kWarp ? warp_interval_ : block_interval_);
  }

  // Asynchronous copies arrive as late as they may: when their thread waits for them.

  void start_copy(const Copy& x) {
    const std::int64_t to = ir::evaluate(x.to_offset, vars_);
    const std::int64_t from = ir::evaluate(x.from_offset, vars_);
    const bool inside = hold(x.conditions);
    for (int i = 0; i < x.count; ++i) {
      const bool real = is_float(k_.buffers[x.to].dtype);
      const Scalar value = inside ? read(x.from, from + i) : Scalar{};
      write(x.to, to + i, {std::numeric_limits<double>::quiet_NaN(), 0x5a5a5a5a},
            k_.buffers[x.to].dtype);
      pending_[static_cast<std::size_t>(thread_)].back().push_back(
          {x.to, to + i, value, real ? DType::f64 : DType::i64});
    }
  }

  void copy_group(const CopyGroup& x) {
    auto& groups = pending_[static_cast<std::size_t>(thread_)];  // the last one is still open
    if (x.commit) return groups.emplace_back(), void();
    while (static_cast<int>(groups.size()) - 1 > x.left) {
      for (const Arrival& a : groups.front()) write(a.to, a.at, a.value, a.type);
      groups.erase(groups.begin());
    }
  }

  void mma(const Mma& x) {
    const std::int64_t a0 = ir::evaluate(x.a.offset, vars_), b0 = ir::evaluate(x.b.offset, vars_);
    const bool tf32 = k_.buffers[x.a.buffer].dtype == DType::f32;
    const auto operand = [&](const Mma::Operand& o, std::int64_t base, std::int64_t r, int k) {
      const double value = read(o.buffer, base + r * o.row + k * o.step).real;
      return tf32 ? round_to_tf32(value) : value;
    };
    std::vector<double> a(static_cast<std::size_t>(x.tiles_m * 16 * x.k));
    std::vector<double> b(static_cast<std::size_t>(x.tiles_n * 8 * x.k));
    for (int warp = 0; warp < count_ / kWarp; ++warp) {
      // Any thread of the warp reads any element.
      const int row = warp / x.warps_n * x.tiles_m * 16, column = warp % x.warps_n * x.tiles_n * 8;
      thread_ = warp * kWarp;
      for (int k = 0; k < x.k; ++k) {
        for (int r = 0; r < x.tiles_m * 16; ++r)
          a[static_cast<std::size_t>(r * x.k + k)] = operand(x.a, a0, row + r, k);
        for (int c = 0; c < x.tiles_n * 8; ++c)
          b[static_cast<std::size_t>(c * x.k + k)] = operand(x.b, b0, column + c, k);
      }
      for (int t = warp * kWarp; t < (warp + 1) * kWarp; ++t) {
        thread_ = t;
        for (int e = 0; e < x.tiles_m * x.tiles_n * 4; ++e) {
          const double* pa = &a[static_cast<std::size_t>((fragment_row(x, t, e) - row) * x.k)];
          const double* pb =
              &b[static_cast<std::size_t>((fragment_column(x, t, e) - column) * x.k)];
          double sum = read(x.acc, e).real;
          for (int k = 0; k < x.k; ++k) sum += pa[k] * pb[k];
          write(x.acc, e, {sum, 0}, DType::f32);
        }
      }
    }
  }

  /// heddle_sort (see lower/stitch/special.cpp) by its definition.
  void routine(const Routine& x) {
    if (x.name != "heddle_sort")
      throw Failure{fmt::format("routine '{}' has no interpretation", x.name)};
    ++block_interval_;
    const std::int64_t n = ir::evaluate(x.integers[0], vars_);
    const std::int64_t count = ir::evaluate(x.integers[1], vars_);
    const bool descending = ir::evaluate(x.integers[2], vars_) != 0;
    const bool real = is_float(k_.buffers[x.buffers[0]].dtype);
    const std::int64_t start = x.integers.size() > 4 ? ir::evaluate(x.integers[4], vars_) : 0;
    std::vector<Scalar> keys;
    std::vector<std::int64_t> order;
    for (std::int64_t i = 0; i < n; ++i) {
      keys.push_back(read(x.buffers[0], start + i));
      order.push_back(i);
    }
    const auto less = [&](const Scalar& a, const Scalar& b) {
      if (!real) return a.integer < b.integer;
      return std::isnan(b.real) ? !std::isnan(a.real) : a.real < b.real;
    };
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
      const Scalar &p = keys[static_cast<std::size_t>(a)], &q = keys[static_cast<std::size_t>(b)];
      return descending ? less(q, p) : less(p, q);
    });
    for (std::int64_t i = 0; i < count; ++i)
      write(x.buffers[1], start + i, {0, order[static_cast<std::size_t>(i)]}, DType::i64);
    ++block_interval_;
  }

  /// True if an earlier access and one of the running thread cannot happen at the same time.
  bool apart(const Local::Access& a, Scope scope) const {
    if (a.task < 0) return true;
    if (a.task != task_) return scope == Scope::block || a.block < phase_start_;
    if (a.thread == thread_ || a.block < block_interval_) return true;
    return a.thread / kWarp == thread_ / kWarp && a.warp < warp_interval_;
  }
  void trace(BufferId id, std::int64_t offset, bool store) {
    if (count_ == 0) return;
    Local& local = locals_[static_cast<std::size_t>(id.value)];
    if (local.seen.empty()) return;
    Local::Seen& seen = local.seen[static_cast<std::size_t>(offset)];
    const Buffer& b = k_.buffers[id];
    for (const Local::Access* a : {&seen.write, &seen.read}) {
      if (apart(*a, b.scope) || (!store && a == &seen.read)) continue;
      throw Failure{fmt::format(
          "race: '{}'[{}] is {} by thread {} of task {} while thread {} of task {} {} it", b.name,
          offset, store ? "stored" : "loaded", thread_, task_, a->thread, a->task,
          a == &seen.write ? "stores" : "loads")};
    }
    const Local::Access now{block_interval_, warp_interval_, task_, thread_};
    // Of several readers the first is kept unless it is harmless by now.
    if (store)
      seen.write = now;
    else if (apart(seen.read, b.scope))
      seen.read = now;
  }

  void exec(const For& x) {
    auto& v = vars_[static_cast<std::size_t>(x.var.index)];
    if (x.binding == Binding::thread) return enter_threads(x);
    if (x.binding != Binding::grid) {
      for (v = x.begin; v < x.end; ++v) exec(*x.body);
      return;
    }
    phase_start_ = ++block_interval_;
    // Tasks are independent: run them backwards, so that a kernel relying on order is found out.
    for (v = x.end - 1; v >= x.begin; --v) {
      for (std::int32_t i = 0; i < k_.buffers.size(); ++i)
        if (k_.buffers[BufferId{i}].scope != Scope::grid)
          poison(locals_[static_cast<std::size_t>(i)]);
      ++task_;
      exec(*x.body);
      if (v == x.begin) break;
    }
  }

  bool hold(const Conditions& conditions) const {
    for (const ir::Condition& c : conditions) {
      const std::int64_t value = ir::evaluate(c.expr, vars_);
      if (value < c.low || value >= c.high) return false;
    }
    return true;
  }

  void check(BufferId id, std::int64_t offset, std::int64_t count = 1) const {
    const Buffer& b = k_.buffers[id];
    if (offset >= 0 && offset + count <= b.size) return;
    std::string at;
    for (std::size_t i = 0; i < vars_.size(); ++i) at += fmt::format(" d{}={}", i, vars_[i]);
    throw Failure{fmt::format("'{}'[{}] is outside 0..{} at{}", b.name, offset, b.size, at)};
  }

  Scalar read(BufferId id, std::int64_t offset) {
    check(id, offset);
    trace(id, offset, false);
    const Buffer& b = k_.buffers[id];
    if (b.scope == Scope::lane) offset += thread_ * b.size;
    if (b.argument >= 0) {
      const Tensor& t = tensors_[static_cast<std::size_t>(id.value)];
      return is_float(b.dtype) ? Scalar{t.at(offset), 0} : Scalar{0, t.int_at(offset)};
    }
    const Local& local = locals_[static_cast<std::size_t>(id.value)];
    const auto at = static_cast<std::size_t>(offset);
    return is_float(b.dtype) ? Scalar{local.reals[at], 0} : Scalar{0, local.integers[at]};
  }

  void write(BufferId id, std::int64_t offset, Scalar value, DType type) {
    check(id, offset);
    trace(id, offset, true);
    const Buffer& b = k_.buffers[id];
    if (b.scope == Scope::lane) offset += thread_ * b.size;
    if (is_float(type) != is_float(b.dtype))
      throw Failure{
          fmt::format("'{}' is {} but is given {}", b.name, name_of(b.dtype), name_of(type))};
    const auto at = static_cast<std::size_t>(offset);
    if (b.argument >= 0) {
      Tensor& t = tensors_[static_cast<std::size_t>(id.value)];
      is_float(b.dtype) ? t.set(offset, value.real) : t.set_int(offset, value.integer);
    } else if (is_float(b.dtype)) {
      locals_[static_cast<std::size_t>(id.value)].reals[at] = round_to(b.dtype, value.real);
    } else {
      locals_[static_cast<std::size_t>(id.value)].integers[at] = ir::wrap(value.integer, b.dtype);
    }
  }

  Scalar eval(const Value& v) {
    const auto found = memo_.find(v.get());
    if (found != memo_.end()) return found->second;
    const Scalar out = compute(*v);
    memo_.emplace(v.get(), out);
    return out;
  }

  Scalar compute(const ValueNode& v) {
    return match(
        v.op,
        [](const Imm& x) {
          return Scalar{x.real, x.integer};
        },
        [&](const Load& x) {
          std::int64_t offset = ir::evaluate(x.offset, vars_);
          for (const Load::Dynamic& d : x.dynamic)
            offset += std::clamp<std::int64_t>(eval(d.value).integer, 0, d.extent - 1) * d.stride;
          return read(x.buffer, offset);
        },
        [&](const Apply& x) { return apply_fn(x, v.dtype); },
        [&](const Index& x) {
          const std::int64_t value = ir::evaluate(x.expr, vars_);
          return is_float(v.dtype) ? Scalar{static_cast<double>(value), 0}
                                   : Scalar{0, ir::wrap(value, v.dtype)};
        },
        [&](const Guard& x) { return eval(hold(x.conditions) ? x.then : x.otherwise); },
        [&](const LaneReduce& x) { return lane_reduce(x, v.dtype); },
        [&](const RandomBits&) -> Scalar {
          throw Failure{"random numbers have no interpretation here"};
        });
  }

  Scalar apply_fn(const Apply& x, DType dtype) {
    const DType from = x.args.back()->dtype;
    if (x.fn == ir::ScalarFn::select) return eval(eval(x.args[0]).integer ? x.args[1] : x.args[2]);
    if (x.fn == ir::ScalarFn::cast) return cast(eval(x.args[0]), from, dtype);
    if (x.fn == ir::ScalarFn::bitcast) return bitcast(eval(x.args[0]), from, dtype);
    double reals[3] = {};
    std::int64_t integers[3] = {};
    const std::size_t n = x.args.size();
    for (std::size_t i = 0; i < n; ++i) {
      const Scalar arg = eval(x.args[i]);
      reals[i] = arg.real;
      integers[i] = arg.integer;
    }
    if (!is_float(from)) {
      const std::int64_t out = ir::apply_int(x.fn, {integers, n}, from);
      return is_float(dtype) ? Scalar{static_cast<double>(out), 0} : Scalar{0, out};
    }
    const double out = ir::apply(x.fn, {reals, n});
    return is_float(dtype) ? Scalar{out, 0} : Scalar{0, static_cast<std::int64_t>(out)};
  }

  Scalar lane_reduce(const LaneReduce& x, DType dtype) {
    const std::int64_t offset = ir::evaluate(x.offset, vars_);
    const int lanes = k_.buffers[x.buffer].lanes;
    Scalar total = read(x.buffer, offset);
    for (int i = 1; i < lanes; ++i)
      total = combined(x.fn, total, read(x.buffer, offset + i), dtype);
    return total;
  }

  /// Copies of a buffer: lane buffers are private to a thread.
  std::int64_t copies(const Buffer& b) const {
    return b.scope == Scope::lane ? std::max(1, copies_) : 1;
  }

  const Kernel& k_;
  int copies_ = 0;  ///< threads of a block, at most
  std::vector<std::pair<Var, std::int64_t>> threads_;
  std::vector<const Let*> lets_;  ///< around what threads do together
  int thread_ = 0, count_ = 0;    ///< the running one; of the open thread loops
  std::int64_t phase_start_ = 0, task_ = -1, block_interval_ = 0, warp_interval_ = 0;
  struct Arrival {
    BufferId to;
    std::int64_t at;
    Scalar value;
    DType type;
  };
  std::vector<std::vector<std::vector<Arrival>>> pending_;  ///< by thread, by group, oldest first
  std::unordered_map<const Stmt*, bool> collective_;
  std::vector<std::int64_t> vars_;
  std::vector<Local> locals_;
  std::int64_t local_elements_ = 0;
  std::vector<Tensor> tensors_;
  std::unordered_map<const ValueNode*, Scalar> memo_;
};

}  // namespace

Status interpret(const Kernel& k, const std::vector<std::span<std::byte>>& args) {
  try {
    Interpreter(k, args).run();
    return Ok{};
  } catch (const Failure& f) {
    return fail("kernel '{}': {}", k.name, f.message);
  }
}

}  // namespace heddle::kernel
