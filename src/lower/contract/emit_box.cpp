#include <algorithm>
#include <bit>

#include "kernel/bounds.h"
#include "lower/contract/emit.h"

namespace heddle::lower::contract {

using ir::Expr;
using ir::Var;
using kernel::Binding;
using kernel::Body;
using kernel::Scope;
using kernel::Value;

namespace {

constexpr std::int64_t kFar = std::int64_t{1} << 40;  // beyond any coordinate

}  // namespace

void Emitter::plan_box() {
  ir::Ranges ranges = p_.problem.ranges();
  const auto limit = [&](const std::optional<Axis>& axis, std::int64_t count) {
    if (!axis) return;
    kernel::set_range(ranges, axis->var, ir::Interval{0, count - 1});
  };
  limit(p_.row, s_.rows_per_task);
  std::int64_t across = p_.extents.tile;
  if (winograd_)
    across = winograd_across() * s_.winograd;
  else if (s_.tile_blocks() > 1)
    across = s_.tiles_per_task * s_.mr;
  limit(p_.tile, across);
  const Box& box = *p_.box;
  box_extents_.resize(box.dims.size());
  box_strides_.resize(box.dims.size());
  std::int64_t stride = 1;
  const std::vector<int>& order = winograd_ ? winograd_->order : box.order;
  for (std::size_t i = order.size(); i-- > 0;) {
    const auto d = static_cast<std::size_t>(order[i]);
    box_extents_[d] = ir::bounds(box.dims[d].local, ranges)->high + 1;
    box_strides_[d] = stride;
    stride *= i + 1 == order.size() ? in_line(box_extents_[d]) : box_extents_[d];
    if (stride > 1 && i > 0 && stride % kSpread == 0) stride += 2 * lanes_;
  }
  DType stored = element_;
  if (pieces_ && !pieces_->bytes) stored = DType::bf16;
  if (terms_ == WinogradTerms::integers) stored = DType::i16;
  a_buffer_ = scratch("box", stride, Scope::block, 1, stored);
  a_main_ = kernel::load(a_buffer_, box_offset(), p_.problem.element());
}

/// Elements of the innermost dimension in the box: of pieces with the zeros behind channels.
std::int64_t Emitter::in_line(std::int64_t extent) const {
  const bool zeros = pieces_ && pieces_->cut && pieces_->cut->apart > pieces_->cut->channels;
  return zeros ? pieces_->cut->apart : extent;
}

/// Where the box holds what the axes read.
Expr Emitter::box_offset() const {
  Expr offset(0);
  for (std::size_t d = 0; d < p_.box->dims.size(); ++d)
    offset = offset + p_.box->dims[d].local * Expr(box_strides_[d]);
  return offset;
}

/// Batch and outer axes, and where the task's rows begin: what Box::Dim::low is made of.
Emitter::Env Emitter::box_env() const {
  Env env = env_;
  if (p_.tile) set(env, p_.tile->var, first_tile_row());
  if (p_.row) set(env, p_.row->var, first_row());
  return env;
}

namespace {

/// Where parts of so many elements begin that are whole vectors of a smaller width.
std::vector<std::pair<std::int64_t, std::int64_t>> parts_of_vector(std::int64_t count) {
  std::vector<std::pair<std::int64_t, std::int64_t>> out;
  for (std::int64_t first = 0; first < count;) {
    const auto left = static_cast<std::uint64_t>(count - first);
    out.emplace_back(first, static_cast<std::int64_t>(std::bit_floor(left)));
    first += out.back().second;
  }
  return out;
}

}  // namespace

kernel::Stmt Emitter::box_zero(const Position& position) {
  Expr offset(0);
  for (std::size_t d = 0; d < position.size(); ++d)
    offset = offset + position[d] * Expr(box_strides_[d]);
  return kernel::store(a_buffer_, offset, kernel::imm(stored_as(a_buffer_), 0));
}

/// The operand at a place of the box, zero unless `when` and the conditions of the place hold.
kernel::Stmt Emitter::box_element(const Position& position, std::vector<ir::Condition> when) {
  Env env = box_env();
  std::vector<Expr> index;
  Expr offset(0);
  for (std::size_t d = 0; d < position.size(); ++d)
    set(env, p_.box->dims[d].u, at(p_.box->dims[d].low, box_env()) + position[d]);
  for (std::size_t d = 0; d < position.size(); ++d) {
    index.push_back(at(p_.box->dims[d].index, env));
    offset = offset + position[d] * Expr(box_strides_[d]);
    for (const ir::Condition& c : p_.box->dims[d].more)
      when.push_back({at(c.expr, env), c.low, c.high});
  }
  const Value value = p_.values.at(p_.problem.a, {index, when}, p_.problem.a_parts());
  return kernel::store(a_buffer_, offset, cast_to(value, stored_as(a_buffer_)));
}

/// Splits one dimension of the box into what lies before the operand (zeros), inside and after.
void Emitter::copy_box(std::size_t level, const Position& position, Body& body) {
  const auto d = static_cast<std::size_t>(p_.box->order[level]);
  const Expr low = at(p_.box->dims[d].low, box_env());
  const std::int64_t extent = box_extents_[d];
  const ir::Interval inside = p_.box->dims[d].inside;
  Position here = position;
  if (const auto fixed = low.constant()) {
    const std::int64_t begin = std::clamp<std::int64_t>(inside.low - *fixed, 0, extent);
    const std::int64_t end = std::clamp<std::int64_t>(inside.high + 1 - *fixed, begin, extent);
    for (const auto& [from, to] : {std::pair{std::int64_t{0}, begin}, std::pair{end, extent}}) {
      if (from >= to) continue;
      const Var x = k_.new_var();
      here[d] = Expr(x);
      Body zeros;
      zero_box(level + 1, here, zeros);
      body.push_back(kernel::loop(x, from, to, Binding::serial, std::move(zeros)));
    }
    return copy_box_range(level, position, begin, end, body);
  }
  // Where the task lies decides: every outcome is tested once for each position.
  const Var x = k_.new_var();
  here[d] = Expr(x);
  const Expr u = low + Expr(x);
  if (level + 1 == p_.box->order.size()) {
    body.push_back(kernel::loop(x, 0, extent, Binding::serial,
                                {box_element(here, {{u, inside.low, inside.high + 1}})}));
    return;
  }
  Body copied, before, after;
  copy_box(level + 1, here, copied);
  zero_box(level + 1, here, before);
  zero_box(level + 1, here, after);
  Body either;
  either.push_back(kernel::when({{u, inside.low, inside.high + 1}}, std::move(copied)));
  either.push_back(kernel::when({{u, -kFar, inside.low}}, std::move(before)));
  either.push_back(kernel::when({{u, inside.high + 1, kFar}}, std::move(after)));
  body.push_back(kernel::loop(x, 0, extent, Binding::serial, std::move(either)));
}

void Emitter::copy_box_range(std::size_t level, Position position, std::int64_t begin,
                             std::int64_t end, Body& body) {
  if (begin >= end) return;
  const auto d = static_cast<std::size_t>(p_.box->order[level]);
  if (level + 2 == p_.box->order.size() && few_channels())
    return copy_places(level, std::move(position), begin, end, body);
  if (level + 1 < p_.box->order.size()) {
    const Var x = k_.new_var();
    position[d] = Expr(x);
    Body inner;
    copy_box(level + 1, position, inner);
    body.push_back(kernel::loop(x, begin, end, Binding::serial, std::move(inner)));
    return;
  }
  const std::int64_t vectors = (end - begin) / lanes_, rest = (end - begin) % lanes_;
  if (vectors > 0) {
    const Var x = k_.new_var(), l = k_.new_var();
    position[d] = Expr(x) * Expr(lanes_) + Expr(l) + Expr(begin);
    body.push_back(
        kernel::loop(x, 0, vectors, Binding::serial,
                     {kernel::loop(l, 0, lanes_, Binding::vector, {box_element(position, {})})}));
  }
  if (const std::int64_t line = in_line(box_extents_[d]); line > box_extents_[d]) {
    HEDDLE_CHECK(begin == 0 && end == box_extents_[d], "{}: part of a line", to_string(s_));
    for (std::int64_t first = vectors * lanes_; first < line; first += lanes_) {
      const Var l = k_.new_var();
      position[d] = Expr(first) + Expr(l);
      std::vector<ir::Condition> some{{position[d], 0, end}};
      body.push_back(kernel::loop(
          l, 0, std::min<std::int64_t>(lanes_, line - first), Binding::vector,
          {first < end ? box_element(position, std::move(some)) : box_zero(position)}));
    }
    return;
  }
  for (const auto& [first, count] : parts_of_vector(rest)) {
    const Var x = k_.new_var();
    position[d] = Expr(x) + Expr(begin + vectors * lanes_ + first);
    body.push_back(kernel::loop(x, 0, count, count > 1 ? Binding::vector : Binding::serial,
                                {box_element(position, {})}));
  }
}

/// Whether a vector holds all channels of a place, none of which is padding.
bool Emitter::few_channels() const {
  if (!pieces_ || !pieces_->cut) return false;
  const auto d = static_cast<std::size_t>(p_.box->order.back());
  const Pieces::Cut& cut = *pieces_->cut;
  return cut.channels > 1 && cut.apart <= lanes_ && cut.channels == box_extents_[d] &&
         is_whole(p_.box->dims[d], cut.channels);
}

/// Places side by side as vectors, one for each of their channels.
void Emitter::copy_places(std::size_t level, Position position, std::int64_t begin,
                          std::int64_t end, Body& body) {
  const auto d = static_cast<std::size_t>(p_.box->order[level]),
             channels = static_cast<std::size_t>(p_.box->order[level + 1]);
  const auto some = [&](const Expr& first, std::int64_t count) {
    const Var l = k_.new_var();
    position[d] = first + Expr(l);
    Body stores;
    for (std::int64_t c = 0; c < pieces_->cut->apart; ++c) {
      position[channels] = Expr(c);
      stores.push_back(c < pieces_->cut->channels ? box_element(position, {}) : box_zero(position));
    }
    return kernel::loop(l, 0, count, Binding::vector, std::move(stores));
  };
  const std::int64_t vectors = (end - begin) / lanes_;
  if (vectors == 0) return body.push_back(some(Expr(begin), end - begin));
  const Var x = k_.new_var();
  body.push_back(kernel::loop(x, 0, vectors, Binding::serial,
                              {some(Expr(x) * Expr(lanes_) + Expr(begin), lanes_)}));
  if ((end - begin) % lanes_ != 0) body.push_back(some(Expr(end - lanes_), lanes_));  // overlaps
}

/// Fills the dimensions from `level` inwards with zeros.
void Emitter::zero_box(std::size_t level, Position position, Body& body) {
  if (level == p_.box->order.size()) {
    body.push_back(box_zero(position));
    return;
  }
  const auto d = static_cast<std::size_t>(p_.box->order[level]);
  const bool last = level + 1 == p_.box->order.size();
  const std::int64_t extent = last ? in_line(box_extents_[d]) : box_extents_[d];
  if (!last) {
    const Var x = k_.new_var();
    position[d] = Expr(x);
    Body inner;
    zero_box(level + 1, position, inner);
    body.push_back(kernel::loop(x, 0, extent, Binding::serial, std::move(inner)));
    return;
  }
  const std::int64_t vectors = extent / lanes_, rest = extent % lanes_;
  if (vectors > 0) {
    const Var x = k_.new_var(), l = k_.new_var();
    position[d] = Expr(x) * Expr(lanes_) + Expr(l);
    body.push_back(
        kernel::loop(x, 0, vectors, Binding::serial,
                     {kernel::loop(l, 0, lanes_, Binding::vector, {box_zero(position)})}));
  }
  for (const auto& [first, count] : parts_of_vector(rest)) {
    const Var x = k_.new_var();
    position[d] = Expr(x) + Expr(vectors * lanes_ + first);
    body.push_back(kernel::loop(x, 0, count, count > 1 ? Binding::vector : Binding::serial,
                                {box_zero(position)}));
  }
}

}  // namespace heddle::lower::contract
