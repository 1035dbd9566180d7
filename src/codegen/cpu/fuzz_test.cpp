// Random kernels against the interpreter: loop nests of every binding, loads moved out of loops,
// stores in between, guards whose loads are out of bounds elsewhere.
#include <cmath>

#include "codegen/cpu/test_util.h"

namespace heddle::codegen::cpu {
namespace {

using namespace kernel;

constexpr std::int64_t kSize = 2048;
constexpr int kTasks = 3;

class Generator {
 public:
  explicit Generator(unsigned seed) : random_(seed) {}

  Kernel run() {
    k_.name = "fuzz";
    x_ = k_.add_buffer({"x", DType::f32, kSize, Scope::grid, 0, false, 1});
    i_ = k_.add_buffer({"i", DType::i32, kSize, Scope::grid, 1, false, 1});
    y_ = k_.add_buffer({"y", DType::f32, kTasks * kSize, Scope::grid, 2, true, 1});
    tile_ = k_.add_buffer({"tile", DType::f32, kSize, Scope::block, -1, false, 1});
    acc_ = k_.add_buffer({"acc", DType::f32, 32, Scope::lane, -1, false, 8});
    const Var task = k_.new_var();
    task_ = Expr(task) * Expr(kSize);
    open_.push_back({task, 0, kTasks});
    Body body;
    body.push_back(filled(tile_, kSize, Binding::serial));
    body.push_back(filled(acc_, 32, Binding::unroll));
    for (int i = 0; i < 3; ++i) body.push_back(nest(0));
    for (int i = 0; i < 3; ++i) body.push_back(statement());
    k_.body = {loop(task, 0, kTasks, Binding::grid, std::move(body))};
    return k_;
  }

 private:
  struct Open {
    Var var;
    std::int64_t begin, end;
  };
  std::int64_t pick(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(high - low + 1));
  }

  Stmt filled(BufferId b, std::int64_t size, Binding binding) {
    const Var v = k_.new_var(), lane = k_.new_var();
    return loop(v, 0, size / 8, binding,
                {loop(lane, 0, 8, Binding::vector,
                      {store(b, Expr(v) * Expr(8) + Expr(lane),
                             load(x_, Expr(v) + Expr(lane), DType::f32))})});
  }

  Stmt nest(int depth) {
    const Var v = k_.new_var();
    const std::int64_t begin = pick(0, 2), end = begin + pick(1, 4);
    open_.push_back({v, begin, end});
    Body body;
    const std::int64_t count = pick(1, 3);
    for (std::int64_t i = 0; i < count; ++i) {
      const bool deeper = depth < 2 && pick(0, 1) == 0;
      body.push_back(deeper ? nest(depth + 1) : pick(0, 1) == 0 ? lanes() : statement());
    }
    if (pick(0, 3) == 0) body = {when({condition()}, std::move(body))};
    open_.pop_back();
    return loop(v, begin, end, pick(0, 2) == 0 ? Binding::unroll : Binding::serial,
                std::move(body));
  }

  /// A vector loop: no lane reads what another writes.
  Stmt lanes() {
    const Var v = k_.new_var();
    const std::int64_t begin = pick(0, 1) * 3, extent = pick(2, 16);
    const bool into_acc = extent <= 8 && pick(0, 1) == 0;
    const Expr lane = Expr(v) - Expr(begin);
    if (into_acc) {
      const Expr at = lane + Expr(8 * pick(0, 3));
      Value old = load(acc_, at, DType::f32);
      open_.push_back({v, begin, begin + extent});
      Value sum = apply(ir::ScalarFn::add, {old, value(2, true)}, DType::f32);
      open_.pop_back();
      return loop(v, begin, begin + extent, Binding::vector, {store(acc_, at, sum)});
    }
    const Expr base = offset(400);
    open_.push_back({v, begin, begin + extent});
    Body body;
    body.push_back(
        store(y_, task_ + base + lane * Expr(pick(1, 3)) + Expr(pick(0, 800)), value(3, true)));
    if (pick(0, 3) == 0) body = {when({condition()}, std::move(body))};
    open_.pop_back();
    return loop(v, begin, begin + extent, Binding::vector, std::move(body));
  }

  Stmt statement() {
    const Expr at = offset(kSize);
    switch (pick(0, 3)) {
      case 0:
        return store(tile_, at, value(3, false));
      case 1:
        return store(acc_, Expr(pick(0, 31)), value(2, false));
      default:
        return store(y_, task_ + at, value(3, false));
    }
  }

  /// Affine in the open variables, sometimes with a quotient or remainder; within [0, limit).
  Expr offset(std::int64_t limit) {
    Expr e(pick(0, 40));
    for (std::size_t i = 1; i < open_.size(); ++i) {
      if (pick(0, 1) == 0) e = e + Expr(open_[i].var) * Expr(pick(0, 3) == 0 ? 16 : pick(1, 9));
    }
    if (pick(0, 5) == 0) e = ir::floor_div(e, pick(2, 5));
    if (pick(0, 5) == 0) e = ir::floor_mod(e, pick(5, 50)) * Expr(pick(1, 3));
    const auto range = ir::bounds(e, ranges());
    EXPECT_TRUE(range && range->low >= 0);
    return range && range->high < limit ? e : Expr(1);
  }
  ir::Ranges ranges() const {
    ir::Ranges out(static_cast<std::size_t>(k_.variables));
    for (const Open& o : open_) out[static_cast<std::size_t>(o.var.index)] = {{o.begin, o.end - 1}};
    return out;
  }
  ir::Condition condition() {
    const Expr e = offset(kSize);
    const auto range = *ir::bounds(e, ranges());
    const std::int64_t low = pick(range.low - 2, range.high);
    return {e, low, low + pick(1, 8)};
  }

