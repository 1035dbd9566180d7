#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

#include "prim/builder.h"

/// Number formats that only store: their elements travel as bytes, one each (floats by their bits
/// as u8, integers by value as u8 or i8), and the operators that may use them decode and encode
/// them in ordinary arithmetic. Below the operators nothing knows them.
namespace heddle::ops {

enum class Format : std::uint8_t {
  plain,  ///< the element type says it all
  f8e4m3fn,
  f8e4m3fnuz,
  f8e5m2,
  f8e5m2fnuz,
  u4,
  i4,
  f4e2m1,
  f8e8m0,
  u2,
  i2,
  text,  ///< strings, as the numbers of support/text_id.h in i64
};

std::string_view name_of(Format format);
/// By ONNX's TensorProto.DataType; plain for other types.
Format format_of_onnx(std::int64_t number);
int bits_of(Format format);
/// The type that carries the elements.
DType carrier_of(Format format);
/// Whether the elements are integers, and then the smallest and largest.
struct IntRange {
  std::int64_t low, high;
};
std::optional<IntRange> int_range(Format format);

/// What becomes of values beyond the largest, and how f8e8m0 rounds.
struct Encoding {
  bool saturate = true;
  enum class Round : std::uint8_t { up, down, nearest } round = Round::up;
};
/// The elements of x, of that format, as numbers of type `to`.
prim::NodeId decode(prim::Builder& b, prim::NodeId x, Format format, DType to);
/// Numbers in the format: floats rounded to nearest even, integers truncated and wrapped.
prim::NodeId encode(prim::Builder& b, prim::NodeId x, Format format, const Encoding& encoding);

}  // namespace heddle::ops
