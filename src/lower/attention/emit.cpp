#include "lower/attention/emit.h"

#include <limits>
#include <set>

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

constexpr DType kType = DType::f32;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kUnroll = 4;         // steps of a product
constexpr std::int64_t kValuesOfTask = 64;  // rows of values that one task packs

void append(kernel::Body& to, kernel::Body from) {
  for (Stmt& s : from) to.push_back(std::move(s));
}
Value f32(double x) { return kernel::imm(kType, x); }
Value apply(ScalarFn fn, std::vector<Value> args) {
  return kernel::apply(fn, std::move(args), kType);
}
Value load(BufferId b, const ir::Expr& at) { return kernel::load(b, at, kType); }

}  // namespace

Emitter::Emitter(const Request& request, const Attention& a, const Blocks& blocks)
    : request_(request),
      g_(*request.graph),
      a_(a),
      b_(blocks),
      lanes_(request.target.lanes(kType)),
      unrolled_(blocks.halves ? Binding::serial : Binding::unroll),
      keys_(a.extent(a.key)),
      depth_(a.extent(a.depth)),
      columns_(a.extent(a.column)),
      padded_keys_(blocks.halves ? ceil_div(keys_, kTileSide) * kTileSide : keys_),
      padded_depth_(blocks.halves ? ceil_div(depth_, kTileSide) * kTileSide : depth_),
      key_vectors_(ceil_div(padded_keys_, lanes_)),
      column_vectors_(ceil_div(columns_, lanes_)),
      row_blocks_(ceil_div(blocks.big + blocks.small, blocks.tiles)),
      pitch_(key_vectors_ * lanes_),
      weight_pitch_(pitch_ + kTileSide),
      values_(g_) {
  for (Var v : a.batch) batches_ *= a.extent(v);
  // Rows of scores that lie a multiple of 1 KB apart would share few cache sets.
  if (pitch_ * size_of(kType) % 1024 == 0) pitch_ += lanes_;
  k_.variables = static_cast<std::int32_t>(a_.extents.size());
  values_.ranges() = ir::ranges_of(a_.extents);
}

BufferId Emitter::buffer(std::string name, std::int64_t size, Scope scope, int lanes, NodeId origin,
                         DType type) {
  kernel::Buffer b;
  b.dtype = type;
  b.name = std::move(name);
  b.size = size;
  b.scope = scope;
  b.lanes = lanes;
  b.origin = origin.value;
  return k_.add_buffer(std::move(b));
}

Stmt Emitter::each(std::int64_t begin, std::int64_t end, Binding binding, const Made& make) {
  const Var v = k_.new_var();
  return kernel::loop(v, begin, end, binding, make(Expr(v)));
}

Stmt Emitter::vectors(std::int64_t nv, const PerLane& make) {
  return each(0, nv, Binding::unroll, [&](const Expr& c) {
    return Body{
        each(0, lanes_, Binding::vector, [&](const Expr& l) { return make(c * Expr(lanes_), l); })};
  });
}

/// As many as there must be, as wide as each other or one vector less.
std::vector<Emitter::Panels> Emitter::panels(std::int64_t extent) const {
  const std::int64_t all = ceil_div(extent, lanes_), count = ceil_div(all, b_.nv);
  if (b_.halves) return {{b_.nv, 0, count, 0, extent % (b_.nv * lanes_) != 0}};
  const std::int64_t nv = ceil_div(all, count), small = count * nv - all, big = count - small;
  const bool partial = extent % lanes_ != 0;
  std::vector<Panels> out{{nv, 0, big, 0, partial && small == 0}};
  if (small > 0) out.push_back({nv - 1, big, count, big, partial});
  return out;
}

/// The task's tiles; `slot`: the first one of a tile's rows among the task's.
kernel::Body Emitter::each_tile(
    const std::function<Body(const Height& h, const Expr& slot)>& make) {
  return {each(0, b_.tiles, Binding::serial, [&](const Expr& i) {
    const Expr tile = block_ * Expr(b_.tiles) + i, slot = i * Expr(b_.mr);
    std::vector<Height> heights;
    if (b_.big > 0) heights.push_back({b_.mr, tile * Expr(b_.mr), {{tile, 0, b_.big}}});
    if (b_.small > 0)
      heights.push_back({b_.less,
                         tile * Expr(b_.less) + Expr(b_.big * (b_.mr - b_.less)),
                         {{tile, b_.big, b_.big + b_.small}}});
    Body out;
    for (const Height& h : heights) out.push_back(kernel::when(h.when, make(h, slot)));
    return out;
  })};
}

