#include "lower/attention/emit.h"

#include "kernel/halves.h"
#include "support/math.h"

namespace heddle::lower::attention {

using ir::ScalarFn;
using kernel::Binding;
using kernel::BufferId;
using kernel::Scope;
using kernel::Stmt;
using kernel::Value;

namespace {

constexpr std::int64_t kUnroll = 4;  // steps of a product

/// Terms of a query or key in memory: whole tiles of them, or whole vectors.
std::int64_t padded_depth(const Blocks& b, std::int64_t depth, std::int64_t lanes) {
  return b.together() == 1 ? depth : round_up(depth, b.in_tiles() ? kTileSide : lanes);
}

}  // namespace

Emitter::Emitter(const Request& request, const Attention& a, const Blocks& blocks)
    : request_(request),
      g_(*request.graph),
      a_(a),
      b_(blocks),
      lanes_(request.target.lanes(kType)),
      unrolled_(blocks.in_tiles() ? Binding::serial : Binding::unroll),
      batches_(a.batches()),
      keys_(a.extent(a.key)),
      depth_(a.extent(a.depth)),
      columns_(a.extent(a.column)),
      padded_keys_(round_up(keys_, blocks.in_tiles() ? kTileSide : blocks.together())),
      padded_depth_(padded_depth(blocks, depth_, lanes_)),
      key_vectors_(ceil_div(padded_keys_, lanes_)),
      column_vectors_(ceil_div(columns_, lanes_)),
      row_blocks_(ceil_div(blocks.big + blocks.small, blocks.tiles)),
      parts_(ceil_div(key_vectors_, blocks.nv) + ceil_div(padded_keys_, kValuesOfTask)),
      alone_(row_blocks_ == 1 && !blocks.in_tiles()),
      pitch_(key_vectors_ * lanes_),
      weight_pitch_(pitch_ + kTileSide),
      values_(g_) {
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
  if (b_.in_tiles()) return {{b_.nv, 0, count, 0, extent % (b_.nv * lanes_) != 0}};
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

/// acc += a·b of a register tile: b's words of terms follow each other, `nv` vectors each.
kernel::Body Emitter::multiply(const Height& h, std::int64_t nv, std::int64_t terms, BufferId acc,
                               const PerElement& a, BufferId b, const Expr& b_from) {
  const auto lanes = static_cast<int>(lanes_);
  const bool pairs = b_.form == Blocks::Form::pairs;
  const DType type = pairs ? DType::i32 : kType;
  const BufferId vector = buffer("b", nv * lanes_, Scope::lane, lanes, {}, type);
  const BufferId element = buffer("a", 1, Scope::lane, 1, {}, type);
  return steps(ceil_div(terms, b_.together()), [&](const Expr& term) {
    Body body{vectors(nv, [&](const Expr& c, const Expr& l) {
      const Expr from = b_from + term * Expr(nv * lanes_) + c + l;
      return Body{kernel::store(vector, c + l, kernel::load(b, from, type))};
    })};
    body.push_back(each(0, h.rows, Binding::unroll, [&](const Expr& r) {
      Body row{kernel::store(element, 0, a(r, term))};
      row.push_back(vectors(nv, [&](const Expr& c, const Expr& l) {
        const Expr at = r * Expr(nv * lanes_) + c + l;
        const Value x = kernel::load(element, 0, type), y = kernel::load(vector, c + l, type);
        const Value product =
            pairs ? kernel::product_of_halves(x, y) : apply(ScalarFn::mul, {x, y});
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

/// The batch's variables.
Emitter::Places Emitter::decoded(const Expr& batch) const {
  Places out;
  std::int64_t below = 1;
  for (std::size_t i = a_.batch.size(); i-- > 0;) {
    const Var v = a_.batch[i];
    Expr value = ir::floor_div(batch, below);
    if (i > 0) value = ir::floor_mod(value, a_.extent(v));
    out.emplace_back(v, value);
    below *= a_.extent(v);
  }
  return out;
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

/// [panel][key, or pair of keys][nv·lanes], zeros beyond the last of both.
kernel::Body Emitter::some_values(const Expr& base, const Expr& first) {
  const std::int64_t words = b_.together();
  return {each(0, kValuesOfTask / words, Binding::serial, [&](const Expr& i) {
    const Expr key = first + i * Expr(words);
    Body out;
    for (const Panels& p : panels(columns_)) {
      const std::int64_t width = p.nv * lanes_;
      out.push_back(each(p.begin, p.end, Binding::serial, [&](const Expr& panel) {
        return Body{each(0, p.nv, Binding::serial, [&](const Expr& c) {
          return Body{each(0, lanes_, Binding::vector, [&](const Expr& l) {
            const Expr place = c * Expr(lanes_) + l;
            const Expr begin = p.first_vector(panel) * Expr(lanes_), column = begin + place;
            const auto value = [&](std::int64_t which) {
              const Expr at_key = key + Expr(which);
              std::vector<ir::Condition> inside;
              if (which > 0 && padded_keys_ > keys_) inside.push_back({at_key, 0, keys_});
              if (p.partial) inside.push_back({column, 0, columns_});
              const Value v = at(value_, {{a_.key, at_key}, {a_.column, column}});
              return inside.empty() ? v : kernel::guard(inside, v, f32(0));
            };
            const Expr to = base + begin * Expr(padded_keys_ / words) +
                            ir::floor_div(key, words) * Expr(width) + place;
            return Body{
                kernel::store(packed_values_, to, words > 1 ? word(value(0), value(1)) : value(0))};
          })};
        })};
      }));
    }
    return Body{kernel::when({{key, 0, keys_}}, std::move(out))};
  })};
}

/// The part'th panel of keys, or of the parts after these some values.
kernel::Body Emitter::packed_part(const Expr& batch, const Expr& part) {
  const std::int64_t key_panels = ceil_div(key_vectors_, b_.nv);
  Body out;
  for (const Panels& p : panels(keys_)) {
    const Expr first = p.first_vector(part) * Expr(lanes_);
    const Expr key = place_of(batch) * Expr(key_vectors_ * lanes_) + first;
    const Expr to = key * Expr(padded_depth_ / b_.together());
    Body panel = b_.together() > 1 ? key_words(to, first, p) : key_panel(to, first, p);
    out.push_back(kernel::when({{part, p.begin, p.end}}, std::move(panel)));
  }
  const Expr number = part - Expr(key_panels);
  const Expr first = number * Expr(kValuesOfTask);
  const Expr base = place_of(batch) * Expr(padded_keys_ * column_vectors_ * lanes_ / b_.together());
  Body some = b_.in_tiles() ? value_words(base, first) : some_values(base, first);
  out.push_back(kernel::when({{number, 0, parts_ - key_panels}}, std::move(some)));
  return out;
}

/// Keys and values of all products, in the order in which they are multiplied.
Stmt Emitter::pack() {
  return each(0, batches_ * parts_, Binding::grid, [&](const Expr& task) {
    const Expr batch = ir::floor_div(task, parts_);
    batch_ = decoded(batch);
    return packed_part(batch, ir::floor_mod(task, parts_));
  });
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
  causal_ = hidden_beyond(a_, score_, product_, constants_of(g_, request_, k_, out_));
  // Few keys are one block, whose sums need no memory.
  constexpr std::int64_t kFewKeys = 256;
  block_keys_ = !causal_ && (b_.in_tiles() || keys_ <= kFewKeys) ? padded_keys_ : b_.block;
  const auto* k = std::get_if<kernel::Load>(&key_->op);
  along_depth_ = k && ir::coefficient_of(k->offset, a_.depth) == 1 &&
                 ir::coefficient_of(k->offset, a_.key).value_or(0) >= lanes_;
}

bool Emitter::is_causal() {
  evaluate();
  return causal_.has_value();
}

Lowered Emitter::run() {
  evaluate();
  const std::int64_t parts = b_.together();
  const DType packed = parts > 1 ? DType::i32 : kType;
  const std::int64_t batches = alone_ ? 1 : batches_;
  const Scope scope = alone_ ? Scope::block : Scope::grid;
  packed_keys_ = buffer("packed keys", batches * padded_depth_ * key_vectors_ * lanes_ / parts,
                        scope, 1, {}, packed);
  packed_values_ =
      buffer("packed values", batches * padded_keys_ * column_vectors_ * lanes_ / parts, scope, 1,
             {}, packed);
  const std::int64_t rows = b_.tiles * b_.mr;
  scores_ = buffer("scores of a task", rows * pitch_, Scope::block, 1, a_.products);
  most_ = buffer("largest scores", rows * lanes_, Scope::block);
  inverse_ = buffer("inverse", rows, Scope::block);
  sums_ = buffer("sums of a task", rows * column_vectors_ * lanes_, Scope::block, 1, a_.result);
  if (parts > 1) {
    queries_ = buffer("queries", rows * padded_depth_, Scope::block, 1, {}, DType::bf16);
    weights_ = buffer("weights", rows * weight_pitch_, Scope::block, 1, a_.exp, DType::bf16);
  }
  if (b_.in_tiles()) tile_ = buffer("tile", kTileSide * kTileSide, Scope::block, 1, a_.products);
  if (!alone_) {
    k_.body.push_back(pack());
    k_.body.push_back({kernel::Barrier{Scope::grid}});
  }
  k_.body.push_back(each(0, batches_ * row_blocks_, Binding::grid, [&](const Expr& task) {
    const Expr batch = ir::floor_div(task, row_blocks_);
    block_ = ir::floor_mod(task, row_blocks_);
    if (causal_) block_ = Expr(row_blocks_ - 1) - block_;  // the longest first
    batch_ = decoded(batch);
    Body body;
    if (alone_)
      body.push_back(each(0, parts_, Binding::serial,
                          [&](const Expr& part) { return packed_part(batch, part); }));
    append(body, scores(batch));
    append(body, each_tile([&](const Height& h, const Expr& slot) {
             return Body{each(0, h.rows, Binding::serial,
                              [&](const Expr& r) { return exponentials(slot + r); })};
           }));
    append(body, results(batch));
    return body;
  }));
  k_.name = fmt::format("attention_{}", a_.result.value);
  out_.kernel = kernel::simplify(kernel::drop_unused_buffers(k_));
  out_.schedule =
      fmt::format("attention mr={} nv={} tiles={}+{} tiles/task={} block={}{}{}{}", b_.mr, b_.nv,
                  b_.big, b_.small, b_.tiles, block_keys_, parts > 1 ? " bf16" : "",
                  alone_ ? " task-packed" : "", causal_ ? " causal" : "");
  return std::move(out_);
}

}  // namespace heddle::lower::attention
