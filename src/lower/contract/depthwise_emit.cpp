#include "lower/contract/depthwise_emit.h"

#include <algorithm>

#include "kernel/bounds.h"
#include "kernel/halves.h"
#include "kernel/traverse.h"
#include "lower/contract/product.h"
#include "lower/contract/window_words.h"
#include "support/math.h"

namespace heddle::lower::contract {
namespace {

using ir::Expr;
using ir::Var;
using kernel::Binding;
using kernel::Body;
using kernel::BufferId;
using kernel::Scope;
using kernel::Value;

constexpr std::int64_t kTasksPerThread = 8, kGrain = 1 << 11;

/// What loop variables stand for.
class Env {
 public:
  void set(Var v, Expr e) { values_.emplace_back(v, std::move(e)); }
  std::optional<Expr> operator()(Var v) const {
    for (std::size_t i = values_.size(); i-- > 0;)
      if (values_[i].first == v) return values_[i].second;
    return std::nullopt;
  }
  Expr at(const Expr& e) const { return ir::substitute(e, *this); }
  Value at(const Value& v) const { return kernel::substitute(v, *this); }

 private:
  std::vector<std::pair<Var, Expr>> values_;
};

bool is_zero(const Value& v) {
  const auto* number = std::get_if<kernel::Imm>(&v->op);
  return number != nullptr && number->real == 0 && number->integer == 0;
}

class Depthwise {
 public:
  Depthwise(Product& p, Axis channel, std::optional<std::int64_t> group)
      : p_(p),
        k_(p.kernel),
        target_(p.request.target),
        channel_(channel),
        group_(group),
        lanes_(target_.lanes(p.problem.type)) {
    for (const KLoop& loop : p_.k) taps_ *= loop.extent;
    inner_ = p_.k.back().extent;
    if (taps_ <= kWrittenOut) words_ = WindowWords::of(p_);
    filter_rows_ = ceil_div(taps_ / inner_, words_ ? words_->rows() : 1);
    const std::int64_t most = target_.vector_registers >= 32 ? 8 : 4;
    columns_ = p_.extents.tile;
    width_ = ceil_div(columns_, ceil_div(columns_, most));
    vectors_ = ceil_div(channel_.extent, lanes_);
    choose_tasks();
  }

  Lowered run() {
    weights_ = k_.add_buffer({"weights", weight_type(), filter_rows_ * inner_ * channel_.extent,
                              Scope::grid, -1, false, 1});
    const Var task = k_.new_var();
    Body body = task_body(Expr(task));
    k_.body = {kernel::loop(task, 0, tasks_, Binding::grid, std::move(body))};
    k_.name = fmt::format("{}_{}", kind(), p_.problem.contract.value);
    return finish();
  }

 private:
  const char* kind() const { return group_ ? "groups" : "depthwise"; }
  DType weight_type() const { return words_ ? DType::i32 : p_.problem.element(); }
  BufferId scratch(std::string name, std::int64_t size, Scope scope, int lanes = 1) {
    return k_.add_buffer({std::move(name), p_.problem.type, size, scope, -1, false, lanes});
  }

  void choose_tasks() {
    std::int64_t outer = 1;
    for (const Axis& axis : p_.outer)
      if (axis.var != channel_.var) outer *= axis.extent;
    const std::int64_t rows = p_.extents.rows;
    const std::int64_t work = outer * rows * columns_ * vectors_ * taps_;
    const std::int64_t wish =
        std::clamp<std::int64_t>(work / kGrain, 1, kTasksPerThread * target_.threads);
    const std::int64_t blocks = std::clamp<std::int64_t>(ceil_div(wish, outer), 1, rows);
    const auto pin = pinned(p_.request.tuning, "rows");
    rows_per_task_ = pin ? std::clamp<std::int64_t>(*pin, 1, rows) : ceil_div(rows, blocks);
    row_blocks_ = ceil_div(rows, rows_per_task_);
    tasks_ = outer * row_blocks_;
    if (pin) return;
    // Channels are cut where rows are few, into equal parts.
    channel_blocks_ = std::clamp<std::int64_t>(wish / (outer * row_blocks_), 1, vectors_);
    // The last vector is moved back over the one before it, which has to be the same task's.
    const bool alone = channel_.extent % lanes_ != 0 && vectors_ > 1;
    while (vectors_ % channel_blocks_ != 0 || (alone && channel_blocks_ == vectors_))
      --channel_blocks_;
    tasks_ = outer * row_blocks_ * channel_blocks_;
  }