kernel::Body Emitter::steps(std::int64_t count, const Made& make) {
  const std::int64_t unroll = count <= 2 * kUnroll ? count : kUnroll;
  const std::int64_t whole = count / unroll * unroll;
  Body out{each(0, count / unroll, Binding::serial, [&](const Expr& x) {
    return Body{each(0, unroll, Binding::unroll,
                     [&](const Expr& u) { return make(x * Expr(unroll) + u); })};
  })};
  if (whole < count) out.push_back(each(whole, count, Binding::unroll, make));
  return out;
}

/// acc += a·b of a register tile: b's terms follow each other, `nv` vectors each.
kernel::Body Emitter::multiply(const Height& h, std::int64_t nv, std::int64_t terms, BufferId acc,
                               const PerElement& a, BufferId b, const Expr& b_from) {
  const auto lanes = static_cast<int>(lanes_);
  const BufferId vector = buffer("b", nv * lanes_, Scope::lane, lanes);
  const BufferId element = buffer("a", 1, Scope::lane);
  return steps(terms, [&](const Expr& term) {
    Body body{vectors(nv, [&](const Expr& c, const Expr& l) {
      const Expr from = b_from + term * Expr(nv * lanes_) + c + l;
      return Body{kernel::store(vector, c + l, load(b, from))};
    })};
    body.push_back(each(0, h.rows, Binding::unroll, [&](const Expr& r) {
      Body row{kernel::store(element, 0, a(r, term))};
      row.push_back(vectors(nv, [&](const Expr& c, const Expr& l) {
        const Expr at = r * Expr(nv * lanes_) + c + l;
        const Value product = apply(ScalarFn::mul, {load(element, 0), load(vector, c + l)});
        return Body{kernel::store(acc, at, apply(ScalarFn::add, {load(acc, at), product}))};
      }));
      return row;
    }));
    return body;
  });
}

Stmt Emitter::fill(BufferId b, std::int64_t count, double value) {
  return each(0, count, Binding::serial, [&](const Expr& i) {
    return Body{each(0, lanes_, Binding::vector, [&](const Expr& l) {
      return Body{kernel::store(b, i * Expr(lanes_) + l, f32(value))};
    })};
  });
}

/// What must hold for a task to look at the keys from here on, a whole block of them or none.
std::vector<ir::Condition> Emitter::needed(const Expr& first_key) const {
  if (!causal_) return {};
  const Expr block = ir::floor_div(first_key, b_.block) * Expr(b_.block);
  const Expr last_row = (block_ + Expr(1)) * Expr(b_.tiles * b_.mr) - Expr(1);
  return {{last_row + Expr(*causal_) - block, 0, std::int64_t{1} << 40}};
}

kernel::Replacement Emitter::with(const Places& values) const {
  return [this, values](Var x) -> std::optional<Expr> {
    for (const Places* list : {&values, &batch_})
      for (const auto& [var, value] : *list)
        if (var == x) return value;
    return std::nullopt;
  };
}
Value Emitter::at(const Value& v, const Places& values) const {
  return kernel::substitute(v, with(values));
}
ir::Expr Emitter::at(const Expr& e, const Places& values) const {
  return ir::substitute(e, with(values));
}

void Emitter::decode(const Expr& batch) {
  batch_.clear();
  std::int64_t below = 1;
  for (std::size_t i = a_.batch.size(); i-- > 0;) {
    const Var v = a_.batch[i];
    Expr value = ir::floor_div(batch, below);
    if (i > 0) value = ir::floor_mod(value, a_.extent(v));
    batch_.emplace_back(v, value);
    below *= a_.extent(v);
  }
}

/// [depth][nv·lanes], keys beyond the last are zeros. Where a key's elements lie together, blocks
/// of as many as there are lanes are transposed in registers.
kernel::Body Emitter::key_panel(const Expr& base, const Expr& first, const Panels& p) {
  const std::int64_t width = p.nv * lanes_;
  const auto element = [&](const Expr& term, const Expr& column) {
    const Expr key = first + column;
    Value v = at(key_, {{a_.key, key}, {a_.depth, term}});
    if (p.partial) v = kernel::guard({{key, 0, keys_}}, v, f32(0));
    return Body{kernel::store(packed_keys_, base + term * Expr(width) + column, v)};
  };
  const auto lanes_of = [&](const Expr& term) {
    return [&, term](const Expr& c) {
      return Body{each(0, lanes_, Binding::vector,
                       [&](const Expr& l) { return element(term, c * Expr(lanes_) + l); })};
    };
  };
  const std::int64_t blocks = along_depth_ ? depth_ / lanes_ : 0;
  Body out;
  if (blocks > 0)
    out.push_back(each(0, blocks, Binding::serial, [&](const Expr& block) {
      return Body{each(0, p.nv, Binding::serial, [&](const Expr& c) {
        return Body{each(0, lanes_, Binding::unroll,
                         [&](const Expr& t) { return lanes_of(block * Expr(lanes_) + t)(c); })};
      })};
    }));
  if (blocks * lanes_ < depth_)
    out.push_back(each(blocks * lanes_, depth_, Binding::serial, [&](const Expr& term) {
      return Body{each(0, p.nv, Binding::serial, lanes_of(term))};
    }));
  return out;
}

