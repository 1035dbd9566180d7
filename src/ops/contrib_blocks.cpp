#include <algorithm>

#include "ops/families.h"
#include "ops/quantize.h"

/// Weights in blocks of few bits with a scale each (com.microsoft).
namespace heddle::ops {
namespace {

using ir::ScalarFn;

/// Gather of data in blocks along quantize_axis with a scale each, as real numbers. Inputs: data (4
/// bits, or u8 that holds numbers of `bits`), indices, scales, zero points (like the data). Indices
/// out of range give zeros.
Result<Values> gather_block_quantized(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 2));
  const Format format = call.format(0);
  const bool bytes = format == Format::plain && b.dtype(call.in(0)) == DType::u8;
  if (!bytes && format != Format::u4 && format != Format::i4)
    return call.unsupported("input 0 is {}, want u4, i4 or u8", to_string(b.type(call.in(0))));
  const std::int64_t bits = call.attribute_int("bits", 4);
  if (bits != 4 && ((bits != 2 && bits != 8) || !bytes))
    return call.unsupported("{} bits, want 2, 4 or 8", bits);
  const int rank = b.rank(call.in(0));
  const int axis = HEDDLE_TRY(call.axis("gather_axis", 0, rank));
  const int blocks = HEDDLE_TRY(call.axis("quantize_axis", 1, rank));
  const std::int64_t block = call.attribute_int("block_size", 128);
  if (block < 16 || block > kMaxTableElements || axis == blocks ||
      (bytes && (axis != 0 || blocks != rank - 1)))
    return call.error("gather_axis is {}, quantize_axis {}, block_size {}", axis, blocks, block);
  HEDDLE_TRY(want_rank(call, b, 2, rank, rank));
  if (call.has(3)) {
    HEDDLE_TRY(want_rank(call, b, 3, rank, rank));
    HEDDLE_TRY(want_type(call, b, 3, b.dtype(call.in(0))));
    if (call.format(3) != format) return call.error("input 3 is {}", name_of(call.format(3)));
  }
  const std::int64_t extent = at(b.shape(call.in(0)), blocks) * (bytes ? 8 / bits : 1),
                     count = (extent + block - 1) / block;
  std::optional<NodeId> parts[3];
  for (int i = 0; i < 3; ++i) {
    const int input = i == 0 ? 0 : i + 1;
    if (!call.has(input)) continue;
    if (at(b.shape(call.in(input)), axis) != at(b.shape(call.in(0)), axis))
      return call.error("input {} has shape {}", input, to_string(b.shape(call.in(input))));
    NodeId part =
        HEDDLE_TRY(expand_as(call, b, "Gather", {call.in(input), call.in(1)},
                             {call.format(input), Format::plain}, {{"axis", std::int64_t{axis}}}));
    if (bytes && i != 1) part = unpacked(b, part, bits);
    if (bytes && i == 2)  // the last numbers of a byte may be nobody's
      part = b.slice_axis(part, b.rank(part) - 1, 0, std::min(b.shape(part).back(), count));
    parts[i] = part;
  }
  if (bytes && !parts[2])
    parts[2] = b.full({DType::i32, b.shape(*parts[1])}, static_cast<double>(1 << (bits - 1)));
  const int moved = blocks < axis ? blocks : blocks - 1 + b.rank(call.in(1));
  const Format zero = bytes ? Format::plain : format;
  const NodeId y = HEDDLE_TRY(expand_as(call, b, "DequantizeLinear", {parts[0], parts[1], parts[2]},
                                        {zero, Format::plain, zero},
                                        {{"axis", std::int64_t{moved}}, {"block_size", block}}));
  const std::int64_t rows = at(b.shape(call.in(0)), axis);
  Shape along(static_cast<std::size_t>(b.rank(y)), 1);
  std::ranges::copy(b.shape(call.in(1)), along.begin() + axis);
  const NodeId index = b.reshape(b.cast(call.in(1), DType::i64), along);
  const NodeId inside = b.map(
      ScalarFn::logical_and,
      {compare(b, ScalarFn::greater_equal, index, -rows), compare(b, ScalarFn::less, index, rows)});
  return Values{b.select(inside, y, b.scalar(b.dtype(y), 0))};
}