  Body task_body(const Expr& task) {
    channel_block_ = ir::floor_mod(task, channel_blocks_);
    Expr rest = ir::floor_div(task, row_blocks_ * channel_blocks_);
    for (std::size_t i = p_.outer.size(); i-- > 0;) {
      const Axis& axis = p_.outer[i];
      if (axis.var == channel_.var) continue;
      env_.set(axis.var, ir::floor_mod(rest, axis.extent));
      rest = ir::floor_div(rest, axis.extent);
    }
    if (!p_.row) return tiles();
    const Expr block = ir::floor_mod(ir::floor_div(task, channel_blocks_), row_blocks_);
    return rows_inside() ? for_each_vector([&] { return rows(block); }) : rows(block);
  }

  Body rows(const Expr& block) {
    const Var loop = k_.new_var();
    const Expr row = block * Expr(rows_per_task_) + Expr(loop);
    env_.set(p_.row->var, row);
    return {kernel::loop(loop, 0, rows_per_task_, Binding::serial,
                         {kernel::when({{row, 0, p_.extents.rows}}, tiles())})};
  }

  /// Rows overlap. Where the first-level cache does not keep those of all channels until the next
  /// row comes, a vector of channels goes through all rows first; but not over what comes from
  /// memory, which is read as it lies there if the second-level cache keeps it (bands leave it in
  /// the caches).
  bool rows_inside() const {
    if (p_.k.size() < 2 || rows_per_task_ < 2) return false;
    const std::int64_t window = taps_ / inner_ / group_.value_or(1),
                       each = vectors_ / channel_blocks_;
    const auto* load = first_load(p_.a);
    const DType stored = load ? k_.buffers[load->buffer].dtype : p_.problem.type;
    const std::int64_t bytes = window * columns_ * each * lanes_ * size_of(stored);
    if (each == 1 || bytes <= target_.l1_bytes * 2 / 3) return false;
    const bool in_band = pinned(p_.request.tuning, "rows").has_value();
    return in_band || !from_memory() || bytes > target_.l2_bytes / 2;
  }

  bool from_memory() const { return operand_bytes() >= target_.l3_bytes / 4; }
  std::int64_t operand_bytes() const {
    std::int64_t most = 0;
    kernel::for_each_value(p_.a, [&](const Value& x) {
      if (const auto* load = std::get_if<kernel::Load>(&x->op)) {
        const kernel::Buffer& b = k_.buffers[load->buffer];
        most = std::max(most, b.size * size_of(b.dtype));
      }
    });
    return most;
  }

  /// Tiles from left to right. Those whose taps are all inside are a loop, the others stand alone:
  /// neither tests its columns. The last ends with the row: some columns are computed twice.
  Body tiles() {
    const std::int64_t count = ceil_div(columns_, width_);
    std::int64_t begin = 0, end = columns_ / width_;
    while (begin < end && !inside(begin * width_)) ++begin;
    while (begin < end && !inside((end - 1) * width_)) --end;
    constexpr std::int64_t kFew = 16;
    few_alone_ = begin + count - end <= kFew;
    Body out;
    const auto alone = [&](std::int64_t i) {
      for (kernel::Stmt& s : vectors(Expr(std::min(i * width_, columns_ - width_))))
        out.push_back(std::move(s));
    };
    for (std::int64_t i = 0; i < begin; ++i) alone(i);
    if (begin < end) {
      const Var x = k_.new_var();
      out.push_back(kernel::loop(x, 0, end - begin, Binding::serial,
                                 vectors((Expr(x) + Expr(begin)) * Expr(width_))));
    }
    for (std::int64_t i = end; i < count; ++i) alone(i);
    return out;
  }

  /// True if no condition on columns fails for a tile that begins here.
  bool inside(std::int64_t column) const {
    ir::Ranges ranges = p_.problem.ranges();
    kernel::set_range(ranges, p_.tile->var, ir::Interval{column, column + width_ - 1});
    bool holds = true;
    kernel::for_each_value(p_.a, [&](const Value& v) {
      if (const auto* guard = std::get_if<kernel::Guard>(&v->op))
        for (const ir::Condition& c : guard->conditions)
          holds &= !ir::depends_on(c.expr, p_.tile->var) || ir::decide(c, ranges) == true;
    });
    return holds;
  }