/// [panel][key][nv·lanes], columns beyond the last are zeros.
kernel::Body Emitter::some_values(const Expr& base, const Expr& first) {
  return {each(0, kValuesOfTask, Binding::serial, [&](const Expr& i) {
    const Expr key = first + i;
    Body out;
    for (const Panels& p : panels(columns_)) {
      const std::int64_t width = p.nv * lanes_;
      out.push_back(each(p.begin, p.end, Binding::serial, [&](const Expr& panel) {
        return Body{each(0, p.nv, Binding::serial, [&](const Expr& c) {
          return Body{each(0, lanes_, Binding::vector, [&](const Expr& l) {
            const Expr place = c * Expr(lanes_) + l;
            const Expr first = p.first_vector(panel) * Expr(lanes_), column = first + place;
            Value v = at(value_, {{a_.key, key}, {a_.column, column}});
            if (p.partial) v = kernel::guard({{column, 0, columns_}}, v, f32(0));
            const Expr to = base + first * Expr(keys_) + key * Expr(width) + place;
            return Body{kernel::store(packed_values_, to, v)};
          })};
        })};
      }));
    }
    return Body{kernel::when({{key, 0, keys_}}, std::move(out))};
  })};
}

/// Keys and values of all products, in the order in which they are multiplied.
Stmt Emitter::pack() {
  const std::int64_t key_panels = ceil_div(key_vectors_, b_.nv);
  const std::int64_t each_batch = key_panels + ceil_div(padded_keys_, kValuesOfTask);
  return each(0, batches_ * each_batch, Binding::grid, [&](const Expr& task) {
    const Expr batch = ir::floor_div(task, each_batch), part = ir::floor_mod(task, each_batch);
    decode(batch);
    Body out;
    for (const Panels& p : panels(keys_)) {
      const Expr first = p.first_vector(part) * Expr(lanes_);
      const Expr key = batch * Expr(key_vectors_ * lanes_) + first;
      Body panel = b_.halves ? key_words(key * Expr(padded_depth_ / 2), first, p)
                             : key_panel(key * Expr(depth_), first, p);
      out.push_back(kernel::when({{part, p.begin, p.end}}, std::move(panel)));
    }
    const Expr number = part - Expr(key_panels);
    const Expr first = number * Expr(kValuesOfTask);
    const Expr base = batch * Expr(padded_keys_ * column_vectors_ * lanes_ / (b_.halves ? 2 : 1));
    out.push_back(kernel::when({{number, 0, each_batch - key_panels}},
                               b_.halves ? value_words(base, first) : some_values(base, first)));
    return out;
  });
}

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
  const std::int64_t whole = !p.partial ? p.nv : b_.halves ? 0 : p.nv - 1;
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

