// The lanes of one access as few instructions: whole vectors where addresses are consecutive or lie
// within two vectors, else one element at a time. Nothing outside the lanes' own elements is read
// or written.
#include <algorithm>

#include "codegen/cpu/emitter.h"

namespace heddle::codegen::cpu {

using namespace kernel;

namespace {

unsigned floor_power_of_two(std::int64_t x) {
  unsigned p = 1;
  while (2 * static_cast<std::int64_t>(p) <= x) p *= 2;
  return p;
}

}  // namespace

Emitter::Access Emitter::access(const Expr& e) const {
  Access a;
  a.base = e;
  if (!varies(e)) return a;
  const Vector& v = *vector_;
  const auto lane_of = [&](std::int64_t i) {
    return ir::substitute(e, [&](Var x) -> std::optional<Expr> {
      if (x != v.var) return std::nullopt;
      return Expr(v.begin + i);
    });
  };
  if (const auto c = ir::coefficient_of(e, v.var)) {
    a.kind = Access::Kind::constant;
    a.base = lane_of(0);
    for (unsigned i = 0; i < v.lanes; ++i) a.offsets.push_back(*c * i);
    a.contiguous = *c == 1;
    return a;
  }
  a.kind = Access::Kind::constant;
  for (unsigned i = 0; i < v.lanes; ++i) {
    a.lanes.push_back(ir::simplify(lane_of(i), ranges_));
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
  if (mask) {
    if (vector_->lanes < vector_->width) mask = b_.CreateAnd(mask, tail_mask());
    return a.contiguous ? load_masked(id, a, mask) : load_each(id, a, mask);
  }
  if (a.kind == Access::Kind::constant) return load_constant_offsets(id, a);
  return load_each(id, a, nullptr);
}

/// Consecutive elements where the mask holds. Masked loads exist for 4 and 8 byte elements (all
/// sizes with 64-byte vectors).
Emitter::V Emitter::load_masked(std::int32_t id, const Access& a, V mask) {
  const DType t = buffer(id).dtype;
  if (size_of(t) < 4 && machine_.vector_bytes < 64) return load_each(id, a, mask);
  auto* type = llvm::FixedVectorType::get(ops_.storage(t), vector_->width);
  V out = b_.CreateMaskedLoad(type, address(id, a.base), align_of(id), mask,
                              llvm::Constant::getNullValue(type));
  return ops_.from_storage(out, t);
}

/// One element at a time; masked-out lanes read element 0, which every buffer has.
Emitter::V Emitter::load_each(std::int32_t id, const Access& a, V mask) {
  const DType t = buffer(id).dtype;
  llvm::Type* element = ops_.storage(t);
  V out = llvm::Constant::getNullValue(llvm::FixedVectorType::get(ops_.compute(t), vector_->width));
  for (unsigned i = 0; i < vector_->lanes; ++i) {
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

/// Lanes at known distances: if their span is covered by two loads of a power-of-two length, those
/// and one shuffle; short consecutive runs likewise; else one element at a time.
Emitter::V Emitter::load_constant_offsets(std::int32_t id, const Access& a) {
  const unsigned width = vector_->width, lanes = vector_->lanes;
  if (a.contiguous && lanes == width) return load_at(id, address(id, a.base), width);
  const auto [low, high] = std::minmax_element(a.offsets.begin(), a.offsets.end());
  const std::int64_t first = *low, span = *high - first + 1;
  const unsigned part = std::min(width, floor_power_of_two(span));
  if (part == 1 || span > 2 * static_cast<std::int64_t>(part)) return load_each(id, a, nullptr);
  const std::int64_t second = span - part;  // starts here, relative to `first`
  V x = load_at(id, address(id, a.base + Expr(first)), part);
  V y = second == 0 ? x : load_at(id, address(id, a.base + Expr(first + second)), part);
  llvm::SmallVector<int> picks;
  for (unsigned i = 0; i < width; ++i) {
    const std::int64_t at = a.offsets[std::min(i, lanes - 1)] - first;
    picks.push_back(static_cast<int>(at < part ? at : at - second + part));
  }
  return b_.CreateShuffleVector(x, y, picks);
}

void Emitter::store_lanes(std::int32_t id, const Expr& e, V v) {
  const Access a = access(e);
  V mask = scope().mask;
  if (a.kind == Access::Kind::uniform) return store_uniform(id, a.base, v);
  if (!a.contiguous) return store_each(id, a, v, mask);
  if (in_registers(id)) return store_lane_buffer(id, a.base, v, mask);
  if (!mask) return store_contiguous(id, a.base, v);
  const DType t = buffer(id).dtype;
  if (size_of(t) < 4 && machine_.vector_bytes < 64) return store_each(id, a, v, mask);
  if (vector_->lanes < vector_->width) mask = b_.CreateAnd(mask, tail_mask());
  b_.CreateMaskedStore(ops_.to_storage(v, t), address(id, a.base), align_of(id), mask);
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