  /// The tile at `column` for each vector of the task's channels, or for the one that is set.
  Body vectors(const Expr& column) {
    if (channel_at_) return tile(column, *channel_at_);
    return for_each_vector([&] { return tile(column, *channel_at_); });
  }

  /// The last vector ends with the channels.
  Body for_each_vector(const std::function<Body()>& make) {
    const std::int64_t each = vectors_ / channel_blocks_;
    const Var loop = k_.new_var();
    Expr first = (channel_block_ * Expr(each) + Expr(loop)) * Expr(lanes_);
    if (channel_.extent % lanes_ != 0) first = ir::min(first, Expr(channel_.extent - lanes_));
    channel_at_ = first;
    Body body = make();
    channel_at_.reset();
    return {kernel::loop(loop, 0, each, Binding::serial, std::move(body))};
  }

  /// Lines that the next row of tiles reads here and this one does not, where they come from beyond
  /// the caches: the machine does not guess them while it is busy with a window's other rows.
  Body next_row(const Expr& column, const Expr& channel) const {
    constexpr std::int64_t kFar = 8;  // parts of the last-level cache
    const auto* load = first_load(p_.a);
    const bool plain = !group_ && load && p_.row && p_.k.size() == 2 && taps_ <= kWrittenOut;
    if (!plain || operand_bytes() < target_.l3_bytes / kFar) return {};
    const auto step = [&](Var v) { return ir::coefficient_of(load->offset, v).value_or(0); };
    const std::int64_t tap_row = step(p_.k[0].axes[0].var), tap = step(p_.k[1].axes[0].var);
    if (tap_row < 1 || tap < 1) return {};
    const std::int64_t rows = std::min(step(p_.row->var) / tap_row, p_.k[0].extent);
    const std::int64_t places = width_ * step(p_.tile->var) / tap;
    // Each vector of a line's channels asks for it: once alone is slower by a quarter (bf16), as if
    // some hints were lost.
    Body out;
    for (std::int64_t r = p_.k[0].extent - rows; r < p_.k[0].extent; ++r) {
      Env env = position(column, channel, Expr(r), Expr(0));
      env.set(p_.row->var, env.at(Expr(p_.row->var)) + Expr(1));
      for (std::int64_t x = 0; x < std::min(places, kWrittenOut); ++x)
        out.push_back({kernel::Prefetch{load->buffer, env.at(load->offset) + Expr(x * tap)}});
    }
    return out;
  }

  Body tile(const Expr& column, const Expr& channel) {
    const BufferId acc = scratch("acc", width_ * lanes_, Scope::lane, lanes_);
    Body body = next_row(column, channel);
    for (std::int64_t t = 0; t < width_; ++t)
      body.push_back(lanes([&](const Expr& l) -> Body {
        return {kernel::store(acc, Expr(t * lanes_) + l, kernel::imm(p_.problem.type, 0))};
      }));
    if (taps_ > kWrittenOut) body.push_back(loop_of_taps(column, channel, acc));
    for (std::int64_t row = 0; taps_ <= kWrittenOut && row < filter_rows_; ++row)
      for (kernel::Stmt& s :
           words_ ? words(row, column, channel, acc) : taps(row, column, channel, acc))
        body.push_back(std::move(s));
    for (std::int64_t t = 0; t < width_; ++t)
      body.push_back(lanes([&](const Expr& l) {
        return results(position(column + Expr(t), channel + l, Expr(0), Expr(0)), acc,
                       Expr(t * lanes_) + l, l);
      }));
    return body;
  }

  kernel::Stmt lanes(const std::function<Body(const Expr& lane)>& make) {
    const Var l = k_.new_var();
    return kernel::loop(l, 0, lanes_, Binding::vector, make(Expr(l)));
  }

  /// Adds the products of a row of the packed filter and what it meets to all columns of the tile.
  using Factor = std::function<Value(const Expr& column, const Expr& channel, const Expr& x)>;
  Body products(std::int64_t row, const Expr& column, const Expr& channel, BufferId acc,
                const Factor& factor) {
    Body out;
    for (std::int64_t t = 0; t < width_; ++t)
      out.push_back(lanes([&](const Expr& l) -> Body {
        const Expr at = Expr(t * lanes_) + l, place = channel + l;
        Value sum = kernel::load(acc, at, p_.problem.type);
        for (std::int64_t x = 0; x < inner_; ++x)
          sum = plus(sum, factor(column + Expr(t), place, Expr(x)),
                     weight(Expr(row * inner_ + x), place));
        return {kernel::store(acc, at, sum)};
      }));
    return out;
  }

