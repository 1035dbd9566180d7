#include "ops/format.h"

#include <cmath>
#include <iterator>
#include <limits>

namespace heddle::ops {
namespace {

using ir::ScalarFn;
using prim::Builder;
using prim::NodeId;

/// Of a float: how many bits, the exponent's bias, and the codes (without sign) of the largest
/// number, of NaN, and of what overflow gives; `unsigned_zero`: minus zero's code is NaN's.
struct FormatRow {
  std::string_view name;
  int bits;
  bool is_float;
  int mantissa, bias;
  int largest, nan, overflow;
  bool unsigned_zero;
};
// Indexed by Format. The numbers from onnx/docs/docsgen/source/technical/float8.md and float4.md.
constexpr FormatRow kRows[] = {
    {"plain", 0, false, 0, 0, 0, 0, 0, false},
    {"f8e4m3fn", 8, true, 3, 7, 0x7e, 0x7f, 0x7f, false},
    {"f8e4m3fnuz", 8, true, 3, 8, 0x7f, 0x80, 0x80, true},
    {"f8e5m2", 8, true, 2, 15, 0x7b, 0x7e, 0x7c, false},
    {"f8e5m2fnuz", 8, true, 2, 16, 0x7f, 0x80, 0x80, true},
    {"u4", 4, false, 0, 0, 0, 0, 0, false},
    {"i4", 4, false, 0, 0, 0, 0, 0, false},
    {"f4e2m1", 4, true, 1, 1, 0x7, 0x8, 0x7, false},
    {"f8e8m0", 8, true, 0, 127, 0xfe, 0xff, 0xff, false},
    {"u2", 2, false, 0, 0, 0, 0, 0, false},
    {"i2", 2, false, 0, 0, 0, 0, 0, false},
    {"string", 64, false, 0, 0, 0, 0, 0, false},
};
constexpr int kFirstOnnx = 17;  // FLOAT8E4M3FN; the others follow in this order

const FormatRow& row_of(Format format) { return kRows[static_cast<int>(format)]; }

double value_of(Format format, int code) {
  const FormatRow& f = row_of(format);
  if (format == Format::f8e8m0)
    return code == 0xff ? std::numeric_limits<double>::quiet_NaN() : std::ldexp(1.0, code - f.bias);
  const int top = 1 << (f.bits - 1), magnitude = code & (top - 1);
  const double sign = (code & top) != 0 ? -1 : 1;
  const bool has_nan = format != Format::f4e2m1;
  if (f.unsigned_zero && code == f.nan) return std::numeric_limits<double>::quiet_NaN();
  if (has_nan && !f.unsigned_zero && magnitude > f.largest)
    return magnitude == f.overflow && f.overflow != f.nan
               ? sign * std::numeric_limits<double>::infinity()
               : std::numeric_limits<double>::quiet_NaN();
  const int exponent = magnitude >> f.mantissa, fraction = magnitude & ((1 << f.mantissa) - 1);
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - f.bias - f.mantissa);
  return sign * std::ldexp(fraction + (1 << f.mantissa), exponent - f.bias - f.mantissa);
}

/// Unsigned 32-bit arithmetic on bit patterns.
struct Bits {
  Builder& b;
  NodeId number(std::int64_t v) const { return b.scalar_int(DType::u32, v); }
  NodeId shift_right(NodeId x, int by) const {
    return b.map(ScalarFn::shift_right, {x, number(by)});
  }
  NodeId masked(NodeId x, std::int64_t mask) const {
    return b.map(ScalarFn::bit_and, {x, number(mask)});
  }
  NodeId is(ScalarFn fn, NodeId x, std::int64_t v) const { return b.map(fn, {x, number(v)}); }
};

/// Powers of two: the exponent of x, raised by one where rounding says so.
NodeId encode_e8m0(Builder& b, NodeId bits, const Encoding& how) {
  const Bits u{b};
  const NodeId exponent = u.masked(u.shift_right(bits, 23), 0xff);
  if (how.round == Encoding::Round::down) return exponent;
  const NodeId fraction = u.masked(bits, 0x7fffff);
  NodeId raised = u.is(ScalarFn::greater, fraction, 0);
  if (how.round == Encoding::Round::nearest) {  // a tie goes up, except from the smallest power
    const NodeId tie = b.map(ScalarFn::logical_and, {u.is(ScalarFn::equal, fraction, 0x400000),
                                                     u.is(ScalarFn::greater, exponent, 0)});
    raised = b.map(ScalarFn::logical_or, {u.is(ScalarFn::greater, fraction, 0x400000), tie});
  }
  const std::int64_t last = how.saturate ? 0xfe : 0xff;
  raised = b.map(ScalarFn::logical_and, {raised, u.is(ScalarFn::less, exponent, last)});
  return b.add(exponent, b.cast(raised, DType::u32));
}

/// Rounds to nearest even in integer arithmetic on the bits of f32; subnormals by scaling.
NodeId encode_float(Builder& b, NodeId x, const FormatRow& f, bool saturate) {
  const Bits u{b};
  const NodeId bits = b.bitcast(x, DType::u32);
  const NodeId magnitude = u.masked(bits, 0x7fffffff);
  const int drop = 23 - f.mantissa;
  const NodeId odd = u.masked(u.shift_right(magnitude, drop), 1);
  const NodeId rounded = b.add(b.add(magnitude, u.number((1 << (drop - 1)) - 1)), odd);
  const NodeId normal = b.sub(u.shift_right(rounded, drop), u.number((127 - f.bias) << f.mantissa));
  const double scale = std::ldexp(1.0, f.bias - 1 + f.mantissa);
  // Clamped, so that the scaled value is small where it is not chosen.
  const NodeId small = b.min(b.map(ScalarFn::abs, {x}), b.scalar(DType::f32, 2));
  const NodeId subnormal = b.cast(b.map(ScalarFn::round, {b.mul(small, scale)}), DType::u32);
  const NodeId below = u.is(ScalarFn::less, magnitude, std::int64_t{128 - f.bias} << 23);
  NodeId code = b.select(below, subnormal, normal);
  code = b.select(u.is(ScalarFn::greater, code, f.largest),
                  u.number(saturate ? f.largest : f.overflow), code);
  const NodeId sign = b.mul(u.shift_right(bits, 31), u.number(1 << (f.bits - 1)));
  NodeId signed_code = b.map(ScalarFn::bit_or, {code, sign});
  if (f.unsigned_zero) signed_code = b.select(u.is(ScalarFn::equal, code, 0), code, signed_code);
  const NodeId nan = u.number(f.nan);
  const bool nan_has_sign = f.nan < 1 << (f.bits - 1);
  return b.select(u.is(ScalarFn::greater, magnitude, 0x7f800000),
                  nan_has_sign ? b.map(ScalarFn::bit_or, {nan, sign}) : nan, signed_code);
}

}  // namespace

