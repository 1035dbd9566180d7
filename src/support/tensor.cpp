#include "support/tensor.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <new>

namespace heddle {
namespace {

template <class T>
T saturate(double value) {
  if (std::isnan(value)) return 0;
  if (value <= static_cast<double>(std::numeric_limits<T>::min()))
    return std::numeric_limits<T>::min();
  if (value >= static_cast<double>(std::numeric_limits<T>::max()))
    return std::numeric_limits<T>::max();
  return static_cast<T>(value);
}

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kWorkspace = std::size_t{128} << 10;

std::shared_ptr<void> few_bytes(std::size_t size) {
  constexpr std::size_t kLine = 64;
  const std::size_t whole = (size + 2 * kLine - 1) / kLine * kLine;
  void* memory = std::aligned_alloc(kLine, whole);
  if (memory == nullptr) throw std::bad_alloc();
  std::memset(memory, 0, size);
  return {memory, [](void* p) { std::free(p); }};
}

/// Zeros from the system, the first `huge` bytes on huge pages: what is freed goes back to it at
/// once, which the C library would keep. Each begins elsewhere in its first page: what is at one
/// place of several, all on huge pages, would meet in one set of a cache, and loads would wait for
/// stores whose addresses have the same last twelve bits.
std::shared_ptr<void> many_bytes(std::size_t size, std::size_t huge) {
  constexpr std::size_t kPage = 4096, kStagger = 5 * 64, kPlaces = 12;
  static std::atomic<std::size_t> tensors = 0;
  const std::size_t place = tensors++ % kPlaces * kStagger;
  const std::size_t whole = std::max(huge, (place + size + 64 + kPage - 1) / kPage * kPage);
  void* mapped = ::mmap(nullptr, whole + kHugePage, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  const auto begin = reinterpret_cast<std::uintptr_t>(mapped);
  const std::size_t before = (kHugePage - begin % kHugePage) % kHugePage;
  char* memory = static_cast<char*>(mapped) + before;
  if (before > 0) ::munmap(mapped, before);
  ::munmap(memory + whole, kHugePage - before);
  // Only advice: the memory is as good, if slower, where the system declines.
  static_cast<void>(::madvise(memory, huge, MADV_HUGEPAGE));
  return {memory + place, [memory, whole](void*) { ::munmap(memory, whole); }};
}

}  // namespace

// Strided access to large tensors does not wait for page walks.
Tensor::Tensor(TensorType type) : Tensor(std::move(type), 2 * kHugePage) {}

// Parts of it meet in few sets of the caches or not as the system gave the pages, were they small.
Tensor Tensor::workspace(std::int64_t bytes) { return Tensor({DType::u8, {bytes}}, kWorkspace); }

Tensor::Tensor(TensorType type, std::size_t huge_from) : type_(std::move(type)) {
  const std::size_t size = static_cast<std::size_t>(bytes());
  const std::size_t full = size / kHugePage * kHugePage, all = full + kHugePage;
  // A last page that would be mostly empty is much memory, of many weights.
  const std::size_t huge = huge_from == kWorkspace || all - size <= size / 16 ? all : full;
  const std::shared_ptr<void> memory = size >= huge_from ? many_bytes(size, huge) : few_bytes(size);
  owner_ = memory;
  data_ = static_cast<std::byte*>(memory.get());
}

Tensor Tensor::reshaped(Shape shape) const {
  HEDDLE_CHECK(element_count(shape) == count(), "{} as {}", to_string(type_), to_string(shape));
  return Tensor({type_.dtype, std::move(shape)}, owner_, data_);
}

double Tensor::at(std::int64_t i) const {
  switch (type_.dtype) {
    case DType::f32:
      return reinterpret_cast<const float*>(data_)[i];
    case DType::f64:
      return reinterpret_cast<const double*>(data_)[i];
    case DType::f16:
      return f16_to_f32(reinterpret_cast<const std::uint16_t*>(data_)[i]);
    case DType::bf16:
      return bf16_to_f32(reinterpret_cast<const std::uint16_t*>(data_)[i]);
    case DType::u64:
      return static_cast<double>(reinterpret_cast<const std::uint64_t*>(data_)[i]);
    default:
      return static_cast<double>(int_at(i));
  }
}

std::int64_t Tensor::int_at(std::int64_t i) const {
  switch (type_.dtype) {
    case DType::i8:
      return reinterpret_cast<const std::int8_t*>(data_)[i];
    case DType::i16:
      return reinterpret_cast<const std::int16_t*>(data_)[i];
    case DType::i32:
      return reinterpret_cast<const std::int32_t*>(data_)[i];
    case DType::i64:
      return reinterpret_cast<const std::int64_t*>(data_)[i];
    case DType::u8:
      return reinterpret_cast<const std::uint8_t*>(data_)[i];
    case DType::u16:
      return reinterpret_cast<const std::uint16_t*>(data_)[i];
    case DType::u32:
      return reinterpret_cast<const std::uint32_t*>(data_)[i];
    case DType::u64:
      return static_cast<std::int64_t>(reinterpret_cast<const std::uint64_t*>(data_)[i]);
    case DType::b1:
      return reinterpret_cast<const std::uint8_t*>(data_)[i] != 0;
    case DType::f32:
    case DType::f64:
    case DType::f16:
    case DType::bf16:
      return saturate<std::int64_t>(at(i));
  }
  return 0;
}

void Tensor::set(std::int64_t i, double value) {
  switch (type_.dtype) {
    case DType::f32:
      reinterpret_cast<float*>(data_)[i] = static_cast<float>(value);
      return;
    case DType::f64:
      reinterpret_cast<double*>(data_)[i] = value;
      return;
    case DType::f16:
      reinterpret_cast<std::uint16_t*>(data_)[i] = f32_to_f16(static_cast<float>(value));
      return;
    case DType::bf16:
      reinterpret_cast<std::uint16_t*>(data_)[i] = f32_to_bf16(static_cast<float>(value));
      return;
    case DType::b1:
      reinterpret_cast<std::uint8_t*>(data_)[i] = value != 0;
      return;
    case DType::i8:
      reinterpret_cast<std::int8_t*>(data_)[i] = saturate<std::int8_t>(value);
      return;
    case DType::i16:
      reinterpret_cast<std::int16_t*>(data_)[i] = saturate<std::int16_t>(value);
      return;
    case DType::i32:
      reinterpret_cast<std::int32_t*>(data_)[i] = saturate<std::int32_t>(value);
      return;
    case DType::i64:
      reinterpret_cast<std::int64_t*>(data_)[i] = saturate<std::int64_t>(value);
      return;
    case DType::u8:
      reinterpret_cast<std::uint8_t*>(data_)[i] = saturate<std::uint8_t>(value);
      return;
    case DType::u16:
      reinterpret_cast<std::uint16_t*>(data_)[i] = saturate<std::uint16_t>(value);
      return;
    case DType::u32:
      reinterpret_cast<std::uint32_t*>(data_)[i] = saturate<std::uint32_t>(value);
      return;
    case DType::u64:
      reinterpret_cast<std::uint64_t*>(data_)[i] = saturate<std::uint64_t>(value);
      return;
  }
}

void Tensor::set_int(std::int64_t i, std::int64_t value) {
  switch (type_.dtype) {
    case DType::i8:
      reinterpret_cast<std::int8_t*>(data_)[i] = static_cast<std::int8_t>(value);
      return;
    case DType::i16:
      reinterpret_cast<std::int16_t*>(data_)[i] = static_cast<std::int16_t>(value);
      return;
    case DType::i32:
      reinterpret_cast<std::int32_t*>(data_)[i] = static_cast<std::int32_t>(value);
      return;
    case DType::i64:
      reinterpret_cast<std::int64_t*>(data_)[i] = value;
      return;
    case DType::u8:
      reinterpret_cast<std::uint8_t*>(data_)[i] = static_cast<std::uint8_t>(value);
      return;
    case DType::u16:
      reinterpret_cast<std::uint16_t*>(data_)[i] = static_cast<std::uint16_t>(value);
      return;
    case DType::u32:
      reinterpret_cast<std::uint32_t*>(data_)[i] = static_cast<std::uint32_t>(value);
      return;
    case DType::u64:
      reinterpret_cast<std::uint64_t*>(data_)[i] = static_cast<std::uint64_t>(value);
      return;
    case DType::b1:
      reinterpret_cast<std::uint8_t*>(data_)[i] = value != 0;
      return;
    case DType::f32:
    case DType::f64:
    case DType::f16:
    case DType::bf16:
      set(i, static_cast<double>(value));
      return;
  }
}

Hash hash_of(const Tensor& tensor) {
  return hash_bytes(to_string(tensor.type()) + to_string(hash_bytes(tensor.view())));
}

}  // namespace heddle