  Body taps(std::int64_t row, const Expr& column, const Expr& channel, BufferId acc) {
    std::vector<ir::Condition> when;
    Body sums =
        products(row, column, channel, acc, [&](const Expr& c, const Expr& ch, const Expr& x) {
          return element(position(c, ch, Expr(row), x), when);
        });
    return {kernel::when(when, std::move(sums))};
  }

  /// A word of rows of taps at once, twice: where all are inside, and where some are padding.
  Body words(std::int64_t row, const Expr& column, const Expr& channel, BufferId acc) {
    const std::int64_t first = row * words_->rows(),
                       count = std::min(words_->rows(), taps_ / inner_ - first);
    const auto rows = [&](const Expr& c, const Expr& ch, const Expr& x) {
      std::vector<WindowWords::At> out;
      for (std::int64_t i = 0; i < count; ++i)
        out.push_back(
            [env = position(c, ch, Expr(first + i), x)](const Expr& e) { return env.at(e); });
      return out;
    };
    const auto sums = [&](bool masked) {
      return products(row, column, channel, acc, [&](const Expr& c, const Expr& ch, const Expr& x) {
        return words_->word(rows(c, ch, x), masked);
      });
    };
    if (!words_->is_padded()) return sums(false);
    const auto of_tile = rows(column, channel, Expr(0));
    return {kernel::when(words_->all_inside(of_tile), sums(false)),
            kernel::when({words_->some_outside(of_tile)}, sums(true))};
  }

  /// The columns of the tile that tap `x` of a row may meet inside of the operand; all if the
  /// tile's place is not known, as such tiles have nothing outside.
  std::vector<std::int64_t> met(const Expr& column, std::int64_t x) const {
    const auto* guard = std::get_if<kernel::Guard>(&p_.a->op);
    std::vector<std::int64_t> out;
    for (std::int64_t t = 0; t < width_; ++t) {
      bool inside = true;
      if (guard != nullptr && column.constant() && is_zero(guard->otherwise))
        for (const ir::Condition& c : guard->conditions) {
          if (!moves(c) || depends_on_row(c)) continue;
          const Env env = position(column + Expr(t), Expr(channel_.var), Expr(0), Expr(x));
          inside &= ir::decide({env.at(c.expr), c.low, c.high}, {}) != false;
        }
      if (inside) out.push_back(t);
    }
    return out;
  }

  /// How many products of a row of taps and of columns would stand alone.
  std::int64_t written_out(const Expr& column) const {
    std::int64_t count = 0;
    for (std::int64_t x = 0; x < inner_; ++x)
      if (const std::int64_t some = std::ssize(met(column, x)); some < width_) count += some;
    return count;
  }

  /// A tap of a row against columns of the tile, where it is not known to be inside if it is.
  void tap(const Expr& row, const Expr& x, const std::vector<std::int64_t>& to, const Expr& column,
           const Expr& channel, BufferId acc, std::vector<ir::Condition>& of_row, Body& out) {
    for (const std::int64_t t : to) {
      std::vector<ir::Condition> when;
      kernel::Stmt sum = lanes([&](const Expr& l) -> Body {
        const Expr at = Expr(t * lanes_) + l, place = channel + l;
        Value value = element(position(column + Expr(t), place, row, x), of_row);
        if (const auto* guard = std::get_if<kernel::Guard>(&value->op)) {
          const auto of_lane = [&](const ir::Condition& c) {
            return ir::depends_on(c.expr, *l.variable());
          };
          if (is_zero(guard->otherwise) && std::ranges::none_of(guard->conditions, of_lane)) {
            when = guard->conditions;
            value = guard->then;
          }
        }
        const Value w = weight(row * Expr(inner_) + x, place);
        return {kernel::store(acc, at, plus(kernel::load(acc, at, p_.problem.type), value, w))};
      });
      out.push_back(kernel::when(when, {std::move(sum)}));
    }
  }

