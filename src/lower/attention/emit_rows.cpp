// A task's rows: their scores, the exponentials of these, and what they make of the values.
#include <limits>
#include <set>

#include "lower/attention/emit.h"
#include "lower/contract/product.h"
#include "support/math.h"

namespace heddle::lower::attention {

using ir::ScalarFn;
using kernel::Binding;
using kernel::BufferId;
using kernel::Scope;
using kernel::Stmt;
using kernel::Value;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

Value Emitter::score(const Expr& row, const Expr& key, const Value& product) const {
  return contract::replace_loads(at(score_, {{a_.row, row}, {a_.key, key}}), {{product_, product}});
}

/// A row of a tile's scores, those of keys beyond the last -inf, and the largest in each lane.
kernel::Body Emitter::score_row(const Height& h, const Expr& r, const Expr& slot,
                                const Expr& first_key, const Panels& p, BufferId acc) {
  const BufferId most = buffer("most", lanes_, Scope::lane, static_cast<int>(lanes_));
  const auto store = [&](const Expr& c, const Expr& l, bool guarded) {
    const Expr key = first_key + c + l, in_acc = r * Expr(p.nv * lanes_) + c + l;
    Value v = score(h.first + r, key, load(acc, in_acc));
    if (guarded) v = kernel::guard({{key, 0, keys_}}, v, f32(-kInfinity));
    return Body{kernel::store(acc, in_acc, v),
                kernel::store(scores_, (slot + r) * Expr(pitch_) + key, load(acc, in_acc)),
                kernel::store(most, l, apply(ScalarFn::max, {load(most, l), load(acc, in_acc)}))};
  };
  const auto copy = [&](BufferId to, const Expr& to_first, BufferId from, const Expr& from_first) {
    return each(0, lanes_, Binding::vector, [&](const Expr& l) {
      return Body{kernel::store(to, to_first + l, load(from, from_first + l))};
    });
  };
  // Of a panel that may lack keys the last vector does; of one in tile registers both may.
  const std::int64_t whole = !p.partial ? p.nv : b_.in_tiles() ? 0 : p.nv - 1;
  Body out{copy(most, 0, most_, (slot + r) * Expr(lanes_)),
           vectors(whole, [&](const Expr& c, const Expr& l) { return store(c, l, false); })};
  for (std::int64_t c = whole; c < p.nv; ++c)
    out.push_back(each(0, lanes_, Binding::vector,
                       [&](const Expr& l) { return store(Expr(c * lanes_), l, true); }));
  out.push_back(copy(most_, (slot + r) * Expr(lanes_), most, 0));
  return out;
}

/// What a tile's scores read beside the products (a mask's rows are far apart) comes while these
/// are computed.
kernel::Body Emitter::fetch_scores(const Height& h, const Expr& first_key, std::int64_t nv) const {
  std::set<std::pair<BufferId, Expr>> places;
  kernel::for_each_value(score_, [&](const Value& x) {
    const auto* l = std::get_if<kernel::Load>(&x->op);
    if (l && l->dynamic.empty() && k_.buffers[l->buffer].scope == Scope::grid &&
        ir::coefficient_of(l->offset, a_.key) == 1 &&
        ir::coefficient_of(l->offset, a_.row).value_or(0) != 0)
      places.emplace(l->buffer, l->offset);
  });
  Body out;
  for (const auto& [from, offset] : places)
    for (std::int64_t r = 0; r < h.rows; ++r)
      for (std::int64_t c = 0; c < nv; ++c)
        out.push_back({kernel::Prefetch{
            from,
            at(offset, {{a_.row, h.first + Expr(r)}, {a_.key, first_key + Expr(c * lanes_)}})}});
  return out;
}

/// What the next task reads of the rows, keys and values that are numbered as the rows of this
/// tile: lines that lie far apart, which the machine does not guess.
kernel::Body Emitter::fetch_next(const Height& h, const Expr& batch) {
  constexpr std::int64_t kLineBytes = 64;
  const Places next = decoded(batch + Expr(1));
  Body out;
  const auto fetch = [&](const Value& operand, Var row, Var inner) {
    kernel::for_each_value(operand, [&](const Value& x) {
      const auto* l = std::get_if<kernel::Load>(&x->op);
      if (!l || !l->dynamic.empty() || k_.buffers[l->buffer].scope != Scope::grid ||
          ir::coefficient_of(l->offset, inner) != 1)
        return;
      const std::int64_t line = kLineBytes / size_of(k_.buffers[l->buffer].dtype);
      if (ir::coefficient_of(l->offset, row).value_or(0) < 2 * a_.extent(inner)) return;
      out.push_back(each(0, h.rows, Binding::serial, [&](const Expr& r) {
        const Expr at_row = h.first + r;
        Body lines{each(0, ceil_div(a_.extent(inner), line), Binding::serial, [&](const Expr& c) {
          Places there = next;
          there.emplace_back(row, at_row);
          there.emplace_back(inner, c * Expr(line));
          return Body{{kernel::Prefetch{l->buffer, at(l->offset, there)}}};
        })};
        return Body{kernel::when({{at_row, 0, a_.extent(row)}}, std::move(lines))};
      }));
    });
  };
  fetch(q_, a_.row, a_.depth);
  fetch(key_, a_.key, a_.depth);
  fetch(value_, a_.key, a_.column);
  return out;
}

kernel::Body Emitter::scores(const Expr& batch) {
  Body out{fill(most_, b_.tiles * b_.mr, -kInfinity)};
  if (b_.together() > 1) append(out, copy_queries());
  for (const Panels& p : panels(keys_)) {
    BufferId acc = tile_;
    if (!b_.in_tiles())
      acc = buffer("scores", b_.mr * p.nv * lanes_, Scope::lane, static_cast<int>(lanes_),
                   a_.products);
    out.push_back(each(p.begin, p.end, Binding::serial, [&](const Expr& panel) {
      const Expr first = p.first_vector(panel) * Expr(lanes_);
      const Expr from = (place_of(batch) * Expr(key_vectors_ * lanes_) + first) *
                        Expr(padded_depth_ / b_.together());
      Body tiles = each_tile([&](const Height& h, const Expr& slot) {
        Body tile;
        if (b_.in_tiles()) {
          tile.push_back(tile_of_scores(slot, from));
        } else {
          tile = fetch_scores(h, first, p.nv);
          if (alone_ && batches_ > 1)
            tile.push_back(kernel::when({{panel, 0, 1}}, fetch_next(h, batch)));
          tile.push_back(zero(h, p.nv, acc));
          const auto query = [&](const Expr& r, const Expr& term) {
            if (b_.together() > 1)
              return word_at(queries_, (slot + r) * Expr(padded_depth_) + term * Expr(2));
            return at(q_, {{a_.row, h.first + r}, {a_.depth, term}});
          };
          append(tile, multiply(h, p.nv, depth_, acc, query, packed_keys_, from));
        }
        tile.push_back(each(0, h.rows, unrolled_,
                            [&](const Expr& r) { return score_row(h, r, slot, first, p, acc); }));
        return tile;
      });
      return Body{kernel::when(needed(first), std::move(tiles))};
    }));
  }
  return out;
}

Stmt Emitter::zero(const Height& h, std::int64_t nv, BufferId acc) {
  return each(0, h.rows, Binding::unroll, [&](const Expr& r) {
    return Body{vectors(nv, [&](const Expr& c, const Expr& l) {
      return Body{kernel::store(acc, r * Expr(nv * lanes_) + c + l, f32(0))};
    })};
  });
}

/// `make` for each vector of a row's scores; `which` of as many as a panel has.
kernel::Body Emitter::each_vector(
    const std::function<Body(const Expr& which, const Expr& lane, const Expr& key)>& make) {
  Body out;
  for (const Panels& p : panels(keys_))
    out.push_back(each(p.begin, p.end, Binding::serial, [&](const Expr& panel) {
      const Expr first = p.first_vector(panel) * Expr(lanes_);
      Body some{
          vectors(p.nv, [&](const Expr& c, const Expr& l) { return make(c, l, first + c + l); })};
      return Body{kernel::when(needed(first), std::move(some))};
    }));
  return out;
}

/// exp(score - largest) in the place of the scores of a row, and what makes weights of them.
kernel::Body Emitter::exponentials(const Expr& slot) {
  const auto lanes = static_cast<int>(lanes_);
  const auto across = [](ir::Monoid fn, BufferId b) {
    return std::make_shared<const kernel::ValueNode>(
        kernel::ValueNode{kernel::LaneReduce{fn, b, 0}, kType});
  };
  const BufferId most = buffer("most", lanes_, Scope::lane, lanes);
  const BufferId peak = buffer("peak", 1, Scope::lane);
  const BufferId total = buffer("total", b_.nv * lanes_, Scope::lane, lanes);
  const BufferId e = buffer("e", b_.nv * lanes_, Scope::lane, lanes, a_.exp);
  const auto score_at = [&](const Expr& key) { return slot * Expr(pitch_) + key; };
  Body out{each(0, lanes_, Binding::vector,
                [&](const Expr& l) {
                  return Body{kernel::store(most, l, load(most_, slot * Expr(lanes_) + l))};
                }),
           kernel::store(peak, 0, across(ir::Monoid::max, most)),
           vectors(b_.nv, [&](const Expr& c, const Expr& l) {
             return Body{kernel::store(total, c + l, f32(0))};
           })};
  append(out, each_vector([&](const Expr& c, const Expr& l, const Expr& key) {
           const Value below = apply(ScalarFn::sub, {load(scores_, score_at(key)), load(peak, 0)});
           const Value sum = apply(ScalarFn::add, {load(total, c + l), load(e, c + l)});
           return Body{kernel::store(e, c + l, apply(ScalarFn::exp, {below})),
                       b_.together() > 1 ? kernel::store(weights_, slot * Expr(weight_pitch_) + key,
                                                         load(e, c + l))
                                         : kernel::store(scores_, score_at(key), load(e, c + l)),
                       kernel::store(total, c + l, sum)};
         }));
  for (std::int64_t c = 1; c < b_.nv; ++c)
    out.push_back(each(0, lanes_, Binding::vector, [&](const Expr& l) {
      const Value sum = apply(ScalarFn::add, {load(total, l), load(total, Expr(c * lanes_) + l)});
      return Body{kernel::store(total, l, sum)};
    }));
  out.push_back(
      kernel::store(inverse_, slot, apply(ScalarFn::recip, {across(ir::Monoid::sum, total)})));
  return out;
}

kernel::Body Emitter::store_results(const Height& h, const Expr& slot, const Panels& p,
                                    const Expr& panel,
                                    const std::function<Value(const Expr& r, const Expr& c)>& sum) {
  const Expr first = p.first_vector(panel) * Expr(lanes_);
  const auto store = [&](const Expr& r, const Expr& c) {
    const Expr column = first + c;
    std::vector<Expr> index;
    for (std::int32_t d = 0; d < static_cast<std::int32_t>(layout_.strides.size()); ++d)
      index.push_back(a_.extent(Var{d}) == 1
                          ? Expr(0)
                          : at(Expr(Var{d}), {{a_.row, h.first + r}, {a_.column, column}}));
    const Expr to = offset_in(layout_, index);
    const Value v = apply(ScalarFn::mul, {sum(r, c), load(inverse_, slot + r)});
    return Body{kernel::store(result_, to, kernel::with_origin(v, a_.result.value))};
  };
  return {each(0, h.rows, unrolled_, [&](const Expr& r) {
    Body row{vectors(p.nv - (p.partial ? 1 : 0),
                     [&](const Expr& c, const Expr& l) { return store(r, c + l); })};
    const auto last = [&](std::int64_t from, std::int64_t to, std::int64_t lanes) {
      row.push_back(
          kernel::when({{panel, from, to}}, {each(0, lanes, Binding::vector, [&](const Expr& l) {
                         return store(r, Expr((p.nv - 1) * lanes_) + l);
                       })}));
    };
    if (p.partial) {
      last(p.begin, p.end - 1, lanes_);
      last(p.end - 1, p.end, columns_ % lanes_);
    }
    return row;
  })};
}

/// Weights of some keys times their values, added to the task's sums; of all keys, the results.
kernel::Body Emitter::key_block(const Expr& batch, const Expr& first, std::int64_t keys) {
  const bool all = keys == padded_keys_;
  const std::int64_t pitch = column_vectors_ * lanes_;
  Body out;
  for (const Panels& p : panels(columns_)) {
    const BufferId acc =
        buffer("sums", b_.mr * p.nv * lanes_, Scope::lane, static_cast<int>(lanes_), a_.result);
    out.push_back(each(p.begin, p.end, Binding::serial, [&](const Expr& panel) {
      const Expr column = p.first_vector(panel) * Expr(lanes_);
      const std::int64_t words = b_.together();
      const Expr from =
          (place_of(batch) * Expr(column_vectors_ * lanes_) + column) * Expr(padded_keys_ / words) +
          ir::floor_div(first, words) * Expr(p.nv * lanes_);
      return each_tile([&](const Height& h, const Expr& slot) {
        const auto place = [&](const Expr& r, const Expr& c) {
          return (slot + r) * Expr(pitch) + column + c;
        };
        const auto rows = [&](const std::function<Stmt(const Expr& r, const Expr& c)>& make) {
          return each(0, h.rows, Binding::unroll, [&](const Expr& r) {
            return Body{
                vectors(p.nv, [&](const Expr& c, const Expr& l) { return Body{make(r, c + l)}; })};
          });
        };
        const auto in_acc = [&](const Expr& r, const Expr& c) {
          return r * Expr(p.nv * lanes_) + c;
        };
        Body tile{all ? zero(h, p.nv, acc) : rows([&](const Expr& r, const Expr& c) {
          return kernel::store(acc, in_acc(r, c), load(sums_, place(r, c)));
        })};
        const auto weight = [&](const Expr& r, const Expr& term) {
          if (words > 1)
            return word_at(weights_, (slot + r) * Expr(weight_pitch_) + first + term * Expr(2));
          return load(scores_, (slot + r) * Expr(pitch_) + first + term);
        };
        append(tile, multiply(h, p.nv, keys, acc, weight, packed_values_, from));
        if (all)
          append(tile, store_results(h, slot, p, panel, [&](const Expr& r, const Expr& c) {
                   return load(acc, in_acc(r, c));
                 }));
        else
          tile.push_back(rows([&](const Expr& r, const Expr& c) {
            return kernel::store(sums_, place(r, c), load(acc, in_acc(r, c)));
          }));
        return tile;
      });
    }));
  }
  return out;
}

kernel::Body Emitter::results(const Expr& batch) {
  const auto block = [&](const Expr& first, std::int64_t keys) {
    return b_.in_tiles() ? key_block_by_tiles(batch, first, keys) : key_block(batch, first, keys);
  };
  if (padded_keys_ <= block_keys_) return block(Expr(0), padded_keys_);
  const std::int64_t pitch = column_vectors_ * lanes_, whole = padded_keys_ / block_keys_;
  Body out{fill(sums_, b_.tiles * b_.mr * column_vectors_, 0)};
  out.push_back(each(0, whole, Binding::serial, [&](const Expr& i) {
    const Expr first = i * Expr(block_keys_);
    return Body{kernel::when(needed(first), block(first, block_keys_))};
  }));
  if (const std::int64_t rest = padded_keys_ - whole * block_keys_; rest > 0) {
    const Expr first(whole * block_keys_);
    out.push_back(kernel::when(needed(first), block(first, rest)));
  }
  append(out, each_tile([&](const Height& h, const Expr& slot) {
           Body tile;
           for (const Panels& p : panels(columns_))
             tile.push_back(each(p.begin, p.end, Binding::serial, [&](const Expr& panel) {
               if (b_.in_tiles()) return store_tile(h, slot, panel);
               return store_results(h, slot, p, panel, [&](const Expr& r, const Expr& c) {
                 return load(sums_,
                             (slot + r) * Expr(pitch) + p.first_vector(panel) * Expr(lanes_) + c);
               });
             }));
           return tile;
         }));
  return out;
}

}  // namespace heddle::lower::attention
