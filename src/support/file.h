#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "support/result.h"

namespace heddle {

/// Bytes of a file; `owner` keeps them alive.
struct FileBytes {
  const std::byte* data = nullptr;
  std::size_t size = 0;
  std::shared_ptr<const void> owner;
  std::string_view view() const { return {reinterpret_cast<const char*>(data), size}; }
};

/// A regular file that is open for reading. Only errors of opening it tell the path.
class File {
 public:
  static Result<File> open(const std::string& path);
  File(File&& other) noexcept;
  File& operator=(File&&) = delete;
  ~File();

  std::size_t size() const { return size_; }
  /// Bytes [from, from + count). Error: there are fewer by now.
  Status read(void* to, std::size_t from, std::size_t count) const;
  /// The whole file, mapped: no memory of its own, but whoever cuts the file ends the process.
  Result<FileBytes> map() const;

 private:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;
  std::size_t size_ = 0;
};

/// A file, opened and mapped. Errors tell the path.
Result<FileBytes> map_file(const std::string& path);

}  // namespace heddle
