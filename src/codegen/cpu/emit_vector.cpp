// The lanes of one access as few instructions: whole vectors where addresses are consecutive or lie
// within a few vectors, else one element at a time. Nothing before the first or after the last of
// the lanes' own elements is read unless the buffer has it, and nothing but these is written.
#include <algorithm>
#include <bit>

#include "codegen/cpu/emitter.h"
#include "ir/arith.h"

namespace heddle::codegen::cpu {

using namespace kernel;

namespace {

unsigned floor_power_of_two(std::int64_t x) {
  unsigned p = 1;
  while (2 * static_cast<std::int64_t>(p) <= x) p *= 2;
  return p;
}

/// The offsets of these lanes, least first.
std::vector<std::int64_t> sorted(const std::vector<std::int64_t>& offsets,
                                 const std::vector<unsigned>& lanes) {
  std::vector<std::int64_t> out;
  for (const unsigned i : lanes) out.push_back(offsets[i]);
  std::sort(out.begin(), out.end());
  return out;
}

/// Where runs of `length` elements begin that together hold all of `offsets` (sorted), from the
/// first on; none goes past the last offset unless all lie within one run.
std::vector<std::int64_t> runs_over(const std::vector<std::int64_t>& offsets, std::int64_t length) {
  std::vector<std::int64_t> starts;
  const std::int64_t latest = std::max(offsets.front(), offsets.back() - length + 1);
  for (const std::int64_t x : offsets)
    if (starts.empty() || x >= starts.back() + length) starts.push_back(std::min(x, latest));
  return starts;
}

/// Runs that take fewer instructions than their elements one by one.
bool worth(const std::vector<std::int64_t>& starts, std::size_t elements) {
  return starts.size() <= 2 || 2 * starts.size() <= elements;
}

}  // namespace

Emitter::Access Emitter::access(const Expr& e) const {
  Access a;
  a.base = e;
  if (!varies(e)) return a;
  const Vector& v = *vector_;
  if (const auto c = ir::coefficient_of(e, v.var)) {
    a.kind = Access::Kind::constant;
    a.base = at_lane(e, 0);
    for (unsigned i = 0; i < v.lanes; ++i) a.offsets.push_back(*c * i);
    a.contiguous = *c == 1;
    return a;
  }
  a.kind = Access::Kind::constant;
  for (unsigned i = 0; i < v.lanes; ++i) {
    a.lanes.push_back(ir::simplify(at_lane(e, i), ranges_));
    const auto distance = (a.lanes[i] - a.lanes[0]).constant();
    if (distance) {
      a.offsets.push_back(*distance);
    } else {
      a.kind = Access::Kind::general;
    }
  }
  a.base = a.lanes[0];
  if (a.kind == Access::Kind::general) return a;
  a.contiguous = true;
  for (unsigned i = 0; i < v.lanes; ++i) a.contiguous &= a.offsets[i] == static_cast<int>(i);
  if (std::all_of(a.offsets.begin(), a.offsets.end(), [](auto o) { return o == 0; })) {
    a.kind = Access::Kind::uniform;
  }
  return a;
}

/// Lanes inside the loop's extent; only needed with a dynamic mask.
Emitter::V Emitter::tail_mask() const {
  llvm::SmallVector<llvm::Constant*> bits;
  for (unsigned i = 0; i < vector_->width; ++i) {
    bits.push_back(llvm::ConstantInt::getBool(module_.getContext(), i < vector_->lanes));
  }
  return llvm::ConstantVector::get(bits);
}

/// True if every lane may be read, whatever the conditions around.
bool Emitter::always_inside(std::int32_t id, const Expr& e) const {
  const auto range = ir::bounds(e, ranges_);
  return range && range->low >= 0 && range->high < buffer(id).size;
}

Emitter::V Emitter::load_lanes(std::int32_t id, const Expr& e) {
  const Access a = access(e);
  V mask = vector_ && !always_inside(id, e) ? scope().mask : nullptr;
  if (a.kind == Access::Kind::uniform) {
    if (!mask || in_registers(id)) return load_at(id, address(id, a.base), 1);
    // Some lane must want it, or the address may be anywhere.
    V at = b_.CreateSelect(b_.CreateOrReduce(mask), index(a.base), b_.getInt64(0));
    return load_at(
        id, b_.CreateGEP(ops_.storage(buffer(id).dtype), bases_[static_cast<std::size_t>(id)], at),
        1);
  }
  if (in_registers(id) && a.contiguous) return load_lane_buffer(id, a.base);
  if (mask && vector_->lanes < vector_->width) mask = b_.CreateAnd(mask, tail_mask());
  if (mask && a.contiguous && masked_access(id)) return load_masked(id, a, mask);
  // Where all lanes may be read, those that are not active are, too, unless they are known.
  auto active = known_lanes(mask || !a.contiguous ? scope().mask : nullptr);
  if (!active && !mask) active = known_lanes(nullptr);
  return active ? load_known(id, a, *active) : load_each(id, a, mask);
}

/// The loop's lanes that `mask` has (null: all), if no variable decides that.
std::optional<std::vector<unsigned>> Emitter::known_lanes(V mask) const {
  std::vector<unsigned> active;
  const auto* known = llvm::dyn_cast_or_null<llvm::Constant>(mask);
  if (mask && !known) return std::nullopt;
  for (unsigned i = 0; i < vector_->lanes; ++i) {
    const llvm::Constant* bit = known ? known->getAggregateElement(i) : nullptr;
    if (known && !llvm::isa_and_nonnull<llvm::ConstantInt>(bit)) return std::nullopt;
    if (!known || bit->isOneValue()) active.push_back(i);
  }
  return active;
}

/// Masked loads and stores exist for 4 and 8 byte elements (all sizes with 64-byte vectors).
bool Emitter::masked_access(std::int32_t id) const {
  return size_of(buffer(id).dtype) >= 4 || machine_.vector_bytes >= 64;
}

/// Consecutive elements where the mask holds.
Emitter::V Emitter::load_masked(std::int32_t id, const Access& a, V mask) {
  const DType t = buffer(id).dtype;
  auto* type = llvm::FixedVectorType::get(ops_.storage(t), vector_->width);
  V out = b_.CreateMaskedLoad(type, address(id, a.base), align_of(id), mask,
                              llvm::Constant::getNullValue(type));
  return ops_.from_storage(out, t);
}

/// One element at a time; masked-out lanes read element 0, which every buffer has.
Emitter::V Emitter::load_each(std::int32_t id, const Access& a, V mask,
                              const std::vector<unsigned>* active) {
  const DType t = buffer(id).dtype;
  llvm::Type* element = ops_.storage(t);
  V out = llvm::Constant::getNullValue(llvm::FixedVectorType::get(ops_.compute(t), vector_->width));
  for (unsigned i = 0; i < vector_->lanes; ++i) {
    if (active && !std::binary_search(active->begin(), active->end(), i)) continue;
    const Expr at = a.kind == Access::Kind::general ? a.lanes[i] : a.base + Expr(a.offsets[i]);
    V ptr;
    if (mask) {
      V safe = b_.CreateSelect(lane(mask, i), index(at), b_.getInt64(0));
      ptr = b_.CreateGEP(element, bases_[static_cast<std::size_t>(id)], safe);
    } else {
      ptr = address(id, at);
    }
    out = b_.CreateInsertElement(out, load_at(id, ptr, 1), i);
  }
  return out;
}

/// The lanes named: if they lie at known distances, as few loads of neighbours as hold them, and
/// shuffles; else, or where that is more, one element at a time. The other lanes hold one of these.
Emitter::V Emitter::load_known(std::int32_t id, const Access& a,
                               const std::vector<unsigned>& active) {
  const unsigned width = vector_->width;
  const DType t = buffer(id).dtype;
  if (active.empty())
    return llvm::Constant::getNullValue(llvm::FixedVectorType::get(ops_.compute(t), width));
  if (a.contiguous && active.size() == width) return load_at(id, address(id, a.base), width);
  if (a.kind == Access::Kind::general) return load_each(id, a, nullptr, &active);
  const std::vector<std::int64_t> offsets = sorted(a.offsets, active);
  unsigned run = std::min(width, floor_power_of_two(offsets.back() - offsets.front() + 1));
  std::vector<std::int64_t> starts = runs_over(offsets, run);
  if (const auto whole = starts.size() > 1 ? vector_around(id, a, offsets, 1) : std::nullopt) {
    starts = {whole->start};
    run = whole->length;
  }
  if (run == 1 || !worth(starts, active.size())) return load_each(id, a, nullptr, &active);
  auto* type = llvm::FixedVectorType::get(ops_.storage(t), run);
  V out = llvm::PoisonValue::get(llvm::FixedVectorType::get(ops_.storage(t), width));
  llvm::SmallVector<int> picks(width, llvm::PoisonMaskElem);
  for (const std::int64_t start : starts) {
    V x = b_.CreateAlignedLoad(type, address(id, a.base + Expr(start)), align_of(id));
    for (unsigned i = 0; i < width; ++i) {
      const bool wanted = std::binary_search(active.begin(), active.end(), i);
      const std::int64_t at = a.offsets[wanted ? i : active.back()] - start;
      if (at >= 0 && at < run) picks[i] = static_cast<int>(width + at);
    }
    out = b_.CreateShuffleVector(out, run == width ? x : resize(x, width), picks);
    for (unsigned i = 0; i < width; ++i)
      if (picks[i] >= 0) picks[i] = static_cast<int>(i);
  }
  return ops_.from_storage(out, t);
}

/// Where a vector begins that has all of the lanes' offsets (sorted) and lies in the buffer, in
/// parts of `unit` elements, and its length: at a multiple of that past the variables, so that what
/// reads other elements of it loads the same. Something reads the lanes, so they are in the buffer.
std::optional<Emitter::Run> Emitter::vector_around(std::int32_t id, const Access& a,
                                                   const std::vector<std::int64_t>& offsets,
                                                   std::int64_t unit) const {
  const ir::IndexNode& n = a.base.node();
  if (in_registers(id) || n.kind != ir::IndexNode::Kind::sum || n.constant % unit != 0)
    return std::nullopt;
  const std::int64_t span = offsets.back() - offsets.front() + 1, width = vector_->width;
  auto length = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(span)));
  for (; length <= width; length *= 2) {
    const std::int64_t start = -ir::floor_mod_int(n.constant / unit, length), end = start + length;
    if (offsets.front() < start || offsets.back() >= end) continue;
    const auto range = ir::bounds(a.base, ranges_);
    const bool inside =
        range && range->low + start * unit >= 0 && range->high + end * unit <= buffer(id).size;
    // Whatever the variables are, a block of a buffer of whole blocks is inside if a lane is.
    bool block = buffer(id).size % (length * unit) == 0;
    for (const ir::IndexNode::Term& t : n.terms) block &= t.coefficient % (length * unit) == 0;
    return inside || block ? std::optional(Run{start, static_cast<unsigned>(length)})
                           : std::nullopt;
  }
  return std::nullopt;
}

