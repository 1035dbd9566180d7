#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <unordered_map>

#include "kernel/events.h"
#include "kernel/interpret_memory.h"
#include "kernel/traverse.h"
#include "support/match.h"

namespace heddle::kernel {
namespace {

class Interpreter : Memory {
 public:
  using Memory::Memory;

  void run() {
    for (const Stmt& s : k_.body) exec(s);
  }

 private:
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
        [&](const MmaWait& x) { finish_products(x.left); }, [&](const Event& x) { event(x); },
        [&](const TileCopy& x) { start_tile(x); }, [&](const Roles& x) { roles(x); },
        [](const Prefetch&) {}, [&](const TileProduct& x) { multiply(x); });
  }

  /// Element `at` of an operand of a product of tiles, of which words hold several.
  Scalar part_of_tile(const TileProduct::Operand& o, std::int64_t at, int parts) {
    if (k_.buffers[o.buffer].dtype != DType::i32) return read(o.buffer, at);
    const auto word = static_cast<std::uint32_t>(read(o.buffer, at / parts).integer);
    const std::uint32_t bits = word >> (32 / parts * (at % parts));
    if (o.type == DType::bf16) return {std::bit_cast<float>(bits << 16), 0};
    if (o.type == DType::u8) return {0, static_cast<std::uint8_t>(bits)};
    return {0, static_cast<std::int8_t>(bits)};
  }

