// Loads and stores: choice between one element, all lanes, and data-dependent positions.
#include <llvm/Analysis/VectorUtils.h>
#include <llvm/IR/IntrinsicsX86.h>

#include "codegen/cpu/emitter.h"
#include "kernel/halves.h"

namespace heddle::codegen::cpu {

using namespace kernel;

/// `width` consecutive elements in register form.
Emitter::V Emitter::load_at(std::int32_t id, V ptr, unsigned width) {
  const DType t = buffer(id).dtype;
  llvm::Type* type = ops_.storage(t);
  if (width > 1) type = llvm::FixedVectorType::get(type, width);
  return ops_.from_storage(b_.CreateAlignedLoad(type, ptr, align_of(id)), t);
}

/// `v` has the buffer's compute type.
llvm::StoreInst* Emitter::store_at(std::int32_t id, V ptr, V v) {
  return b_.CreateAlignedStore(ops_.to_storage(v, buffer(id).dtype), ptr, align_of(id));
}

/// Σ clamp(value, 0, extent - 1) · stride as i64: a scalar, or lanes if a value varies.
Emitter::V Emitter::dynamic_offset(const std::vector<Load::Dynamic>& parts) {
  V sum = nullptr;
  for (const Load::Dynamic& d : parts) {
    V x = ops_.cast(value(d.value), d.value->dtype, DType::i64);
    const auto at = [&](std::int64_t c) { return llvm::ConstantInt::getSigned(x->getType(), c); };
    x = b_.CreateSelect(b_.CreateICmpSGT(x, at(0)), x, at(0));
    x = b_.CreateSelect(b_.CreateICmpSLT(x, at(d.extent - 1)), x, at(d.extent - 1));
    x = b_.CreateMul(x, at(d.stride));
    if (sum && sum->getType() != x->getType()) {
      sum = ops_.splat(sum, vector_->width);
      x = ops_.splat(x, vector_->width);
    }
    sum = sum ? b_.CreateAdd(sum, x) : x;
  }
  return sum;
}

Emitter::V Emitter::load(const Load& x, DType dtype) {
  const std::int32_t id = x.buffer.value;
  const Expr offset = bound(x.offset);
  const DType stored = buffer(id).dtype;
  llvm::Type* element = ops_.storage(stored);
  if (x.dynamic.empty()) {
    if (V column = vector_ && !scope().mask ? load_column(id, x.offset) : nullptr)
      return ops_.cast(column, stored, dtype);
    return ops_.cast(load_lanes(id, offset), stored, dtype);
  }
  if (V found = load_table(x)) return ops_.cast(found, stored, dtype);
  V moving = dynamic_offset(x.dynamic);
  if (!moving->getType()->isVectorTy() && !varies(offset)) {
    V at = b_.CreateAdd(index(offset), moving);
    if (V mask = scope().mask) {
      at = b_.CreateSelect(b_.CreateOrReduce(mask), at, b_.getInt64(0));
    }
    return ops_.cast(
        load_at(id, b_.CreateGEP(element, bases_[static_cast<std::size_t>(id)], at), 1), stored,
        dtype);
  }
  // Neighbours behind one position of all lanes.
  if (const auto base = neighbours(x.offset); base && !moving->getType()->isVectorTy()) {
    V ptr = b_.CreateGEP(element, address(id, *base), moving);
    return ops_.cast(load_at(id, ptr, vector_->width), stored, dtype);
  }
  // One load per lane; inactive lanes read element 0, which every buffer has.
  V at = varies(offset) ? lane_index(offset, b_.getInt64Ty()) : index(offset);
  at = b_.CreateAdd(ops_.splat(at, vector_->width), ops_.splat(moving, vector_->width));
  if (V mask = scope().mask) {
    at = b_.CreateSelect(mask, at, llvm::Constant::getNullValue(at->getType()));
  }
  V out = llvm::Constant::getNullValue(
      llvm::FixedVectorType::get(ops_.compute(stored), vector_->width));
  for (unsigned i = 0; i < vector_->lanes; ++i) {
    V ptr = b_.CreateGEP(element, bases_[static_cast<std::size_t>(id)], lane(at, i));
    out = b_.CreateInsertElement(out, load_at(id, ptr, 1), i);
  }
  return ops_.cast(out, stored, dtype);
}

/// Lanes of a table of 256 bytes at positions that are bytes: each half of it is permuted by their
/// lower bits, the upper one chooses. Null where it is something else, or no instruction does it.
Emitter::V Emitter::load_table(const Load& x) {
  const std::int32_t id = x.buffer.value;
  constexpr std::int64_t kEntries = 256;
  constexpr unsigned kRegister = 64;
  const auto* index = x.dynamic.size() == 1 ? std::get_if<Apply>(&x.dynamic[0].value->op) : nullptr;
  if (!machine_.byte_tables || !vector_ || vector_->width > kRegister || !index ||
      index->fn != ir::ScalarFn::cast || index->args[0]->dtype != DType::u8)
    return nullptr;
  const Load::Dynamic& d = x.dynamic[0];
  const DType stored = buffer(id).dtype;
  if (d.extent != kEntries || d.stride != 1 || buffer(id).size != kEntries || !is_int(stored) ||
      size_of(stored) != 1 || in_registers(id) || !bound(x.offset).is_constant(0))
    return nullptr;
  V at = value(index->args[0]);
  if (!at->getType()->isVectorTy()) return nullptr;
  llvm::SmallVector<int> widen, narrow;
  for (unsigned i = 0; i < kRegister; ++i)
    widen.push_back(i < vector_->width ? static_cast<int>(i) : llvm::PoisonMaskElem);
  for (unsigned i = 0; i < vector_->width; ++i) narrow.push_back(static_cast<int>(i));
  at = b_.CreateShuffleVector(at, widen);
  const auto half = [&](std::int64_t first) {
    const auto part = [&](std::int64_t start) {
      return b_.CreateAlignedLoad(at->getType(), address(id, Expr(start)), align_of(id));
    };
    V low = part(first), high = part(first + kRegister);
    return b_.CreateIntrinsic(llvm::Intrinsic::x86_avx512_vpermi2var_qi_512, {}, {low, at, high});
  };
  V lower = half(0), upper = half(kEntries / 2);
  V is_upper = b_.CreateICmpSLT(at, llvm::Constant::getNullValue(at->getType()));
  return b_.CreateShuffleVector(b_.CreateSelect(is_upper, upper, lower), narrow);
}

/// Where lane 0 is, if all lanes are active and lie one after another.
std::optional<Expr> Emitter::neighbours(const Expr& offset) {
  if (!vector_ || scope().mask || vector_->lanes != vector_->width || !varies(bound(offset)))
    return std::nullopt;
  const Access a = access(bound(offset));
  if (a.kind != Access::Kind::constant || a.offsets.size() != vector_->width) return std::nullopt;
  for (unsigned i = 0; i < a.offsets.size(); ++i)
    if (a.offsets[i] != static_cast<std::int64_t>(i)) return std::nullopt;
  return a.base;
}

/// Whether a part of a word is the bits that its load reads: an integer's, or those of bf16 that
/// upper_half() takes from an f32.
bool is_bits(const Value& part, DType stored) {
  const auto* x = std::get_if<Apply>(&part->op);
  const bool cast = x != nullptr && x->fn == ir::ScalarFn::cast;
  return is_int(stored) || (stored == DType::bf16 && x != nullptr && !cast);
}

/// Words whose parts, bytes or halves, are lines apart, each part's lanes neighbours: lines side by
/// side in a register, and one permutation. Null where it is something else, or no instruction does
/// it.
Emitter::V Emitter::load_lines(std::span<const Value> parts) {
  constexpr unsigned kLanes = 16;
  const auto count = static_cast<unsigned>(parts.size());
  const bool has = count == 4 ? machine_.byte_tables : machine_.bf16_pairs;
  const auto is_none = [](const Value& part) {
    const auto* number = std::get_if<Imm>(&part->op);
    return number != nullptr && number->integer == 0;
  };
  if (count < 2 || !has || !vector_ || vector_->width != kLanes) return nullptr;
  llvm::Type* element = count == 4 ? b_.getInt8Ty() : b_.getInt16Ty();
  llvm::Type* line = llvm::FixedVectorType::get(element, kLanes);
  llvm::SmallVector<V> lines;
  for (const Value& part : parts) {
    if (is_none(part)) {
      lines.push_back(llvm::Constant::getNullValue(line));
      continue;
    }
    const Load* load = load_under_cast(part);
    const std::int32_t id = load ? load->buffer.value : -1;
    if (!load || !load->dynamic.empty() || size_of(buffer(id).dtype) != 4 / count ||
        !is_bits(part, buffer(id).dtype) || in_registers(id))
      return nullptr;
    const auto first = neighbours(load->offset);
    if (!first) return nullptr;
    lines.push_back(b_.CreateAlignedLoad(line, address(id, *first), llvm::Align(1)));
  }
  llvm::Type* words = llvm::FixedVectorType::get(b_.getInt32Ty(), kLanes);
  if (std::all_of(parts.begin() + 1, parts.end(), is_none)) return b_.CreateZExt(lines[0], words);
  llvm::SmallVector<llvm::Constant*> order;
  for (unsigned i = 0; i < kLanes * count; ++i)
    order.push_back(llvm::ConstantInt::get(element, i % count * kLanes + i / count));
  V word = b_.CreateIntrinsic(
      count == 4 ? llvm::Intrinsic::x86_avx512_permvar_qi_512
                 : llvm::Intrinsic::x86_avx512_permvar_hi_512,
      {}, {llvm::concatenateVectors(b_, lines), llvm::ConstantVector::get(order)});
  return b_.CreateBitCast(word, words);
}

/// Words of two bytes each, neighbours in memory, with either as 16 bits.
Emitter::V Emitter::widened_parts(std::int32_t id, const Expr& offset, unsigned width) {
  auto* bytes = llvm::FixedVectorType::get(b_.getInt8Ty(), 2 * width);
  auto* halves = llvm::FixedVectorType::get(b_.getInt16Ty(), 2 * width);
  V read = b_.CreateAlignedLoad(bytes, address(id, offset), llvm::Align(1));
  V wide =
      is_signed_int(buffer(id).dtype) ? b_.CreateSExt(read, halves) : b_.CreateZExt(read, halves);
  llvm::Type* word = b_.getInt32Ty();
  return b_.CreateBitCast(wide, width > 1 ? llvm::FixedVectorType::get(word, width) : word);
}

/// Lanes of words of so many elements that one vector has, in any order: a permutation of it. Null
/// where there is no such vector.
Emitter::V Emitter::load_words(std::int32_t id, const Access& a, std::int64_t parts) {
  std::vector<std::int64_t> offsets;
  for (const std::int64_t x : a.offsets) {
    if (x % parts != 0) return nullptr;
    offsets.push_back(x / parts);
  }
  std::vector<std::int64_t> sorted = offsets;
  std::ranges::sort(sorted);
  const auto run = vector_around(id, a, sorted, parts);
  if (!run) return nullptr;
  V x = b_.CreateAlignedLoad(llvm::FixedVectorType::get(b_.getInt32Ty(), run->length),
                             address(id, a.base + Expr(run->start * parts)), align_of(id));
  llvm::SmallVector<int> picks;
  for (const std::int64_t at : offsets) picks.push_back(static_cast<int>(at - run->start));
  return b_.CreateShuffleVector(x, picks);
}

/// Neighbouring integers, or values of bf16, that are parts of one i32 are one load; null where
/// they are not.
Emitter::V Emitter::load_parts(const Apply& x) {
  const auto parts = parts_of(x);
  const auto distance = distance_of_parts(parts);
  if (!distance || distance->constant() != 1) return load_lines(parts);
  const Load& low = *load_under_cast(parts[0]);
  const std::int32_t id = low.buffer.value;
  const std::size_t bytes = 4 / parts.size();
  const DType stored = buffer(id).dtype;
  const bool widens = parts.size() == 2 && (stored == DType::i8 || stored == DType::u8);
  if (!is_bits(parts[0], stored) || in_registers(id) ||
      (!widens && size_of(stored) != static_cast<std::int64_t>(bytes)))
    return nullptr;
  const bool some =
      scope().mask && !always_inside(id, bound(load_under_cast(parts.back())->offset));
  const Access a = access(bound(low.offset));
  unsigned width = 1;
  if (a.kind != Access::Kind::uniform) {
    if (a.kind != Access::Kind::constant || a.offsets.size() != vector_->width) return nullptr;
    for (unsigned i = 0; i < a.offsets.size(); ++i)
      if (a.offsets[i] != static_cast<std::int64_t>(parts.size() * i))
        return some || widens ? nullptr
                              : load_words(id, a, static_cast<std::int64_t>(parts.size()));
    width = vector_->width;
  }
  if (some && (width == 1 || widens)) return nullptr;
  if (widens) return widened_parts(id, a.base, width);
  llvm::Type* type = b_.getInt32Ty();
  if (width > 1) type = llvm::FixedVectorType::get(type, width);
  if (some)
    return b_.CreateMaskedLoad(type, address(id, a.base), llvm::Align(bytes), scope().mask,
                               llvm::Constant::getNullValue(type));
  return b_.CreateAlignedLoad(type, address(id, a.base), llvm::Align(bytes));
}

void Emitter::store(const Store& x) {
  const std::int32_t id = x.buffer.value;
  const Expr offset = bound(x.offset);
  if (!x.dynamic.empty()) {
    store_dynamic(x, offset);
  } else {
    V v = ops_.cast(value(x.value), x.value->dtype, compute_type(buffer(id).dtype));
    if (varies(offset)) {
      store_lanes(id, offset, ops_.splat(v, vector_->width));
    } else {
      store_uniform(id, offset, v);
    }
  }
  touch({id});
}

/// All lanes to one place: the last active one stays, as if lanes ran one after another.
void Emitter::store_uniform(std::int32_t id, const Expr& offset, V v) {
  V mask = scope().mask;
  if (!mask) {
    if (v->getType()->isVectorTy()) v = lane(v, vector_->lanes - 1);
    store_at(id, address(id, offset), v);
    return;
  }
  V ptr = address(id, offset);
  if (!v->getType()->isVectorTy()) return store_if(b_.CreateOrReduce(mask), id, ptr, v);
  for (unsigned i = 0; i < vector_->lanes; ++i) store_if(lane(mask, i), id, ptr, lane(v, i));
}

/// Positions outside [0, extent) drop the store.
void Emitter::store_dynamic(const Store& x, const Expr& offset) {
  const std::int32_t id = x.buffer.value;
  llvm::Type* element = ops_.storage(buffer(id).dtype);
  V v = ops_.cast(value(x.value), x.value->dtype, compute_type(buffer(id).dtype));
  const unsigned lanes = vector_ ? vector_->lanes : 1;
  llvm::SmallVector<V> positions;
  for (const Load::Dynamic& d : x.dynamic) {
    positions.push_back(ops_.cast(value(d.value), d.value->dtype, DType::i64));
  }
  const auto first = neighbours(x.offset);
  const bool together = first && std::none_of(positions.begin(), positions.end(),
                                              [](V p) { return p->getType()->isVectorTy(); });
  if (together) {
    V at = b_.getInt64(0), inside = b_.getTrue();
    for (std::size_t k = 0; k < x.dynamic.size(); ++k) {
      const Load::Dynamic& d = x.dynamic[k];
      inside = b_.CreateAnd(
          inside,
          b_.CreateICmpULT(positions[k], b_.getInt64(static_cast<std::uint64_t>(d.extent))));
      at = b_.CreateAdd(
          at, b_.CreateMul(positions[k], b_.getInt64(static_cast<std::uint64_t>(d.stride))));
    }
    V ptr = b_.CreateGEP(element, address(id, *first), at);
    return store_if(inside, id, ptr, ops_.splat(v, vector_->width));
  }
  V base = varies(offset) ? lane_index(offset, b_.getInt64Ty()) : index(offset);
  V mask = scope().mask;
  for (unsigned i = 0; i < lanes; ++i) {
    V at = lane(base, i);
    V inside = mask ? lane(mask, i) : b_.getTrue();
    for (std::size_t k = 0; k < x.dynamic.size(); ++k) {
      const Load::Dynamic& d = x.dynamic[k];
      V p = lane(positions[k], i);
      V valid = b_.CreateICmpULT(p, b_.getInt64(static_cast<std::uint64_t>(d.extent)));
      inside = b_.CreateAnd(inside, valid);
      at = b_.CreateAdd(at, b_.CreateMul(p, b_.getInt64(static_cast<std::uint64_t>(d.stride))));
    }
    store_if(inside, id, b_.CreateGEP(element, bases_[static_cast<std::size_t>(id)], at),
             lane(v, i));
  }
}

void Emitter::store_if(V condition, std::int32_t id, V ptr, V v) {
  branch(condition, [&] { store_at(id, ptr, v); });
}

/// Lane i of a vector; a scalar is the same in all lanes.
Emitter::V Emitter::lane(V v, unsigned i) {
  return v->getType()->isVectorTy() ? b_.CreateExtractElement(v, i) : v;
}

}  // namespace heddle::codegen::cpu