void Emitter::store_lanes(std::int32_t id, const Expr& e, V v) {
  const Access a = access(e);
  V mask = scope().mask;
  if (a.kind == Access::Kind::uniform) return store_uniform(id, a.base, v);
  if (!a.contiguous) return store_apart(id, a, v);
  if (in_registers(id)) return store_lane_buffer(id, a.base, v, mask);
  if (!mask) return store_contiguous(id, a.base, v);
  if (!masked_access(id)) return store_each(id, a, v, mask);
  if (vector_->lanes < vector_->width) mask = b_.CreateAnd(mask, tail_mask());
  b_.CreateMaskedStore(ops_.to_storage(v, buffer(id).dtype), address(id, a.base), align_of(id),
                       mask);
}

/// Largest power of two (at most 64) that divides the byte offset, whatever the variables are.
std::uint64_t Emitter::known_alignment(std::int32_t id, const Expr& offset) const {
  const ir::IndexNode& n = offset.node();
  std::uint64_t bits = 64;
  const auto add = [&](std::int64_t elements) {
    bits |= static_cast<std::uint64_t>(elements * size_of(buffer(id).dtype));
  };
  if (n.kind != ir::IndexNode::Kind::sum) return bits = 0, add(1), bits;
  add(n.constant);
  for (const ir::IndexNode::Term& t : n.terms) add(t.coefficient);
  return bits & (~bits + 1);
}