  /// Many taps, row by row: those that all columns meet as a loop over a few of them, written out
  /// so that what neighbouring columns read alike is loaded once; those before and behind that some
  /// meet one by one, and none that lie in the padding. Long filters have too many tiles of which
  /// each is another case: their taps are tested.
  kernel::Stmt loop_of_taps(const Expr& column, const Expr& channel, BufferId acc) {
    constexpr std::int64_t kTogether = 8, kMostWritten = 256;
    const Var row = k_.new_var();
    std::vector<ir::Condition> of_row;
    Body taps;
    const bool tested = column.constant() && (!few_alone_ || written_out(column) > kMostWritten);
    for (std::int64_t x = 0; x < inner_;) {
      const std::vector<std::int64_t> to = met(tested ? Expr(p_.tile->var) : column, x);
      std::int64_t end = tested ? inner_ : x + 1;
      if (std::ssize(to) == width_)
        while (end < inner_ && std::ssize(met(column, end)) == width_) ++end;
      const std::int64_t together = tested ? 1 : kTogether;
      if (const std::int64_t turns = (end - x) / together; turns > 1) {
        const Var turn = k_.new_var();
        Body each;
        for (std::int64_t i = 0; i < together; ++i)
          tap(Expr(row), Expr(x + i) + Expr(turn) * Expr(together), to, column, channel, acc,
              of_row, each);
        taps.push_back(kernel::loop(turn, 0, turns, Binding::serial, std::move(each)));
        x += turns * together;
      }
      for (; x < end; ++x) tap(Expr(row), Expr(x), to, column, channel, acc, of_row, taps);
    }
    return kernel::loop(row, 0, taps_ / inner_, Binding::serial,
                        {kernel::when(of_row, std::move(taps))});
  }

  Value weight(const Expr& tap, const Expr& channel) const {
    return kernel::load(weights_, tap * Expr(channel_.extent) + channel, weight_type());
  }

  Value plus(const Value& sum, const Value& factor, const Value& weight) const {
    const DType type = p_.problem.type;
    if (words_ && is_zero(factor)) return sum;
    const Value product =
        words_ ? words_->product(factor, weight) : p_.problem.product(factor, weight);
    return kernel::apply(ir::ScalarFn::add, {sum, product}, type);
  }

  /// `row`: of taps, `x`: along the innermost reduction.
  Env position(const Expr& column, const Expr& channel, Expr row, const Expr& x) const {
    Env env = env_;
    env.set(p_.tile->var, column);
    env.set(channel_.var, channel);
    env.set(p_.k.back().axes[0].var, x);
    for (std::size_t i = p_.k.size() - 1; i-- > 0;) {
      env.set(p_.k[i].axes[0].var, i == 0 ? row : ir::floor_mod(row, p_.k[i].extent));
      row = ir::floor_div(row, p_.k[i].extent);
    }
    return env;
  }

  /// Whether a condition is not one that all columns and taps of a row of taps share.
  bool moves(const ir::Condition& c) const {
    return ir::depends_on(c.expr, p_.tile->var) || ir::depends_on(c.expr, channel_.var) ||
           ir::depends_on(c.expr, p_.k.back().axes[0].var);
  }

  /// Whether a condition is on the row of taps (of an operand that lies the other way).
  bool depends_on_row(const ir::Condition& c) const {
    return std::any_of(p_.k.begin(), p_.k.end() - 1,
                       [&](const KLoop& loop) { return ir::depends_on(c.expr, loop.axes[0].var); });
  }

  /// The operand's element; `when` gets the conditions that all columns and taps of the row share.
  Value element(const Env& env, std::vector<ir::Condition>& when) const {
    const auto* guard = std::get_if<kernel::Guard>(&p_.a->op);
    if (guard == nullptr) return env.at(p_.a);
    std::vector<ir::Condition> shared, own;
    for (const ir::Condition& c : guard->conditions)
      (moves(c) ? own : shared).push_back({env.at(c.expr), c.low, c.high});
    if (!is_zero(guard->otherwise)) return env.at(p_.a);
    when = shared;
    return own.empty() ? env.at(guard->then)
                       : kernel::guard(own, env.at(guard->then), guard->otherwise);
  }

  /// Every output at a position, in order; later ones reuse earlier ones.
  Body results(const Env& env, BufferId acc, const Expr& in_acc, const Expr& lane) {
    std::vector<std::pair<BufferId, Value>> with{
        {p_.result, kernel::load(acc, in_acc, p_.problem.type)}};
    Body stores;
    for (std::size_t i = 0; i < p_.outputs.size(); ++i) {
      const Output& o = p_.outputs[i];
      Value value = replace_loads(env.at(o.value), with);
      if (i + 1 < p_.outputs.size() && o.node != p_.problem.contract) {
        const BufferId shared =
            k_.add_buffer({"shared", value->dtype, lanes_, Scope::lane, -1, false, lanes_});
        stores.push_back(kernel::store(shared, lane, value));
        value = kernel::load(shared, lane, value->dtype);
        with.emplace_back(o.stand_in, value);
      }
      stores.push_back(kernel::store(o.buffer, env.at(o.offset), value));
    }
    return stores;
  }