std::string_view name_of(Format format) { return row_of(format).name; }
int bits_of(Format format) { return row_of(format).bits; }

Format format_of_onnx(std::int64_t number) {
  if (number == 8) return Format::text;
  const std::int64_t row = number - kFirstOnnx + 1;
  return row >= 1 && row < static_cast<std::int64_t>(Format::text) ? static_cast<Format>(row)
                                                                   : Format::plain;
}

DType carrier_of(Format format) {
  if (format == Format::text) return DType::i64;
  return format == Format::i4 || format == Format::i2 ? DType::i8 : DType::u8;
}

std::optional<IntRange> int_range(Format format) {
  if (format == Format::plain || format == Format::text || row_of(format).is_float)
    return std::nullopt;
  const std::int64_t count = 1 << bits_of(format);
  if (carrier_of(format) == DType::u8) return IntRange{0, count - 1};
  return IntRange{-count / 2, count / 2 - 1};
}

NodeId decode(Builder& b, NodeId x, Format format, DType to) {
  if (int_range(format)) return b.cast(x, to);
  const int codes = 1 << bits_of(format);
  Tensor table({DType::f32, {codes}});
  for (int code = 0; code < codes; ++code) table.set(code, value_of(format, code));
  return b.cast(b.take(b.constant(table), x, 0), to);
}

NodeId encode(Builder& b, NodeId x, Format format, const Encoding& how) {
  const DType carrier = carrier_of(format);
  if (const auto range = int_range(format)) {
    const NodeId low =
        b.map(ScalarFn::bit_and,
              {b.cast(x, DType::i32), b.scalar_int(DType::i32, (1 << bits_of(format)) - 1)});
    if (range->low == 0) return b.cast(low, carrier);
    // Sign extension.
    const NodeId half = b.scalar_int(DType::i32, -range->low);
    return b.cast(b.sub(b.map(ScalarFn::bit_xor, {low, half}), half), carrier);
  }
  const NodeId real = b.cast(x, DType::f32);
  const NodeId code =
      format == Format::f8e8m0
          ? encode_e8m0(b, b.bitcast(real, DType::u32), how)
          : encode_float(b, real, row_of(format), how.saturate || format == Format::f4e2m1);
  return b.cast(code, carrier);
}

}  // namespace heddle::ops