/// The first `lanes` of v: whole, or as two overlapping halves of the next smaller power of two
/// (masked stores are slow on some machines).
void Emitter::store_contiguous(std::int32_t id, const Expr& base, V v) {
  const unsigned width = vector_->width, lanes = vector_->lanes;
  if (lanes == width) {
    llvm::StoreInst* store = store_at(id, address(id, base), v);
    const std::uint64_t aligned = known_alignment(id, base);
    const std::uint64_t bytes = width * static_cast<std::uint64_t>(size_of(buffer(id).dtype));
    // Less than a register past the caches beside ordinary stores to the same line is very slow.
    if (std::binary_search(streamed_.begin(), streamed_.end(), id) &&
        bytes >= static_cast<std::uint64_t>(machine_.vector_bytes) &&
        aligned >= std::min<std::uint64_t>(bytes, 64)) {
      auto& context = module_.getContext();
      auto* one = llvm::ConstantAsMetadata::get(b_.getInt32(1));
      store->setAlignment(llvm::Align(aligned));
      store->setMetadata(llvm::LLVMContext::MD_nontemporal, llvm::MDNode::get(context, {one}));
    }
    return;
  }
  const unsigned part = floor_power_of_two(lanes);
  for (const unsigned start : {0u, lanes - part}) {
    llvm::SmallVector<int> picks;
    for (unsigned i = 0; i < part; ++i) picks.push_back(static_cast<int>(start + i));
    V piece = part == 1 ? lane(v, start) : b_.CreateShuffleVector(v, picks);
    store_at(id, address(id, base + Expr(static_cast<std::int64_t>(start))), piece);
    if (part == lanes) break;
  }
}