  void multiply(const TileProduct& x) {
    constexpr int kC = TileProduct::kColumns;
    const int deep = x.tile_depth(), parts = x.parts();
    const int a_parts = k_.buffers[x.a.buffer].dtype == DType::i32 ? parts : 1;
    const std::int64_t a = ir::evaluate(x.a.offset, vars_), b = ir::evaluate(x.b.offset, vars_);
    const std::int64_t begin = x.along ? ir::evaluate(Expr(*x.along), vars_) * deep : 0,
                       end = x.along ? begin + deep : x.depth;
    const std::int64_t to = ir::evaluate(x.to, vars_),
                       depth = std::max<std::int64_t>(0, end - begin);
    const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
    std::vector<Scalar> sums(at(x.rows * x.columns)), p(at(x.rows * depth)),
        q(at(x.columns * depth));
    if (x.add || begin > 0)
      for (std::size_t i = 0; i < sums.size(); ++i)
        sums[i] = read(x.acc, to + static_cast<std::int64_t>(i));
    for (const TileProduct::Term& term : x.terms) {
      for (std::int64_t r = 0; r < x.rows; ++r)
        for (std::int64_t t = begin; t < end; ++t) {
          const std::int64_t row = a + term.a + r / x.height * x.a.block + x.a.place_of(t / deep) +
                                   r % x.height * x.a_row;
          p[at(r * depth + t - begin)] = part_of_tile(x.a, row * a_parts + t % deep, parts);
        }
      for (std::int64_t c = 0; c < x.columns; ++c)
        for (std::int64_t t = begin; t < end; ++t) {
          const std::int64_t word = b + term.b + c / kC * x.b.block + t / deep * x.b.step +
                                    t % deep / parts * kC + c % kC;
          q[at(c * depth + t - begin)] = part_of_tile(x.b, word * parts + t % parts, parts);
        }
      for (std::int64_t r = 0; r < x.rows; ++r)
        for (std::int64_t c = 0; c < x.columns; ++c) {
          Scalar& sum = sums[at(r * x.columns + c)];
          for (std::int64_t t = 0; t < depth; ++t) {
            sum.real += p[at(r * depth + t)].real * q[at(c * depth + t)].real;
            sum.integer += p[at(r * depth + t)].integer * q[at(c * depth + t)].integer;
          }
        }
    }
    for (std::size_t i = 0; i < sums.size(); ++i)
      write(x.acc, to + static_cast<std::int64_t>(i), sums[i], k_.buffers[x.acc].dtype);
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
      products_.clear();
      pending_.assign(static_cast<std::size_t>(count_), std::vector<std::vector<Arrival>>(1));
      together(*x.body);
      events_.end();
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
          set_thread(first_ + t);
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
        set_thread(first_);
        const std::int64_t v = vars_[static_cast<std::size_t>(let->var.index)];
        if (v >= let->begin && v < let->end) together(*let->body);
        lets_.pop_back();
      } else if (const If* branch = std::get_if<If>(&s.op)) {
        if (hold(branch->conditions)) together(*branch->body);
      } else if (const Barrier* barrier = std::get_if<Barrier>(&s.op)) {
        ++(barrier->scope == Scope::warp ? warp_interval_ : block_interval_);
        if (barrier->async) async_interval_ = block_interval_;
      } else {
        exec(s);
      }
    }
  }

  /// Roles run one at a time, until they wait for what has not happened; who copies runs ahead.
  void roles(const Roles& x) {
    const Place whole = place();
    std::vector<std::function<void()>> all;
    int first = 0;
    for (const Roles::Role& role : x.roles) {
      all.emplace_back([this, &whole, &role, first] {
        go_to(whole);
        first_ = first;
        count_ = role.threads;
        together(*role.body);
      });
      first += role.threads;
    }
    Turns turns;
    turns_ = &turns;
    turns.run(all);
    turns_ = nullptr;
    go_to(whole);
  }

  void event(const Event& x) {
    if (x.kind == Event::Kind::init)
      return events_.init(x.events, k_.buffers[x.events].size, x.count, thread_, block_interval_);
    const std::int64_t index = ir::evaluate(x.index, vars_);
    check(x.events, index);
    if (x.kind == Event::Kind::arrive) {
      idle_ = 0;
      return events_.arrive(x.events, index, x.count, thread_, block_interval_);
    }
    const std::int64_t parity = ir::evaluate(x.parity, vars_);
    const auto deliver = [&](const Events::Tile& tile) { finish_tile(tile); };
    while (!events_.complete(x.events, index, parity, thread_, block_interval_, deliver)) {
      constexpr int kEnough = 16;  // rounds in which all roles wait
      if (!turns_ || ++idle_ > kEnough)
        throw Failure{fmt::format("deadlock: thread {} waits for event b{}[{}]", thread_,
                                  x.events.value, index)};
      const Place mine = place();
      turns_->pass();
      go_to(mine);
    }
    idle_ = 0;
  }

  /// Calls f with the place of each element of a tile, and that in the tensor (-1: outside).
  template <class F>
  static void for_each_element(const Events::Tile& tile, F&& f) {
    const TileCopy& x = *tile.copy;
    for (std::int64_t i = 0; i < x.bytes() / 2; ++i) {
      std::int64_t rest = i, from = 0;
      for (std::size_t d = 0; d < x.box.size(); ++d) {
        const std::int64_t at = tile.at[d] + rest % x.box[d];
        rest /= x.box[d];
        from = from < 0 || at < 0 || at >= x.extents[d] ? -1 : from + at * x.strides[d];
      }
      f(tile.to + i, from);
    }
  }
  void start_tile(const TileCopy& x) {
    Events::Tile tile{&x, {}, ir::evaluate(x.to_offset, vars_)};
    for (const Expr& e : x.at) tile.at.push_back(ir::evaluate(e, vars_));
    const std::int64_t event = ir::evaluate(x.event, vars_);
    check(x.to, tile.to, x.bytes() / 2);
    check(x.events, event);
    for_each_element(tile, [&](std::int64_t to, std::int64_t) {
      write(x.to, to, {std::numeric_limits<double>::quiet_NaN(), 0}, DType::f32);
    });
    events_.start(x.events, event, std::move(tile));
  }
  void finish_tile(const Events::Tile& tile) {
    const TileCopy& x = *tile.copy;
    for_each_element(tile, [&](std::int64_t to, std::int64_t from) {
      write(x.to, to, from < 0 ? Scalar{} : read(x.from, from), DType::f32);
    });
  }

  void combine(const Combine& x) {
    const Buffer& b = k_.buffers[x.buffer];
    const int run = x.width * x.stride;
    for (int t = 0; t < count_; ++t) {
      if (t % run >= x.stride) continue;
      for (int c = 0; c < x.count; ++c) {
        const std::int64_t at = x.offset + c;
        thread_ = first_ + t;
        Scalar total = read(x.buffer, at);
        for (int i = 1; i < x.width; ++i) {
          thread_ = first_ + t + i * x.stride;
          total = combined(x.fn, total, read(x.buffer, at), b.dtype);
        }
        for (int i = 0; i < x.width; ++i) {
          thread_ = first_ + t + i * x.stride;
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

  /// Those of warpgroups are done as late as they may be; their operands must be there at the start
  /// and still be the same at the end.
  void mma(const Mma& x) {
    const std::int64_t a = ir::evaluate(x.a.offset, vars_), b = ir::evaluate(x.b.offset, vars_);
    products_.push_back({&x, a, b, operands(x, a, b)});
    if (!x.warpgroup) finish_products(static_cast<int>(products_.size()) - 1);
  }
  void finish_products(int left) {
    while (static_cast<int>(products_.size()) > left) {
      const Product& p = products_.front();
      const auto same = [](double x, double y) { return x == y || (x != x && y != y); };
      const std::vector<double> now =
          p.product->warpgroup ? operands(*p.product, p.a, p.b) : p.operands;
      if (!std::equal(now.begin(), now.end(), p.operands.begin(), same))
        throw Failure{"operands of a product change while it is on its way"};
      multiply(*p.product, p.operands);
      products_.erase(products_.begin());
    }
  }

  /// What each warp multiplies: its rows, then its columns, k of each.
  std::vector<double> operands(const Mma& x, std::int64_t a, std::int64_t b) {
    const bool tf32 = k_.buffers[x.a.buffer].dtype == DType::f32;
    std::vector<double> out;
    const auto append = [&](const Mma::Operand& o, std::int64_t base, int first, int count) {
      const bool chunks = x.warpgroup && k_.buffers[o.buffer].use == Use::plain;
      for (int r = first; r < first + count; ++r)
        for (int k = 0; k < x.k; ++k) {
          const std::int64_t along = chunks ? k / 8 * o.step + k % 8 : k * o.step;
          if (x.warpgroup) check_seen(o.buffer, base + r * o.row + along);
          const double value = read(o.buffer, base + r * o.row + along).real;
          out.push_back(tf32 ? round_to_tf32(value) : value);
        }
    };
    for (int warp = 0; warp < count_ / kWarp; ++warp) {
      thread_ = warp * kWarp;  // any thread of the warp reads any element
      append(x.a, a, warp / x.warps_n * x.tiles_m * 16, x.tiles_m * 16);
      append(x.b, b, warp % x.warps_n * x.tiles_n * 8, x.tiles_n * 8);
    }
    return out;
  }

  void multiply(const Mma& x, const std::vector<double>& operands) {
    const int rows = x.tiles_m * 16, columns = x.tiles_n * 8;
    for (int warp = 0; warp < count_ / kWarp; ++warp) {
      const int row = warp / x.warps_n * rows, column = warp % x.warps_n * columns;
      const double* a = &operands[static_cast<std::size_t>(warp * (rows + columns) * x.k)];
      const double* b = a + rows * x.k;
      for (int t = warp * kWarp; t < (warp + 1) * kWarp; ++t) {
        thread_ = t;
        for (int e = 0; e < x.tiles_m * x.tiles_n * 4; ++e) {
          const double* pa = a + (fragment_row(x, t, e) - row) * x.k;
          const double* pb = b + (fragment_column(x, t, e) - column) * x.k;
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

  Scalar eval(const Value& v) {
    if (v.use_count() == 1) return compute(*v);  // nothing else asks for it
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

  /// Where a role is, while another runs.
  struct Place {
    std::vector<std::int64_t> vars;
    std::vector<const Let*> lets;
    int thread, first, count;
  };
  Place place() const { return {vars_, lets_, thread_, first_, count_}; }
  void go_to(const Place& p) {
    vars_ = p.vars;
    lets_ = p.lets;
    thread_ = p.thread, first_ = p.first, count_ = p.count;
  }

  std::vector<std::pair<Var, std::int64_t>> threads_;
  std::vector<const Let*> lets_;  ///< around what threads do together
  int first_ = 0;                 ///< of the threads that run
  Events events_;
  Turns* turns_ = nullptr;
  int idle_ = 0;  ///< times that a role waited since something happened
  struct Arrival {
    BufferId to;
    std::int64_t at;
    Scalar value;
    DType type;
  };
  struct Product {
    const Mma* product;
    std::int64_t a, b;  ///< offsets
    std::vector<double> operands;
  };
  std::vector<Product> products_;                           ///< on their way, oldest first
  std::vector<std::vector<std::vector<Arrival>>> pending_;  ///< by thread, by group, oldest first
  std::unordered_map<const Stmt*, bool> collective_;
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