/// A · Bᵀ where B [N, blocks, bytes] holds blocks of `bits`-bit numbers, from the low end of each
/// byte, with a scale each and a zero point of 2^(bits-1) (or given: packed alike, or real
/// numbers). Input 4 may say which block's scale and zero point each column has.
Result<Values> matmul_nbits(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  HEDDLE_TRY(want_type(call, b, 1, DType::u8));
  const std::int64_t k = call.attribute_int("K", 0), n = call.attribute_int("N", 0);
  const std::int64_t block = call.attribute_int("block_size", 32);
  const std::int64_t bits = call.attribute_int("bits", 4);
  if (bits != 2 && bits != 4 && bits != 8) return call.unsupported("{} bits, want 2, 4 or 8", bits);
  constexpr std::int64_t kMost = 1 << 20;
  if (k < 1 || n < 1 || k > kMost || n > kMost || block < 16 || block > 4096)
    return call.error("K is {}, N {}, block_size {}", k, n, block);
  const std::int64_t blocks = (k + block - 1) / block, per_byte = 8 / bits;
  HEDDLE_TRY(want_shape(call, b, 1, {n, blocks, block / per_byte}));
  if (b.rank(call.in(0)) < 2 || b.shape(call.in(0)).back() != k)
    return call.error("input 0 has shape {}, want {} columns", to_string(b.shape(call.in(0))), k);
  const DType real = compute_type(b.dtype(call.in(0)));
  HEDDLE_TRY(want_float(call, b, 2));
  if (element_count(b.shape(call.in(2))) != n * blocks)
    return call.error("input 2 has shape {}, want {} scales", to_string(b.shape(call.in(2))),
                      n * blocks);
  const NodeId scales = b.cast(b.reshape(call.in(2), {n, blocks}), real);
  NodeId zeros = b.full({real, {n, blocks}}, static_cast<double>(std::int64_t{1} << (bits - 1)));
  if (call.has(3)) {
    const bool packed = b.dtype(call.in(3)) == DType::u8;
    if (!packed) HEDDLE_TRY(want_float(call, b, 3));
    const std::int64_t row = packed ? (blocks + per_byte - 1) / per_byte : blocks;
    if (element_count(b.shape(call.in(3))) != n * row)
      return call.error("input 3 has shape {}, want {} {}", to_string(b.shape(call.in(3))), n * row,
                        packed ? "bytes" : "numbers");
    const NodeId points = b.reshape(call.in(3), {n, row});
    zeros = b.cast(packed ? b.slice_axis(unpacked(b, points, bits), 1, 0, blocks) : points, real);
  }
  NodeId w = b.cast(unpacked(b, call.in(1), bits), real);  // [n, blocks, block]
  if (call.has(4)) {
    HEDDLE_TRY(want_type(call, b, 4, DType::i32));
    HEDDLE_TRY(want_rank(call, b, 4, 1, 1));
    if (b.shape(call.in(4))[0] < k)
      return call.error("input 4 has shape {}, want {} blocks", to_string(b.shape(call.in(4))), k);
    const NodeId which = b.slice_axis(call.in(4), 0, 0, k);
    w = b.slice_axis(b.reshape(w, {n, blocks * block}), 1, 0, k);
    w = b.mul(b.sub(w, b.take(zeros, which, 1)), b.take(scales, which, 1));
  } else {
    const Shape each{n, blocks, 1};
    w = b.mul(b.sub(w, b.reshape(zeros, each)), b.reshape(scales, each));
    w = b.slice_axis(b.reshape(w, {n, blocks * block}), 1, 0, k);
  }
  NodeId y = b.matmul(b.cast(call.in(0), real), b.transpose(w, {1, 0}));
  if (call.has(5)) {
    HEDDLE_TRY(want_shape(call, b, 5, {n}));
    HEDDLE_TRY(want_float(call, b, 5));
    y = b.add(y, b.cast(call.in(5), real));
  }
  return Values{b.cast(y, b.dtype(call.in(0)))};
}

/// The numbers that four bits stand for in bitsandbytes: FP4 and NF4 (Dettmers et al. 2023).
std::vector<double> bnb4_numbers(bool normal) {
  if (normal)
    return {-1.0,
            -0.6961928009986877,
            -0.5250730514526367,
            -0.39491748809814453,
            -0.28444138169288635,
            -0.18477343022823334,
            -0.09105003625154495,
            0.0,
            0.07958029955625534,
            0.16093020141124725,
            0.24611230194568634,
            0.33791524171829224,
            0.44070982933044434,
            0.5626170039176941,
            0.7229568362236023,
            1.0};
  std::vector<double> out{0, 1.0 / 192, 2.0 / 3, 1, 1.0 / 3, 0.5, 1.0 / 6, 0.25};
  for (int i = 0; i < 8; ++i) out.push_back(-out[static_cast<std::size_t>(i)]);
  return out;
}