  /// The filter by taps, channels side by side; or by words of its rows.
  Tensor packed_weights() const {
    const TensorType packed{weight_type(), {filter_rows_ * inner_, channel_.extent}};
    if (!p_.request.contents) return {packed, nullptr, nullptr};
    Tensor out(packed);
    const Tensor& source = *p_.request.graph->constant_of(p_.problem.b);
    const std::vector<Value> parts = kernel::parts_of(p_.b);
    const Expr& offset = kernel::load_under_cast(parts.empty() ? p_.b : parts[0])->offset;
    const int count = p_.problem.parts ? p_.problem.parts->count : 1;
    const std::int64_t next = count > 1 ? *kernel::distance_of_parts(parts)->constant() : 0;
    std::vector<std::int64_t> vars(static_cast<std::size_t>(k_.variables), 0);
    const auto var = [&](const Axis& axis) -> std::int64_t& {
      return vars[static_cast<std::size_t>(axis.var.index)];
    };
    for (std::int64_t tap = 0; tap < taps_; ++tap) {
      std::int64_t rest = tap;
      for (std::size_t i = p_.k.size(); i-- > 0; rest /= p_.k[i].extent)
        var(p_.k[i].axes[0]) = rest % p_.k[i].extent;
      const std::int64_t row = tap / inner_, x = tap % inner_;
      for (std::int64_t c = 0; c < channel_.extent; ++c) {
        var(channel_) = c;
        const std::int64_t from = ir::evaluate(offset, vars);
        if (count > 1) {
          const std::uint32_t word = word_at(source, from, next, count);
          out.set_int(tap * channel_.extent + c, static_cast<std::int32_t>(word));
        } else if (!words_) {
          const std::int64_t to = tap * channel_.extent + c;
          is_float(out.dtype()) ? out.set(to, source.at(from))
                                : out.set_int(to, source.int_at(from));
        } else {
          const std::int64_t to = (row / words_->rows() * inner_ + x) * channel_.extent + c;
          out.set_int(to, out.int_at(to) | words_->weight(source, from, row % words_->rows()));
        }
      }
    }
    return out;
  }

  Lowered finish() {
    Lowered out;
    const std::vector<bool> used = kernel::used_buffers(k_);
    const auto argument = [&](BufferId buffer, Argument a) {
      if (!used[static_cast<std::size_t>(buffer.value)]) return;
      k_.buffers[buffer].argument = static_cast<int>(out.arguments.size());
      out.arguments.push_back(std::move(a));
    };
    for (const Values::Input& in : p_.values.inputs())
      argument(in.buffer, {Argument::Kind::value, in.node, {}});
    argument(weights_, {Argument::Kind::packed, p_.problem.b, packed_weights()});
    out.output_layouts.resize(p_.outputs.size());
    for (const Output& o : p_.outputs) {
      argument(o.buffer, {Argument::Kind::value, o.node, {}});
      out.output_layouts[o.position] = o.layout;
    }
    out.kernel = kernel::simplify(kernel::drop_unused_buffers(k_));
    out.schedule = fmt::format("{} columns={} tasks={}{}", kind(), width_, tasks_,
                               words_ ? " words of rows" : "");
    return out;
  }

  Product& p_;
  kernel::Kernel& k_;
  const Target& target_;
  const Axis channel_;
  const std::optional<std::int64_t> group_;
  const int lanes_;
  std::int64_t taps_ = 1, columns_ = 1, width_ = 1;
  std::int64_t inner_ = 1;        ///< taps in a row
  std::int64_t filter_rows_ = 1;  ///< of the packed filter
  std::optional<WindowWords> words_;
  std::int64_t vectors_ = 1;  ///< of channels
  std::int64_t rows_per_task_ = 1, row_blocks_ = 1, channel_blocks_ = 1, tasks_ = 1;
  Env env_;                ///< outer axes and row
  bool few_alone_ = true;  ///< tiles that meet the padding
  Expr channel_block_ = 0;
  std::optional<Expr> channel_at_;  ///< where the vector at hand begins
  BufferId weights_;
};

}  // namespace

Lowered emit_depthwise(Product& p, const Axis& channel, std::optional<std::int64_t> group) {
  return Depthwise(p, channel, group).run();
}

}  // namespace heddle::lower::contract