  /// `pure`: only from x (inside vector loops other buffers are being written).
  Value value(int depth, bool pure) {
    // Values are shared across statements, which is what goes stale when a store comes in between.
    if (!pure && depth == 3 && !shared_.empty() && pick(0, 2) == 0) {
      const Shared& s =
          shared_[static_cast<std::size_t>(pick(0, static_cast<std::int64_t>(shared_.size()) - 1))];
      if (s.open <= open_.size() && s.var == open_[s.open - 1].var) return s.value;
    }
    Value v = fresh(depth, pure);
    if (!pure && depth > 0) shared_.push_back({v, open_.size(), open_.back().var});
    return v;
  }
  Value fresh(int depth, bool pure) {
    if (depth == 0) return leaf(pure);
    switch (pick(0, 5)) {
      case 0: {
        const ir::Condition c = condition();
        // In bounds only where the condition holds.
        const Expr at = (c.expr - Expr(c.low)) * Expr(kSize / 8) + Expr(pick(0, 9));
        return guard({c}, load(x_, at, DType::f32), value(depth - 1, pure));
      }
      case 1: {
        Value a = value(depth - 1, pure), b = leaf(pure);
        return apply(ir::ScalarFn::select, {apply(ir::ScalarFn::less, {a, b}, DType::b1), b, a},
                     DType::f32);
      }
      case 2:
        return guard({condition()}, value(depth - 1, pure), leaf(pure));
      default: {
        constexpr ir::ScalarFn kFns[] = {ir::ScalarFn::add, ir::ScalarFn::mul, ir::ScalarFn::max,
                                         ir::ScalarFn::min, ir::ScalarFn::sub};
        return apply(kFns[pick(0, 4)], {value(depth - 1, pure), value(depth - 1, pure)},
                     DType::f32);
      }
    }
  }
  Value leaf(bool pure) {
    switch (pick(0, pure ? 4 : 8)) {
      case 0:
        return imm(DType::f32, static_cast<double>(pick(-2, 2)));
      case 1: {
        Value index = load(i_, offset(kSize), DType::i32);
        return std::make_shared<const ValueNode>(
            ValueNode{Load{x_, offset(64), {{index, 20, 16}}}, DType::f32});
      }
      case 2: {
        Value index =
            std::make_shared<const ValueNode>(ValueNode{Index{offset(kSize)}, DType::i64});
        return apply(ir::ScalarFn::cast, {index}, DType::f32);
      }
      case 5:
        return load(tile_, offset(kSize), DType::f32);
      case 6:
        return load(acc_, Expr(pick(0, 31)), DType::f32);
      case 7:
        return std::make_shared<const ValueNode>(
            ValueNode{LaneReduce{ir::Monoid::sum, acc_, Expr(8 * pick(0, 3))}, DType::f32});
      default:
        return load(x_, offset(kSize), DType::f32);
    }
  }

  struct Shared {
    Value value;
    std::size_t open;  ///< loops that were open
    Var var;           ///< the innermost of them
  };
  std::mt19937 random_;
  Kernel k_;
  BufferId x_, i_, y_, tile_, acc_;
  Expr task_;
  std::vector<Open> open_;
  std::vector<Shared> shared_;
};

TEST(Fuzz, RandomKernelsAgreeWithTheInterpreter) {
  const Machine m = host_machine();
  for (unsigned seed = 0; seed < 100; ++seed) {
    const Kernel k = Generator(seed).run();
    const Status status = verify(k);
    ASSERT_TRUE(status.ok()) << status.error().message << "\n" << to_string(k);
    std::mt19937 random(seed);
    std::vector<float> x(kSize), y(kTasks * kSize, 0), want;
    std::vector<std::int32_t> i(kSize);
    for (float& v : x) v = static_cast<float>(static_cast<int>(random() % 9) - 4) / 4;
    for (std::int32_t& v : i) v = static_cast<std::int32_t>(random() % 24) - 2;
    want = y;
    Compiled(k, m).run({x.data(), i.data(), y.data()});
    const auto span = [](auto& v) {
      return std::span<std::byte>(reinterpret_cast<std::byte*>(v.data()), v.size() * 4);
    };
    const Status ran = interpret(k, {span(x), span(i), span(want)});
    ASSERT_TRUE(ran.ok()) << ran.error().message;
    for (std::size_t at = 0; at < y.size(); ++at) {
      const float error = std::fabs(y[at] - want[at]);
      if (std::isnan(y[at]) && std::isnan(want[at])) continue;
      ASSERT_LE(error, 1e-4F * std::max(1.0F, std::fabs(want[at])))
          << "seed " << seed << " y[" << at << "] = " << y[at] << ", want " << want[at] << "\n"
          << to_string(k);
    }
  }
}

}  // namespace
}  // namespace heddle::codegen::cpu
