#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace heddle {

enum class DType : std::uint8_t { f32, f64, f16, bf16, i8, i16, i32, i64, u8, u16, u32, u64, b1 };

/// Bytes of one stored element (b1 is stored as one byte, 0 or 1).
std::int64_t size_of(DType type);
std::string_view name_of(DType type);
std::optional<DType> dtype_named(std::string_view name);
inline bool is_float(DType t) {
  return t == DType::f32 || t == DType::f64 || t == DType::f16 || t == DType::bf16;
}
inline bool is_signed_int(DType t) {
  return t == DType::i8 || t == DType::i16 || t == DType::i32 || t == DType::i64;
}
inline bool is_unsigned_int(DType t) {
  return t == DType::u8 || t == DType::u16 || t == DType::u32 || t == DType::u64;
}
inline bool is_int(DType t) { return is_signed_int(t) || is_unsigned_int(t); }
/// The type in which arithmetic on `t` is done: f16 and bf16 are storage types, computed in f32.
inline DType compute_type(DType t) { return t == DType::f16 || t == DType::bf16 ? DType::f32 : t; }

float f16_to_f32(std::uint16_t bits);
std::uint16_t f32_to_f16(float value);  ///< round to nearest even
float bf16_to_f32(std::uint16_t bits);
std::uint16_t f32_to_bf16(float value);  ///< round to nearest even

using Shape = std::vector<std::int64_t>;

/// Product of the extents; 1 for a scalar. Extents are checked against overflow where shapes enter.
std::int64_t element_count(const Shape& shape);
/// Row-major strides in elements.
Shape row_major_strides(const Shape& shape);
std::string to_string(const Shape& shape);  ///< "[1,3,224,224]"

/// Largest tensor accepted, in bytes; guards against absurd sizes in malformed models.
constexpr std::int64_t kMaxTensorBytes = std::int64_t{1} << 36;
/// Element count if every extent is >= 0 and the byte size stays below kMaxTensorBytes.
std::optional<std::int64_t> checked_element_count(const Shape& shape, DType type);

struct TensorType {
  DType dtype = DType::f32;
  Shape shape;
  auto operator<=>(const TensorType&) const = default;
};
std::string to_string(const TensorType& type);  ///< "f32[1,3,224,224]"

}  // namespace heddle