/// Elements of a lane buffer that one access touches: whole registers, so that they stay registers.
unsigned Emitter::register_span(std::int32_t id) const {
  const auto lanes = static_cast<unsigned>(buffer(id).lanes);
  return vector_->lanes <= lanes ? lanes : vector_->width;
}

Emitter::V Emitter::load_lane_buffer(std::int32_t id, const Expr& base) {
  const unsigned span = register_span(id);
  V v = load_at(id, address(id, base), span);
  return span == vector_->width ? v : resize(v, vector_->width);
}

/// Lanes that are not active keep what they held.
void Emitter::store_lane_buffer(std::int32_t id, const Expr& base, V v, V mask) {
  const unsigned span = register_span(id);
  V ptr = address(id, base);
  if (vector_->lanes < span) mask = mask ? b_.CreateAnd(mask, tail_mask()) : tail_mask();
  if (span != vector_->width) {
    v = resize(v, span);
    if (mask) mask = resize(mask, span);
  }
  if (mask) v = b_.CreateSelect(mask, v, load_at(id, ptr, span));
  store_at(id, ptr, v);
}

/// The first lanes of v, or v with its last lane repeated.
Emitter::V Emitter::resize(V v, unsigned width) {
  const unsigned have = llvm::cast<llvm::FixedVectorType>(v->getType())->getNumElements();
  llvm::SmallVector<int> picks;
  for (unsigned i = 0; i < width; ++i) picks.push_back(static_cast<int>(std::min(i, have - 1)));
  return b_.CreateShuffleVector(v, picks);
}

/// Lanes that are not neighbours: of 64-byte vectors masked stores of what lies near, if that is
/// fewer.
void Emitter::store_apart(std::int32_t id, const Access& a, V v) {
  const auto active = known_lanes(scope().mask);
  const DType t = buffer(id).dtype;
  if (!active || a.kind != Access::Kind::constant || in_registers(id) || machine_.vector_bytes < 64)
    return store_each(id, a, v, scope().mask);
  const std::vector<std::int64_t> offsets = sorted(a.offsets, *active);
  const auto run = static_cast<unsigned>(machine_.vector_bytes / size_of(t));
  const std::vector<std::int64_t> starts = offsets.empty() ? offsets : runs_over(offsets, run);
  if (starts.size() > 2 ? !worth(starts, offsets.size()) : offsets.size() < 4)
    return store_each(id, a, v, scope().mask);
  V stored = ops_.to_storage(v, t);
  for (const std::int64_t start : starts) {
    llvm::SmallVector<int> picks(run, llvm::PoisonMaskElem);
    llvm::SmallVector<llvm::Constant*> bits(run, b_.getFalse());
    for (const unsigned i : *active) {  // of two lanes at one place the last stays
      const std::int64_t at = a.offsets[i] - start;
      if (at < 0 || at >= run) continue;
      picks[static_cast<std::size_t>(at)] = static_cast<int>(i);
      bits[static_cast<std::size_t>(at)] = b_.getTrue();
    }
    b_.CreateMaskedStore(b_.CreateShuffleVector(stored, picks), address(id, a.base + Expr(start)),
                         align_of(id), llvm::ConstantVector::get(bits));
  }
}

void Emitter::store_each(std::int32_t id, const Access& a, V v, V mask) {
  for (unsigned i = 0; i < vector_->lanes; ++i) {
    const Expr at = a.kind == Access::Kind::general ? a.lanes[i] : a.base + Expr(a.offsets[i]);
    V ptr = address(id, at);
    if (mask) {
      store_if(lane(mask, i), id, ptr, lane(v, i));
    } else {
      store_at(id, ptr, lane(v, i));
    }
  }
}

}  // namespace heddle::codegen::cpu
