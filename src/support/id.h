#pragma once
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace heddle {

/// A typed index: ids of different tables never mix.
template <class Tag>
struct Id {
  std::int32_t value = -1;
  explicit operator bool() const { return value >= 0; }
  auto operator<=>(const Id&) const = default;
};

/// Append-only storage addressed by Id<Tag>.
template <class Tag, class T>
class Table {
 public:
  Id<Tag> add(T item) {
    items_.push_back(std::move(item));
    return Id<Tag>{static_cast<std::int32_t>(items_.size() - 1)};
  }
  T& operator[](Id<Tag> id) { return items_[static_cast<std::size_t>(id.value)]; }
  const T& operator[](Id<Tag> id) const { return items_[static_cast<std::size_t>(id.value)]; }
  std::int32_t size() const { return static_cast<std::int32_t>(items_.size()); }
  auto begin() const { return items_.begin(); }
  auto end() const { return items_.end(); }
  bool operator==(const Table&) const = default;

 private:
  std::vector<T> items_;
};

}  // namespace heddle

template <class Tag>
struct std::hash<heddle::Id<Tag>> {
  std::size_t operator()(heddle::Id<Tag> id) const { return std::hash<std::int32_t>{}(id.value); }
};