kernel::Body Emitter::scores(const Expr& batch) {
  Body out{fill(most_, b_.tiles * b_.mr, -kInfinity)};
  if (b_.halves) append(out, copy_queries());
  for (const Panels& p : panels(keys_)) {
    BufferId acc = tile_;
    if (!b_.halves)
      acc = buffer("scores", b_.mr * p.nv * lanes_, Scope::lane, static_cast<int>(lanes_),
                   a_.products);
    out.push_back(each(p.begin, p.end, Binding::serial, [&](const Expr& panel) {
      const Expr first = p.first_vector(panel) * Expr(lanes_);
      const Expr from = (batch * Expr(key_vectors_ * lanes_) + first) *
                        Expr(b_.halves ? padded_depth_ / 2 : depth_);
      Body tiles = each_tile([&](const Height& h, const Expr& slot) {
        Body tile;
        if (b_.halves) {
          tile.push_back(tile_of_scores(slot, from));
        } else {
          tile = fetch_scores(h, first, p.nv);
          tile.push_back(zero(h, p.nv, acc));
          const auto query = [&](const Expr& r, const Expr& term) {
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
           return Body{
               kernel::store(e, c + l, apply(ScalarFn::exp, {below})),
               b_.halves ? kernel::store(weights_, slot * Expr(weight_pitch_) + key, load(e, c + l))
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
    Expr to(0);
    for (std::size_t d = 0; d < layout_.strides.size(); ++d) {
      const Var v{static_cast<std::int32_t>(d)};
      if (a_.extent(v) == 1) continue;
      Expr here = v == a_.row ? h.first + r : column;
      for (const auto& [var, value] : batch_)
        if (var == v) here = value;
      to = to + here * Expr(layout_.strides[d]);
    }
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
  const bool all = keys == keys_;
  const std::int64_t pitch = column_vectors_ * lanes_;
  Body out;
  for (const Panels& p : panels(columns_)) {
    const BufferId acc =
        buffer("sums", b_.mr * p.nv * lanes_, Scope::lane, static_cast<int>(lanes_), a_.result);
    out.push_back(each(p.begin, p.end, Binding::serial, [&](const Expr& panel) {
      const Expr column = p.first_vector(panel) * Expr(lanes_);
      const Expr from = (batch * Expr(column_vectors_ * lanes_) + column) * Expr(keys_) +
                        first * Expr(p.nv * lanes_);
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
    return b_.halves ? key_block_by_tiles(batch, first, keys) : key_block(batch, first, keys);
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
               if (b_.halves) return store_tile(h, slot, panel);
               return store_results(h, slot, p, panel, [&](const Expr& r, const Expr& c) {
                 return load(sums_,
                             (slot + r) * Expr(pitch) + p.first_vector(panel) * Expr(lanes_) + c);
               });
             }));
           return tile;
         }));
  return out;
}

/// What the operands and the scores are, at variables of the attention.
void Emitter::evaluate() {
  add_inputs(request_, a_.cluster, k_, out_, values_);
  layout_ = output_layout(request_, a_);
  out_.output_layouts = {layout_};
  result_ = add_argument(g_, a_.result, layout_, true, k_, out_);
  product_ = buffer("product", 1, Scope::lane);
  values_.bind(a_.products,
               [this](Evaluator&, const auto&, const auto&) { return load(product_, 0); });
  q_ = values_.at(a_.q.node, a_.q.index);
  key_ = values_.at(a_.k.node, a_.k.index);
  value_ = values_.at(a_.v.node, a_.v.index);
  score_ = values_.at(a_.scores, a_.scores_at);
  causal_ = hidden_beyond(a_, score_, constants_of(g_, request_, k_, out_));
  // Few keys are one block, whose sums need no memory.
  constexpr std::int64_t kFewKeys = 256;
  block_keys_ = !causal_ && (b_.halves || keys_ <= kFewKeys) ? padded_keys_ : b_.block;
  const auto* k = std::get_if<kernel::Load>(&key_->op);
  along_depth_ = k && ir::coefficient_of(k->offset, a_.depth) == 1 &&
                 ir::coefficient_of(k->offset, a_.key).value_or(0) >= lanes_;
}

Lowered Emitter::run() {
  evaluate();
  const std::int64_t parts = b_.halves ? 2 : 1;
  const DType packed = b_.halves ? DType::i32 : kType;
  packed_keys_ = buffer("packed keys", batches_ * padded_depth_ * key_vectors_ * lanes_ / parts,
                        Scope::grid, 1, {}, packed);
  packed_values_ =
      buffer("packed values", batches_ * padded_keys_ * column_vectors_ * lanes_ / parts,
             Scope::grid, 1, {}, packed);
  const std::int64_t rows = b_.tiles * b_.mr;
  scores_ = buffer("scores of a task", rows * pitch_, Scope::block, 1, a_.products);
  most_ = buffer("largest scores", rows * lanes_, Scope::block);
  inverse_ = buffer("inverse", rows, Scope::block);
  sums_ = buffer("sums of a task", rows * column_vectors_ * lanes_, Scope::block, 1, a_.result);
  if (b_.halves) {
    queries_ = buffer("queries", rows * padded_depth_, Scope::block, 1, {}, DType::bf16);
    weights_ = buffer("weights", rows * weight_pitch_, Scope::block, 1, a_.exp, DType::bf16);
    tile_ = buffer("tile", kTileSide * kTileSide, Scope::block, 1, a_.products);
  }
  k_.body.push_back(pack());
  k_.body.push_back({kernel::Barrier{Scope::grid}});
  k_.body.push_back(each(0, batches_ * row_blocks_, Binding::grid, [&](const Expr& task) {
    const Expr batch = ir::floor_div(task, row_blocks_);
    block_ = ir::floor_mod(task, row_blocks_);
    if (causal_) block_ = Expr(row_blocks_ - 1) - block_;  // the longest first
    decode(batch);
    Body body = scores(batch);
    append(body, each_tile([&](const Height& h, const Expr& slot) {
             return Body{each(0, h.rows, Binding::serial,
                              [&](const Expr& r) { return exponentials(slot + r); })};
           }));
    append(body, results(batch));
    return body;
  }));
  k_.name = fmt::format("attention_{}", a_.result.value);
  out_.kernel = kernel::simplify(kernel::drop_unused_buffers(k_));
  out_.schedule = fmt::format("attention mr={} nv={} tiles={}+{} tiles/task={} block={}{}{}", b_.mr,
                              b_.nv, b_.big, b_.small, b_.tiles, block_keys_,
                              b_.halves ? " bf16" : "", causal_ ? " causal" : "");
  return std::move(out_);
}

}  // namespace heddle::lower::attention