/// A · Bᵀ where the numbers of B [N, K], row by row, are four bits each, the first of a byte in its
/// high end, and each block of them has its largest magnitude.
Result<Values> matmul_bnb4(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  HEDDLE_TRY(want_type(call, b, 1, DType::u8));
  HEDDLE_TRY(want_float(call, b, 2));
  const std::int64_t k = call.attribute_int("K", 0), n = call.attribute_int("N", 0);
  const std::int64_t block = call.attribute_int("block_size", 64);
  const std::int64_t kind = call.attribute_int("quant_type", 1);
  if (call.attribute_int("transB", 1) == 0) return call.unsupported("transB is 0");
  constexpr std::int64_t kMost = 1 << 20;
  if (k < 1 || n < 1 || k > kMost || n > kMost || block < 2 || block > kMost || block % 2 != 0 ||
      kind < 0 || kind > 1)
    return call.error("K is {}, N {}, block_size {}, quant_type {}", k, n, block, kind);
  const std::int64_t count = n * k, blocks = (count + block - 1) / block;
  if (element_count(b.shape(call.in(1))) != (count + 1) / 2 ||
      element_count(b.shape(call.in(2))) != blocks)
    return call.error("{} bytes and {} scales for {} numbers", element_count(b.shape(call.in(1))),
                      element_count(b.shape(call.in(2))), count);
  if (b.rank(call.in(0)) < 2 || b.shape(call.in(0)).back() != k)
    return call.error("input 0 has shape {}, want {} columns", to_string(b.shape(call.in(0))), k);
  const DType real = compute_type(b.dtype(call.in(0)));
  const NodeId bytes = b.reshape(call.in(1), {(count + 1) / 2, 1});
  const NodeId which = b.flip(b.reshape(unpacked(b, bytes, 4), {(count + 1) / 2, 2}), {1});
  const NodeId numbers = constant_real(b, real, bnb4_numbers(kind == 1), {16});
  NodeId w = b.take(numbers, b.reshape(which, {(count + 1) / 2 * 2}), 0);
  w = b.pad(w, {0}, {blocks * block - b.shape(w)[0]}, 0);
  w = b.mul(b.reshape(w, {blocks, block}), b.cast(b.reshape(call.in(2), {blocks, 1}), real));
  w = b.reshape(b.slice_axis(b.reshape(w, {blocks * block}), 0, 0, count), {n, k});
  const NodeId y = b.matmul(b.cast(call.in(0), real), b.transpose(w, {1, 0}));
  return Values{b.cast(y, b.dtype(call.in(0)))};
}

constexpr OpDef kContribBlockOps[] = {
    {"com.microsoft::MatMulNBits", 1, 3, 6, matmul_nbits},
    {"com.microsoft::MatMulBnb4", 1, 3, 3, matmul_bnb4},
    {"com.microsoft::GatherBlockQuantized", 1, 3, 4, gather_block_quantized, OpDef::Stored::knows},
};

}  // namespace

NodeId unpacked(Builder& b, NodeId bytes, std::int64_t bits) {
  const NodeId wide = b.cast(bytes, DType::i32);
  if (bits == 8) return wide;
  const int rank = b.rank(wide);
  std::vector<NodeId> parts;
  for (std::int64_t low = 0; low < 8; low += bits) {
    NodeId part =
        low == 0 ? wide : b.map(ScalarFn::shift_right, {wide, b.scalar_int(DType::i32, low)});
    if (low + bits < 8)
      part = b.map(ScalarFn::bit_and, {part, b.scalar_int(DType::i32, (1 << bits) - 1)});
    parts.push_back(b.unsqueeze(part, {rank}));
  }
  Shape shape = b.shape(wide);
  shape.back() *= 8 / bits;
  return b.reshape(b.concat(parts, rank), shape);
}

std::span<const OpDef> contrib_block_ops() { return kContribBlockOps; }

}  // namespace heddle::ops
