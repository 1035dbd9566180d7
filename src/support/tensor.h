#pragma once
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "support/dtype.h"
#include "support/hash.h"
#include "support/result.h"

namespace heddle {

/// A row-major host tensor that shares its bytes: copies are cheap, bytes are shared.
/// The bytes may belong to a mapped file; `owner` keeps that alive.
class Tensor {
 public:
  Tensor() = default;
  /// Zero-filled, 64-byte aligned.
  explicit Tensor(TensorType type);
  /// Bytes for temporary values, on huge pages unless they are few.
  static Tensor workspace(std::int64_t bytes);
  /// Over bytes owned elsewhere (a mapped file); `data` holds the whole tensor.
  Tensor(TensorType type, std::shared_ptr<const void> owner, const std::byte* data)
      : type_(std::move(type)), owner_(std::move(owner)), data_(const_cast<std::byte*>(data)) {}

  template <class T>
  static Tensor from(DType dtype, Shape shape, std::span<const T> values) {
    Tensor tensor(TensorType{dtype, std::move(shape)});
    std::memcpy(tensor.data_, values.data(), values.size_bytes());
    return tensor;
  }

  const TensorType& type() const { return type_; }
  DType dtype() const { return type_.dtype; }
  const Shape& shape() const { return type_.shape; }
  std::int64_t count() const { return element_count(type_.shape); }
  std::int64_t bytes() const { return count() * size_of(type_.dtype); }
  const std::byte* data() const { return data_; }
  std::string_view view() const {
    return {reinterpret_cast<const char*>(data_), static_cast<std::size_t>(bytes())};
  }
  /// For the one who made the tensor, before it is shared.
  std::byte* mutable_data() { return data_; }
  template <class T>
  std::span<const T> as() const {
    return {reinterpret_cast<const T*>(data_), static_cast<std::size_t>(count())};
  }
  template <class T>
  std::span<T> as_mutable() {
    return {reinterpret_cast<T*>(data_), static_cast<std::size_t>(count())};
  }
  /// Same bytes, another shape of equal count.
  Tensor reshaped(Shape shape) const;
  /// Element i converted to double (integers above 2^53 lose precision; see int_at).
  double at(std::int64_t i) const;
  std::int64_t int_at(std::int64_t i) const;
  /// Stores `value` converted to the element type (floats to integers truncate and saturate).
  void set(std::int64_t i, double value);
  void set_int(std::int64_t i, std::int64_t value);

 private:
  Tensor(TensorType type, std::size_t huge_from);

  TensorType type_;
  std::shared_ptr<const void> owner_;
  std::byte* data_ = nullptr;
};

/// Of type and values.
Hash hash_of(const Tensor& tensor);

}  // namespace heddle
